"""The interface between the agent and its pressure watches.

Targets are the pods that a watch may evict, with the paths of their figures. The agent gives a new set whenever its
cgroup tree has changed.

`pressure` never imports `agent`. The agent's classes implement these protocols and are passed to constructors, so a
test can pass other objects.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from evenkeel.api.pod import Pod
from evenkeel.api.resources import MEMORY
from evenkeel.cgroup.driver import Driver, Statistics
from evenkeel.cgroup.overrides import Wanted
from evenkeel.cgroup.tree import Cgroup, Kind, Setting, Tree, Version
from evenkeel.journal.records import PodRecord
from evenkeel.policy.eviction.thresholds import Signal
from evenkeel.policy.lifecycle.pod_state import PodState, TerminalStatus
from evenkeel.policy.pod_resources import eviction_request

NO_FIGURES: Mapping[str, object] = MappingProxyType({})


class PodRecords(Protocol):
    """The agent's pods and their state."""

    def __iter__(self) -> Iterator[PodRecord]: ...
    def get(self, uid: str) -> PodRecord | None: ...
    def by_key(self, key: str) -> PodRecord | None:
        """`key` is namespace/name."""
        ...

    def put_state(self, uid: str, state: PodState) -> None: ...
    def commit(self) -> None:
        """Writes all changes to the journal. Raises JournalError."""
        ...


class Evictions(Protocol):
    def evict(self, uid: str, status: TerminalStatus) -> None:
        """Ends the whole pod with this terminal status (A20). A pod that has ended already is not changed."""
        ...

    def start_anew(self, uid: str) -> bool:
        """Admits an ended pod again as if it were new (E16). False if something of the old pod is still left."""
        ...


class Events(Protocol):
    """Records events and decisions in the journal, and counts them."""

    def record(
        self,
        type_: str,
        reason: str,
        message: str,
        pod: Pod | None = None,
        container: str = "",
        figures: Mapping[str, object] = NO_FIGURES,
    ) -> None:
        """Records the event. The next step commits it."""
        ...

    def decided(self, kind: str, snapshot: object, decision: object) -> None: ...
    def count_eviction(self, cause: str) -> None: ...
    def observe_decision(self, seconds: float) -> None:
        """Records the time from the figures that crossed a threshold to the kill."""
        ...


class Steps(Protocol):
    """The agent's loop works in steps. A step decides for pods, commits, and acts."""

    def want_step(self, uid: str = "") -> None: ...
    def room_appeared(self) -> None:
        """The next step tries to admit the waiting pods."""
        ...


class Cgroups(Protocol):
    """The node's cgroup tree, for the agent's loop."""

    driver: Driver

    @property
    def tree(self) -> Tree | None: ...
    @property
    def planned(self) -> Tree | None:
        """The tree without overridden settings."""
        ...

    def of_container(self, pod: str, container: str) -> Cgroup | None:
        """`pod` is namespace/name. An empty `container` means the pod's own cgroup."""
        ...

    def statistics(self, cgroup: Cgroup) -> Statistics | None: ...
    def override(self, source: str, wanted: Wanted) -> None:
        """Replaces planned settings until the next call with this `source`. `source` passes all its settings each
        time."""
        ...

    def was_overridden(self, path: str, setting: Setting) -> None:
        """A former agent has overridden this setting. The next pass restores the planned value."""
        ...


class PodObserver:
    """Is informed of changes to pods, in the agent's loop. A subclass overrides the methods that it needs.

    The observers are a tuple, built in `agent.bootstrap`. The reason for their order is stated there.
    """

    def exited(self, uid: str) -> None:
        """A container of the pod has ended. The pod's record does not contain this yet."""

    def settled(self, uid: str, record: PodRecord | None) -> None:
        """A step has handled the pod, and its record is committed. None: the pod is gone."""

    def emptied(self, uid: str) -> None:
        """The pod's volumes in memory are empty."""

    def cleaned(self, uid: str) -> None:
        """The pod's directories and volumes are removed."""

    def gone(self, record: PodRecord) -> None:
        """Nothing of the pod is left, and its record is removed."""

    def room(self) -> None:
        """Pods may have left the node. Called before admission checks the waiting pods."""

    def cgroups_changed(self, tree: Tree) -> None:
        """The node's cgroups have changed to this tree."""


# all other signals belong to the disk watch
MEMORY_SIGNALS = (Signal.MEMORY_AVAILABLE, Signal.ALLOCATABLE_MEMORY_AVAILABLE)


class PodTarget(NamedTuple):
    uid: str
    pod: Pod
    path: str  # of its cgroup, as planned
    directory: str  # of its memory files
    containers: tuple[tuple[str, str], ...]  # name and directory
    min_bytes: int = 0  # memory.min
    request_bytes: int = 0
    # Class and priority. Within one group, the usage above the request decides the rank.
    group: tuple[str, int] = ("", 0)


class WatchTargets(NamedTuple):
    version: Version = Version.V2
    path: str = ""  # of the pods' cgroup; empty if there is none
    directory: str = ""
    limit_bytes: int = 0
    pods: tuple[PodTarget, ...] = ()


def watch_targets(tree: Tree, records: PodRecords, driver: Driver, limit_bytes: int | None) -> WatchTargets:
    root = next((cgroup for cgroup in tree.cgroups if cgroup.kind == Kind.ROOT), None)
    directory = driver.files(root.path).get("memory", "") if root is not None else ""
    if root is None or not directory:
        return WatchTargets(tree.version)
    top = directory.removesuffix(root.path)
    containers: dict[str, list[tuple[str, str]]] = {}
    for cgroup in tree.cgroups:
        if cgroup.kind == Kind.CONTAINER:
            containers.setdefault(cgroup.pod, []).append((cgroup.container, top + cgroup.path))
    pods = []
    for cgroup in tree.cgroups:
        record = records.by_key(cgroup.pod) if cgroup.kind == Kind.POD else None
        if record is not None:
            parts = tuple(containers.get(cgroup.pod, ()))
            request = eviction_request(record.pod, MEMORY).value
            pods.append(
                PodTarget(
                    record.pod.metadata.uid,
                    record.pod,
                    cgroup.path,
                    top + cgroup.path,
                    parts,
                    _min_bytes(cgroup),
                    request,
                    (cgroup.qos, record.pod.spec.priority or 0),
                )
            )
    return WatchTargets(tree.version, root.path, directory, limit_bytes or 0, tuple(pods))


def _min_bytes(cgroup: Cgroup) -> int:
    value = cgroup.value("memory.min")
    return int(value) if value is not None and value.isdecimal() else 0
