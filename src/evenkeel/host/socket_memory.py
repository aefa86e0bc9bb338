"""Memory in the queues of sockets, as far as it is charged to no cgroup.

The kernel charges the queues of netlink sockets to no cgroup. It lists them, for each network namespace, in
`/proc/PID/net/netlink`. A process holds a queue if it has the inode of its socket open. Buffers of TCP and UDP are
charged to memory on cgroup v2. On v1 a counter beside memory has them, but only of sockets that were made after a limit
was written to it.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator

from evenkeel.host.descriptors import open_descriptors
from evenkeel.host.dying import pids_of

# v1. The kernel counts UDP here as well.
BUFFERS_LIMIT_FILE = "memory.kmem.tcp.limit_in_bytes"
NO_BUFFERS_LIMIT = "-1"
_BUFFERS_FILE = "memory.kmem.tcp.usage_in_bytes"
_MOST_SOCKETS = 1 << 17  # that are remembered: this bounds memory
_NUMBER_BYTES = 64
_MEMINFO_BYTES = 1 << 14
_KERNEL_LINES = (b"SUnreclaim:", b"VmallocUsed:")
_LINK = "socket:["
_UNDER_WAY = b"scm_fds:"


class KernelMemory:
    """How much memory the kernel has for itself and cannot give back at once, from /proc/meminfo. Queues of netlink
    sockets are a part of it. So none has grown by more than this has, but for what was freed meanwhile."""

    def __init__(self, path: str = "/proc/meminfo") -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> int:
        """In bytes; 0 if the kernel does not say."""
        return parse_kernel_memory(os.pread(self._file, _MEMINFO_BYTES, 0))

    def close(self) -> None:
        os.close(self._file)


def parse_kernel_memory(meminfo: bytes) -> int:
    found = 0
    for name in _KERNEL_LINES:
        start = meminfo.find(name)
        if start >= 0:
            found += int(meminfo[start + len(name) :].split(None, 1)[0]) * 1024
    return found


def parse_netlink(lines: Iterable[bytes], most: int = _MOST_SOCKETS) -> dict[int, int]:
    """By inode: the bytes in the queues of each socket that has any. `lines` are those of /proc/net/netlink. A line
    that says something else is left out."""
    held: dict[int, int] = {}
    numbers: tuple[int, int, int] | None = None
    for line in lines:
        words = line.split()
        if numbers is None:
            try:
                numbers = (words.index(b"Rmem"), words.index(b"Wmem"), words.index(b"Inode"))
            except ValueError:
                return {}  # a kernel that has no such columns
            continue
        try:
            received, sent, inode = (int(words[number]) for number in numbers)
        except (ValueError, IndexError):
            continue
        if received + sent > 0 and inode > 0:
            held[inode] = received + sent
            if len(held) >= most:
                break
    return held


class NetlinkQueues:
    """The queues of all netlink sockets in the network namespaces of some processes, at one moment."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._namespaces: set[int] = set()  # by inode
        self.held: dict[int, int] = {}  # bytes by inode of the socket

    def read(self, pid: int) -> None:
        """Adds the namespace of this process, unless it was read before or the process has ended."""
        try:
            namespace = os.stat(f"{self._proc}/{pid}/ns/net").st_ino
            room = _MOST_SOCKETS - len(self.held)
            if namespace in self._namespaces or room <= 0:
                return
            with open(f"{self._proc}/{pid}/net/netlink", "rb") as file:
                self.held |= parse_netlink(file, room)
        except OSError:
            return
        self._namespaces.add(namespace)

    @property
    def total_bytes(self) -> int:
        return sum(self.held.values())


def sockets_of(
    directory: str,
    wanted: Collection[int],
    proc: str = "/proc",
    between: Callable[[], None] = lambda: None,
) -> set[int]:
    """The sockets among `wanted`, by inode, that the processes of the cgroup at `directory` have open. One that is only
    on its way through another socket is not found, and neither one that is registered with io_uring."""
    found: dict[int, set[int]] = {}
    for pid, _, inode in _open_sockets(pids_of(directory), proc, between):
        if inode in wanted:
            found.setdefault(pid, set()).add(inode)
    there = _still_there(directory, found)
    return {inode for pid, inodes in found.items() if pid in there for inode in inodes}


def sockets_of_machine(wanted: Collection[int], proc: str = "/proc") -> set[int]:
    """The sockets among `wanted` that any process has open."""
    pids = [int(name) for name in os.listdir(proc) if name.isdecimal()]
    return {inode for _, _, inode in _open_sockets(pids, proc) if inode in wanted}


def files_under_way(directory: str, proc: str = "/proc") -> int:
    """How many open files wait in Unix sockets that the processes of the cgroup at `directory` have open: sent, and not
    received yet. 0 if the kernel does not say (before Linux 5.6)."""
    found: dict[int, dict[int, int]] = {}
    for pid, name, inode in _open_sockets(pids_of(directory), proc):
        count = _files_in(f"{proc}/{pid}/fdinfo/{name}")
        if count:
            found.setdefault(pid, {})[inode] = count
    there = _still_there(directory, found)
    of_socket = {
        inode: count for pid, counts in found.items() if pid in there for inode, count in counts.items()
    }
    return sum(of_socket.values())


def _open_sockets(
    pids: Iterable[int], proc: str, between: Callable[[], None] = lambda: None
) -> Iterator[tuple[int, str, int]]:
    """Process, number of the descriptor, and inode of each socket that is open."""
    for pid, name in open_descriptors(pids, proc, between):
        try:
            link = os.readlink(f"{proc}/{pid}/fd/{name}")
        except OSError:
            continue  # it was closed
        if link.startswith(_LINK):
            yield pid, name, int(link[len(_LINK) : -1])


def _still_there(directory: str, pids: Collection[int]) -> set[int]:
    """The number of a process that has ended may be another one's by now. One that is still there is the pod's."""
    return set(pids_of(directory)) if pids else set()


def _files_in(fdinfo: str) -> int:
    try:
        with open(fdinfo, "rb") as file:
            return next((int(line[len(_UNDER_WAY) :]) for line in file if line.startswith(_UNDER_WAY)), 0)
    except (OSError, ValueError):
        return 0


def buffers_bytes(directory: str) -> int:
    """v1: what TCP and UDP sockets hold that were made in this cgroup and below it; 0 if the kernel does not count."""
    try:
        with open(f"{directory}/{_BUFFERS_FILE}", "rb", buffering=0) as file:
            return int(file.read(_NUMBER_BYTES))
    except (OSError, ValueError):
        return 0
