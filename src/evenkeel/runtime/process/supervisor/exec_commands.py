"""Commands inside a running container, such as exec probes: in its namespaces and its cgroup, as its user.

A process that enters a pid namespace stays outside; only its later children are inside. So there are two processes.
The first enters the namespaces; the container does not see it. The second is the first's sibling, a child of the
supervisor, and executes the command.

The container sees the second process from its birth on, and root in the container may look into it. So nothing of the
supervisor is left in it. Its descriptors are the command's three. Its root and directory are the container's. Its
user, capabilities and filter are the command's. It is not dumpable. Its only remaining step is to execute. It reports
through memory that it shares with the supervisor, not through a descriptor.
"""

import fcntl
import os
import signal
import termios
from contextlib import suppress
from functools import partial
from typing import NoReturn

from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime import syscalls
from evenkeel.runtime.process.supervisor import cgroup_entry, child_reports, spawn
from evenkeel.runtime.process.supervisor.attempt import Answer, SupervisedContainer
from evenkeel.runtime.process.supervisor.child_reports import SharedReport
from evenkeel.runtime.process.supervisor.event_loop import Loop, Timer
from evenkeel.runtime.process.supervisor.users import become_root
from evenkeel.runtime.procfs import start_ticks

OUTPUT_BYTES = 10 << 10  # kubelet keeps as much of a probe's output
# Of more output nothing is kept, and a pipe's content is dropped so often: a command that says more waits at its pipe,
# and does not make us work as much as itself.
_DROP_SECONDS = 0.01
_READ_BYTES = 65536  # a pipe's content
_MOST_READS = 64  # at a time

_NAMESPACES = (
    ("user", syscalls.CLONE_NEWUSER),
    ("ipc", syscalls.CLONE_NEWIPC),
    ("uts", syscalls.CLONE_NEWUTS),
    ("net", syscalls.CLONE_NEWNET),
    ("pid", syscalls.CLONE_NEWPID),
    ("cgroup", syscalls.CLONE_NEWCGROUP),
    ("mnt", syscalls.CLONE_NEWNS),  # the last one: with it, root and working directory are the container's
)


class _Execution:
    def __init__(self, answer: Answer, first: int, report: SharedReport, output: int) -> None:
        self.answer: Answer | None = answer
        self.first = first
        self.report = report
        self.output = output
        self.text = b""
        self.overdue: Timer | None = None
        self.is_overdue = False


class ExecCommands:
    def __init__(self, loop: Loop, origin: spawn.Origin) -> None:
        self._loop = loop
        self._origin = origin
        self._executions: list[_Execution] = []

    def __bool__(self) -> bool:
        return bool(self._executions)

    def execute(
        self, kept: SupervisedContainer, command: tuple[str, ...], seconds: float, answer: Answer
    ) -> None:
        pipe: tuple[int, ...] = ()
        try:
            pipe = output, output_end = os.pipe2(os.O_CLOEXEC)
            report = SharedReport()
            first, entrances = cgroup_entry.clone_into(kept.plan.procs)
        except OSError as error:
            for descriptor in pipe:
                os.close(descriptor)
            answer(error=f"no process can be made for it: {reason(error)}")
            return
        if first == 0:
            be_first(kept, command, entrances, self._origin, report, (-1, output_end, output_end))
        os.close(output_end)
        execution = _Execution(answer, first, report, output)
        self._executions.append(execution)
        os.set_blocking(output, False)
        self._loop.watch(output, partial(self._hear, execution))
        execution.overdue = self._loop.after(seconds, partial(self._overdue, execution))

    def child_ended(self, pid: int, status: int) -> bool:
        """Returns whether it was a process of a command. The second process may end before the first."""
        for execution in self._executions:
            if pid == execution.report.second:
                self._read_output(execution)
                self._done(execution, status)
                return True
            if pid == execution.first:
                execution.first = 0
                if not execution.report.second:  # the first process failed before it made the second
                    self._done(execution, None)
                elif execution.is_overdue:  # the second process was made while the first was killed
                    _kill(execution)
                return True
        return False

    def _hear(self, execution: _Execution) -> None:
        """Reads output as it comes."""
        is_enough = len(execution.text) >= OUTPUT_BYTES
        self._read_output(execution, 1 if is_enough else _MOST_READS)
        if is_enough and execution.output >= 0:
            self._loop.unwatch(execution.output)
            self._loop.after(_DROP_SECONDS, partial(self._hear_again, execution))

    def _hear_again(self, execution: _Execution) -> None:
        if execution.output >= 0:
            self._loop.watch(execution.output, partial(self._hear, execution))

    def _read_output(self, execution: _Execution, reads: int = _MOST_READS) -> None:
        """Reads the output. Output above the bound is read and dropped, so that no writer waits without end."""
        if execution.output < 0:
            return
        try:
            for _ in range(reads):
                part = os.read(execution.output, _READ_BYTES)
                if not part:
                    self._close_output(execution)
                    return
                execution.text = (execution.text + part)[:OUTPUT_BYTES]
        except BlockingIOError:
            pass

    def _overdue(self, execution: _Execution) -> None:
        self._read_output(execution)
        self._answer(execution, exit_code=None, output=_text(execution.text))
        execution.is_overdue = True
        _kill(execution)

    def _done(self, execution: _Execution, status: int | None) -> None:
        self._executions.remove(execution)
        if execution.overdue is not None:
            execution.overdue.cancel()
        self._close_output(execution)
        said = child_reports.read_report(execution.report.said)
        execution.report.close()
        if said.error:
            self._answer(execution, error=said.error, hint=said.hint)
        elif status is None or not said.is_executed:
            self._answer(execution, error="the command's process ended before it could be executed")
        else:
            code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            self._answer(execution, exit_code=code, output=_text(execution.text))

    def _answer(self, execution: _Execution, **answer: object) -> None:
        if execution.answer is not None:
            execution.answer(**answer)
            execution.answer = None

    def _close_output(self, execution: _Execution) -> None:
        if execution.output >= 0:
            self._loop.unwatch(execution.output)
            os.close(execution.output)
            execution.output = -1


def _kill(execution: _Execution) -> None:
    """Kills both processes of a command.

    The first is killed first, so that it makes no second from now on. Then the second and its process group are
    killed; the group may not exist yet. None of them was waited for, so no other process can have their numbers.
    """
    if execution.first:
        with suppress(OSError):
            os.kill(execution.first, signal.SIGKILL)
    second = execution.report.second
    if second:
        for kill in (os.kill, os.killpg):
            with suppress(OSError):
                kill(second, signal.SIGKILL)


def be_first(
    kept: SupervisedContainer,
    command: tuple[str, ...],
    entrances: tuple[str, ...],
    origin: spawn.Origin,
    report: SharedReport,
    streams: tuple[int, int, int],
    *,
    is_terminal: bool = False,
) -> NoReturn:
    """Runs the first process. Never returns, never raises.

    `streams` become the command's descriptors 0, 1 and 2; -1 stands for /dev/null. With a terminal, all of them are
    the terminal. The command does not outlive the supervisor, which alone could report its end.
    """

    def act() -> None:
        plan, process = kept.plan, kept.process
        spawn.hide_memory()
        cgroup_entry.enter(entrances, plan.cgroup)
        spawn.take_oom_score(plan.oom_score_adj)
        number_at = report.number_at()
        has_users = bool(plan.user_namespace or origin.namespaces & syscalls.CLONE_NEWUSER)
        namespaces = _open_namespaces(process.pid, process.ticks, has_users=has_users)
        if plan.user_namespace:  # the last one: the others are the host's, which its users have no right over
            namespaces.sort(key=lambda one: one[1] == syscalls.CLONE_NEWUSER)
        nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for number, descriptor in enumerate(streams):
            os.dup2(nothing if descriptor < 0 else descriptor, number, inheritable=True)
        spawn.give_streams(plan)
        # The supervisor's descriptors are closed here. Once inside, only the command's own descriptors are left.
        spawn.keep_only(*(descriptor for descriptor, _ in namespaces))
        for descriptor, kind in namespaces:
            syscalls.setns(descriptor, kind)
        syscalls.close_from(3)
        if plan.user_namespace:
            become_root()
        program = spawn.settle(plan._replace(argv=command), origin)
        if syscalls.clone(syscalls.CLONE_PARENT, number_at) == 0:
            syscalls.die_with_parent()
            os.setsid()
            if is_terminal:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            spawn.execute(program, report.say)

    child_reports.guarded(act, report.say)


def _open_namespaces(pid: int, ticks: int, *, has_users: bool) -> list[tuple[int, int]]:
    """Opens the container's namespaces that differ from ours. Returns a descriptor and the kind of each.

    Without a filter, a container may have put itself into others of its own making. A namespace of users that we did
    not give it is never entered: root of the machine would keep its user there, which has no number in it, and with it
    all that belongs to root.
    """
    opened = []
    for name, kind in _NAMESPACES:
        if kind == syscalls.CLONE_NEWUSER and not has_users:
            continue
        path = f"/proc/{pid}/ns/{name}"
        try:
            theirs, ours = os.stat(path), os.stat(f"/proc/self/ns/{name}")
            if (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino):
                opened.append((os.open(path, os.O_RDONLY | os.O_CLOEXEC), kind))
        except FileNotFoundError:
            continue
    if start_ticks(pid) != ticks:
        raise EvenkeelError("the container has ended meanwhile")
    return opened


def _text(read: bytes) -> str:
    return read.decode("utf-8", "replace")
