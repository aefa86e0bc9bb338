"""Sessions of the process runtime: the supervisor starts the command and hands over its streams.

If the supervisor is gone, the end of a command cannot be known any more. The command is then killed, as its parent is
gone, and so are its children.
"""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

from evenkeel.runtime import session_processes
from evenkeel.runtime.interface import Attempt
from evenkeel.runtime.process.attempt_table import AttemptTable
from evenkeel.runtime.process.supervisor_connection import (
    DESCRIPTORS,
    SupervisorConnection,
    SupervisorLost,
    SupervisorRefused,
)
from evenkeel.runtime.process.supervisor_protocol import BadMessage, Message
from evenkeel.runtime.sessions import Session, SessionEnd, SessionRefused, Streams, set_size

_ANSWER_SECONDS = 30.0
# A terminal passes its last bytes on a moment after the command has ended.
_TERMINAL_LAG_SECONDS = 1.0
_LOST = SessionEnd(1, "the supervisor of containers went away before the command had ended", "try again")


class ProcessSession:
    """A command in a container. `hang_up` asks the supervisor to end it."""

    def __init__(self, cgroup: str, hang_up: Callable[[], Awaitable[None]]) -> None:
        self.stdin = self.stdout = self.stderr = -1
        self.lag_seconds = 0.0
        self._is_terminal = False
        self._cgroup = cgroup
        self._hang_up = hang_up
        self._pid = 0
        self._end: asyncio.Future[SessionEnd] = asyncio.get_running_loop().create_future()
        self._is_closed = False

    def take(self, descriptors: list[int], wanted: Streams) -> None:
        self._is_terminal = wanted.terminal
        if wanted.terminal:
            self.lag_seconds = _TERMINAL_LAG_SECONDS
            (self.stdin,) = (self.stdout,) = descriptors
            return
        left = iter(descriptors)
        self.stdin, self.stdout, self.stderr = (
            next(left) if is_wanted else -1 for is_wanted in (wanted.stdin, wanted.stdout, wanted.stderr)
        )

    def began(self, pid: int) -> None:
        self._pid = pid

    def finished(self, end: SessionEnd) -> None:
        if not self._end.done():
            self._end.set_result(end)

    def lost(self) -> None:
        """Kills the command: its parent is gone."""
        if self._end.done():
            return
        if self._pid:
            session_processes.kill_all(self._cgroup, self._pid)
        self.finished(_LOST)

    # Session

    def close_stdin(self) -> None:
        if self.stdin >= 0 and not self._is_terminal:
            os.close(self.stdin)
            self.stdin = -1

    async def resize(self, columns: int, rows: int) -> None:
        if self._is_terminal and not self._is_closed:
            with suppress(OSError):
                set_size(self.stdout, columns, rows)

    async def ended(self) -> SessionEnd:
        return await asyncio.shield(self._end)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for descriptor in {self.stdin, self.stdout, self.stderr} - {-1}:
            os.close(descriptor)
        self.stdin = self.stdout = self.stderr = -1
        if not self._end.done():
            await self._hang_up()


class ProcessSessions:
    """All sessions of the agent. `current` returns the connection to the supervisor."""

    def __init__(
        self, current: Callable[[], Awaitable[SupervisorConnection]], attempts: AttemptTable
    ) -> None:
        self._current = current
        self._attempts = attempts
        self._numbers = itertools.count(1)
        self._open: dict[int, ProcessSession] = {}

    async def open(self, attempt: Attempt, command: tuple[str, ...], wanted: Streams) -> Session:
        process = self._attempts.process(attempt)
        if process is None or not self._attempts.runs(attempt):
            raise SessionRefused(f"container {attempt.container} does not run")
        number = next(self._numbers)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                supervisor = await self._current()

                async def hang_up() -> None:
                    with suppress(SupervisorLost, SupervisorRefused, TimeoutError):
                        async with asyncio.timeout(_ANSWER_SECONDS):
                            await supervisor.ask("hang_up", session=number)

                session = self._open[number] = ProcessSession(
                    session_processes.directory_of(process.procs), hang_up
                )
                answer = await supervisor.ask(
                    "open", attempt=list(attempt), session=number, command=list(command), **wanted._asdict()
                )
        except (SupervisorRefused, SupervisorLost, BadMessage, TimeoutError) as error:
            self._open.pop(number, None)
            raise _refusal(error) from None
        except BaseException:
            self._open.pop(number, None)
            raise
        session.take(answer.get(DESCRIPTORS, []), wanted)
        return session

    def heard(self, message: Message) -> bool:
        """Returns whether the message is about a session."""
        if "session" not in message:
            return False
        session = self._open.get(message["session"])
        if session is not None and message["event"] == "began":
            session.began(int(message["pid"]))
        elif session is not None and message["event"] == "finished":
            del self._open[message["session"]]
            problem, hint = str(message.get("error", "")), str(message.get("hint") or "")
            code = int(message.get("exit_code", 0))
            session.finished(SessionEnd(code or int(bool(problem)), problem, hint))
        return True

    def supervisor_lost(self) -> None:
        sessions, self._open = self._open, {}
        for session in sessions.values():
            session.lost()


def _refusal(error: Exception) -> SessionRefused:
    if isinstance(error, SupervisorRefused):
        return SessionRefused(error.message, hint=error.hint)
    if isinstance(error, BadMessage):
        return SessionRefused(f"the command cannot be handed on: {error}")
    return SessionRefused("the supervisor of containers does not answer", hint="try again")
