"""Rules of a configuration that keep the agent from starting, though kubelet's validation has no problem with it.

Kubelet finds some of these problems only at its start. The others only Evenkeel refuses.
"""

from collections.abc import Iterator, Mapping

from evenkeel.api.config import (
    HOST_ACCESS,
    KubeletConfiguration,
    Profile,
    defaulted,
    flag_of,
)
from evenkeel.api.config_validation import (
    SECOND,
    one_of,
    out_of_bounds,
    problem,
    problem_of_pair,
    unknown_words,
)
from evenkeel.api.scalars import Duration, cpuset_fault, is_within, parse_cpuset, path_fault
from evenkeel.errors import EvenkeelError, Problem
from evenkeel.quantity import Quantity


def start_problems(config: KubeletConfiguration) -> Iterator[Problem]:
    """Problems that `validate_config` does not report, as in kubelet, and that keep the agent from starting."""
    full = defaulted(config)
    yield from unknown_words(full, _WORDS)
    yield from out_of_bounds(full, _BOUNDS)
    yield from _periods(full)
    yield from _log_size(full)
    yield from _cgroup_paths(full)
    yield from _host_access(full)
    yield from _reserved_cpus(full)


_WORDS = {
    "cgroup_driver": ("cgroupfs", "systemd"),
    "cpu_manager_policy": ("none", "static"),
    "memory_high_stall": ("raise", "kill", "report"),
    "eviction_order": ("class", "priority"),
    "image_pull_credentials_verification_policy": ("NeverVerifyPreloadedImages", "NeverVerify"),
}
_BOUNDS: Mapping[str, tuple[int, int | None]] = {
    "cpu_burst": (0, 100),
    "oom_retries": (0, None),
}
_LEAST_PERIODS = {
    "cpu_kills_window": SECOND,
    "memory_high_stall_period": SECOND,
    "oom_retries_reset": Duration(0),
    "eviction_pressure_transition_period": Duration(0),
}


def _periods(config: KubeletConfiguration) -> Iterator[Problem]:
    for attribute, shortest in _LEAST_PERIODS.items():
        if attribute == "eviction_pressure_transition_period" and config.rulebook is Profile.KUBERNETES:
            continue  # kubelet takes a negative number for 0
        if (seen := getattr(config, attribute)) < shortest:
            yield problem(attribute, f"must be at least {shortest}, not {seen}")


def _log_size(config: KubeletConfiguration) -> Iterator[Problem]:
    try:
        if Quantity.parse(config.container_log_max_size).sign <= 0:
            yield problem(
                "container_log_max_size", f"must be more than nothing, not {config.container_log_max_size}"
            )
    except EvenkeelError as error:
        yield problem("container_log_max_size", f"is no size: {error}")


def _host_access(config: KubeletConfiguration) -> Iterator[Problem]:
    for seen in config.allowed_host_access:
        if seen not in HOST_ACCESS:
            yield problem("allowed_host_access", one_of(HOST_ACCESS, seen), "FieldValueNotSupported")
    if fault := path_fault(config.seccomp_profile_root):
        yield problem("seccomp_profile_root", fault)


def _cgroup_paths(config: KubeletConfiguration) -> Iterator[Problem]:
    """B5: the paths must be absolute. Document B does not allow systemd's names of cgroups."""
    for attribute in ("cgroup_root", "kube_reserved_cgroup", "system_reserved_cgroup"):
        path = getattr(config, attribute)
        if path and (fault := path_fault(path)):
            yield problem(attribute, fault)
    for path in config.hands_off:
        if fault := path_fault(path):
            yield problem("hands_off", f"holds a path that {fault}")
    pods = f"{config.cgroup_root.rstrip('/')}/kubepods"
    for attribute in ("kube_reserved_cgroup", "system_reserved_cgroup"):
        path = getattr(config, attribute)
        if path and (is_within(pods, path) or is_within(path, pods)):
            yield problem_of_pair(
                attribute,
                "cgroup_root",
                f"{flag_of(attribute)} {path} and the pods' cgroup {pods} (--cgroup-root) lie within each"
                " other, so pods would share the reservation: name a cgroup beside it",
            )
    kube, system = config.kube_reserved_cgroup, config.system_reserved_cgroup
    if kube and kube.rstrip("/") == system.rstrip("/"):
        yield problem_of_pair(
            "kube_reserved_cgroup",
            "system_reserved_cgroup",
            f"--kube-reserved-cgroup and --system-reserved-cgroup both name {kube}: a cgroup has one limit,"
            " so name two cgroups, or put both amounts into one reservation",
        )


def _reserved_cpus(config: KubeletConfiguration) -> Iterator[Problem]:
    try:
        parse_cpuset(config.reserved_system_cpus)
    except EvenkeelError as error:
        if not cpuset_fault(config.reserved_system_cpus):  # otherwise that is reported already
            yield problem("reserved_system_cpus", f"is no set of CPUs: {error}")
