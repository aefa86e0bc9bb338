"""The agent's interface for its clients: the HTTP server on its socket (`server`) and the terminal it runs in."""

import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from evenkeel.agent.pod_store import PodChange
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.data_objects import DataKey
from evenkeel.api.node import Node
from evenkeel.api.pod import Pod
from evenkeel.api.stored_objects import StoredObject
from evenkeel.api.workloads import Workload
from evenkeel.journal.records import Event
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.sessions import Session, Streams

if TYPE_CHECKING:
    from evenkeel.agent.observe.history import Advice
    from evenkeel.agent.observe.node_snapshot import NodeSnapshot, NodeUsage
    from evenkeel.agent.observe.pod_history import PodHistory
    from evenkeel.runtime.interface import Image, Pull


class Applied(NamedTuple):
    """The outcome for one applied pod, workload or object: created, configured (changed) or unchanged."""

    pod: str  # namespace/name
    outcome: str
    kind: str = "Pod"


class Front(Protocol):
    @property
    def config(self) -> KubeletConfiguration: ...

    def node(self) -> Node:
        """The node with its capacity, allocatable and conditions."""
        ...

    def pods(self) -> tuple[Pod, ...]:
        """All pods with their statuses, in order of arrival."""
        ...

    def pod(self, key: str) -> Pod | None:
        """The pod with this key (namespace/name)."""
        ...

    async def apply(
        self,
        pods: Sequence[Pod],
        source: str = "api",
        objects: Sequence[StoredObject] = (),
        *,
        workloads: Sequence[Workload] = (),
    ) -> tuple[Applied, ...]:
        """Applies pods, workloads, ConfigMaps and Secrets that were read and validated: all of them, or none with an
        EvenkeelError. The API cannot change one of another source (a file). The error then names the file."""
        ...

    def data_objects(self, kind: str) -> tuple[StoredObject, ...]:
        """All ConfigMaps, or all Secrets."""
        ...

    def data_object(self, key: DataKey) -> StoredObject | None: ...

    async def delete_data(self, key: DataKey) -> bool:
        """Deletes an applied ConfigMap or Secret; False if there is none."""
        ...

    def workloads(self) -> tuple[Workload, ...]:
        """All workloads with their statuses, in order of arrival."""
        ...

    def workload(self, key: str) -> Workload | None:
        """The workload with this key (KIND/namespace/name)."""
        ...

    async def scale(self, key: str, replicas: int) -> bool:
        """Changes the number of replicas of an applied workload; False if there is none. Raises EvenkeelError for a
        kind without replicas, and for a workload of a file."""
        ...

    async def delete_workload(self, key: str, grace_seconds: float | None = None) -> bool:
        """Deletes an applied workload and its pods; False if there is none."""
        ...

    async def delete(self, key: str, grace_seconds: float | None = None) -> bool:
        """Requests that the pod be deleted; False if no pod has that name. `watch` reports when the pod is gone."""
        ...

    def events(self, pod: str = "", most: int = 1000) -> tuple[Event, ...]:
        """The latest events, oldest first: of one pod, or of all pods and the node."""
        ...

    def follow(self) -> AsyncIterator[Event]:
        """All events from now on. A reader that is too slow is dropped: its iterator ends."""
        ...

    def watch(self) -> AsyncIterator[PodChange]:
        """First every existing pod as ADDED, then each change. A reader that is too slow is dropped."""
        ...

    def not_ready(self) -> str:
        """The reason why the agent is not ready; empty if it is ready."""
        ...

    def usage(self) -> "NodeUsage": ...

    async def images(self) -> tuple["tuple[Image, ...]", "tuple[Pull, ...]"]:
        """The images on this machine, and those that are being pulled now."""
        ...

    async def node_snapshot(self) -> "NodeSnapshot":
        """All figures of the node, at most one second old. All clients that ask within a second get the same one."""
        ...

    def advice(self) -> "Advice":
        """Suggested requests and reservations, from the usage since the agent was started (B14)."""
        ...

    async def pod_history(self, key: str) -> "PodHistory | None":
        """The history of the pod namespace/name (E14); None if the journal does not know the pod."""
        ...

    async def open_exec(self, key: str, container: str, command: tuple[str, ...], wanted: Streams) -> Session:
        """Starts a command in a running container of the pod; without a name, in its first one. Raises
        SessionRefused."""
        ...

    async def open_attach(self, key: str, container: str, wanted: Streams) -> Session:
        """The streams of a running container itself; without a name, of the pod's first one. Raises
        SessionRefused."""
        ...

    async def open_port(self, key: str, port: int) -> socket.socket:
        """Connects to a port of the pod, in its own network. Raises SessionRefused."""
        ...

    async def snapshot(self) -> Mapping[str, object]:
        """The present inputs of an eviction decision, as plain values (E15)."""
        ...
