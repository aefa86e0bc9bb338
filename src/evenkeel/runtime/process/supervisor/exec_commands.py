"""Commands run inside a running container, as exec probes are: in its namespaces and its cgroup, as its user.

A namespace of pids takes in only those who are forked after it was entered. So there are two processes: the first goes
into the container and makes the second, beside it a child of the keeper, which executes the command.
"""

import os
import signal
from contextlib import suppress
from functools import partial
from typing import NoReturn

from evenkeel.errors import EvenkeelError
from evenkeel.runtime import syscalls
from evenkeel.runtime.process.supervisor import cgroup_entry, spawn
from evenkeel.runtime.process.supervisor.event_loop import Loop, Timer
from evenkeel.runtime.process.supervisor.supervised_containers import Answer, SupervisedContainer
from evenkeel.runtime.procfs import start_ticks

OUTPUT_BYTES = 10 << 10  # as much as kubelet keeps of a probe's

_KINDS = (
    ("user", syscalls.CLONE_NEWUSER),
    ("ipc", syscalls.CLONE_NEWIPC),
    ("uts", syscalls.CLONE_NEWUTS),
    ("pid", syscalls.CLONE_NEWPID),
    ("mnt", syscalls.CLONE_NEWNS),
)


class _Execution:
    def __init__(self, answer: Answer, first: int, report: int, output: int) -> None:
        self.answer: Answer | None = answer
        self.first = first
        self.second = 0
        self.status: int | None = None
        self.report = report
        self.said = b""
        self.output = output
        self.text = b""
        self.overdue: Timer | None = None
        self.is_overdue = False


class ExecCommands:
    def __init__(self, loop: Loop, origin: spawn.Origin) -> None:
        self._loop = loop
        self._origin = origin
        self._executions: list[_Execution] = []
        self._unknown: dict[int, int] = {}  # children that ended before their numbers were told

    def __bool__(self) -> bool:
        return bool(self._executions)

    def execute(
        self, kept: SupervisedContainer, command: tuple[str, ...], seconds: float, answer: Answer
    ) -> None:
        pipes: list[int] = []
        try:
            for _ in range(2):
                pipes += os.pipe2(os.O_CLOEXEC)
            report, report_end, output, output_end = pipes
            first, entrances = cgroup_entry.clone_into(kept.plan.procs)
        except OSError as error:
            for descriptor in pipes:
                os.close(descriptor)
            answer(error=f"no process can be made for it: {(error.strerror or str(error)).lower()}")
            return
        if first == 0:
            _first(kept, command, entrances, self._origin, report_end, output_end)
        os.close(report_end)
        os.close(output_end)
        execution = _Execution(answer, first, report, output)
        self._executions.append(execution)
        for descriptor, callback in ((report, self._read_report), (output, self._read_output)):
            os.set_blocking(descriptor, False)
            self._loop.watch(descriptor, partial(callback, execution))
        execution.overdue = self._loop.after(seconds, partial(self._overdue, execution))

    def child_ended(self, pid: int, status: int) -> bool:
        for execution in self._executions:
            if pid == execution.first:
                execution.first = 0
                self._read_report(execution)
                if not execution.second:  # it got no further
                    self._done(execution)
                return True
            if pid == execution.second:
                execution.status = status
                self._read_report(execution)
                self._read_output(execution)
                self._done(execution)
                return True
        if any(not execution.second for execution in self._executions):
            self._unknown[pid] = status
        return False

    def _read_report(self, execution: _Execution) -> None:
        if execution.report < 0:
            return
        try:
            while part := os.read(execution.report, 65536):
                execution.said += part
            self._close_report(execution)
        except BlockingIOError:
            pass
        if not execution.second:
            execution.second, execution.said = numbered(execution.said)
            status = self._unknown.pop(execution.second, None) if execution.second else None
            if status is not None:
                self.child_ended(execution.second, status)
            elif execution.second and execution.is_overdue:
                _kill(execution)

    def _read_output(self, execution: _Execution) -> None:
        """What is above the bound is taken too, so that nobody waits for a reader."""
        if execution.output < 0:
            return
        try:
            for _ in range(64):
                part = os.read(execution.output, 65536)
                if not part:
                    self._close_output(execution)
                    return
                execution.text = (execution.text + part)[:OUTPUT_BYTES]
        except BlockingIOError:
            pass

    def _overdue(self, execution: _Execution) -> None:
        self._read_report(execution)
        if execution not in self._executions:
            return
        self._read_output(execution)
        self._answer(execution, exit_code=None, output=_text(execution.text))
        execution.is_overdue = True
        _kill(execution)

    def _done(self, execution: _Execution) -> None:
        if execution not in self._executions:
            return
        self._executions.remove(execution)
        if execution.overdue is not None:
            execution.overdue.cancel()
        if not self._executions:
            self._unknown.clear()
        self._close_report(execution)
        self._close_output(execution)
        said = spawn.read_report(execution.said)
        if said.error:
            self._answer(execution, error=said.error, hint=said.hint)
        elif execution.status is None or not said.is_executed:
            self._answer(execution, error="the command's process ended before it could be executed")
        else:
            status = execution.status
            code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            self._answer(execution, exit_code=code, output=_text(execution.text))

    def _answer(self, execution: _Execution, **answer: object) -> None:
        if execution.answer is not None:
            execution.answer(**answer)
            execution.answer = None

    def _close_report(self, execution: _Execution) -> None:
        if execution.report >= 0:
            self._loop.unwatch(execution.report)
            os.close(execution.report)
            execution.report = -1

    def _close_output(self, execution: _Execution) -> None:
        if execution.output >= 0:
            self._loop.unwatch(execution.output)
            os.close(execution.output)
            execution.output = -1


def _kill(execution: _Execution) -> None:
    """The second and all of its group, in which it may not be yet; or before that the first, and then the second ends
    by itself, unless its number is told after all. Neither was waited for: no other can have their numbers."""
    if execution.second:
        for kill in (os.kill, os.killpg):
            with suppress(OSError):
                kill(execution.second, signal.SIGKILL)
    elif execution.first:
        with suppress(OSError):
            os.kill(execution.first, signal.SIGKILL)


def numbered(said: bytes) -> tuple[int, bytes]:
    """The second's number, 0 if it is not told yet, and the rest of the report. The second may have spoken before it:
    both write as they come to it."""
    lines = said.splitlines(keepends=True)
    for place, line in enumerate(lines):
        if line.endswith(b"\n") and line[:-1].isdigit():
            return int(line), b"".join((*lines[:place], *lines[place + 1 :]))
    return 0, said


def _first(
    kept: SupervisedContainer,
    command: tuple[str, ...],
    entrances: tuple[str, ...],
    origin: spawn.Origin,
    report: int,
    output: int,
) -> NoReturn:
    def act() -> None:
        plan, process = kept.plan, kept.process
        spawn.be_a_plain_process()
        cgroup_entry.enter(entrances, plan.cgroup)
        spawn.take_oom_score(plan.oom_score_adj)
        nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        for number, descriptor in enumerate((nothing, output, output)):
            os.dup2(descriptor, number, inheritable=True)
        _enter_namespaces(process.pid, process.ticks)
        orders_end, orders = os.pipe2(os.O_CLOEXEC)
        second = syscalls.clone(syscalls.CLONE_PARENT)
        if second == 0:
            os.close(orders)
            spawn.guarded(partial(_second, plan._replace(argv=command), origin, orders_end, report), report)
        os.write(report, b"%d\n" % second)
        os.write(orders, b"go")

    spawn.guarded(act, report)


def _second(plan: spawn.Plan, origin: spawn.Origin, orders: int, report: int) -> None:
    os.setsid()
    if not os.read(orders, 1):
        return  # the first was killed before it told our number: nobody else knows of us
    program = spawn.settle(plan, origin)
    syscalls.close_on_exec_from(3)
    spawn.execute(program, report)


def _enter_namespaces(pid: int, ticks: int) -> None:
    """Those of the container that are not ours."""
    entered = []
    for name, kind in _KINDS:
        path = f"/proc/{pid}/ns/{name}"
        try:
            theirs, ours = os.stat(path), os.stat(f"/proc/self/ns/{name}")
            if (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino):
                entered.append((os.open(path, os.O_RDONLY | os.O_CLOEXEC), kind))
        except FileNotFoundError:
            continue
    if start_ticks(pid) != ticks:
        raise EvenkeelError("the container has ended meanwhile")
    for descriptor, kind in entered:
        syscalls.setns(descriptor, kind)


def _text(read: bytes) -> str:
    return read.decode("utf-8", "replace")
