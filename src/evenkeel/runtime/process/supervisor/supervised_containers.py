"""The containers of the supervisor, from the fork to the record of how they ended.

The supervisor's own containers are its children. It adopts the containers of a supervisor that was killed: it relays
their logs and sees them end. Only the parent process can know how an adopted container ended. The parent is the
client, or the exit status is lost.
"""

import errno
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from evenkeel.errors import reason
from evenkeel.runtime import syscalls
from evenkeel.runtime.paths import AttemptKey, StatePaths, attempts_of, read_json
from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.supervisor import cgroup_entry, child_reports, rootfs, spawn
from evenkeel.runtime.process.supervisor.attempt import STREAMS, Answer, SupervisedContainer
from evenkeel.runtime.process.supervisor.event_loop import Descriptors, Loop
from evenkeel.runtime.process.supervisor.pid_namespaces import PidNamespaces
from evenkeel.runtime.process.supervisor.plan import Plan, read_plan
from evenkeel.runtime.process.supervisor_protocol import Message, ProcessFile
from evenkeel.runtime.procfs import start_ticks

_SETUP_SECONDS = 60.0  # then a set-up that hangs (on a mount of a dead server) is given up
_RETRY_SECONDS = 1.0
_CLIENT_SECONDS = 30.0  # the time in which the client reports how an adopted container ended


class SupervisedContainers:
    """All containers of the supervisor.

    `tell` sends an event to the client, and returns False if there is no client.
    """

    def __init__(
        self, loop: Loop, paths: StatePaths, origin: spawn.Origin, tell: Callable[[Message], bool]
    ) -> None:
        self._loop = loop
        self._paths = paths
        self._origin = origin
        self._tell = tell
        self._pid_namespaces = PidNamespaces(paths, origin)
        self._kept: dict[AttemptKey, SupervisedContainer] = {}
        self._by_pid: dict[int, SupervisedContainer] = {}
        self._after_setup: list[tuple[set[AttemptKey], Callable[[], None]]] = []

    def __bool__(self) -> bool:
        return bool(self._kept)

    def running(self, key: AttemptKey) -> SupervisedContainer | None:
        kept = self._kept.get(key)
        return kept if kept is not None and kept.is_set_up and kept.ended is None else None

    # Requests of the client

    def start(self, key: AttemptKey, answer: Answer) -> None:
        kept = self._kept.get(key)
        if kept is not None:
            if kept.is_set_up:
                answer(**kept.record)
            else:
                kept.answers.append(answer)
            return
        directory = self._paths.attempt(*key)
        if read_json(directory, supervisor_protocol.EXIT) or supervisor_protocol.read_process(directory):
            answer(error="this attempt was started before", hint="ask for what is known of it", is_known=True)
            return
        try:
            plan = read_plan(directory)
            spec = rootfs.from_json(plan.filesystem)
        except (KeyError, TypeError, ValueError):
            answer(error=f"there is nothing to start in {directory}")
            return
        try:
            kept = self._spawn(key, directory, plan, spec)
        except OSError as error:
            answer(**_refused(error))
            return
        kept.answers.append(answer)

    def signal(self, key: AttemptKey, number: int) -> None:
        kept = self._kept.get(key)
        if kept is None or kept.ended is not None or kept.status is not None:
            return
        with suppress(ProcessLookupError):
            if kept.is_adopted:
                signal.pidfd_send_signal(kept.pidfd, number)
            else:  # it is our child and was not waited for, so no other process can have its number
                os.kill(kept.process.pid, number)

    def records(self, done: Callable[[list[dict[str, Any]]], None]) -> None:
        """Lists every container that runs or whose exit is not on disk.

        The answer waits until each container that is being set up now runs or has failed.
        """
        setting_up = {key for key, kept in self._kept.items() if not kept.is_set_up}

        def tell() -> None:
            done([kept.record for kept in self._kept.values() if kept.is_set_up])

        if setting_up:
            self._after_setup.append((setting_up, tell))
        else:
            tell()

    def adopt(self, key: AttemptKey) -> None:
        if key in self._kept:
            return
        directory = self._paths.attempt(*key)
        process = supervisor_protocol.read_process(directory)
        if process is None or read_json(directory, supervisor_protocol.EXIT):
            return
        try:
            plan = read_plan(directory)
        except (KeyError, TypeError, ValueError):
            plan = Plan((), (), process.cgroup, process.procs, "", (), {})
        kept = SupervisedContainer(key, directory, plan, process)
        try:
            kept.pidfd = os.pidfd_open(process.pid)
        except OSError:  # the process is gone
            self._kept[key] = kept
            self._end(kept, None)
            return
        self._kept[key] = kept
        if not supervisor_protocol.is_running(process):
            self._adopted_ended(kept)
            return
        kept.open_termination_log()
        kept.relay_anew(self._loop)
        self._loop.watch(kept.pidfd, partial(self._adopted_ended, kept))

    def finish(self, key: AttemptKey, status: int | None) -> None:
        """Ends an adopted container with the status that the client reports: waitpid's, or None if it does not know."""
        kept = self._kept.get(key)
        if kept is not None and kept.is_adopted and kept.is_reported and kept.ended is None:
            self._end(kept, status)

    def forget(self, key: AttemptKey) -> None:
        kept = self._kept.get(key)
        if kept is not None and kept.ended is not None:
            del self._kept[key]

    # Events

    def child_ended(self, pid: int, status: int) -> bool:
        """Returns False if the process is not a container's."""
        kept = self._by_pid.pop(pid, None)
        if kept is None:
            return False
        kept.status = status
        if kept.failed is not None:
            self._setup_failed(kept, kept.failed)
        elif not kept.is_set_up:
            self._read_report(kept)  # the report is complete: no other process had the other end
        else:
            self._end(kept, status)
        return True

    def client_gone(self) -> None:
        for kept in list(self._kept.values()):
            kept.answers.clear()
            if kept.is_reported and kept.ended is None:
                self._end(kept, None)
        self._after_setup.clear()

    def _spawn(
        self, key: AttemptKey, directory: str, plan: Plan, spec: rootfs.FilesystemSpec
    ) -> SupervisedContainer:
        """Starts the child. If it raises OSError, there is no child."""
        with Descriptors() as opened:
            has_pipes = not plan.terminal
            streams = [opened.fifo(f"{directory}/{name}") for name in STREAMS if has_pipes]
            stdin = -1
            if plan.stdin and has_pipes:
                stdin = opened.fifo(f"{directory}/{supervisor_protocol.STDIN}", os.O_RDWR)
            orders_end, orders = opened.pipe()
            report, report_end = (opened.add(end.detach()) for end in socket.socketpair())
            namespaces = self._origin.namespaces & ~plan.shared_namespaces
            within = self._pid_namespaces.entered(key[0], plan) if plan.holder_procs else nullcontext()
            with within:
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
        self._kept[key] = self._by_pid[pid] = kept
        self._loop.watch(kept.report.fileno(), partial(self._read_report, kept))
        kept.overdue = self._loop.after(_SETUP_SECONDS, partial(self._setup_overdue, kept))
        return kept

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
            self._set_up(kept, said)
        elif kept.status is not None:
            self._setup_failed(kept, said)
        else:  # the failure is reported only after the process is gone
            kept.failed = said
            with suppress(ProcessLookupError):
                os.kill(kept.process.pid, signal.SIGKILL)

    def _set_up(self, kept: SupervisedContainer, said: child_reports.Report) -> None:
        if said.notes:
            kept.process = kept.process._replace(notes=said.notes)
            with suppress(OSError):
                supervisor_protocol.write_process(kept.directory, kept.process)
        if kept.status is not None:
            self._end(kept, kept.status, tell=False)
        for answer in kept.answers:
            answer(**kept.record)
        kept.answers.clear()
        if kept.ended is not None:
            self._tell_exit(kept)
        self._settled(kept.key)

    def _setup_failed(self, kept: SupervisedContainer, said: child_reports.Report) -> None:
        """Removes the rest of the attempt. Its process is gone."""
        del self._kept[kept.key]
        kept.stop_relay(self._loop)
        kept.close_termination_log()
        kept.unlink_streams()
        error, hint = said.error, said.hint
        if not error:
            error = "the container's process was killed while it was being set up"
            hint = "its memory limit may be too small to start anything in it"
        self._end_pid_namespace(kept)
        for answer in kept.answers:
            answer(error=error, hint=hint)
        kept.answers.clear()
        self._settled(kept.key)

    def _setup_overdue(self, kept: SupervisedContainer) -> None:
        if not kept.is_set_up and kept.status is None:
            with suppress(ProcessLookupError):
                os.kill(kept.process.pid, signal.SIGKILL)

    def _settled(self, key: AttemptKey) -> None:
        waiting, self._after_setup = self._after_setup, []
        for keys, callback in waiting:
            keys.discard(key)
            if keys:
                self._after_setup.append((keys, callback))
            else:
                callback()

    # The end

    def _adopted_ended(self, kept: SupervisedContainer) -> None:
        self._loop.unwatch(kept.pidfd)
        kept.is_reported = self._tell({"event": "ended", "attempt": list(kept.key)})
        if kept.is_reported:
            self._loop.after(_CLIENT_SECONDS, lambda: self._end(kept, None) if kept.ended is None else None)
        else:
            self._end(kept, None)

    def _end(self, kept: SupervisedContainer, status: int | None, *, tell: bool = True) -> None:
        if kept.pidfd >= 0:
            os.close(kept.pidfd)
            kept.pidfd = -1
        kept.stop_relay(self._loop)
        now, started_at = time.time(), kept.process.started_at
        ended = (
            supervisor_protocol.unknown(started_at, now)
            if status is None
            else supervisor_protocol.of_status(status, started_at, now)
        )
        kept.ended = ended._replace(message=kept.termination_message(is_error=ended.exit_code != 0))
        kept.close_termination_log()
        self._end_pid_namespace(kept)
        self._write(kept)
        if tell:
            self._tell_exit(kept)

    def _end_pid_namespace(self, kept: SupervisedContainer) -> None:
        """A namespace that the pod's containers share ends with the last of them."""
        uid = kept.key[0]
        if not kept.plan.holder_procs or any(
            other.key[0] == uid and other.ended is None and other is not kept for other in self._kept.values()
        ):
            return
        # Containers of an earlier supervisor may not be adopted yet.
        for container, number in attempts_of(uid, self._paths):
            process = supervisor_protocol.read_process(self._paths.attempt(uid, container, number))
            if (
                (uid, container, number) != kept.key
                and process is not None
                and supervisor_protocol.is_running(process)
            ):
                return
        self._pid_namespaces.end(uid)

    def _tell_exit(self, kept: SupervisedContainer) -> None:
        assert kept.ended is not None
        self._tell({"event": "exited", "attempt": list(kept.key), "exit": kept.ended._asdict()})

    def _write(self, kept: SupervisedContainer) -> None:
        """Writes the exit to disk. After that the supervisor need not hold it.

        If the disk is full or gone, it tries again until the client has the exit.
        """
        if self._kept.get(kept.key) is not kept or kept.ended is None:
            return
        try:
            supervisor_protocol.write_exit(kept.directory, kept.ended)
        except FileNotFoundError:  # the directory was removed, so no client will ask for the exit
            del self._kept[kept.key]
        except OSError:
            self._loop.after(_RETRY_SECONDS, partial(self._write, kept))
        else:
            del self._kept[kept.key]


def _refused(error: OSError) -> dict[str, str]:
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
