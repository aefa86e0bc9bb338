"""Commands in a running container whose streams a client holds: `evenkeel exec`.

The command enters the container as an exec probe does (`exec_commands`). Its streams are pipes, or a terminal of the
container. The agent gets the other ends as descriptors, so no byte of the command goes through the supervisor. The
supervisor is the command's parent and reports its end. A command whose client is gone is hung up: all processes of its
session get SIGHUP, and SIGKILL if they are still there a little later.
"""

import os
import signal
from functools import partial

from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime import session_processes
from evenkeel.runtime.process.supervisor import cgroup_entry, child_reports, spawn
from evenkeel.runtime.process.supervisor.attempt import SupervisedContainer
from evenkeel.runtime.process.supervisor.child_reports import SharedReport
from evenkeel.runtime.process.supervisor.event_loop import Descriptors, Loop, Timer
from evenkeel.runtime.process.supervisor.exec_commands import be_first
from evenkeel.runtime.process.supervisor.listener import Connection
from evenkeel.runtime.process.supervisor.streams import open_terminal
from evenkeel.runtime.process.supervisor_protocol import Message, session_of, words_of

_HANG_UP_SECONDS = 2.0  # from SIGHUP to SIGKILL
_TERM = ("TERM", "xterm")  # as container runtimes set it


class Wanted(NamedTuple):
    """A request to open a session. `number` is the client's name for it."""

    number: int
    command: tuple[str, ...]
    stdin: bool
    stdout: bool
    stderr: bool
    terminal: bool


def wanted_of(message: Message) -> Wanted:
    flags = (message.get(name) is True for name in ("stdin", "stdout", "stderr", "terminal"))
    return Wanted(session_of(message), words_of(message), *flags)


class _Session:
    def __init__(
        self, wanted: Wanted, kept: SupervisedContainer, connection: Connection, report: SharedReport
    ) -> None:
        self.wanted = wanted
        self.cgroup = session_processes.directory_of(kept.plan.procs)
        self.connection = connection
        self.report = report
        self.first = 0
        self.is_hung_up = False
        self.kill_timer: Timer | None = None

    def tell(self, event: str, **fields: object) -> None:
        self.connection.send({"event": event, "session": self.wanted.number, **fields})


class ExecSessions:
    def __init__(self, loop: Loop, origin: spawn.Origin) -> None:
        self._loop = loop
        self._origin = origin
        self._sessions: list[_Session] = []

    def __bool__(self) -> bool:
        return bool(self._sessions)

    def open(
        self, kept: SupervisedContainer, wanted: Wanted, connection: Connection, request: object
    ) -> None:
        """Starts the command and sends the client's ends of its streams. The answer comes before the command runs; an
        error of the set-up is part of the end."""
        try:
            with Descriptors() as opened:
                report = SharedReport()
                theirs, ours = self._streams(opened, kept, wanted)
                first, entrances = cgroup_entry.clone_into(kept.plan.procs)
                if first == 0:
                    plan = kept.plan
                    if wanted.terminal and _TERM[0] not in dict(plan.env):
                        kept.plan = plan._replace(env=(*plan.env, _TERM))
                    be_first(
                        kept,
                        wanted.command,
                        entrances,
                        self._origin,
                        report,
                        theirs,
                        is_terminal=wanted.terminal,
                    )
                for descriptor in ours:
                    opened.keep(descriptor)
        except EvenkeelError as error:
            connection.send({"id": request, "error": error.message, "hint": error.hint})
            return
        except OSError as error:
            connection.send({"id": request, "error": f"no process can be made for it: {reason(error)}"})
            return
        session = _Session(wanted, kept, connection, report)
        session.first = first
        self._sessions.append(session)
        connection.send({"id": request, "session": wanted.number}, ours)
        if not connection.is_open:
            self._hang_up(session)

    def hang_up(self, number: int, connection: Connection) -> None:
        for session in self._sessions:
            if session.wanted.number == number and session.connection is connection:
                self._hang_up(session)

    def client_gone(self) -> None:
        for session in list(self._sessions):
            if not session.connection.is_open:
                self._hang_up(session)

    def child_ended(self, pid: int, status: int) -> bool:
        """Returns whether it was a process of a session. The second process may end before the first."""
        for session in self._sessions:
            second = session.report.second
            if pid == second:
                self._done(session, status)
                return True
            if pid == session.first:
                session.first = 0
                if not second:  # the first process failed before it made the second
                    self._done(session, None)
                else:
                    session.tell("began", pid=second)
                    if session.is_hung_up:
                        self._kill(session)
                return True
        return False

    def _streams(
        self, opened: Descriptors, kept: SupervisedContainer, wanted: Wanted
    ) -> tuple[tuple[int, int, int], list[int]]:
        """Returns the command's three descriptors, and the client's: stdin, stdout and stderr as far as they are
        wanted, or its side of the terminal."""
        if wanted.terminal:
            master, terminal = map(opened.add, open_terminal(kept.process.pid, kept.process.ticks))
            return (terminal, terminal, terminal), [master]
        theirs, ours = [-1, -1, -1], []
        for number, is_wanted in enumerate((wanted.stdin, wanted.stdout, wanted.stderr)):
            if is_wanted:
                read, write = opened.pipe()
                theirs[number], mine = (read, write) if number == 0 else (write, read)
                os.set_blocking(mine, False)
                ours.append(mine)
        return (theirs[0], theirs[1], theirs[2]), ours

    def _hang_up(self, session: _Session) -> None:
        if session.is_hung_up:
            return
        session.is_hung_up = True
        if second := session.report.second:
            session_processes.signal_all(session.cgroup, second, signal.SIGHUP)
        session.kill_timer = self._loop.after(_HANG_UP_SECONDS, partial(self._kill, session))

    def _kill(self, session: _Session) -> None:
        """Kills the first process before the others, so that it makes no second one from now on. None of them was
        waited for, so no other process can have their numbers."""
        if session.first:
            os.kill(session.first, signal.SIGKILL)
        if second := session.report.second:
            session_processes.kill_all(session.cgroup, second)

    def _done(self, session: _Session, status: int | None) -> None:
        self._sessions.remove(session)
        if session.kill_timer is not None:
            session.kill_timer.cancel()
        if session.is_hung_up and (second := session.report.second):  # its leader has ended; others may run
            self._loop.after(_HANG_UP_SECONDS, partial(session_processes.kill_all, session.cgroup, second))
        said = child_reports.read_report(session.report.said)
        session.report.close()
        if said.error:
            session.tell("finished", error=said.error, hint=said.hint, exit_code=said.exit_code)
        elif status is None or not said.is_executed:
            session.tell("finished", error="the command's process ended before it could be executed")
        else:
            code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            session.tell("finished", exit_code=code)
