"""The interface between the agent and its pressure watches, as far as it is calls in the agent's loop.

`pressure` never imports `agent`. The agent's classes implement these protocols and are passed to constructors, so a
test can pass other objects.
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
    def commit(self) -> None:
        """Writes the events that were recorded to the journal. Raises JournalError."""
        ...

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
        """A container of the pod has ended, also while it was being set up. The pod's record does not contain this
        yet."""

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
