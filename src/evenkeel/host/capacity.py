"""What this machine has."""

import os

from evenkeel.errors import EvenkeelError
from evenkeel.host.files import read_text
from evenkeel.policy.allocatable import DEFAULT_PIDS, NodeCapacity


def machine_capacity(storage_path: str = "/") -> NodeCapacity:
    """CPUs, memory, pids, and the size of the filesystem at `storage_path`."""
    filesystem = os.statvfs(storage_path)
    return NodeCapacity(
        millicpu=1000 * (os.cpu_count() or 1),
        memory_bytes=memory_total(read_text("/proc/meminfo")),
        ephemeral_storage_bytes=filesystem.f_blocks * filesystem.f_frsize,
        pids=_pids(),
    )


def memory_total(meminfo: str) -> int:
    """`MemTotal` of /proc/meminfo, in bytes."""
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) * 1024
    raise EvenkeelError("/proc/meminfo has no MemTotal: say the node's size with --node 32Gi,8cpu")


def _pids() -> int:
    try:
        return int(read_text("/proc/sys/kernel/pid_max"))
    except (EvenkeelError, ValueError):
        return DEFAULT_PIDS
