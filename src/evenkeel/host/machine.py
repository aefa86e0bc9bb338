"""Everything about this machine that the checks need, read at once and without changing anything.

The checks (`checks`) are functions of the value made here, so they can be tested for machines that we do not have.
"""

import os
import time
from collections.abc import Iterable, Mapping
from ctypes import CDLL, get_errno
from errno import ENOSYS

from evenkeel.api.config import KubeletConfiguration, Profile
from evenkeel.cgroup.drivers.detect import CgroupMachine, bounds_of, detect
from evenkeel.cgroup.tree import Naming, Version
from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.capacity import filesystem, machine_capacity, parse_meminfo, processes
from evenkeel.host.files import read_text
from evenkeel.host.kernel_log import DEVICE
from evenkeel.host.kernel_settings import Difference, SwapDevice, differences, kernel_settings, swap_devices
from evenkeel.host.memory_figures import node_memory
from evenkeel.host.oom_scores import runtime_process
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.eviction.snapshot import NodeFigures

_BITS = {
    "CAP_KILL": 5,
    "CAP_IPC_LOCK": 14,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_RESOURCE": 24,
    "CAP_SYSLOG": 34,
}


class Capabilities(NamedTuple):
    """The capabilities that matter to the agent: `effective` are those of this process, `bounding` those of root."""

    effective: frozenset[str] = frozenset()
    bounding: frozenset[str] = frozenset()


def parse_capabilities(status: str) -> Capabilities:
    masks = {}
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name in ("CapEff", "CapBnd"):
            try:
                masks[name] = int(value.strip() or "0", 16)
            except ValueError:
                raise EvenkeelError(
                    f"/proc/self/status: {name} is {value.strip()[:40]!r}, not a mask"
                ) from None
    return Capabilities(_named(masks.get("CapEff", 0)), _named(masks.get("CapBnd", 0)))


def _named(mask: int) -> frozenset[str]:
    return frozenset(name for name, bit in _BITS.items() if mask >> bit & 1)


STATE_DIRECTORY = "/var/lib/evenkeel"

# Programs that kill under memory pressure, or manage pods, by their own rules.
NEIGHBOURS = ("earlyoom", "nohang", "nohang-desktop", "oomd", "systemd-oomd", "kubelet")

# A cgroup file that shows a feature: the kernel version in which it first appeared.
FEATURE_FILES = {
    "memory.min": "4.18",
    "memory.high": "4.0",
    "memory.oom.group": "4.19",
    "memory.reclaim": "5.19",
    "memory.swap.max": "4.5",
    "memory.memsw.limit_in_bytes": "",
    "cgroup.kill": "5.14",
    "cpu.max.burst": "5.14",
    "cpu.cfs_burst_us": "5.14",
}
BOOT_TOOLS = ("update-grub", "grubby")
_MRELEASE = 448  # the number of process_mrelease, on every architecture
_MOST_SEARCHED = 200


class Neighbour(NamedTuple):
    pid: int
    name: str
    arguments: tuple[str, ...] = ()


class CgroupSeen(NamedTuple):
    """A cgroup of the configuration: its directories, those that are missing, and the memory in use."""

    path: str
    directories: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    memory_bytes: int | None = None


class Machine(NamedTuple):
    kernel: str
    capacity: NodeCapacity
    figures: NodeFigures
    cgroups: CgroupMachine | None
    cgroups_problem: str = ""
    features: Mapping[str, bool | None] = {}  # None: no cgroup shows it
    root: CgroupSeen = CgroupSeen("/")
    root_refusal: str = ""  # why no cgroup can be made there
    crowded: tuple[str, ...] = ()  # cgroups above the pods that hold processes themselves (v2)
    reserved: tuple[CgroupSeen, ...] = ()
    swap: tuple[SwapDevice, ...] = ()
    settings: tuple[Difference, ...] = ()
    settings_refusal: str = ""
    uid: int = 0
    capabilities: Capabilities = Capabilities()
    neighbours: tuple[Neighbour, ...] = ()
    pressure_refusal: str = ""
    log_refusal: str = ""
    state_directory: str = STATE_DIRECTORY
    state_refusal: str = ""
    runtime_pid: int | None = None
    has_skopeo: bool = True  # the program that pulls images, where there is no container runtime
    is_systemd: bool = False
    boot_tool: str = ""  # the program that changes the kernel's command line; "" if it is none of BOOT_TOOLS
    time_seconds: float = 0.0


def inspect_machine(
    config: KubeletConfiguration,
    state_directory: str = STATE_DIRECTORY,
    *,
    proc: str = "/proc",
    sys: str = "/sys",
    log: str = DEVICE,
) -> Machine:
    """Reads this machine. Raises EvenkeelError only if its capacity cannot be read."""
    at = _nearest(state_directory)
    cgroups, problem = _cgroups(proc)
    settings = differences(kernel_settings(config.rulebook), proc)
    machine = Machine(
        kernel=os.uname().release,
        capacity=machine_capacity(at, proc=proc, sys=sys),
        figures=_figures(at, proc, config.rulebook),
        cgroups=cgroups,
        cgroups_problem=problem,
        swap=swap_devices(proc),
        settings=settings,
        settings_refusal=_refusal(one.setting.path(proc) for one in settings),
        uid=os.geteuid(),
        capabilities=parse_capabilities(read_text(f"{proc}/self/status")),
        neighbours=neighbours(proc),
        pressure_refusal=_unreadable(f"{proc}/pressure/memory"),
        log_refusal=_unreadable(log),
        state_directory=state_directory,
        state_refusal=_refusal([at]),
        runtime_pid=runtime_process(config.container_runtime_endpoint)
        if config.container_runtime_endpoint
        else None,
        has_skopeo=_has_program("skopeo"),
        is_systemd=os.path.isdir("/run/systemd/system"),
        boot_tool=next((tool for tool in BOOT_TOOLS if os.path.exists(f"/usr/sbin/{tool}")), ""),
        time_seconds=time.time(),
    )
    return machine if cgroups is None else _with_cgroups(machine, cgroups, config)


def _has_program(name: str) -> bool:
    """`shutil.which` would do, but importing it takes half a MiB, with the compressions that it knows."""
    paths = (os.path.join(place, name) for place in os.get_exec_path())
    return any(os.path.isfile(path) and os.access(path, os.X_OK) for path in paths)


def neighbours(proc: str = "/proc") -> tuple[Neighbour, ...]:
    """The processes among all that can be seen whose name is one of `NEIGHBOURS`."""
    found = []
    for name in os.listdir(proc):
        if name.isdecimal():
            comm = _text(f"{proc}/{name}/comm").strip()
            if comm in NEIGHBOURS:
                arguments = _text(f"{proc}/{name}/cmdline").split("\0")
                found.append(
                    Neighbour(int(name), comm, tuple(argument for argument in arguments if argument))
                )
    return tuple(sorted(found))


def _with_cgroups(machine: Machine, cgroups: CgroupMachine, config: KubeletConfiguration) -> Machine:
    naming = Naming.SYSTEMD if config.cgroup_driver == "systemd" else Naming.CGROUPFS
    bounds = bounds_of(config, naming)
    root = _seen(cgroups, bounds.root)
    makeable = [_nearest(directory) for directory in root.directories]
    return machine._replace(
        features=_features(cgroups),
        root=root,
        root_refusal=_refusal(makeable),
        crowded=_crowded(cgroups, bounds.root),
        reserved=tuple(_seen(cgroups, path) for path in bounds.reserved),
    )


def _cgroups(proc: str) -> tuple[CgroupMachine | None, str]:
    try:
        return detect(f"{proc}/self/mountinfo"), ""
    except EvenkeelError as error:
        return None, error.message


def _figures(at: str, proc: str, profile: Profile) -> NodeFigures:
    disk = filesystem(at)
    return NodeFigures(
        memory=node_memory(parse_meminfo(read_text(f"{proc}/meminfo")), profile),
        nodefs=disk,
        imagefs=disk,
        processes=processes(proc),
    )


def _seen(cgroups: CgroupMachine, path: str) -> CgroupSeen:
    directories = tuple(dict.fromkeys(f"{mount}{path}" for mount in cgroups.controllers.values()))
    file = "memory.current" if cgroups.version == Version.V2 else "memory.usage_in_bytes"
    usage = _text(f"{cgroups.controllers.get('memory', '')}{path}/{file}").strip()
    return CgroupSeen(
        path,
        directories,
        tuple(directory for directory in directories if not os.path.isdir(directory)),
        int(usage) if usage.isdecimal() else None,
    )


def _crowded(cgroups: CgroupMachine, path: str) -> tuple[str, ...]:
    """The cgroups above the pods that hold processes: on v2 such a cgroup gives its children no controllers. Only the
    real root may; the root of a container is not the real one, and has a cgroup.type."""
    if cgroups.version != Version.V2:
        return ()
    found = []
    parts = [part for part in path.split("/") if part]
    for depth in range(len(parts) + 1):
        above = "/" + "/".join(parts[:depth])
        directory = f"{cgroups.mounts.v2}{above}".rstrip("/")
        has_type = os.path.exists(f"{directory}/cgroup.type")
        if has_type and _text(f"{directory}/cgroup.procs").strip():
            found.append(above)
    return tuple(found)


def _features(cgroups: CgroupMachine) -> dict[str, bool | None]:
    """Whether the kernel has each feature, read from any cgroup that has the controller."""
    sample = {"memory.max": "memory", "cpu.max": "cpu", "cgroup.events": "cgroup"}
    if cgroups.version == Version.V1:
        sample = {"memory.limit_in_bytes": "memory", "cpu.shares": "cpu"}
    where: dict[str, str] = {}
    for mount in dict.fromkeys(cgroups.controllers.values()):
        for directory in _directories(mount):
            for file, controller in sample.items():
                if controller not in where and os.path.exists(f"{directory}/{file}"):
                    where[controller] = directory
    found: dict[str, bool | None] = {}
    for file in FEATURE_FILES:
        place = where.get(file.partition(".")[0])
        found[file] = None if place is None else os.path.exists(f"{place}/{file}")
    found["process_mrelease"] = _has_mrelease()
    return found


def _directories(top: str) -> Iterable[str]:
    """`top` and some cgroups below it, the nearest first."""
    found = [top]
    for directory in found:  # which grows meanwhile
        yield directory
        if len(found) < _MOST_SEARCHED:
            try:
                with os.scandir(directory) as entries:
                    found += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            except OSError:
                continue


def _has_mrelease() -> bool:
    """A call with an invalid descriptor: a kernel that has the call refuses the descriptor, others answer ENOSYS."""
    libc = CDLL(None, use_errno=True)
    libc.syscall(_MRELEASE, -1, 0)
    return get_errno() != ENOSYS


def _nearest(path: str) -> str:
    """The path, or the nearest directory above it that exists."""
    while not os.path.exists(path) and path not in ("", "/"):
        path = os.path.dirname(path.rstrip("/"))
    return path or "/"


def _refusal(paths: Iterable[str]) -> str:
    """Why the first of `paths` that is not writable is not; nothing is written to find out."""
    for path in paths:
        if not os.access(path, os.W_OK):
            read_only = os.access(path, os.F_OK) and os.statvfs(path).f_flag & os.ST_RDONLY
            return f"{path} is {'mounted read-only' if read_only else 'not ours to write'}"
    return ""


def _unreadable(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"{path}: {reason(error)}"
    try:
        os.read(descriptor, 8192)
    except (BlockingIOError, BrokenPipeError):  # no new line, or lines were overwritten: it is readable
        pass
    except OSError as error:
        return f"{path}: {reason(error)}"
    finally:
        os.close(descriptor)
    return ""


def _text(path: str) -> str:
    try:
        return read_text(path)
    except EvenkeelError:
        return ""
