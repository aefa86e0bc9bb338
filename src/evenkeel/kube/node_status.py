"""The node in the cluster: its registration, its lease and its status.

The lease says every ten seconds that the node is alive. The status is sent when something has changed here, when others
have changed it, and every five minutes. A controller changes it when the lease was not renewed for too long. Taints are
left to the cluster's controllers."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol

from evenkeel.api.node import Node
from evenkeel.errors import EvenkeelError
from evenkeel.kube.api_client import (
    CONFLICT,
    NOT_FOUND,
    ApiError,
    Backoff,
    Client,
    Json,
    metadata_of,
    path_of,
)
from evenkeel.kube.node_object import (
    NodeIdentity,
    has_conditions,
    labels,
    node_info,
    node_status,
    registration,
    status_patch,
    with_times,
)
from evenkeel.kube.watch import DELETED
from evenkeel.runtime.interface import Image, Pull, Readiness

log = logging.getLogger(__name__)

_REGISTER_BACKOFF_SECONDS = (0.1, 7.0)
_LEASE_SECONDS = 40
_RENEW_SECONDS = 10.0
_RENEW_TIMEOUT_SECONDS = 10.0
_RENEW_TRIES = 5
_STATUS_SECONDS = 2.0  # between looks; nothing is sent if nothing has changed
_REPORT_SECONDS = 300.0
_IMAGES_SECONDS = 60.0
_REGISTRATION_FAILS = "this node cannot be registered"
_STATUS_FAILS = "the node's status cannot be sent"
_LEASE_FAILS = "the node's lease cannot be renewed"
_LEASES = ("apis", "coordination.k8s.io", "v1", "namespaces", "kube-node-lease", "leases")


class NodeFront(Protocol):
    """The part of the agent's interface that the node needs."""

    @property
    def runtime(self) -> Readiness: ...
    def node(self) -> Node: ...
    def not_ready(self) -> str: ...
    async def images(self) -> tuple[tuple[Image, ...], tuple[Pull, ...]]: ...


class ClusterNode:
    """For the agent's event loop. It is the handler of the watch of the node's own object."""

    def __init__(
        self,
        client: Client,
        lease_client: Client,
        identity: NodeIdentity,
        front: NodeFront,
        on_reboot: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`on_reboot` is called with a boot that the API server does not know yet."""
        self.is_registered = asyncio.Event()
        self.uid = ""
        self._client = client
        self._lease_client = lease_client
        self._identity = identity
        self._front = front
        self._on_reboot = on_reboot
        self._clock = clock
        self._path = path_of("api", "v1", "nodes", identity.name)
        self._info = node_info(identity)
        self._images: Sequence[Image] = ()
        self._images_at = -_IMAGES_SECONDS
        self._sent: Json | None = None  # the last status that was sent, without times
        self._report_at = 0.0
        self._seen: Json = {}  # the status that the API server has
        self._is_deleted = False
        self._shutdown = ""  # why the node is not ready any more
        self._failures: set[str] = set()

    async def register(self) -> None:
        """Returns when the API server knows the node, with its labels. Until then it is tried again."""
        backoff = Backoff(*_REGISTER_BACKOFF_SECONDS)
        while True:
            try:
                node = await self._registered()
                self.uid = str(metadata_of(node).get("uid") or "")
                break
            except EvenkeelError as error:
                self._note(_REGISTRATION_FAILS, error)
                await backoff.wait()
        self._seen = node.get("status") or {}
        before = (self._seen.get("nodeInfo") or {}).get("bootID")
        if before and before != self._info["bootID"]:
            self._on_reboot(self._info["bootID"])
        self._failures.discard(_REGISTRATION_FAILS)
        log.info("cluster: node %s is registered at %s", self._identity.name, self._client.server)
        self.is_registered.set()

    def listed(self, objects: list[Json]) -> None:
        if not objects:
            self._is_deleted = True
        for one in objects:
            self.changed("", one)

    def changed(self, type_: str, one: Json) -> None:
        self._is_deleted = type_ == DELETED
        if not self._is_deleted:
            self.uid = str(one["metadata"]["uid"])
            self._seen = one.get("status") or {}

    async def run_lease(self) -> None:
        """Renews the lease, until it is cancelled."""
        await self.is_registered.wait()
        lease: Json | None = None
        while True:
            began = time.monotonic()
            lease = await self._renewed(lease)
            await asyncio.sleep(max(began + _RENEW_SECONDS - time.monotonic(), 0.0))

    async def run_status(self) -> None:
        """Sends the status, until it is cancelled."""
        await self.is_registered.wait()
        backoff = Backoff(1.0, 10.0)
        while True:
            try:
                if self._is_deleted:
                    self._is_deleted = False
                    await self.register()
                await self._report()
                backoff.reset()
            except EvenkeelError as error:
                self._note(_STATUS_FAILS, error)
                self._sent = None
                await backoff.wait()
            else:
                await asyncio.sleep(_STATUS_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311 no secret

    async def shut_down(self, message: str) -> None:
        """The node is not ready from now on. Reports that to the API server, if it answers."""
        self._shutdown = message
        if self.is_registered.is_set():
            try:
                await self._report()
            except EvenkeelError as error:
                self._note(_STATUS_FAILS, error)

    async def _registered(self) -> Json:
        status = with_times(await self._status(), {}, self._clock())
        try:
            return await self._client.post(
                path_of("api", "v1", "nodes"), registration(self._identity, status)
            )
        except ApiError as error:
            if error.code != CONFLICT:
                raise
        node = await self._client.get(self._path)
        has = metadata_of(node).get("labels") or {}
        wanted = labels(self._identity)
        if changed := {name: value for name, value in wanted.items() if has.get(name) != value}:
            node = await self._client.patch(self._path, {"metadata": {"labels": changed}})
        return node

    async def _status(self) -> Json:
        if time.monotonic() - self._images_at >= _IMAGES_SECONDS:
            self._images_at = time.monotonic()
            self._images = (await self._front.images())[0]
        return node_status(
            self._identity,
            self._info,
            self._front.node(),
            self._images,
            self._front.runtime,
            self._shutdown or self._front.not_ready(),
        )

    async def _report(self) -> None:
        status = await self._status()
        is_there = status == self._sent and has_conditions(self._seen, status)
        if is_there and time.monotonic() < self._report_at:
            return
        patch = status_patch(with_times(status, self._seen, self._clock()), self._seen)
        node = await self._client.patch(f"{self._path}/status", patch)
        self._seen = node.get("status") or {}
        self._sent = status
        self._report_at = time.monotonic() + _REPORT_SECONDS * random.uniform(0.5, 1.0)  # noqa: S311 no secret
        self._note_well(_STATUS_FAILS, "the node's status is sent again")

    # The lease

    async def _renewed(self, lease: Json | None) -> Json | None:
        """The lease as the API server has it after the renewal; None if it could not be renewed."""
        failure: EvenkeelError | None = None
        for _ in range(_RENEW_TRIES):
            try:
                async with asyncio.timeout(_RENEW_TIMEOUT_SECONDS):
                    lease = await self._renew(lease)
            except TimeoutError:
                failure = EvenkeelError(f"no answer within {_RENEW_TIMEOUT_SECONDS:.0f} s")
                lease = None
                break
            except ApiError as error:
                failure, lease = error, None
            except EvenkeelError as error:
                failure = error
                # Other idle connections are most likely dead, too.
                await self._lease_client.close()
                await self._client.close()
            else:
                self._note_well(_LEASE_FAILS, "the node's lease is renewed again")
                return lease
        assert failure is not None
        self._note(_LEASE_FAILS, failure)
        return lease

    async def _renew(self, lease: Json | None) -> Json:
        path = path_of(*_LEASES, self._identity.name)
        if lease is None:
            try:
                lease = await self._lease_client.get(path)
            except ApiError as error:
                if error.code != NOT_FOUND:
                    raise
                made = self._lease({"name": self._identity.name})
                return await self._lease_client.post(path_of(*_LEASES), made)
        return await self._lease_client.put(path, self._lease(metadata_of(lease)), _RENEW_TIMEOUT_SECONDS)

    def _lease(self, metadata: Json) -> Json:
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._identity.name, "uid": self.uid}
        renewed = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                **{name: value for name, value in metadata.items() if name != "managedFields"},
                "ownerReferences": [owner],
            },
            "spec": {
                "holderIdentity": self._identity.name,
                "leaseDurationSeconds": _LEASE_SECONDS,
                "renewTime": renewed,
            },
        }

    def _note(self, failure: str, error: EvenkeelError) -> None:
        """Logs a failure once, until it is over."""
        if failure not in self._failures:
            self._failures.add(failure)
            log.warning("cluster: %s: %s", failure, error)

    def _note_well(self, failure: str, message: str) -> None:
        if failure in self._failures:
            self._failures.discard(failure)
            log.info("cluster: %s", message)
