"""What the agent offers to those who ask over its socket (`server`), and to the terminal in which it runs."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from evenkeel.agent.pod_store import PodChange
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.node import Node
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import Statistics
from evenkeel.journal.records import Event

if TYPE_CHECKING:
    from evenkeel.agent.observe.history import Advice
    from evenkeel.agent.observe.node_snapshot import NodeSnapshot
    from evenkeel.agent.observe.story import Story


class Applied(NamedTuple):
    """What became of one pod that was handed in: created, configured (changed) or unchanged."""

    pod: str
    outcome: str


class ContainerUsage(NamedTuple):
    pod: str  # namespace/name
    container: str  # empty: the pod as a whole
    statistics: Statistics


class NodeUsage(NamedTuple):
    """Figures read at one moment; cpu use is the difference of two of them."""

    at: float
    capacity_bytes: int
    available_bytes: int
    capacity_millicpu: int
    pods: Statistics | None  # all pods together
    containers: tuple[ContainerUsage, ...]


class Front(Protocol):
    @property
    def config(self) -> KubeletConfiguration: ...

    def node(self) -> Node:
        """With capacity, allocatable and conditions."""
        ...

    def pods(self) -> tuple[Pod, ...]:
        """In order of arrival, with their statuses."""
        ...

    def pod(self, key: str) -> Pod | None:
        """`key` is namespace/name."""
        ...

    async def apply(self, pods: Sequence[Pod], source: str = "api") -> tuple[Applied, ...]:
        """Takes pods that were read and validated; all or, with an EvenkeelError, none of them. A pod of another source
        (a file) is not the api's to change: an error that names the file."""
        ...

    async def delete(self, key: str, grace_seconds: float | None = None) -> bool:
        """Asks for the pod's end; False if there is none of that name. `watch` tells when it is gone."""
        ...

    def events(self, pod: str = "", most: int = 1000) -> tuple[Event, ...]:
        """The latest, oldest first; of one pod, or of all and the node."""
        ...

    def follow(self) -> AsyncIterator[Event]:
        """Those from now on. One who does not keep up is dropped (the iterator ends)."""
        ...

    def watch(self) -> AsyncIterator[PodChange]:
        """Every pod there is as ADDED, then the changes as they come. One who does not keep up is dropped."""
        ...

    def not_ready(self) -> str:
        """Why the agent does not do its work at the moment; empty if it does."""
        ...

    def usage(self) -> NodeUsage: ...

    async def node_snapshot(self) -> "NodeSnapshot":
        """Everything that is shown of the node, not older than a second; the same for all who ask within one."""
        ...

    def advice(self) -> "Advice":
        """What requests and reservations should be, from what was used since the agent was started (B14)."""
        ...

    async def story(self, key: str) -> "Story | None":
        """What became of the pod namespace/name (E14); None if nobody has ever heard of it."""
        ...

    async def snapshot(self) -> Mapping[str, object]:
        """All that a decision about evictions would be made on now, as plain values (E15)."""
        ...
