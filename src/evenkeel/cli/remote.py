"""The client's end of a session: a WebSocket to the agent, and a relay between it and descriptors of this process.

One thread does everything. It waits for the agent, for its own input and for a change of the window's size. Input is
read only when the agent has taken the input before it. The agent's messages are read only when the output before them
is written. So neither side makes this process hold more than a few KiB."""

import os
import select
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    RejectConnection,
    RejectData,
    Request,
)
from wsproto.utilities import ProtocolError

from evenkeel.cli.client import Client, quoted
from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.sessions import SessionEnd
from evenkeel.server.channels import CLOSE, ERROR, RESIZE, STDIN, V5, end_of, size_message

_READ_BYTES = 32 * 1024
_LONGEST_TARGET_BYTES = 15 * 1024  # the agent takes a head of 16 KiB
_MOST_REFUSAL_BYTES = 64 * 1024


class BrokenOff(EvenkeelError):
    """The agent went away before the end of the session."""


class Part(NamedTuple):
    channel: int
    data: bytes
    is_first: bool  # of its message
    is_last: bool


class Remote:
    """An open WebSocket. Raises EvenkeelError if the agent refuses the session, or breaks it off."""

    def __init__(self, client: Client, path: str, parameters: list[tuple[str, str]]) -> None:
        query = "&".join(f"{name}={quoted(os.fsencode(value))}" for name, value in parameters)
        target = f"{path}?{query}" if query else path
        if len(target) > _LONGEST_TARGET_BYTES:
            raise EvenkeelError(
                f"the command is longer than the {_LONGEST_TARGET_BYTES >> 10} KiB that the agent takes",
                hint="send a script through standard input: evenkeel exec -i POD -- sh < script",
            )
        self._client = client
        self._wire = WSConnection(ConnectionType.CLIENT)
        self._socket = client.connected()
        self._waiting = b""
        self.is_closed = False  # the agent has closed the WebSocket
        self._may_send = True
        self._channel = -1
        self._connect(target)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_room(self) -> bool:
        """Whether the agent has taken everything that was sent."""
        return not self._waiting

    def send(self, channel: int, data: bytes) -> None:
        if self._may_send and not self.is_closed:
            self._send(self._wire.send(BytesMessage(data=bytes((channel,)) + data)))

    def flush(self) -> None:
        while self._waiting:
            try:
                self._waiting = self._waiting[self._socket.send(self._waiting) :]
            except BlockingIOError:
                return
            except OSError:
                # The agent takes no more. What it has sent before is still to be read.
                self._waiting, self._may_send = b"", False

    def receive(self) -> list[Part] | None:
        """The messages that have arrived from the agent; None at the end."""
        if parts := self._events():  # they came together with the answer to the request
            return parts
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            return None
        self._wire.receive_data(data)
        return self._events()

    def close(self) -> None:
        self._socket.close()

    def _send(self, data: bytes) -> None:
        self._waiting += data
        self.flush()

    def _events(self) -> list[Part]:
        parts: list[Part] = []
        for event in self._wire.events():
            if isinstance(event, BytesMessage):
                data = bytes(event.data)
                is_first = self._channel < 0
                if is_first and data:
                    self._channel, data = data[0], data[1:]
                if self._channel >= 0:
                    parts.append(Part(self._channel, data, is_first, event.message_finished))
                if event.message_finished:
                    self._channel = -1
            elif isinstance(event, Ping):
                self._send(self._wire.send(event.response()))
            elif isinstance(event, CloseConnection):
                self.is_closed = True
        return parts

    def _connect(self, target: str) -> None:
        try:
            self._socket.sendall(self._wire.send(Request(host="evenkeel", target=target, subprotocols=[V5])))
            refusal = self._handshake()
        except (OSError, ProtocolError) as error:
            refusal = self._client.no_answer(str(error) or "it broke off")
        if refusal is not None:
            self._socket.close()
            raise refusal

    def _handshake(self) -> EvenkeelError | None:
        """None if the agent has accepted."""
        status, refusal = 0, b""
        while True:
            self._wire.receive_data(self._socket.recv(_READ_BYTES) or None)
            for event in self._wire.events():
                if isinstance(event, AcceptConnection):
                    return None
                if isinstance(event, RejectConnection):
                    status = event.status_code
                elif isinstance(event, RejectData):
                    refusal = (refusal + bytes(event.data))[:_MOST_REFUSAL_BYTES]
                    if event.body_finished:
                        return self._client.refusal(status, refusal)
                elif isinstance(event, CloseConnection):
                    return self._client.no_answer("it ended before it answered")


class Sinks(NamedTuple):
    """Where the agent's channels go: for each a function that writes all of a chunk. `closed` is called with each
    channel that the agent has closed."""

    write: Mapping[int, Callable[[bytes], None]]
    closed: Callable[[int], None] = lambda _: None


def relay(
    remote: Remote,
    source: int,
    sinks: Sinks,
    size: Callable[[], tuple[int, int]] | None = None,
    *,
    has_status: bool = True,
) -> SessionEnd:
    """Relays until the session ends. `source` is a descriptor, -1 for none. `size` is that of our terminal. A session
    that `has_status` says how it ended.

    Raises BrokenOff if the agent goes away before the end.
    """
    status = b""
    is_first = True  # something may have come together with the answer to the request
    poll = select.poll()
    with _window_changes(wanted=size is not None) as changes:
        if size is not None:
            poll.register(changes, select.POLLIN)
            remote.send(RESIZE, size_message(*size()))
        while True:
            poll.register(remote, select.POLLIN | (0 if remote.has_room else select.POLLOUT))
            if source >= 0 and remote.has_room:
                poll.register(source, select.POLLIN)
            ready = [descriptor for descriptor, _ in poll.poll(0 if is_first else None)]
            for descriptor in (remote.fileno(), *ready) if is_first else ready:
                is_first = False
                if descriptor == remote.fileno():
                    remote.flush()
                    parts = remote.receive()
                    for part in parts or ():
                        if has_status and part.channel == ERROR:
                            status += part.data
                        elif part.channel == CLOSE:
                            sinks.closed(part.data[0] if part.data else -1)
                        elif part.channel in sinks.write:
                            sinks.write[part.channel](part.data)
                    if parts is None or remote.is_closed:
                        if not has_status:
                            return SessionEnd()
                        if not status:
                            raise BrokenOff("the agent ended before the session did")
                        return end_of(status)
                elif descriptor == changes and size is not None:
                    with suppress(BlockingIOError):
                        os.read(changes, _READ_BYTES)
                    remote.send(RESIZE, size_message(*size()))
                elif descriptor == source:
                    chunk = _read(source)
                    if chunk:
                        remote.send(STDIN, chunk)
                    elif chunk is not None:
                        remote.send(CLOSE, bytes((STDIN,)))
                        poll.unregister(source)
                        source = -1
            if source >= 0 and not remote.has_room:
                with suppress(KeyError):
                    poll.unregister(source)


def _read(source: int) -> bytes | None:
    """None if there is nothing to read now after all; empty at the end."""
    try:
        return os.read(source, _READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""  # such as EIO of a terminal that is gone


@contextmanager
def _window_changes(*, wanted: bool) -> Iterator[int]:
    """A descriptor that can be read when the size of the window has changed."""
    if not wanted:
        yield -1
        return
    changes, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.signal(signal.SIGWINCH, lambda *_: os.write(woken, b"w"))
    try:
        yield changes
    finally:
        signal.signal(signal.SIGWINCH, before)
        os.close(changes)
        os.close(woken)


def write_all(descriptor: int, data: bytes) -> None:
    """Writes everything, also to a descriptor that does not block."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select((), (descriptor,), ())


def pod_path(namespace: str, name: str, verb: str) -> str:
    return f"/api/v1/namespaces/{quoted(namespace)}/pods/{quoted(name)}/{verb}"


def shutdown_write(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
