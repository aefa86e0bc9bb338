"""The border between the agent and its watches over pressure: what they need of the agent, and what it tells them.

Targets are the pods that a watch may evict, with the places of their figures; the agent gives a new set whenever its
tree of cgroups has changed.

`pressure` never imports `agent`. The agent's own classes fit these protocols and are passed to constructors, so a test
can pass something else.
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
        """The pod ends, whole, with this terminal status (A20). Nothing happens to one that has ended already."""
        ...

    def start_anew(self, uid: str) -> bool:
        """A pod that has ended is admitted again as if it were new (E16). False if something of it is still left."""
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
        """The event is committed by the next step."""
        ...

    def decided(self, kind: str, snapshot: object, decision: object) -> None: ...
    def count_eviction(self, cause: str) -> None: ...
    def observe_decision(self, seconds: float) -> None:
        """How long it took from the figures that crossed a threshold to the kill."""
        ...


class Steps(Protocol):
    """The agent's loop works in steps. A step decides for pods, commits, and acts."""

    def want_step(self, uid: str = "") -> None: ...
    def room_appeared(self) -> None:
        """The next step tries to admit the pods that wait."""
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
        """Replaces planned settings by these until `source` says otherwise: they are all that it wants now."""
        ...

    def was_overridden(self, path: str, setting: Setting) -> None:
        """By a former agent: the next pass puts back what is planned."""
        ...


class PodObserver:
    """Hears of changes to pods, in the agent's loop. A subclass overrides what it needs.

    The observers are a tuple that is made in `agent.bootstrap`, which states why they are in this order.
    """

    def exited(self, uid: str) -> None:
        """A container of the pod has ended. The pod's record does not have it yet."""

    def settled(self, uid: str, record: PodRecord | None) -> None:
        """A step has looked at the pod, and its record is committed. None: the pod is gone."""

    def emptied(self, uid: str) -> None:
        """The pod's volumes in memory are empty."""

    def cleaned(self, uid: str) -> None:
        """The pod's directories and volumes are removed."""

    def gone(self, record: PodRecord) -> None:
        """Nothing of the pod is left, nor its record."""

    def room(self) -> None:
        """Pods may have left. Called before admission looks at those that wait."""

    def cgroups_changed(self, tree: Tree) -> None:
        """The node's cgroups are now these."""


MEMORY_SIGNALS = (Signal.MEMORY_AVAILABLE, Signal.ALLOCATABLE_MEMORY_AVAILABLE)  # the others are disk's


class PodTarget(NamedTuple):
    uid: str
    pod: Pod
    path: str  # of its cgroup, as planned
    directory: str  # of its memory files
    containers: tuple[tuple[str, str], ...]  # name and directory
    min_bytes: int = 0  # memory.min
    request_bytes: int = 0
    # Class and priority: within one group, usage over request decides the rank.
    group: tuple[str, int] = ("", 0)


class WatchTargets(NamedTuple):
    version: Version = Version.V2
    path: str = ""  # of the pods' cgroup; empty where there is none
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
