"""Commands and sessions of the process runtime. The supervisor runs a command to its end, or hands over the streams of
a command or of a container.

If the supervisor is gone, the end of a command cannot be known any more. The command and its children are then killed,
as their parent is gone. A container runs on, and its sessions end."""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from evenkeel.runtime import session_processes
from evenkeel.runtime.interface import Attempt, ExecResult
from evenkeel.runtime.process.attempt_table import AttemptTable
from evenkeel.runtime.process.supervisor_connection import (
    DESCRIPTORS,
    SupervisorConnection,
    SupervisorLost,
    SupervisorRefused,
)
from evenkeel.runtime.process.supervisor_protocol import BadMessage, Message
from evenkeel.runtime.sessions import BaseSession, Session, SessionEnd, SessionRefused, Streams, set_size
from evenkeel.runtime.start_errors import StartFailed

_OPEN, _ATTACH = "open", "attach"
_HANG_UP, _DETACH = "hang_up", "detach"
_LEAVE = {_OPEN: _HANG_UP, _ATTACH: _DETACH}  # the opening request: the request that ends it
_ANSWER_SECONDS = 30.0
_EXECUTION_SLACK_SECONDS = 10.0
# A terminal passes its last bytes on a moment after the command has ended.
_TERMINAL_LAG_SECONDS = 1.0
_LOST = SessionEnd(1, "the supervisor of containers went away before the command had ended", "try again")
_LOST_CONTAINER = SessionEnd(
    1, "the supervisor of containers went away; the container runs on", "attach to it again"
)

Ask = Callable[..., Awaitable[None]]  # asks the supervisor to do something with the session


class _Opened(Protocol):
    """A session, for messages of the supervisor about it."""

    def take(self, descriptors: list[int], wanted: Streams) -> None: ...

    def began(self, pid: int) -> None: ...

    def finished(self, end: SessionEnd) -> None: ...

    def lost(self) -> None: ...


S = TypeVar("S", "ProcessSession", "AttachedSession")


class ProcessSession(BaseSession):
    """A command in a container."""

    def __init__(self, cgroup: str, ask: Ask) -> None:
        super().__init__()
        self._is_terminal = False
        self._cgroup = cgroup
        self._ask = ask
        self._pid = 0

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

    def lost(self) -> None:
        """Kills the command: its parent is gone."""
        if self.has_ended:
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

    async def _let_go(self) -> None:
        if not self.has_ended:
            await self._ask(_HANG_UP)


class AttachedSession(BaseSession):
    """A client at the streams of a container. `lost` and `close` leave the container alone."""

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self._ask = ask
        self._terminal = -1
        self._ending_input: asyncio.Future[None] | None = None

    def take(self, descriptors: list[int], wanted: Streams) -> None:
        left = iter(descriptors)
        if wanted.terminal:
            self._terminal = next(left)
        if wanted.stdin:
            self.stdin = os.dup(self._terminal) if wanted.terminal else next(left)
        if wanted.stdout:
            self.stdout = next(left)
        if wanted.stderr and not wanted.terminal:
            self.stderr = next(left)

    def began(self, pid: int) -> None:
        """Does nothing: no process is started for it."""

    def lost(self) -> None:
        self.finished(_LOST_CONTAINER)

    # Session

    def close_stdin(self) -> None:
        if self.stdin >= 0 and self._terminal < 0:
            os.close(self.stdin)
            self.stdin = -1
            self._ending_input = asyncio.ensure_future(self._ask("end_input"))

    async def resize(self, columns: int, rows: int) -> None:
        if self._terminal >= 0:
            with suppress(OSError):
                set_size(self._terminal, columns, rows)

    async def _let_go(self) -> None:
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1
        if self._ending_input is not None:
            await asyncio.gather(self._ending_input, return_exceptions=True)
        if not self.has_ended:
            await self._ask(_DETACH)


class ProcessSessions:
    """All sessions of the agent. `current` returns the connection to the supervisor."""

    def __init__(
        self, current: Callable[[], Awaitable[SupervisorConnection]], attempts: AttemptTable
    ) -> None:
        self._current = current
        self._attempts = attempts
        self._numbers = itertools.count(1)
        self._open: dict[int, _Opened] = {}
        self._leaving: set[asyncio.Future[None]] = set()

    async def open(self, attempt: Attempt, command: tuple[str, ...], wanted: Streams) -> Session:
        """Starts a command."""
        process = self._attempts.process(attempt)
        if process is None or not self._attempts.runs(attempt):
            raise SessionRefused(f"container {attempt.container} does not run")
        cgroup = session_processes.directory_of(process.procs)
        request = {"attempt": list(attempt), "command": list(command), **wanted._asdict()}
        return await self._opened(partial(ProcessSession, cgroup), wanted, _OPEN, request)

    async def execute(self, attempt: Attempt, command: tuple[str, ...], timeout_seconds: float) -> ExecResult:
        """Runs a command without a client, such as a probe. Raises StartFailed."""
        try:
            async with asyncio.timeout(timeout_seconds + _EXECUTION_SLACK_SECONDS):
                supervisor = await self._current()
                answer = await supervisor.ask(
                    "execute", attempt=list(attempt), command=list(command), seconds=timeout_seconds
                )
        except SupervisorRefused as error:
            raise StartFailed(error.message, hint=error.hint) from None
        except BadMessage as error:
            raise StartFailed(f"the command cannot be handed on: {error}") from None
        except SupervisorLost:
            raise StartFailed("the supervisor of containers went away before the command had ended") from None
        except TimeoutError:
            return ExecResult(None, "")
        code = answer.get("exit_code")
        return ExecResult(code if isinstance(code, int) else None, str(answer.get("output", "")))

    async def attach(self, attempt: Attempt, wanted: Streams) -> Session:
        """Hands over the streams of the container itself."""
        request = {"attempt": list(attempt), **wanted._asdict()}
        return await self._opened(AttachedSession, wanted, _ATTACH, request)

    async def _opened(
        self, make: Callable[[Ask], S], wanted: Streams, todo: str, request: dict[str, object]
    ) -> S:
        number = next(self._numbers)
        leave: Callable[[str], Awaitable[None]] | None = None
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                supervisor = await self._current()
                leave = partial(self._ask, supervisor, number)
                session = self._open[number] = make(leave)
                answer = await supervisor.ask(todo, session=number, **request)
        except (SupervisorRefused, SupervisorLost, BadMessage) as error:
            self._open.pop(number, None)
            raise _refusal(error) from None
        except BaseException as error:
            self._open.pop(number, None)
            if leave is not None:
                # The caller no longer waits for the answer, but the supervisor may still open the session.
                leaving = asyncio.ensure_future(leave(_LEAVE[todo]))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)
            if isinstance(error, TimeoutError):
                raise _refusal(error) from None
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

    async def _ask(self, supervisor: SupervisorConnection, number: int, todo: str) -> None:
        if todo == _DETACH:  # the supervisor does not report the end of a session that is left
            self._open.pop(number, None)
        with suppress(SupervisorLost, SupervisorRefused, TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                await supervisor.ask(todo, session=number)


def _refusal(error: Exception) -> SessionRefused:
    if isinstance(error, SupervisorRefused):
        return SessionRefused(error.message, hint=error.hint)
    if isinstance(error, BadMessage):
        return SessionRefused(f"the command cannot be handed on: {error}")
    return SessionRefused("the supervisor of containers does not answer", hint="try again")
