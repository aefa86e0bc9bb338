"""Checks of the kernel: its features, its settings, swap, and the capabilities of the agent."""

from collections.abc import Iterator

from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup.tree import Version
from evenkeel.host.checks import Check, CheckFunction, State, boot_with, has_feature, not_inspected
from evenkeel.host.kernel_settings import mend as sysctl_mend
from evenkeel.host.kernel_settings import swap_mend
from evenkeel.host.machine import FEATURE_FILES, Machine

# Feature of a v2 kernel: what happens without it. All promises hold without it, but at a higher cost.
_WITHOUT = {
    "memory.oom.group": ("a container is killed whole by the agent, not by the kernel", "A19"),
    "memory.reclaim": ("nothing can be reclaimed from a single pod before one is evicted", "A15"),
    "cgroup.kill": ("a container is killed process by process", "A19"),
}
_MRELEASE_SINCE = "5.15"


def features(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:
    name = "kernel"
    missing = False
    if machine.cgroups is not None and machine.cgroups.version == Version.V2:
        for feature, (promise, requirement) in _WITHOUT.items():
            if has_feature(machine, feature) is False:
                missing = True
                yield _without(machine, feature, FEATURE_FILES[feature], promise, requirement)
    if has_feature(machine, "process_mrelease") is False:
        missing = True
        promise = "the memory of an evicted pod comes back only when its processes get to run once more"
        yield _without(machine, "process_mrelease", _MRELEASE_SINCE, promise, "E2")
    if config.cpu_burst and machine.cgroups is not None:
        file = "cpu.cfs_burst_us" if machine.cgroups.version == Version.V1 else "cpu.max.burst"
        if has_feature(machine, file) is False:
            missing = True
            promise = "containers cannot carry CPU over from idle periods, as --cpu-burst asks"
            burst = _without(machine, file, FEATURE_FILES[file], promise, "A23")
            yield burst._replace(state=State.BROKEN, mends=(*burst.mends, "--cpu-burst 0"))
    if not missing:
        yield Check(name, State.OK, f"{machine.kernel} has what is needed")


def _without(machine: Machine, feature: str, since: str, promise: str, requirement: str) -> Check:
    newer = f"start a kernel of version {since} or later"
    return Check(
        "kernel", State.NOTE, f"{machine.kernel} has no {feature}", promise, (requirement,), (newer,)
    )


def pressure(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:  # noqa: ARG001
    name = "pressure"
    if machine.pressure_refusal:
        v1 = machine.cgroups is not None and machine.cgroups.version == Version.V1
        yield Check(
            name,
            State.NOTE if v1 else State.BROKEN,
            f"no pressure figures: {machine.pressure_refusal}",
            "memory pressure is noticed by usage thresholds alone"
            if v1
            else "memory pressure is noticed by looking alone; stalls at memory.high and pods short of cpu are not",
            ("E1", "E4", "A22"),
            (boot_with("psi=1", machine), "start a kernel of version 4.20 or later, built with CONFIG_PSI"),
        )
    elif "CAP_SYS_RESOURCE" not in machine.capabilities.bounding:
        yield Check(
            name,
            State.NOTE,
            "without CAP_SYS_RESOURCE triggers have windows of 2 s at least",
            "pressure is noticed by other events and by reading figures, before a trigger reports it",
            ("E1",),
            (_give("CAP_SYS_RESOURCE"),),
        )
    else:
        yield Check(name, State.OK, "triggers with any window")


def kernel_log(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:  # noqa: ARG001
    name = "kernel log"
    if not machine.log_refusal:
        yield Check(name, State.OK, "can be read")
    elif machine.uid != 0 and "CAP_SYSLOG" in machine.capabilities.bounding:
        yield not_inspected(name, machine.log_refusal.partition(":")[0], machine)
    else:
        yield Check(
            name,
            State.BROKEN,
            machine.log_refusal,
            "an OOM kill is counted, but which process it was and whose limit is not on record",
            ("E6",),
            (_give("CAP_SYSLOG"), "sysctl -w kernel.dmesg_restrict=0"),
        )


def settings(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:
    """A13: a setting that the agent can set at its start is only a note."""
    name = "kernel settings"
    if not machine.settings:
        yield Check(name, State.OK, "as they must be")
        return
    seen = ", ".join(f"{one.setting.name} is {one.seen}" for one in machine.settings)
    wanted = ", ".join(f"{one.setting.name}={one.setting.value}" for one in machine.settings)
    refused = machine.settings_refusal if machine.uid == 0 else ""
    if config.protect_kernel_defaults or refused:
        why = "--protect-kernel-defaults forbids changing that" if config.protect_kernel_defaults else refused
        yield Check(
            name,
            State.BROKEN,
            f"{seen}, and {why}",
            f"it does not hold that {machine.settings[0].setting.why}",
            ("A13",),
            (sysctl_mend(machine.settings), *(["--protect-kernel-defaults=false"] if not refused else [])),
            stops_agent=True,
        )
    else:
        yield Check(
            name,
            State.NOTE,
            seen,
            f"the agent sets {wanted} when it starts",
            ("A13",),
            (sysctl_mend(machine.settings),),
        )


def swap(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:
    """A18: where swap is allowed, the kernel must be able to keep it from pods with guarantees."""
    if not machine.swap:
        yield Check("swap", State.OK, "off")
        return
    listed = ", ".join(device.text for device in machine.swap)
    file = "memory.swap.max"
    if machine.cgroups is not None and machine.cgroups.version == Version.V1:
        file = "memory.memsw.limit_in_bytes"
    promise = "a pod whose memory is swapped out does not have what it requested"
    off = swap_mend(machine.swap)
    if config.fail_swap_on:
        mends = (off, "--fail-swap-on=false, to keep it from Guaranteed and Burstable containers only")
        yield Check("swap", State.BROKEN, f"on: {listed}", promise, ("A18",), mends, stops_agent=True)
    elif machine.features.get(file) is False:
        seen = f"on: {listed}, and the kernel cannot keep it from a container: it has no {file}"
        mends = (off, boot_with("swapaccount=1", machine))
        yield Check("swap", State.BROKEN, seen, promise, ("A18",), mends)
    else:
        yield Check("swap", State.OK, f"on, and kept from Guaranteed and Burstable containers: {listed}")


def privileges(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:  # noqa: ARG001
    """The agent runs as root, so the bounding set counts, and not the capabilities of this process."""
    name = "privileges"
    bounding = machine.capabilities.bounding
    broken = False
    if "CAP_SYS_RESOURCE" not in bounding:
        broken = True
        yield Check(
            name,
            State.BROKEN,
            "no CAP_SYS_RESOURCE, not even as root",
            "the agent, daemons and Guaranteed containers have no score below 0, and the OOM killer may choose them",
            ("A12", "E12"),
            (_give("CAP_SYS_RESOURCE"),),
        )
    for capability, promise in (
        ("CAP_SYS_ADMIN", "containers get no namespaces and no mounts of their own"),
        ("CAP_KILL", "containers of other users cannot be ended"),
    ):
        if capability not in bounding:
            broken = True
            yield Check(
                name,
                State.BROKEN,
                f"no {capability}, not even as root",
                promise,
                ("A19",),
                (_give(capability),),
            )
    if not broken:
        yield Check(name, State.OK, "root has every capability that is needed")


def _give(capability: str) -> str:
    short = capability.removeprefix("CAP_")
    return f"give the agent {capability}: --cap-add {short} for a container, CapabilityBoundingSet= in a unit"


CHECKS: tuple[CheckFunction, ...] = (features, pressure, kernel_log, settings, swap, privileges)
