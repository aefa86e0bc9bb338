"""Checks of the cgroups: version, controllers, the pods' root and the reserved cgroups."""

from collections.abc import Iterator

from evenkeel.api.config import (
    KUBE_RESERVED,
    KUBE_RESERVED_COMPRESSIBLE,
    SYSTEM_RESERVED,
    SYSTEM_RESERVED_COMPRESSIBLE,
    KubeletConfiguration,
)
from evenkeel.cgroup.tree import Version
from evenkeel.host.checks import Check, CheckFunction, State, boot_with, has_feature, not_inspected
from evenkeel.host.machine import FEATURE_FILES, CgroupSeen, Machine

# Controller: what fails without it, and the requirements that fail.
_CONTROLLERS = {
    "memory": ("memory limits and protection do not hold", ("A5", "A16", "B8")),
    "cpu": ("CPU is not shared by request and not held to its limit", ("A4", "A11")),
    "pids": ("the number of a pod's processes is not limited", ("B16",)),
    "cpuacct": ("CPU use is not known", ("B11",)),
    "freezer": ("a container that forks while it is killed may escape", ("A19",)),
    "cpuset": ("whole-core containers get no cores of their own", ("A23",)),
    "hugetlb": ("huge pages are not held to their limits", ("A5",)),
}
_TO_V2 = "systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all"


def cgroup_version(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:
    name = "cgroup version"
    cgroups = machine.cgroups
    if cgroups is None:
        yield Check(
            name,
            State.BROKEN,
            machine.cgroups_problem,
            "pods have no cgroups, and so neither requests nor limits",
            ("A16", "B10"),
            ("mount -t cgroup2 cgroup2 /sys/fs/cgroup",),
            stops_agent=True,
        )
    elif cgroups.version == Version.V2:
        beside = " with cgroup v1 beside it" if cgroups.is_hybrid else ""
        yield Check(name, State.OK, f"v2 at {cgroups.mounts.v2}{beside}")
    else:
        beside = (
            f" (hybrid: v2 at {cgroups.mounts.v2} has none of its controllers)" if cgroups.is_hybrid else ""
        )
        if config.fail_cgroup_v1:
            yield Check(
                name,
                State.BROKEN,
                f"v1{beside}, and --fail-cgroup-v1 is set",
                "the agent does not start on cgroup v1",
                ("C5",),
                (boot_with(_TO_V2, machine), "--fail-cgroup-v1=false"),
                stops_agent=True,
            )
        else:
            yield Check(
                name,
                State.NOTE,
                f"v1{beside}",
                "the agent, not the kernel, kills a container whole, and a pod gives back all of its cache or none",
                ("A19", "A15"),
                (boot_with(_TO_V2, machine),),
            )


def memory_qos(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:
    """C5: a feature that the kernel lacks is reported, and not silently left out."""
    name = "memory protection"
    if machine.cgroups is None:
        return
    if not config.feature("MemoryQoS"):
        yield Check(name, State.OK, "switched off (feature gate MemoryQoS)")
        return
    promise = (
        "requested memory is not protected from others, and nothing slows a container down before its limit"
    )
    without = "--feature-gates MemoryQoS=false, to do without"
    if machine.cgroups.version == Version.V1:
        seen = "cgroup v1 has no memory.min and no memory.high"
        yield Check(
            name, State.BROKEN, seen, promise, ("C1", "C2", "C5"), (boot_with(_TO_V2, machine), without)
        )
        return
    missing = [file for file in ("memory.min", "memory.high") if has_feature(machine, file) is False]
    if missing:
        since = FEATURE_FILES[missing[0]]
        seen = f"kernel {machine.kernel} has no {' and no '.join(missing)}"
        newer = f"start a kernel of version {since} or later"
        yield Check(name, State.BROKEN, seen, promise, ("C1", "C2", "C5"), (newer, without))
    else:
        yield Check(name, State.OK, "memory.min and memory.high")


def controllers(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:
    cgroups = machine.cgroups
    if cgroups is None:
        return
    needed = ["memory", "cpu", "pids"]
    if cgroups.version == Version.V1:
        needed += ["cpuacct", "freezer"]
    if config.cpu_manager_policy == "static":
        needed.append("cpuset")
    if any(machine.capacity.hugepages.values()):
        needed.append("hugetlb")
    missing = [controller for controller in needed if controller not in cgroups.controllers]
    if not missing:
        yield Check("controllers", State.OK, ", ".join(needed))
    for controller in missing:
        promise, requirements = _CONTROLLERS[controller]
        yield Check(
            "controllers",
            State.BROKEN,
            f"{controller} is missing",
            promise,
            (*requirements, "E7"),
            (_controller_mend(controller, machine),),
            stops_agent=controller in ("memory", "cpu"),
        )


def _controller_mend(controller: str, machine: Machine) -> str:
    assert machine.cgroups is not None
    if machine.cgroups.version == Version.V1:
        at = f"/sys/fs/cgroup/{controller}"
        return f"mkdir -p {at} && mount -t cgroup -o {controller} {controller} {at}"
    if controller in machine.cgroups.mounts.v1:
        return boot_with(f"cgroup_no_v1={controller}", machine)
    if controller == "memory":
        return boot_with("cgroup_enable=memory", machine)
    return f"start a kernel with the {controller} controller; in a container, have its cgroup given that controller"


def cgroup_root(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:  # noqa: ARG001
    name = "cgroup root"
    if machine.cgroups is None:
        return
    path = machine.root.path
    for crowded in machine.crowded:
        directory = f"{machine.cgroups.mounts.v2}{crowded}".rstrip("/")
        apart = f"mkdir -p {directory}/others && for p in $(cat {directory}/cgroup.procs);"
        yield Check(
            name,
            State.BROKEN,
            f"processes run in {crowded} itself, so it hands no controllers on to {path}",
            "pods have cgroups without limits",
            ("A16", "E7"),
            (
                f"{apart} do echo $p > {directory}/others/cgroup.procs; done",
                "--cgroup-root with another place",
            ),
            stops_agent=True,
        )
    if machine.root_refusal and machine.uid == 0:
        yield Check(
            name,
            State.BROKEN,
            f"{path} cannot be made: {machine.root_refusal}",
            "pods have no cgroups",
            ("A16", "E7"),
            (
                f"mount -o remount,rw {machine.root_refusal.partition(' is ')[0]}",
                "run outside of the container",
            ),
            stops_agent=True,
        )
    elif machine.root_refusal:
        yield not_inspected(name, path, machine)
    elif not machine.crowded:
        made = "is there" if not machine.root.missing else "can be made"
        yield Check(name, State.OK, f"{path} {made}")


def reserved_cgroups(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:
    """B5: a reserved cgroup that is configured and missing is an error with the exact fix (E7)."""
    enforced = {
        config.kube_reserved_cgroup: config.enforces(KUBE_RESERVED, KUBE_RESERVED_COMPRESSIBLE),
        config.system_reserved_cgroup: config.enforces(SYSTEM_RESERVED, SYSTEM_RESERVED_COMPRESSIBLE),
    }
    for cgroup in machine.reserved:
        if not cgroup.missing:
            yield Check("reserved cgroups", State.OK, f"{cgroup.path} is there")
        elif config.create_reserved_cgroups:
            yield Check("reserved cgroups", State.OK, f"{cgroup.path} is made when the agent starts")
        else:
            yield _missing_reserved(cgroup, machine, is_enforced=enforced.get(cgroup.path, False))


def _missing_reserved(cgroup: CgroupSeen, machine: Machine, *, is_enforced: bool) -> Check:
    make = f"mkdir -p {' '.join(cgroup.missing)}"
    if machine.is_systemd and cgroup.path.endswith(".slice"):
        make = f"systemctl start {cgroup.path.rpartition('/')[2]}"
    return Check(
        "reserved cgroups",
        State.BROKEN,
        f"{cgroup.path} does not exist: {cgroup.missing[0]} is not there",
        "what is reserved for daemons is not enforced on them"
        if is_enforced
        else "daemons' use is not reported",
        ("B5", "E7"),
        ("--create-reserved-cgroups", make),
        stops_agent=is_enforced,
    )


def cgroup_driver(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:
    name = "cgroup driver"
    if config.cgroup_driver == "systemd" and not machine.is_systemd:
        yield Check(
            name,
            State.BROKEN,
            "systemd is asked for and does not run here",
            "no cgroup can be made",
            ("A24",),
            ("--cgroup-driver cgroupfs",),
            stops_agent=True,
        )
    elif config.cgroup_driver != "systemd" and machine.is_systemd:
        yield Check(
            name,
            State.NOTE,
            "cgroupfs beside systemd",
            "two write the cgroups; what systemd changes is repaired after the fact",
            ("A24", "E9"),
            ("--cgroup-driver systemd",),
        )
    else:
        yield Check(name, State.OK, config.cgroup_driver)


CHECKS: tuple[CheckFunction, ...] = (
    cgroup_version,
    controllers,
    memory_qos,
    cgroup_root,
    cgroup_driver,
    reserved_cgroups,
)
