"""The watch's side of its socket, and the reports that wait for the agent. It serves one client at a time, the newest,
and waits for none.

What a client does not read stays in a buffer of bounded size. A client whose buffer is full is disconnected: it will
connect again, and get everything that it has not acknowledged.

Reports are numbered, and kept until an agent has written them to its journal. The agent may be away or stopped for any
time. So the memory of waiting reports is bounded: evictions are kept, and of the other reports the latest.
"""

import _socket as socket  # all of `socket`, with its enumerations and `selectors`, would take 0.3 MiB of locked memory
import os
import select
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from evenkeel.named_tuples import NamedTuple
from evenkeel.pressure.eviction_steps import Step
from evenkeel.pressure.memory.kernel_triggers import KernelTriggers
from evenkeel.pressure.memory.memory_sink import Evicted, Timing
from evenkeel.pressure.targets import PodTarget
from evenkeel.pressure.watch.messages import SOCKET_NAME, BadMessage, Frames, Message, frame, step_plain

_MOST_WAITING_BYTES = 4 << 20
_READ_BYTES = 1 << 18
_MOST_READS = 16  # of a client that is replaced: more than the kernel keeps for it by default
_CREDENTIALS = struct.Struct("3i")
_MOST_WAITING = 512
_HEARD_SECONDS = 1.0  # an agent that acknowledges nothing for this long is taken for stopped


class Waiting(NamedTuple):
    number: int
    at: float  # by CLOCK_MONOTONIC
    message: Message
    keys: frozenset[str]  # of the pods' texts that the message refers to
    is_eviction: bool


class Outbox:
    """The sink of the memory watch. `send` sends a message to the agent, if there is one, with the texts of these keys
    that the agent does not know."""

    def __init__(self, send: Callable[[Message, frozenset[str]], None]) -> None:
        self._send = send
        self._waiting: deque[Waiting] = deque()
        self._last = 0
        self._key_of: Mapping[str, str] = {}  # by UID: the keys of the targets' texts
        self._is_connected = False

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        return tuple(self._waiting)

    @property
    def keys(self) -> set[str]:
        """The keys of the texts that are still needed."""
        return {key for one in self._waiting for key in one.keys}.union(self._key_of.values())

    def follow(self, key_of: Mapping[str, str]) -> None:
        """There are other targets."""
        self._key_of = key_of

    def client_changed(self, *, is_connected: bool) -> None:
        self._is_connected = is_connected

    def heard(self, number: int) -> None:
        """All reports up to this one are in the journal."""
        while self._waiting and self._waiting[0].number <= number:
            self._waiting.popleft()

    # The sink

    @property
    def is_heard(self) -> bool:
        if not self._is_connected:
            return False
        return not self._waiting or time.monotonic() - self._waiting[0].at < _HEARD_SECONDS

    def stepped(self, step: Step, timing: Timing, evicted: Evicted | None) -> None:
        plain = step_plain(step, self._key_of)
        keys = frozenset(self._key_of[seen.pod.metadata.uid] for seen in step.snapshot.pods)
        self._report(
            "stepped",
            keys,
            is_eviction=evicted is not None,
            step=plain,
            timing=list(timing[:3]),
            stages=timing.stages and list(timing.stages),
            evicted=evicted and list(evicted),
        )

    def back(self, target: PodTarget, held_bytes: int, took_seconds: float) -> None:
        self._report("back", uid=target.uid, bytes=held_bytes, seconds=took_seconds)

    def reclaiming(self, expected_bytes: int, short_bytes: int) -> None:
        self._report("reclaiming", expected=expected_bytes, short=short_bytes)

    def throttling(self, most_bytes: Mapping[str, int]) -> None:
        self._report("throttling", most=dict(most_bytes))

    def freezing(self, uids: tuple[str, ...]) -> None:
        self._report("freezing", uids=list(uids))

    def noted(self, text: str) -> None:
        self._report("noted", text=text)

    def _report(
        self, kind: str, keys: frozenset[str] = frozenset(), *, is_eviction: bool = False, **fields: object
    ) -> None:
        self._last += 1
        message: Message = {"event": "report", "number": self._last, "kind": kind, **fields}
        self._waiting.append(Waiting(self._last, time.monotonic(), message, keys, is_eviction))
        if len(self._waiting) > _MOST_WAITING:
            self._drop_one()
        self._send(message, keys)

    def _drop_one(self) -> None:
        """Drops the oldest report that is no eviction; the pods bound the number of evictions."""
        for place, one in enumerate(self._waiting):
            if not one.is_eviction:
                del self._waiting[place]
                return


class Listener:
    """`greeting` is sent to each new client. `on_message` gets each message; it may raise BadMessage, which ends the
    connection. `on_change` is called when a client comes or goes."""

    def __init__(
        self,
        triggers: KernelTriggers,
        directory: int,
        greeting: Callable[[], list[Message]],
        on_message: Callable[[Message], None],
        on_change: Callable[[], None],
    ) -> None:
        self._triggers = triggers
        self._directory = directory
        self._greeting = greeting
        self._on_message = on_message
        self._on_change = on_change
        self._listening: socket.socket | None = None
        self._client: socket.socket | None = None
        self._frames = Frames()
        self._waiting = bytearray()
        self._is_gone = False  # the client has closed its end. Earlier messages are still read

    @property
    def is_connected(self) -> bool:
        return self._client is not None

    def listen(self) -> None:
        """Only the watch that holds the lock listens."""
        self._listening = _bound(self._directory)
        self._triggers.call_when_ready(self._listening.fileno(), self._accept)

    def connect(self, descriptor: int) -> None:
        """Serves this connection from now on."""
        self._serve(socket.socket(fileno=descriptor))

    def say(self, messages: Iterable[Message]) -> None:
        if self._client is not None and not self._is_gone:
            for message in messages:
                self._waiting += frame(message)
            self._flush()

    def send(self, message: Message) -> None:
        """Sends the message if a client is there and reads. Never waits."""
        self.say((message,))

    def close(self) -> None:
        """Sends the remaining messages, as far as the client reads them, and removes the socket."""
        if self._client is not None:
            self._flush()
        self._disconnect()
        if self._listening is not None:
            with suppress(OSError):
                os.unlink(SOCKET_NAME, dir_fd=self._directory)
            self._triggers.forget(self._listening.fileno())
            self._listening.close()
            self._listening = None

    def _serve(self, client: socket.socket) -> None:
        self._hear_out()
        self._disconnect()
        client.setblocking(False)
        with suppress(OSError):  # a longer buffer than others may have
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_WAITING_BYTES)
        self._client, self._frames, self._is_gone = client, Frames(), False
        self._waiting.clear()
        self._triggers.call_when_ready(client.fileno(), self._ready)
        self._on_change()
        self.say(self._greeting())

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            descriptor, _ = self._listening._accept()  # type: ignore[attr-defined]  # noqa: SLF001
            client = socket.socket(fileno=descriptor)
        except OSError:
            return  # the client went away again; or no descriptor is free, and the next turn tries once more
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[1] not in (0, os.geteuid()):
            client.close()
            return
        self._serve(client)

    def _ready(self) -> None:
        if self._waiting:
            self._flush()
        self._read()

    def _hear_out(self) -> None:
        """Takes what the client has sent by now. An agent that ends acknowledges reports, and the next one may connect
        before this is read. A client that goes on sending is not waited for."""
        for _ in range(_MOST_READS):
            if not self._read():
                break

    def _read(self) -> bool:
        """Returns whether there was something to read."""
        client = self._client
        if client is None:
            return False
        try:
            data = client.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._disconnect()
            return False
        try:
            for message in self._frames.take(data):
                self._on_message(message)
        except BadMessage:
            self._disconnect()
            return False
        return True

    def _flush(self) -> None:
        client = self._client
        assert client is not None
        while self._waiting:
            try:
                sent = client.send(self._waiting)
            except BlockingIOError:
                break
            except OSError:
                # An agent that is killed may have given its targets just before. They are read, up to the end.
                self._is_gone = True
                self._waiting.clear()
                break
            del self._waiting[:sent]
        if len(self._waiting) > _MOST_WAITING_BYTES:
            self._disconnect()
            return
        events = select.EPOLLIN | (select.EPOLLOUT if self._waiting else 0)
        self._triggers.call_when_ready(client.fileno(), self._ready, events)

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            self._triggers.forget(client.fileno())
            client.close()
            self._waiting.clear()
            self._on_change()


def _bound(directory: int) -> socket.socket:
    """Makes a socket in the state directory. The path may be too long for a socket's address, so it goes through
    /proc."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with suppress(FileNotFoundError):
        os.unlink(SOCKET_NAME, dir_fd=directory)
    listening.bind(f"/proc/self/fd/{directory}/{SOCKET_NAME}")  # the umask keeps others out
    listening.listen(8)
    return listening
