"""The supervisor's side of the socket. It serves one client at a time, the newest.

All requests of the old client are done before the new client's first message is read. So no old request is done after
a new client's question. A client that does not read its messages is disconnected; it will connect again and ask.
"""

import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence

from evenkeel.runtime.process.supervisor.event_loop import READABLE, WRITABLE, Loop
from evenkeel.runtime.process.supervisor_protocol import (
    SOCKET_NAME,
    VERSION,
    BadMessage,
    Inbox,
    Message,
    decode,
    encode,
)

_MOST_WAITING = 10_000
_CREDENTIALS = struct.Struct("3i")


class Listener:
    """The listening socket.

    `on_message` gets each request and its connection; `on_gone` is called when no client is left.
    """

    def __init__(
        self,
        loop: Loop,
        directory: int,
        hello: Message,
        on_message: Callable[[Message, "Connection"], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._hello = {"event": "hello", "version": VERSION, "pid": os.getpid(), **hello}
        self._on_message = on_message
        self._on_gone = on_gone
        self.connection: Connection | None = None
        self._directory = directory
        self._socket = _bound(directory)
        loop.watch(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Removes the socket.

        A client that has just connected sees the connection close, and looks for a supervisor again.
        """
        try:
            os.unlink(SOCKET_NAME, dir_fd=self._directory)
        except OSError:
            pass
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        if self.connection is not None:
            self.connection.close()

    def connect(self, client: socket.socket) -> None:
        if self.connection is not None:
            self.connection.take_all()
            if self.connection is not None:
                self.connection.close()
        client.setblocking(False)
        self.connection = Connection(self._loop, client, self._on_message, self._gone)
        self.connection.send(self._hello)

    def tell(self, event: Message) -> None:
        if self.connection is not None:
            self.connection.send(event)

    def _accept(self) -> None:
        try:
            client, _ = self._socket.accept()
        except OSError:
            # The client went away again; or no descriptor is free, and the next turn tries once more.
            return
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[1] not in (0, os.geteuid()):
            client.close()
            return
        self.connect(client)

    def _gone(self, connection: "Connection") -> None:
        if connection is self.connection:
            self.connection = None
            self._on_gone()


class Connection:
    def __init__(
        self,
        loop: Loop,
        client: socket.socket,
        on_message: Callable[[Message, "Connection"], None],
        on_gone: Callable[["Connection"], None],
    ) -> None:
        self._loop = loop
        self._socket = client
        self._on_message = on_message
        self._on_gone = on_gone
        self._inbox = Inbox()
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._is_stuck = False  # the client must read before more can be sent
        self.is_open = True
        loop.watch(client.fileno(), self._ready)

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Sends a message. The descriptors go with it, and are closed here in any case."""
        if not self.is_open:
            _close_all(descriptors)
            return
        self._waiting.append((encode(message), list(descriptors)))
        self._flush()
        if len(self._waiting) > _MOST_WAITING:
            self.close()

    def take_all(self) -> None:
        """Handles all requests that have arrived so far."""
        while self.is_open and self._take_one():
            pass

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            for _, descriptors in self._waiting:
                _close_all(descriptors)
            self._waiting.clear()
            self._on_gone(self)

    def _ready(self) -> None:
        self._flush()
        if self.is_open:
            self._take_one()

    def _take_one(self) -> bool:
        try:
            packet = self._inbox.receive(self._socket)
        except BlockingIOError:
            return False
        except OSError:
            packet = b""
        if not packet:
            self.close()
            return False
        try:
            message = decode(packet)
        except BadMessage as error:
            self.send({"error": str(error)})
            return True
        try:
            self._on_message(message, self)
        except BadMessage as error:
            self.send({"id": message.get("id"), "error": str(error)})
        return True

    def _flush(self) -> None:
        while self._waiting:
            packet, descriptors = self._waiting[0]
            try:
                if descriptors:
                    socket.send_fds(self._socket, [packet], descriptors, socket.MSG_NOSIGNAL)
                else:
                    self._socket.send(packet, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                break
            except OSError:
                self.close()
                return
            self._waiting.popleft()
            _close_all(descriptors)
        if self._is_stuck != bool(self._waiting):
            self._is_stuck = bool(self._waiting)
            events = READABLE | (WRITABLE if self._is_stuck else 0)
            self._loop.watch(self._socket.fileno(), self._ready, events)


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _bound(directory: int) -> socket.socket:
    """Makes a socket in the state directory.

    The path may be too long for a socket's address, so it goes through /proc.
    """
    path = f"/proc/self/fd/{directory}/{SOCKET_NAME}"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    mask = os.umask(0o177)
    try:
        try:
            os.unlink(SOCKET_NAME, dir_fd=directory)
        except FileNotFoundError:
            pass
        listening.bind(path)
    finally:
        os.umask(mask)
    listening.listen(8)
    return listening
