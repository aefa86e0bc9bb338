"""A container's set-up as the supervisor sees it: from the fork to the report that its program is executed, or why
not.

The child waits for an order before it executes its program, and the order is given when the child is recorded on disk.
So no container runs that a later supervisor would not find.
"""

import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Protocol

from evenkeel.errors import reason
from evenkeel.runtime import syscalls
from evenkeel.runtime.paths import AttemptKey
from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.supervisor import cgroup_entry, child_reports, rootfs, spawn
from evenkeel.runtime.process.supervisor.attempt import STREAMS, SupervisedContainer
from evenkeel.runtime.process.supervisor.event_loop import AT_ITS_END, Descriptors, Loop
from evenkeel.runtime.process.supervisor.pid_namespaces import PidNamespaces
from evenkeel.runtime.process.supervisor.start_plan import Plan
from evenkeel.runtime.process.supervisor_protocol import ProcessFile
from evenkeel.runtime.procfs import start_ticks

_SETUP_SECONDS = 60.0  # then a set-up that hangs (on a mount of a dead server) is given up


class SetupObserver(Protocol):
    """Hears how set-ups end."""

    def set_up(self, kept: SupervisedContainer) -> None:
        """The program is executed. It may have ended already: `status` says how."""

    def setup_failed(self, kept: SupervisedContainer, said: child_reports.Report) -> None:
        """The process is gone."""


class ContainerSetups:
    def __init__(
        self, loop: Loop, origin: spawn.Origin, pid_namespaces: PidNamespaces, observer: SetupObserver
    ) -> None:
        self._loop = loop
        self._origin = origin
        self._pid_namespaces = pid_namespaces
        self._observer = observer
        self._waiting: list[tuple[set[AttemptKey], Callable[[], None]]] = []

    def fork(
        self,
        key: AttemptKey,
        directory: str,
        plan: Plan,
        spec: rootfs.FilesystemSpec,
        target: ProcessFile | None = None,
    ) -> SupervisedContainer:
        """Starts the child, in the process namespace of `target` if there is one. If it raises OSError, there is no
        child."""
        with Descriptors() as opened:
            has_pipes = not plan.terminal
            streams = [opened.fifo(f"{directory}/{name}") for name in STREAMS if has_pipes]
            stdin = -1
            if plan.stdin and has_pipes:
                stdin = opened.fifo(f"{directory}/{supervisor_protocol.STDIN}")
            orders_end, orders = opened.pipe()
            report, report_end = (opened.add(end.detach()) for end in socket.socketpair())
            namespaces = self._origin.namespaces & ~plan.other_namespaces
            with self._pid_namespace(key[0], plan, target):
                pid, entrances = cgroup_entry.clone_into(plan.procs, namespaces)
                if pid == 0:
                    spawn.be_container(
                        spawn.Start(plan, spec, directory, entrances, self._origin, orders_end, report_end)
                    )
            # The child is not recorded yet. If it gets no order (also because the supervisor is killed now), it ends.
            has_pid_namespace = bool(namespaces & syscalls.CLONE_NEWPID)
            ticks = start_ticks(pid) or 0
            process = ProcessFile(pid, ticks, plan.cgroup, plan.procs, time.time(), has_pid_namespace)
            kept = SupervisedContainer(key, directory, plan, process)
            try:
                supervisor_protocol.write_process(directory, process)
                os.write(orders, b"go")
            except OSError:
                kept.unlink_streams()
                raise
            if streams:
                kept.relay_output(self._loop, *map(opened.keep, streams))
            kept.stdin = opened.keep(stdin)
            kept.report = socket.socket(fileno=opened.keep(report))
            kept.report.setblocking(False)
        return kept

    def _pid_namespace(
        self, uid: str, plan: Plan, target: ProcessFile | None
    ) -> AbstractContextManager[None]:
        if target is not None:
            return self._pid_namespaces.entered_of(target)
        return self._pid_namespaces.entered(uid, plan) if plan.holder_procs else nullcontext()

    def follow(self, kept: SupervisedContainer) -> None:
        """Reads the child's report when it is complete, and gives up a child that takes too long.

        The report is short (`child_reports.tell`), so the child never waits for us to read it. If each line woke us, we
        would take the child's processor, or copy pages that are ours again once the child has its program.
        """
        assert kept.report is not None
        self._loop.watch(kept.report.fileno(), partial(self._read_report, kept), AT_ITS_END)
        kept.overdue = self._loop.after(_SETUP_SECONDS, partial(self._overdue, kept))

    def child_ended(self, kept: SupervisedContainer, status: int) -> None:
        """The process of a container that is being set up has ended."""
        kept.status = status
        if kept.failed is not None:
            self._failed(kept, kept.failed)
        else:
            self._read_report(kept)  # the report is complete: no other process had the other end

    def after(self, keys: Iterable[AttemptKey], callback: Callable[[], None]) -> None:
        """Calls back when each of these set-ups, which are under way, has ended."""
        self._waiting.append((set(keys), callback))

    def forget_callbacks(self) -> None:
        self._waiting.clear()

    def _read_report(self, kept: SupervisedContainer) -> None:
        assert kept.report is not None
        try:
            while True:
                part, sent, _, _ = socket.recv_fds(kept.report, 65536, 1, socket.MSG_CMSG_CLOEXEC)
                for descriptor in sent:
                    if os.isatty(descriptor):
                        kept.take_terminal(self._loop, descriptor)
                    else:
                        kept.log = descriptor
                if not part:
                    break
                kept.said = (kept.said + part)[: 1 << 20]
        except BlockingIOError:
            return
        except OSError:
            pass
        self._loop.unwatch(kept.report.fileno())
        kept.report.close()
        kept.report = None
        if kept.overdue is not None:
            kept.overdue.cancel()
        said = child_reports.read_report(kept.said)
        kept.said = b""
        if not said.error and said.is_executed:
            self._succeeded(kept, said)
        elif kept.status is not None:
            self._failed(kept, said)
        else:  # the failure is reported only after the process is gone
            kept.failed = said
            with suppress(ProcessLookupError):
                os.kill(kept.process.pid, signal.SIGKILL)

    def _succeeded(self, kept: SupervisedContainer, said: child_reports.Report) -> None:
        if said.notes:
            kept.process = kept.process._replace(notes=said.notes)
            with suppress(OSError):
                supervisor_protocol.write_process(kept.directory, kept.process)
        self._observer.set_up(kept)
        self._settled(kept.key)

    def _failed(self, kept: SupervisedContainer, said: child_reports.Report) -> None:
        """Removes the rest of the attempt. Its process is gone."""
        kept.stop_relay()
        kept.close_termination_log()
        kept.unlink_streams()
        if not said.error:
            said = said._replace(
                error="the container's process was killed while it was being set up",
                hint="its memory limit may be too small to start anything in it",
            )
        self._observer.setup_failed(kept, said)
        self._settled(kept.key)

    def _overdue(self, kept: SupervisedContainer) -> None:
        if not kept.is_set_up and kept.status is None:
            with suppress(ProcessLookupError):
                os.kill(kept.process.pid, signal.SIGKILL)

    def _settled(self, key: AttemptKey) -> None:
        waiting, self._waiting = self._waiting, []
        for keys, callback in waiting:
            keys.discard(key)
            if keys:
                self._waiting.append((keys, callback))
            else:
                callback()


def refused(error: OSError) -> dict[str, str]:
    hints = {
        errno.EAGAIN: "too many processes: raise the limit of the agent's own cgroup or user (pids.max, ulimit -u)",
        errno.EMFILE: "too many open files: raise the limit (ulimit -n) and kill the supervisor",
        errno.ENOSPC: "the disk is full, or there are as many namespaces as /proc/sys/user/max_*_namespaces allows",
    }
    where = f"{error.filename}: " if error.filename else ""
    return {
        "error": f"the container's process cannot be made: {where}{reason(error)}",
        "hint": hints.get(error.errno or 0, ""),
    }
