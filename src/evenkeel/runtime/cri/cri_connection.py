"""One connection to a container runtime: gRPC over a Unix socket. Every call has a deadline, and what goes wrong comes
back as a sentence. Reconnecting, with back-off, is the library's business; noticing is ours."""

import os
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from evenkeel.errors import EvenkeelError
from evenkeel.runtime.cri.endpoint import socket_path

T = TypeVar("T")

_SERVICE = "/runtime.v1.{}Service/{}"
_TASKS = "/containerd.services.tasks.v1.Tasks/{}"
_NAMESPACE = (("containerd-namespace", "k8s.io"),)  # where containerd has what is made through CRI
_IMAGE_CALLS = ("ListImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo")
_MOST_BYTES = 64 << 20
SECONDS = 10.0  # for most calls
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.default_authority", "localhost"),  # a path in its place is refused by Go's servers
    ("grpc.max_receive_message_length", _MOST_BYTES),
    ("grpc.max_send_message_length", _MOST_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 10_000),  # what it calls so is the time for the runtime's first word
    ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.use_local_subchannel_pool", 1),  # another connection's back-off is not ours
)


class CallFailed(EvenkeelError):
    """The runtime said no; `code` is gRPC's word for it."""

    def __init__(self, message: str, code: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code

    @property
    def is_not_found(self) -> bool:
        return self.code == "NOT_FOUND"

    @property
    def has_task(self) -> bool:
        """Whether containerd does not remove a container because of a process that it takes to be there."""
        return "cannot delete running task" in self.message

    @property
    def is_taken(self) -> bool:
        """Whether the name of what was to be made is another's, or is being made for somebody who asked before."""
        return "is reserved" in self.message or self.code == "ALREADY_EXISTS"


class RuntimeAway(CallFailed):
    """The runtime did not answer: it is not there, or hangs. Whether it did what was asked is not known."""


class Connection:
    """`on_away` is called whenever the runtime has not answered, or the connection has come or gone."""

    def __init__(self, endpoint: str, on_away: Callable[[], None] = lambda: None) -> None:
        import grpc
        import grpc.aio

        self.path = socket_path(endpoint)
        self._grpc = grpc
        self._on_away = on_away
        self._channel = grpc.aio.insecure_channel(f"unix:{self.path}", options=_OPTIONS)
        self._calls: dict[str, Any] = {}

    async def ask(self, request: Any, response: type[T], seconds: float | None = None) -> T:  # noqa: ANN401
        """What the messages' names say. Raises RuntimeAway or CallFailed."""
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
        """Of its tasks, which it knows beside CRI, on the same socket. Another runtime says UNIMPLEMENTED."""
        return await self._ask(_TASKS.format(method), request, response, seconds, _NAMESPACE)

    async def _ask(
        self,
        path: str,
        request: Any,  # noqa: ANN401
        response: type[T],
        seconds: float,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> T:
        call = self._calls.get(path)
        if call is None:
            call = self._calls[path] = self._channel.unary_unary(
                path,
                request_serializer=type(request).SerializeToString,
                response_deserializer=response.FromString,  # type: ignore[attr-defined]
            )
        try:
            answer: T = await call(request, timeout=seconds, metadata=metadata)
        except self._grpc.aio.AioRpcError as error:
            raise self._failure(error, path.rpartition("/")[2], seconds) from None
        return answer

    async def container_events(self) -> AsyncIterator[str]:
        """The IDs of containers to which something happened, as it happens. Raises as `ask` does; a runtime that does
        not have this says UNIMPLEMENTED."""
        from evenkeel.runtime.cri import cri_pb2 as pb

        call = self._channel.unary_stream(
            _SERVICE.format("Runtime", "GetContainerEvents"),
            request_serializer=pb.GetEventsRequest.SerializeToString,
            response_deserializer=pb.ContainerEventResponse.FromString,
        )
        try:
            async for event in call(pb.GetEventsRequest()):
                yield event.container_id
        except self._grpc.aio.AioRpcError as error:
            raise self._failure(error, "GetContainerEvents", 0) from None

    async def watch(self) -> None:
        """Until cancelled: tells of a connection that breaks or is made, at once."""
        state = self._channel.get_state(try_to_connect=True)
        while True:
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state(try_to_connect=True)
            self._on_away()

    async def close(self) -> None:
        await self._channel.close()

    def _reason(self, details: str) -> str:
        """The library tells the same path three times over."""
        if not os.path.exists(self.path):
            return "there is no such socket"
        return "nobody listens there" if "Connection refused" in details else details

    def _failure(self, error: Any, name: str, seconds: float) -> CallFailed:  # noqa: ANN401
        code, details = error.code().name, " ".join((error.details() or "").split())
        if code in ("DEADLINE_EXCEEDED", "UNAVAILABLE", "CANCELLED"):
            self._on_away()
        if code == "DEADLINE_EXCEEDED":
            return RuntimeAway(f"the container runtime did not answer {name} within {seconds:g}s", code)
        if code in ("UNAVAILABLE", "CANCELLED"):
            return RuntimeAway(
                f"the container runtime at {self.path} is not there: {self._reason(details)}", code
            )
        return CallFailed(details or f"the container runtime refused {name}: {code}", code)
