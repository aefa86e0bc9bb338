"""What this machine has: CPUs, memory, huge pages, filesystems, processes.

Reading is apart from understanding: `proc` and `sys` say where the kernel's files are, so that tests can write
their own.
"""

import os
from collections.abc import Mapping

from evenkeel.api.scalars import Amount, parse_cpuset
from evenkeel.errors import EvenkeelError
from evenkeel.host.files import read_text
from evenkeel.host.kernel_settings import swap_devices
from evenkeel.host.meminfo import memory_total
from evenkeel.policy.allocatable import DEFAULT_PIDS, NodeCapacity
from evenkeel.policy.eviction.snapshot import FilesystemFigures, ProcessFigures

_HUGEPAGES = "kernel/mm/hugepages"


def machine_capacity(storage_path: str = "/", *, proc: str = "/proc", sys: str = "/sys") -> NodeCapacity:
    """CPUs, memory, huge pages, processes, and the size of the filesystem at `storage_path`."""
    return NodeCapacity(
        millicpu=1000 * len(online_cpus(sys)),
        memory_bytes=memory_total(read_text(f"{proc}/meminfo")),
        ephemeral_storage_bytes=filesystem(storage_path).capacity_bytes,
        hugepages=hugepages(sys),
        pids=most_processes(proc),
        swap_bytes=sum(device.size_bytes for device in swap_devices(proc)),
    )


def online_cpus(sys: str = "/sys") -> tuple[int, ...]:
    """The numbers of the CPUs that run; with one taken offline they are not 0…n−1."""
    try:
        cpus = parse_cpuset(read_text(f"{sys}/devices/system/cpu/online"))
    except EvenkeelError:
        cpus = ()
    return cpus or tuple(range(os.cpu_count() or 1))


def hugepages(sys: str = "/sys") -> Mapping[int, int]:
    """Page size in bytes → number of pages, for every size the kernel knows, also where none is set up."""
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
    """How many processes and threads the kernel lets exist at once: whichever of its two bounds is smaller."""
    bounds = [_number(f"{proc}/sys/kernel/{name}") for name in ("pid_max", "threads-max")]
    return min((bound for bound in bounds if bound), default=DEFAULT_PIDS)


def processes(proc: str = "/proc") -> ProcessFigures:
    running = parse_loadavg(read_text(f"{proc}/loadavg"))
    return ProcessFigures(Amount(most_processes(proc)), None if running is None else Amount(running))


def parse_loadavg(text: str) -> int | None:
    """The number of processes and threads there are: the second half of `2/345`, the fourth word."""
    words = text.split()
    total = words[3].partition("/")[2] if len(words) > 3 else ""
    return int(total) if total.isdecimal() else None


def filesystem(path: str) -> FilesystemFigures:
    """Room and inodes of the filesystem that `path` is on. A filesystem without a fixed number of inodes has none."""
    try:
        seen = os.statvfs(path)
    except OSError as error:
        raise EvenkeelError(
            f"cannot see the filesystem of {path}: {(error.strerror or '').lower()}"
        ) from None
    return FilesystemFigures(
        available_bytes=Amount(seen.f_bavail * seen.f_frsize),
        capacity_bytes=Amount(seen.f_blocks * seen.f_frsize),
        inodes_free=Amount(seen.f_ffree) if seen.f_files else None,
        inodes=Amount(seen.f_files) if seen.f_files else None,
    )


def same_filesystem(path: str, other: str) -> bool:
    """Whether both paths are on one filesystem: then filling one fills the other."""
    try:
        return os.stat(path).st_dev == os.stat(other).st_dev
    except OSError as error:
        raise EvenkeelError(
            f"cannot see the filesystem of {error.filename}: {(error.strerror or '').lower()}"
        ) from None


def _number(path: str) -> int | None:
    try:
        return int(read_text(path))
    except (EvenkeelError, ValueError):
        return None
