"""Sessions: the streams of a command in a running container, or of the container itself, as a runtime hands them over.

A session is a set of descriptors that never block, and an end. The agent relays between the descriptors and a client
(`server/session_relay.py`). It does not write to a pipe or a terminal that is full, and reads no more than the other
side takes. So neither side can make the agent hold more than a few KiB.
"""

import asyncio
import errno
import fcntl
import os
import select
import struct
import termios
from collections.abc import Callable
from typing import Protocol

from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # exit codes of a command that could not be executed, as in a shell
LONGEST_COMMAND_BYTES = 64 << 10
MOST_WORDS = 1024

_HUNG_UP = select.EPOLLRDHUP | select.EPOLLHUP  # for poll(2) the same numbers
_LOOK_SECONDS = 1.0


class Streams(NamedTuple):
    """The streams that a client wants. With a terminal, stderr is part of stdout. For a container's own streams,
    `terminal` says whether they are a terminal, whatever the client wants."""

    stdin: bool = False
    stdout: bool = True
    stderr: bool = True
    terminal: bool = False


class Part(NamedTuple):
    """A part of a message of a client or to it, on one of the channels of its connection. A long message comes in
    several parts."""

    channel: int
    data: bytes
    is_last: bool


class SessionEnd(NamedTuple):
    """How a session ended. A `problem` is a sentence: the command could not be executed, or its end is not known."""

    exit_code: int = 0
    problem: str = ""
    hint: str = ""


class SessionRefused(EvenkeelError):
    """The session cannot be opened. The message says why."""


class Session(Protocol):
    """The open streams. A descriptor is -1 if there is no such stream. With a terminal, stdin and stdout may be one
    descriptor."""

    stdin: int
    stdout: int
    stderr: int
    lag_seconds: float  # how long output may come after the end; later output is that of other processes

    def close_stdin(self) -> None:
        """Ends the command's standard input."""
        ...

    async def resize(self, columns: int, rows: int) -> None: ...

    async def ended(self) -> SessionEnd:
        """Returns when the command has ended. May be called more than once."""
        ...

    async def close(self) -> None:
        """Closes the streams. A command that still runs is hung up: SIGHUP, and after a short time SIGKILL. A container
        runs on."""
        ...


class BaseSession:
    """The part of a session that is the same in every runtime: its streams, and its one end."""

    def __init__(self, lag_seconds: float = 0.0) -> None:
        self.stdin = self.stdout = self.stderr = -1
        self.lag_seconds = lag_seconds
        self._end: asyncio.Future[SessionEnd] = asyncio.get_running_loop().create_future()
        self._is_closed = False

    @property
    def has_ended(self) -> bool:
        return self._end.done()

    def finished(self, end: SessionEnd) -> None:
        if not self._end.done():
            self._end.set_result(end)

    async def ended(self) -> SessionEnd:
        return await asyncio.shield(self._end)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for descriptor in {self.stdin, self.stdout, self.stderr} - {-1}:
            os.close(descriptor)
        self.stdin = self.stdout = self.stderr = -1
        await self._let_go()

    async def _let_go(self) -> None:
        """Ends the runtime's part of the session. The streams are already closed."""


def command_problem(command: tuple[str, ...]) -> str:
    """Why this cannot be a command; empty if it can."""
    if not command or not command[0]:
        return "command: a program is missing"
    if any("\0" in word for word in command):
        return "command: a word holds a NUL character, which no program can get"
    if len(command) > MOST_WORDS or sum(map(len, map(os.fsencode, command))) > LONGEST_COMMAND_BYTES:
        return f"command: more than {MOST_WORDS} words or {LONGEST_COMMAND_BYTES >> 10} KiB"
    return ""


def set_size(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


async def readable(descriptor: int) -> None:
    """Returns when the descriptor can be read, or is at its end."""
    loop = asyncio.get_running_loop()
    await _ready(lambda call: loop.add_reader(descriptor, call), lambda: loop.remove_reader(descriptor))


async def writable(descriptor: int) -> None:
    """Returns when the descriptor can be written to, or has no reader any more."""
    loop = asyncio.get_running_loop()
    await _ready(lambda call: loop.add_writer(descriptor, call), lambda: loop.remove_writer(descriptor))


async def hung_up(connected: int) -> None:
    """Returns when the peer of a socket has closed its end. Data from before need not have been read."""
    with select.epoll() as watched:
        try:
            watched.register(connected, _HUNG_UP)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        else:
            await readable(watched.fileno())
            return
    # Pods have taken all watches of epoll that the user may have. asyncio cannot wait for this event by other means.
    polled = select.poll()
    polled.register(connected, _HUNG_UP)
    while not polled.poll(0):
        await asyncio.sleep(_LOOK_SECONDS)


async def _ready(watch: Callable[[Callable[[], None]], object], unwatch: Callable[[], object]) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    watch(lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        unwatch()
