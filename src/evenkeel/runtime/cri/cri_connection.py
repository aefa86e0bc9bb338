"""The connection to a container runtime: CRI calls over gRPC. Every call has a deadline, and every failure is a
sentence."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from evenkeel.errors import EvenkeelError
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.endpoints import socket_path
from evenkeel.runtime.cri.grpc_channel import GrpcChannel, Metadata
from evenkeel.runtime.cri.grpc_stream import DEADLINE_EXCEEDED, UNAVAILABLE, GrpcError

T = TypeVar("T")

_SERVICE = "/runtime.v1.{}Service/{}"
_TASKS = "/containerd.services.tasks.v1.Tasks/{}"
_CONTAINERS = "/containerd.services.containers.v1.Containers/Get"
_NAMESPACE = (("containerd-namespace", "k8s.io"),)  # containerd's namespace for CRI
_IMAGE_CALLS = ("ListImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo")
_MOST_BYTES = 64 << 20
SECONDS = 10.0  # for most calls


class CallFailed(EvenkeelError):
    """The runtime refused the call; `code` is the gRPC status."""

    def __init__(self, message: str, code: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code

    @property
    def is_not_found(self) -> bool:
        return self.code == "NOT_FOUND"

    @property
    def has_task(self) -> bool:
        """Whether containerd refuses to remove a container because it believes that its process still runs."""
        return "cannot delete running task" in self.message

    @property
    def is_taken(self) -> bool:
        """Whether the name is taken, or another call is just making something of that name."""
        return "is reserved" in self.message or self.code == "ALREADY_EXISTS"


class RuntimeAway(CallFailed):
    """The runtime did not answer: it is not running, or it hangs. It may or may not have done the request."""


class Connection:
    """A connection. `on_away` is called when the runtime did not answer, and when the connection is made or lost."""

    def __init__(self, endpoint: str, on_away: Callable[[], None] = lambda: None) -> None:
        self.path = socket_path(endpoint)
        self._on_away = on_away
        self._channel = GrpcChannel(self.path, _MOST_BYTES)

    async def ask(self, request: Any, response: type[T], seconds: float | None = None) -> T:  # noqa: ANN401
        """Makes the call that the message is named after. Raises RuntimeAway or CallFailed."""
        name = type(request).DESCRIPTOR.name.removesuffix("Request")
        path = _SERVICE.format("Image" if name in _IMAGE_CALLS else "Runtime", name)
        return await self._ask(path, request, response, SECONDS if seconds is None else seconds)

    async def ask_containerd(
        self,
        method: str,
        request: Any,  # noqa: ANN401
        response: type[T],
        seconds: float,
    ) -> T:
        """Makes a call of containerd's own task service, on the same socket. Other runtimes answer UNIMPLEMENTED."""
        return await self._ask(_TASKS.format(method), request, response, seconds, _NAMESPACE)

    async def ask_container_store(
        self,
        request: Any,  # noqa: ANN401
        response: type[T],
        seconds: float,
    ) -> T:
        """Asks containerd for its own record of a container."""
        return await self._ask(_CONTAINERS, request, response, seconds, _NAMESPACE)

    async def _ask(
        self,
        path: str,
        request: Any,  # noqa: ANN401
        response: type[T],
        seconds: float,
        metadata: Metadata = (),
    ) -> T:
        name = path.rpartition("/")[2]
        try:
            answer = await self._channel.ask(path, request.SerializeToString(), seconds, metadata)
        except GrpcError as error:
            raise self._failure(error, name, seconds) from None
        try:
            message: T = response.FromString(answer)  # type: ignore[attr-defined]
        except DecodeError as error:  # it may have done the request
            self._on_away()
            raise RuntimeAway(
                f"the container runtime's answer to {name} cannot be read: {error}", "DATA_LOSS"
            ) from None
        return message

    async def container_events(self) -> AsyncIterator[str]:
        """Yields the ID of each container when it changes. Raises as `ask` does.

        A runtime without this call answers UNIMPLEMENTED.
        """
        name = "GetContainerEvents"
        request = pb.GetEventsRequest().SerializeToString()
        try:
            async with aclosing(self._channel.answers(_SERVICE.format("Runtime", name), request)) as answers:
                async for answer in answers:
                    try:
                        event = pb.ContainerEventResponse.FromString(answer)
                    except DecodeError:
                        continue  # the next listing finds the changes that this event would have reported
                    yield event.container_id
        except GrpcError as error:
            raise self._failure(error, name, 0) from None

    async def watch(self) -> None:
        """Calls `on_away` when the connection is made or lost, until cancelled."""
        await self._channel.keep_connected(self._on_away)

    async def close(self) -> None:
        await self._channel.close()

    def _reason(self, details: str) -> str:
        if not os.path.exists(self.path):
            return "there is no such socket"
        return "nothing listens there" if "connection refused" in details else details

    def _failure(self, error: GrpcError, name: str, seconds: float) -> CallFailed:
        code, details = error.code, " ".join(error.details.split())
        if code in (DEADLINE_EXCEEDED, UNAVAILABLE, "CANCELLED"):
            self._on_away()
        if code == DEADLINE_EXCEEDED:
            return RuntimeAway(f"the container runtime did not answer {name} within {seconds:g}s", code)
        if code in (UNAVAILABLE, "CANCELLED"):
            return RuntimeAway(
                f"the container runtime at {self.path} is not there: {self._reason(details)}", code
            )
        return CallFailed(details or f"the container runtime refused {name}: {code}", code)
