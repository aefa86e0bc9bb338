"""The connection to a container runtime: the choice of the socket, and gRPC over it.

Every call has a deadline, and every failure is a sentence. The gRPC library reconnects by itself, with back-off. This
module notices the loss of the connection. grpc is imported only when a connection is made.
"""

import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple

AUTO = "auto"
SOCKETS = ("/run/containerd/containerd.sock", "/run/crio/crio.sock")
_UNIX = "unix://"
_LONGEST_PATH = 107
_LISTEN_SECONDS = 1.0

T = TypeVar("T")

_SERVICE = "/runtime.v1.{}Service/{}"
_TASKS = "/containerd.services.tasks.v1.Tasks/{}"
_CONTAINERS = "/containerd.services.containers.v1.Containers/Get"
_NAMESPACE = (("containerd-namespace", "k8s.io"),)  # containerd's namespace for CRI
_IMAGE_CALLS = ("ListImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo")
_MOST_BYTES = 64 << 20
SECONDS = 10.0  # for most calls
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.default_authority", "localhost"),  # servers in Go refuse the default, which is the path
    ("grpc.max_receive_message_length", _MOST_BYTES),
    ("grpc.max_send_message_length", _MOST_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 10_000),  # despite its name, the time limit of one attempt to connect
    ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.use_local_subchannel_pool", 1),  # do not share the back-off of other connections
)


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


class _Garbled(NamedTuple):
    """An answer that is no message of its type. The library would log it with a traceback, and return None."""

    why: str


def _reader(response: type[T]) -> Callable[[bytes], T | _Garbled]:
    from google.protobuf.message import DecodeError

    def read(answer: bytes) -> T | _Garbled:
        try:
            message: T = response.FromString(answer)  # type: ignore[attr-defined]
        except DecodeError as error:
            return _Garbled(str(error))
        return message

    return read


class Connection:
    """A connection. `on_away` is called when the runtime did not answer, and when the connection is made or lost."""

    def __init__(self, endpoint: str, on_away: Callable[[], None] = lambda: None) -> None:
        import grpc
        import grpc.aio

        self.path = socket_path(endpoint)
        self._grpc = grpc
        self._on_away = on_away
        self._channel = grpc.aio.insecure_channel(f"unix:{self.path}", options=_OPTIONS)
        self._calls: dict[str, Any] = {}

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
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> T:
        call = self._calls.get(path)
        if call is None:
            call = self._calls[path] = self._channel.unary_unary(
                path,
                request_serializer=type(request).SerializeToString,
                response_deserializer=_reader(response),
            )
        try:
            answer: T | _Garbled = await call(request, timeout=seconds, metadata=metadata)
        except self._grpc.aio.AioRpcError as error:
            raise self._failure(error, path.rpartition("/")[2], seconds) from None
        if isinstance(answer, _Garbled):  # it may have done what was asked for
            self._on_away()
            name = path.rpartition("/")[2]
            raise RuntimeAway(
                f"the container runtime's answer to {name} cannot be read: {answer.why}", "DATA_LOSS"
            )
        return answer

    async def container_events(self) -> AsyncIterator[str]:
        """Yields the ID of each container when it changes. Raises as `ask` does.

        A runtime without this call answers UNIMPLEMENTED.
        """
        from evenkeel.runtime.cri import cri_pb2 as pb

        call = self._channel.unary_stream(
            _SERVICE.format("Runtime", "GetContainerEvents"),
            request_serializer=pb.GetEventsRequest.SerializeToString,
            response_deserializer=_reader(pb.ContainerEventResponse),
        )
        try:
            async for event in call(pb.GetEventsRequest()):
                if not isinstance(event, _Garbled):
                    yield event.container_id
        except self._grpc.aio.AioRpcError as error:
            raise self._failure(error, "GetContainerEvents", 0) from None

    async def watch(self) -> None:
        """Calls `on_away` when the connection is made or lost, until cancelled."""
        state = self._channel.get_state(try_to_connect=True)
        while True:
            await self._channel.wait_for_state_change(state)
            state = self._channel.get_state(try_to_connect=True)
            self._on_away()

    async def close(self) -> None:
        await self._channel.close()

    def _reason(self, details: str) -> str:
        """Shortens the library's text, which has the path three times."""
        if not os.path.exists(self.path):
            return "there is no such socket"
        return "nothing listens there" if "Connection refused" in details else details

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


def require_libraries() -> None:
    """Raises EvenkeelError if grpcio or protobuf is not installed."""
    try:
        import grpc.aio

        from evenkeel.runtime.cri import cri_pb2
    except Exception as error:  # noqa: BLE001 an old protobuf raises errors whose class only a newer one has
        raise EvenkeelError(
            f"grpcio and protobuf, by which container runtimes are spoken to, cannot be used: {error}",
            hint="pip install 'evenkeel[cri]'",
        ) from None
    del grpc, cri_pb2


def socket_path(endpoint: str) -> str:
    """Returns the path of `unix:///run/containerd/containerd.sock`, or of a plain path. Raises EvenkeelError."""
    path = endpoint.removeprefix(_UNIX)
    if "://" in path or not path.startswith("/") or "\0" in path:
        raise EvenkeelError(
            f"containerRuntimeEndpoint {endpoint!r} is no Unix socket",
            hint=f"write {_UNIX}{SOCKETS[0]}, or {AUTO}",
        )
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise EvenkeelError(
            f"containerRuntimeEndpoint {endpoint!r} is longer than the {_LONGEST_PATH} bytes that a socket's path "
            "can have"
        )
    return path


def chosen(endpoint: str, sockets: tuple[str, ...] = SOCKETS) -> str:
    """Returns the endpoint to use.

    `auto` is the first container runtime that listens. If none listens, the result is empty, and pods are processes.
    """
    if endpoint != AUTO:
        return endpoint
    return next((f"{_UNIX}{path}" for path in sockets if _listens(path)), "")


def unused(sockets: tuple[str, ...] = SOCKETS) -> str:
    """Returns the endpoint of a container runtime on this machine, as a suggestion; empty if there is none."""
    return next((f"{_UNIX}{path}" for path in sockets if _is_socket(path)), "")


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(_LISTEN_SECONDS)
        try:
            one.connect(path)
        except OSError:
            return False
    return True
