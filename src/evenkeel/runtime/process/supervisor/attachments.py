"""Clients at the streams of a container itself: `evenkeel attach`.

The log relay alone reads the output of a container. It hands what it has read to the copies here, and each copy goes to
the agent through pipes of its own. While a pipe is full, the container's output is not read: the container waits for
the client, as it would for a terminal. A client that takes nothing for a while is dropped, so that it cannot hold the
container up. The input goes from the agent to the container without the supervisor.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial

from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.process.supervisor.attempt import SupervisedContainer
from evenkeel.runtime.process.supervisor.event_loop import WRITABLE, Descriptors, Loop, Timer
from evenkeel.runtime.process.supervisor.listener import Connection
from evenkeel.runtime.process.supervisor_protocol import Message, session_of

_PATIENCE_SECONDS = 30.0


class Wanted(NamedTuple):
    """A request to attach. `number` is the client's name for the session."""

    number: int
    stdin: bool
    stdout: bool
    stderr: bool


def wanted_of(message: Message) -> Wanted:
    return Wanted(session_of(message), *(message.get(name) is True for name in ("stdin", "stdout", "stderr")))


class OutputCopy:
    """The output of a container for one client. `ends` has the pipe of each stream by its name.

    `on_room` is called when a full pipe has room again, `on_end` with the problem when the copy is over: all is
    written and the container has ended, or the client reads no more.
    """

    def __init__(
        self,
        loop: Loop,
        ends: Mapping[bytes, int],
        on_room: Callable[[], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._ends = dict(ends)
        self._on_room = on_room
        self._on_end = on_end
        self._pending: dict[bytes, bytes] = {}
        self._overdue: Timer | None = None
        self._is_last = False

    @property
    def is_full(self) -> bool:
        return bool(self._pending)

    def take(self, stream: bytes, chunk: bytes) -> None:
        if stream in self._pending:
            self._pending[stream] += chunk
        elif stream in self._ends:
            self._write(stream, chunk)

    def finish(self) -> None:
        """The container has ended: there will be no more output."""
        self._is_last = True
        if not self._pending:
            self._end("")

    def close(self) -> None:
        """Drops the copy, without a message."""
        if self._overdue is not None:
            self._overdue.cancel()
        self._pending.clear()
        for stream in list(self._ends):
            self._close(stream)

    def _write(self, stream: bytes, chunk: bytes) -> None:
        try:
            written = os.write(self._ends[stream], chunk)
        except BlockingIOError:
            written = 0
        except OSError:  # the agent has closed it
            self._close(stream)
            return
        if written < len(chunk):
            self._pending[stream] = chunk[written:]
            self._loop.watch(self._ends[stream], partial(self._flush, stream), WRITABLE)
            if self._overdue is not None:
                self._overdue.cancel()
            self._overdue = self._loop.after(_PATIENCE_SECONDS, self._give_up)

    def _flush(self, stream: bytes) -> None:
        self._loop.unwatch(self._ends[stream])
        self._write(stream, self._pending.pop(stream))
        if self._pending:
            return
        if self._overdue is not None:
            self._overdue.cancel()
        if self._is_last:
            self._end("")
        else:
            self._on_room()

    def _give_up(self) -> None:
        if self._pending:
            self._end(f"the client took no output for {_PATIENCE_SECONDS:g} seconds and was detached")

    def _end(self, problem: str) -> None:
        self.close()
        self._on_end(problem)

    def _close(self, stream: bytes) -> None:
        end = self._ends.pop(stream)
        self._loop.unwatch(end)
        os.close(end)


class _Attachment:
    def __init__(self, wanted: Wanted, kept: SupervisedContainer, connection: Connection) -> None:
        self.wanted = wanted
        self.kept = kept
        self.connection = connection
        self.copy: OutputCopy | None = None


class Attachments:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._open: list[_Attachment] = []

    def open(
        self, kept: SupervisedContainer, wanted: Wanted, connection: Connection, request: object
    ) -> None:
        """Sends the client's ends of the streams: the terminal if there is one, then stdin, stdout and stderr as far as
        they are wanted. With a terminal, stdin and stderr are the terminal's."""
        attachment = _Attachment(wanted, kept, connection)
        try:
            with Descriptors() as opened:
                sent = [opened.add(one) for one in kept.input_streams(is_wanted=wanted.stdin)]
                ends = {}
                for name, is_wanted in ((b"stdout", wanted.stdout), (b"stderr", wanted.stderr)):
                    if is_wanted and not (kept.plan.terminal and name == b"stderr"):
                        read, ends[name] = opened.pipe()
                        os.set_blocking(read, False)
                        os.set_blocking(ends[name], False)
                        sent.append(read)
                for descriptor in (*sent, *ends.values()):
                    opened.keep(descriptor)
        except (EvenkeelError, OSError) as error:
            problem = error.message if isinstance(error, EvenkeelError) else reason(error)
            hint = error.hint if isinstance(error, EvenkeelError) else ""
            connection.send({"id": request, "error": problem, "hint": hint})
            return
        connection.send({"id": request, "session": wanted.number}, sent)
        if not connection.is_open:  # the agent has left meanwhile
            for end in ends.values():
                os.close(end)
            return
        self._open.append(attachment)
        attachment.copy = OutputCopy(
            self._loop,
            ends,
            partial(kept.watch_output, self._loop),
            partial(self._ended, attachment),
        )
        kept.add_copy(attachment.copy, has_output=bool(ends))
        if attachment.copy.is_full:
            kept.watch_output(self._loop)

    def end_input(self, number: int, connection: Connection) -> None:
        """The client sends no more."""
        for attachment in self._of(number, connection):
            if attachment.wanted.stdin:
                attachment.kept.client_ended_input()

    def detach(self, number: int, connection: Connection) -> None:
        """The client has left."""
        for attachment in self._of(number, connection):
            if attachment.wanted.stdin:
                attachment.kept.client_ended_input()
            self._drop(attachment)

    def client_gone(self) -> None:
        """The agent has left, and may be back. Its clients have not ended the input."""
        for attachment in list(self._open):
            if not attachment.connection.is_open:
                self._drop(attachment)

    def _of(self, number: int, connection: Connection) -> list[_Attachment]:
        return [one for one in self._open if one.wanted.number == number and one.connection is connection]

    def _drop(self, attachment: _Attachment) -> None:
        self._open.remove(attachment)
        if attachment.copy is not None:
            attachment.kept.remove_copy(attachment.copy)
            attachment.copy.close()
        attachment.kept.watch_output(self._loop)

    def _ended(self, attachment: _Attachment, problem: str) -> None:
        if attachment not in self._open:
            return
        self._drop(attachment)
        said = {"error": problem, "exit_code": 1} if problem else {"exit_code": 0}
        attachment.connection.send({"event": "finished", "session": attachment.wanted.number, **said})
