"""The size of this machine: CPUs, memory, huge pages, filesystems, processes.

Parsing is apart from reading. `proc` and `sys` say where the kernel's files are, so that tests can write their own.
"""

import os
from collections.abc import Mapping

from evenkeel.api.scalars import Amount, parse_cpuset
from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.files import read_text
from evenkeel.host.kernel_settings import swap_devices
from evenkeel.policy.allocatable import DEFAULT_PIDS, NodeCapacity
from evenkeel.policy.eviction.snapshot import FilesystemFigures, ProcessFigures
from evenkeel.policy.node_view import NodeView

_HUGEPAGES = "kernel/mm/hugepages"
_OLD_KERNEL = "this is no Linux kernel of the last ten years, or /proc is not its own"


def machine_capacity(storage_path: str = "/", *, proc: str = "/proc", sys: str = "/sys") -> NodeCapacity:
    """CPUs, memory, huge pages, processes, and the size of the filesystem at `storage_path`."""
    cpus = online_cpus(sys)
    return NodeCapacity(
        millicpu=1000 * len(cpus),
        memory_bytes=memory_total(read_text(f"{proc}/meminfo")),
        ephemeral_storage_bytes=filesystem(storage_path).capacity_bytes,
        hugepages=hugepages(sys),
        pids=most_processes(proc),
        swap_bytes=sum(device.size_bytes for device in swap_devices(proc)),
        online_cpus=cpus,
    )


def on_this_machine(node: NodeView, sys: str = "/sys") -> NodeView:
    """`node` with the CPUs of this machine. A node may be configured smaller, and its pods still run on all CPUs."""
    return node._replace(capacity=node.capacity._replace(online_cpus=online_cpus(sys)))


def parse_meminfo(text: str) -> Mapping[str, int]:
    """The number of every line: bytes where the kernel writes kB, else a count (`HugePages_Total`)."""
    found = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and words and words[0].isdecimal():
            found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def memory_total(meminfo: str) -> int:
    """`MemTotal` of /proc/meminfo, in bytes."""
    return meminfo_bytes(parse_meminfo(meminfo), "MemTotal", "say the node's size with --node 32Gi,8cpu")


def meminfo_bytes(meminfo: Mapping[str, int], name: str, hint: str = _OLD_KERNEL) -> int:
    """One number of /proc/meminfo that every Linux of the last ten years has; emulations of /proc may lack it."""
    try:
        return meminfo[name]
    except KeyError:
        raise EvenkeelError(f"/proc/meminfo has no {name}: {hint}") from None


def online_cpus(sys: str = "/sys") -> tuple[int, ...]:
    """The numbers of the CPUs that are online. They have gaps where a CPU was taken offline."""
    try:
        cpus = parse_cpuset(read_text(f"{sys}/devices/system/cpu/online"))
    except EvenkeelError:
        cpus = ()
    return cpus or tuple(range(os.cpu_count() or 1))


def hugepages(sys: str = "/sys") -> Mapping[int, int]:
    """Page size in bytes → number of pages, for every size the kernel knows, also those with no pages."""
    try:
        names = os.listdir(f"{sys}/{_HUGEPAGES}")
    except OSError:
        return {}  # a kernel without huge pages
    found = {}
    for name in names:
        kibibytes = name.removeprefix("hugepages-").removesuffix("kB")
        if kibibytes.isdecimal():
            found[int(kibibytes) * 1024] = _number(f"{sys}/{_HUGEPAGES}/{name}/nr_hugepages") or 0
    return dict(sorted(found.items()))


def most_processes(proc: str = "/proc") -> int:
    """How many processes and threads can exist at once: the smaller of the kernel's two bounds."""
    bounds = [_number(f"{proc}/sys/kernel/{name}") for name in ("pid_max", "threads-max")]
    return min((bound for bound in bounds if bound), default=DEFAULT_PIDS)


def processes(proc: str = "/proc") -> ProcessFigures:
    running = parse_loadavg(read_text(f"{proc}/loadavg"))
    return ProcessFigures(Amount(most_processes(proc)), None if running is None else Amount(running))


def parse_loadavg(text: str) -> int | None:
    """The number of processes and threads that exist: the second half of the fourth field, `2/345`."""
    words = text.split()
    total = words[3].partition("/")[2] if len(words) > 3 else ""
    return int(total) if total.isdecimal() else None


def filesystem(path: str) -> FilesystemFigures:
    """Space and inodes of the filesystem that holds `path`. `inodes` is None where their number is not fixed."""
    try:
        seen = os.statvfs(path)
    except OSError as error:
        raise EvenkeelError(f"cannot see the filesystem of {path}: {reason(error)}") from None
    return FilesystemFigures(
        available_bytes=Amount(seen.f_bavail * seen.f_frsize),
        capacity_bytes=Amount(seen.f_blocks * seen.f_frsize),
        inodes_free=Amount(seen.f_ffree) if seen.f_files else None,
        inodes=Amount(seen.f_files) if seen.f_files else None,
    )


def _number(path: str) -> int | None:
    try:
        return int(read_text(path))
    except (EvenkeelError, ValueError):
        return None
