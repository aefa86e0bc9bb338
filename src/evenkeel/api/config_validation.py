"""Validation of a configuration: kubelet's rules for the fields that Evenkeel has, the rules of document B, and our
own.

A problem names its field and its flag. Where two settings contradict each other it names both (`field` has them with ",
" between). `validate_config` has the rules that kubelet applies when it has read its file. `config_start_rules` has the
rules that kubelet applies only at its start, and those of Evenkeel alone. The machine itself is not examined here, and
`policy.allocatable` checks amounts."""

from collections.abc import Iterator, Mapping

from evenkeel.api.config import (
    DEFAULT_CFS_QUOTA_PERIOD,
    FEATURE_GATES,
    KUBE_RESERVED,
    KUBE_RESERVED_COMPRESSIBLE,
    NOTHING_ENFORCED,
    PODS_ENFORCED,
    SYSTEM_RESERVED,
    SYSTEM_RESERVED_COMPRESSIBLE,
    WHOLE_STAGES,
    KubeletConfiguration,
    Profile,
    defaulted,
    flag_of,
)
from evenkeel.api.encode import camel
from evenkeel.api.scalars import Duration, cpuset_fault
from evenkeel.errors import Problem

ENFORCEABLE = (
    PODS_ENFORCED,
    KUBE_RESERVED,
    SYSTEM_RESERVED,
    KUBE_RESERVED_COMPRESSIBLE,
    SYSTEM_RESERVED_COMPRESSIBLE,
    NOTHING_ENFORCED,
)
_CGROUP_OF = {
    KUBE_RESERVED: "kube_reserved_cgroup",
    KUBE_RESERVED_COMPRESSIBLE: "kube_reserved_cgroup",
    SYSTEM_RESERVED: "system_reserved_cgroup",
    SYSTEM_RESERVED_COMPRESSIBLE: "system_reserved_cgroup",
}
_OTHER_HALF = {KUBE_RESERVED: KUBE_RESERVED_COMPRESSIBLE, SYSTEM_RESERVED: SYSTEM_RESERVED_COMPRESSIBLE}


def validate_config(config: KubeletConfiguration, cgroup_version: int | None = None) -> Iterator[Problem]:
    """Every rule that `config` breaks, in the order of its fields.

    `cgroup_version`, if it is known, adds the rules that depend on it.
    """
    full = defaulted(config)
    yield from _locked_gates(full)
    yield from unknown_words(full, _WORDS)
    yield from _swap(full)
    yield from out_of_bounds(full, _BOUNDS)
    yield from _restart_period(full)
    yield from _enforcement(full)
    yield from _cpus(full)
    yield from _memory(full)
    yield from _images(full)
    yield from _shutdown(full)
    yield from _oom_kills(config)
    if cgroup_version == 1:
        yield from _cgroup_v1(full)


def config_warnings(config: KubeletConfiguration) -> Iterator[Problem]:
    """Settings that are allowed and have no effect here: feature gates."""
    known = (*FEATURE_GATES, *WHOLE_STAGES)
    for gate in config.feature_gates:
        if gate not in known:
            from evenkeel.api.known_fields import closest

            meant = closest(gate, known)
            mend = f"; did you mean {meant}?" if meant else ""
            yield problem("feature_gates", f"names {gate[:60]}, which changes nothing here{mend}", key=gate)


def problem(attribute: str, message: str, kind: str = "FieldValueInvalid", key: str = "") -> Problem:
    field = f"{camel(attribute)}[{key[:60]}]" if key else camel(attribute)
    return Problem(field, f"{flag_of(attribute)} {message}", kind)


def problem_of_pair(first: str, second: str, message: str, kind: str = "FieldValueInvalid") -> Problem:
    return Problem(f"{camel(first)}, {camel(second)}", message, kind)


_LEAST_SHUTDOWN = Duration(10**9)


def _locked_gates(config: KubeletConfiguration) -> Iterator[Problem]:
    if config.rulebook is not Profile.KUBERNETES:
        return
    for name, gate in FEATURE_GATES.items():
        if gate.locked and config.feature_gates.get(name, gate.enabled) != gate.enabled:
            yield problem("feature_gates", f"cannot switch {name}, which kubelet has locked", key=name)


_WORDS = {
    "profile": tuple(Profile),
    "memory_reservation_policy": ("None", "TieredReservation"),
}


def unknown_words(config: KubeletConfiguration, known: Mapping[str, tuple[str, ...]]) -> Iterator[Problem]:
    for attribute, words in known.items():
        seen = getattr(config, attribute)
        if seen not in words:
            yield problem(attribute, one_of(words, seen), "FieldValueNotSupported")


def _swap(config: KubeletConfiguration) -> Iterator[Problem]:
    swap = config.memory_swap.swap_behavior
    words = ("", "NoSwap", "LimitedSwap")
    if swap and not config.feature("NodeSwap"):
        message = "cannot be set while the feature gate NodeSwap (--feature-gates) is off"
    elif swap not in words:
        message = one_of(words[1:], swap)
    else:
        return
    yield Problem("memorySwap.swapBehavior", f"{flag_of('memory_swap')} {message}", "FieldValueNotSupported")


def one_of(words: tuple[str, ...], seen: str) -> str:
    from evenkeel.api.known_fields import closest

    meant = closest(seen, words)
    mend = f"; did you mean {meant}?" if meant else ""
    return f'must be {" or ".join(words)}, not "{seen[:60]}"{mend}'


SECOND = Duration(10**9)
_LONGEST_RESTART_PERIOD = Duration(300 * 10**9)
_BEYOND_RESTART_PERIOD = Duration(_LONGEST_RESTART_PERIOD + 10**6)  # kubelet counts whole milliseconds
# Attribute → its minimum and maximum.
_BOUNDS: Mapping[str, tuple[int, int | None]] = {
    "max_pods": (0, None),
    "pods_per_core": (0, None),
    "oom_score_adj": (-1000, 1000),
    "container_log_max_files": (2, None),
    "registry_pull_qps": (0, None),
    "registry_burst": (0, None),
    "image_gc_high_threshold_percent": (0, 100),
    "image_gc_low_threshold_percent": (0, 100),
}


def out_of_bounds(
    config: KubeletConfiguration, bounds: Mapping[str, tuple[int, int | None]]
) -> Iterator[Problem]:
    for attribute, (least, greatest) in bounds.items():
        seen = getattr(config, attribute)
        if greatest is None and seen < least:
            yield problem(attribute, f"must be at least {least}, not {seen}")
        elif greatest is not None and not least <= seen <= greatest:
            yield problem(attribute, f"must be from {least} to {greatest}, not {seen}")


def _restart_period(config: KubeletConfiguration) -> Iterator[Problem]:
    wait = config.crash_loop_back_off.max_container_restart_period
    if wait is None:
        return
    gate = "KubeletCrashLoopBackOffMax"
    if not config.feature(gate):
        message = f"cannot be set while the feature gate {gate} (--feature-gates) is off"
    elif not SECOND <= wait < _BEYOND_RESTART_PERIOD:
        message = f"must be from {SECOND} to {_LONGEST_RESTART_PERIOD}, not {wait}"
    else:
        return
    field = "crashLoopBackOff.maxContainerRestartPeriod"
    yield Problem(field, f"{flag_of('crash_loop_back_off')} {message}")


def _enforcement(config: KubeletConfiguration) -> Iterator[Problem]:
    """B4 and B6: each pair of settings of document B that cannot be combined."""
    attribute, flag = "enforce_node_allocatable", flag_of("enforce_node_allocatable")
    keys = config.enforce_node_allocatable
    for whole, half in _OTHER_HALF.items():
        if whole in keys and half in keys:
            yield problem(attribute, f"cannot hold both {whole} and {half}: the first contains the second")
    for place, key in enumerate(keys):
        if key in keys[:place]:
            yield problem(attribute, f'holds "{key[:60]}" twice: name it once', "FieldValueDuplicate")
            continue
        if key not in ENFORCEABLE:
            yield problem(
                attribute,
                f"takes a list of words: each {one_of(ENFORCEABLE, key)}",
                "FieldValueNotSupported",
            )
            continue
        if key == NOTHING_ENFORCED:
            if len(keys) > 1:
                yield problem(
                    attribute, f"holds {NOTHING_ENFORCED} beside other words: leave one of them out"
                )
            continue
        cgroup = _CGROUP_OF.get(key)
        if cgroup and not getattr(config, cgroup):
            yield problem_of_pair(
                attribute,
                cgroup,
                f"{flag} holds {key}, so {flag_of(cgroup)} must name the cgroup to enforce it on: write"
                f" {flag_of(cgroup)}=/{key.partition('-')[0]}.slice, or take {key} out",
                "FieldValueRequired",
            )
        if not config.cgroups_per_qos:
            yield problem_of_pair(
                attribute,
                "cgroups_per_qos",
                f'{flag} holds {key}, which needs --cgroups-per-qos=true: write {flag}="" to enforce nothing',
            )


def _cpus(config: KubeletConfiguration) -> Iterator[Problem]:
    period = config.cpu_cfs_quota_period
    if not config.feature("CustomCPUCFSQuotaPeriod"):
        if period != DEFAULT_CFS_QUOTA_PERIOD:
            yield problem(
                "cpu_cfs_quota_period",
                f"must be {DEFAULT_CFS_QUOTA_PERIOD}, not {period}, while the feature gate"
                " CustomCPUCFSQuotaPeriod (--feature-gates) is off",
            )
    elif not 10**6 <= period <= 10**9:
        yield problem("cpu_cfs_quota_period", f"must be from 1ms to 1s, not {period}")
    if not config.reserved_system_cpus:
        return
    if fault := cpuset_fault(config.reserved_system_cpus):
        yield problem("reserved_system_cpus", f"is no set of CPUs: {fault}")
    if config.kube_reserved_cgroup or config.system_reserved_cgroup:
        yield Problem(
            "reservedSystemCPUs, kubeReservedCgroup, systemReservedCgroup",
            "--reserved-cpus keeps whole CPUs free and cannot be used with --kube-reserved-cgroup or"
            " --system-reserved-cgroup: leave out one or the other",
        )


# Kubelet's default until 1.36. It may still be in the file of a node whose gate is off.
_FORMER_FACTOR = 0.9


def _memory(config: KubeletConfiguration) -> Iterator[Problem]:
    factor, gate = config.memory_throttling_factor, config.feature("MemoryQoS")
    off = "while the feature gate MemoryQoS (--feature-gates) is off"
    if factor is not None and not 0 < factor <= 1:
        yield problem("memory_throttling_factor", f"must be more than 0 and at most 1, not {factor:g}")
    elif not gate and config.rulebook is Profile.KUBERNETES and factor not in (None, _FORMER_FACTOR):
        # In the documents profile MemoryQoS can be switched off and on without other changes (B13, C4).
        yield problem("memory_throttling_factor", f"cannot be set {off}")
    if not gate and config.memory_reservation_policy == "TieredReservation":
        yield problem("memory_reservation_policy", f"cannot be TieredReservation {off}")


def _images(config: KubeletConfiguration) -> Iterator[Problem]:
    low, high = config.image_gc_low_threshold_percent, config.image_gc_high_threshold_percent
    if low >= high:
        yield problem_of_pair(
            "image_gc_low_threshold_percent",
            "image_gc_high_threshold_percent",
            f"{flag_of('image_gc_low_threshold_percent')} {low} must be less than "
            f"{flag_of('image_gc_high_threshold_percent')} {high}: images are removed from the second down to the "
            "first",
        )
    most = config.max_parallel_image_pulls
    if most is not None and most < 1:
        yield problem("max_parallel_image_pulls", f"must be at least 1, not {most}")
    elif most is not None and most > 1 and config.serialize_image_pulls:
        yield problem_of_pair(
            "max_parallel_image_pulls",
            "serialize_image_pulls",
            f"{flag_of('max_parallel_image_pulls')} {most} needs {flag_of('serialize_image_pulls')}=false",
        )
    least, greatest = config.image_minimum_gc_age, config.image_maximum_gc_age
    if greatest < 0:
        yield problem("image_maximum_gc_age", f"must not be negative, and is {greatest}")
    elif greatest and greatest <= least:
        yield problem_of_pair(
            "image_maximum_gc_age",
            "image_minimum_gc_age",
            f"{flag_of('image_maximum_gc_age')} {greatest} must be longer than "
            f"{flag_of('image_minimum_gc_age')} {least}, or 0 for none",
        )


def _shutdown(config: KubeletConfiguration) -> Iterator[Problem]:
    whole, critical = config.shutdown_grace_period, config.shutdown_grace_period_critical_pods
    for attribute in ("shutdown_grace_period", "shutdown_grace_period_critical_pods"):
        seen: Duration = getattr(config, attribute)
        if seen and seen < _LEAST_SHUTDOWN:
            yield problem(attribute, f"must be 0 or at least {_LEAST_SHUTDOWN}, not {seen}")
    if critical > whole:
        yield problem_of_pair(
            "shutdown_grace_period_critical_pods",
            "shutdown_grace_period",
            f"{flag_of('shutdown_grace_period_critical_pods')} {critical} must not be longer than "
            f"{flag_of('shutdown_grace_period')} {whole}, of which it is a part",
        )


def _oom_kills(config: KubeletConfiguration) -> Iterator[Problem]:
    single, group = config.single_process_oom_kill, config.oom_group_kill
    if single is not None and single is group:
        yield problem_of_pair(
            "single_process_oom_kill",
            "oom_group_kill",
            f"--single-process-oom-kill and --oom-group-kill are one switch with two names, and both are"
            f" {str(single).lower()}: leave one of them out",
        )


def _cgroup_v1(config: KubeletConfiguration) -> Iterator[Problem]:
    if config.fail_cgroup_v1:
        yield problem("fail_cgroup_v1", "is true and this machine has cgroup v1: set it to false to run here")
    if config.single_process_oom_kill is False:
        yield problem(
            "single_process_oom_kill",
            "cannot be false on a machine with cgroup v1, which kills single processes only: leave it out",
        )
