"""Whom the watch over memory has to know: the pods' cgroup and every pod in it, with where its figures are.

Made by the agent's loop whenever the tree has changed and handed to the watch whole: it is never changed.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from evenkeel.agent.pod_store import PodStore
from evenkeel.api.pod import Pod
from evenkeel.api.resources import MEMORY
from evenkeel.cgroup.driver import Driver
from evenkeel.cgroup.tree import Cgroup, Kind, Tree, Version
from evenkeel.policy.eviction.decide import Eviction, State
from evenkeel.policy.pod_resources import eviction_request
from evenkeel.pressure.decision_records import Step


class PodTarget(NamedTuple):
    uid: str
    pod: Pod
    path: str  # of its cgroup, as planned
    directory: str  # of its memory files
    containers: tuple[tuple[str, str], ...]  # name and directory
    min_bytes: int = 0  # memory.min
    request_bytes: int = 0
    # Class and priority: within one, usage over request decides who goes first.
    group: tuple[str, int] = ("", 0)


class WatchTargets(NamedTuple):
    version: Version = Version.V2
    path: str = ""  # of the pods' cgroup; empty where there is none
    directory: str = ""
    limit_bytes: int = 0
    members: tuple[PodTarget, ...] = ()


def watch_targets(tree: Tree, pod_store: PodStore, driver: Driver, limit_bytes: int | None) -> WatchTargets:
    root = next((cgroup for cgroup in tree.cgroups if cgroup.kind == Kind.ROOT), None)
    directory = driver.files(root.path).get("memory", "") if root is not None else ""
    if root is None or not directory:
        return WatchTargets(tree.version)
    top = directory.removesuffix(root.path)
    containers: dict[str, list[tuple[str, str]]] = {}
    for cgroup in tree.cgroups:
        if cgroup.kind == Kind.CONTAINER:
            containers.setdefault(cgroup.pod, []).append((cgroup.container, top + cgroup.path))
    members = []
    for cgroup in tree.cgroups:
        held = pod_store.by_key(cgroup.pod) if cgroup.kind == Kind.POD else None
        if held is not None:
            parts = tuple(containers.get(cgroup.pod, ()))
            request = eviction_request(held.pod, MEMORY).value
            members.append(
                PodTarget(
                    held.pod.metadata.uid,
                    held.pod,
                    cgroup.path,
                    top + cgroup.path,
                    parts,
                    _min_bytes(cgroup),
                    request,
                    (cgroup.qos, held.pod.spec.priority or 0),
                )
            )
    return WatchTargets(tree.version, root.path, directory, limit_bytes or 0, tuple(members))


def _min_bytes(cgroup: Cgroup) -> int:
    value = cgroup.value("memory.min")
    return int(value) if value is not None and value.isdecimal() else 0


class Evicting(NamedTuple):
    """A pod that goes, told before anything is done to it."""

    uid: str
    eviction: Eviction
    at: float  # seconds since the epoch


class Timing(NamedTuple):
    """Of one decision, by the machine's own clock (CLOCK_MONOTONIC)."""

    began_at: float
    sent_at: float | None = None  # when the kill was
    # It was made when the kernel's own killer acted, to be held against what that did.
    is_kernels: bool = False


class MemoryWatchSink(Protocol):
    """Called in the watch's thread; they must not keep it."""

    def evicting(self, evicting: Evicting) -> None: ...
    def stepped(self, step: Step, after: State, timing: Timing) -> None:
        """A decision that changed something, after it was carried out."""
        ...

    def back(self, member: PodTarget, held_bytes: int, took_seconds: float) -> None: ...
    def reclaiming(self, expected_bytes: int, short_bytes: int) -> None: ...
    def throttling(self, most_bytes: Mapping[str, int]) -> None:
        """By the pods' UIDs: they are to get no more than that; and no others. Nobody, if it is empty."""
        ...

    def holding(self, uids: tuple[str, ...]) -> None:
        """These pods stand still until memory is back."""
        ...

    def noted(self, text: str) -> None:
        """Something that makes the watch worse than it could be."""
        ...
