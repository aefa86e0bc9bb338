"""Reads which pods hold memory in queues of sockets that no cgroup is charged for, and what they hold beside it.

The tables of sockets are read first: one for each network namespace. Only if all queues together are large, the open
files of pods are looked at. That is expensive, and a pod can make it more so: the caller has to leave pauses.
"""

import time
from collections.abc import Iterable, Mapping

from evenkeel.cgroup.tree import Version
from evenkeel.host.dying import pids_of
from evenkeel.host.memory_figures import CgroupMemory
from evenkeel.host.psi import read_if_there
from evenkeel.host.socket_memory import (
    NetlinkQueues,
    buffers_bytes,
    files_under_way,
    sockets_of,
    sockets_of_machine,
)
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.socket_queues import HeldMemory
from evenkeel.pressure.targets import PodTarget, WatchTargets

LEAST_BYTES = 4 << 20  # in queues of all pods together: less is not worth a look at open files
_LIMIT_FILE = {Version.V1: "memory.limit_in_bytes", Version.V2: "memory.max"}
_MOST_LIMITED = 1 << 62  # v1 shows a larger number where there is no limit


class PodHeld(NamedTuple):
    """What a pod holds, and what each of its containers holds."""

    pod: HeldMemory
    containers: tuple[HeldMemory, ...]


class Look(NamedTuple):
    pods: Mapping[str, PodHeld]  # by UID: the pods with queues
    cpu_seconds: float


def look(targets: WatchTargets, proc: str = "/proc") -> Look:
    """For a thread."""
    began = time.thread_time()
    queues = _netlink(targets.pods, proc)
    is_v1 = targets.version == Version.V1
    is_any = is_v1 and buffers_bytes(targets.directory) >= LEAST_BYTES
    sockets: dict[str, set[int]] = {}  # of each container, by its directory
    for target in targets.pods if queues else ():
        for _, directory in target.containers:
            sockets[directory] = sockets_of(directory, queues, proc)
    hidden = _under_way(sockets, queues, proc)
    found = {}
    for target in targets.pods if queues or is_any else ():
        held = _held(target, sockets, queues, hidden, targets.version)
        if held.pod.queue_bytes:
            found[target.uid] = held
    return Look(found, time.thread_time() - began)


def _netlink(pods: Iterable[PodTarget], proc: str) -> Mapping[int, int]:
    """By inode: the queues of all netlink sockets that pods can have; empty if there is little in them. A pod without
    a filter for system calls may have several network namespaces, so each process is asked for its own."""
    tables = NetlinkQueues(proc)
    for target in pods:
        for _, directory in target.containers:
            for pid in pids_of(directory):
                tables.read(pid)
    return tables.held if tables.total_bytes >= LEAST_BYTES else {}


def _under_way(sockets: Mapping[str, set[int]], queues: Mapping[int, int], proc: str) -> Mapping[str, int]:
    """By the directory of the container: its part of the queues that no process has open. A container hides a socket by
    sending it to itself. The kernel does not say which one is on its way where, only how many: so they are divided."""
    nobodys = queues.keys() - set().union(*sockets.values())
    if sum(queues[inode] for inode in nobodys) < LEAST_BYTES:
        return {}
    nobodys -= sockets_of_machine(nobodys, proc)
    hidden = sum(queues[inode] for inode in nobodys)
    counts = (
        {directory: files_under_way(directory, proc) for directory in sockets}
        if hidden >= LEAST_BYTES
        else {}
    )
    together = sum(counts.values())
    return {directory: hidden * count // together for directory, count in counts.items() if count}


def _held(
    target: PodTarget,
    sockets: Mapping[str, set[int]],
    queues: Mapping[int, int],
    hidden: Mapping[str, int],
    version: Version,
) -> PodHeld:
    """A socket that several containers have open counts for each of them, and once for the pod."""
    inodes: set[int] = set()
    under_way = 0
    containers = []
    for name, directory in target.containers:
        own, sent = sockets.get(directory, set()), hidden.get(directory, 0)
        inodes |= own
        under_way += sent
        containers.append(_memory(name, directory, sum(queues[inode] for inode in own) + sent, version))
    whole = sum(queues[inode] for inode in inodes) + under_way
    return PodHeld(_memory("", target.directory, whole, version), tuple(containers))


def _memory(container: str, directory: str, netlink_bytes: int, version: Version) -> HeldMemory:
    queued = netlink_bytes
    if version == Version.V1:
        queued += buffers_bytes(directory)
    if not queued:
        return HeldMemory(container, 0, 0)
    try:
        file = CgroupMemory(directory, version)
    except OSError:
        return HeldMemory(container, 0, 0)  # it has ended
    try:
        reading = file.read()
    except OSError:
        return HeldMemory(container, 0, 0)
    finally:
        file.close()
    charged = reading.usage_bytes - reading.droppable_bytes - reading.reclaimable_bytes
    limit = _limit(read_if_there(f"{directory}/{_LIMIT_FILE[version]}"))
    return HeldMemory(container, max(charged, 0), queued, limit)


def _limit(text: bytes) -> int | None:
    try:
        limit = int(text)
    except ValueError:
        return None  # "max", or the cgroup is gone
    return None if limit >= _MOST_LIMITED else limit
