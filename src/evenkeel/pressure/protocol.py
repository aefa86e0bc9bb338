"""The border between the agent and its watches over pressure: what they need of the agent, and what it tells them.

`pressure` never imports `agent`. The agent's own classes fit these protocols and are passed to constructors, so a test
can pass something else.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Protocol

from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import Driver, Statistics
from evenkeel.cgroup.overrides import Wanted
from evenkeel.cgroup.tree import Cgroup, Setting, Tree
from evenkeel.journal.records import PodRecord
from evenkeel.policy.lifecycle.pod_state import PodState, TerminalStatus

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
