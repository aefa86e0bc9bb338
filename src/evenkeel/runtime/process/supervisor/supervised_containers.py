"""The containers of the supervisor, up to the record of how they ended. `container_setup` has their beginning.

The supervisor's own containers are its children. It adopts the containers of a supervisor that was killed: it relays
their logs and sees them end. Only the parent of a process gets its exit status. If the client is the parent of an
adopted container, it reports the status. Otherwise the status is lost.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from evenkeel.errors import raise_shortage
from evenkeel.runtime.paths import AttemptKey, StatePaths, attempts_of, read_json
from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.supervisor import child_reports, rootfs, spawn
from evenkeel.runtime.process.supervisor.attempt import Answer, SupervisedContainer
from evenkeel.runtime.process.supervisor.container_setup import ContainerSetups, refused
from evenkeel.runtime.process.supervisor.event_loop import Descriptors, Loop
from evenkeel.runtime.process.supervisor.pid_namespaces import PidNamespaces
from evenkeel.runtime.process.supervisor.start_plan import Plan, read_plan
from evenkeel.runtime.process.supervisor_protocol import Message, ProcessFile

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
        self._tell = tell
        self._pid_namespaces = PidNamespaces(paths, origin)
        self._setups = ContainerSetups(loop, origin, self._pid_namespaces, self)
        self._kept: dict[AttemptKey, SupervisedContainer] = {}
        self._by_pid: dict[int, SupervisedContainer] = {}
        self._not_adopted: set[AttemptKey] = set()  # for want of descriptors

    def __bool__(self) -> bool:
        return bool(self._kept or self._not_adopted)

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
        try:
            if read_json(directory, supervisor_protocol.EXIT) or supervisor_protocol.read_process(directory):
                answer(
                    error="this attempt was started before", hint="ask for what is known of it", is_known=True
                )
                return
            plan = read_plan(directory)
            spec = rootfs.from_json(plan.filesystem)
            target = self._target(key[0], plan.target)
        except (KeyError, TypeError, ValueError):
            answer(error=f"there is nothing to start in {directory}")
            return
        except OSError as error:
            answer(**refused(error))
            return
        if plan.target and target is None:
            answer(error=f'container "{plan.target}", whose processes it is to see, does not run')
            return
        try:
            kept = self._setups.fork(key, directory, plan, spec, target)
            self._kept[key] = self._by_pid[kept.process.pid] = kept
            self._setups.follow(kept)
        except OSError as error:
            answer(**refused(error))
            return
        kept.answers.append(answer)

    def _target(self, uid: str, container: str) -> ProcessFile | None:
        """The first process of the pod's container of that name, if it runs. It may not be adopted yet."""
        for name, number in attempts_of(uid, self._paths) if container else ():
            if name == container:
                process = supervisor_protocol.read_process(self._paths.attempt(uid, name, number))
                if process is not None and supervisor_protocol.is_running(process):
                    return process
        return None

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
            self._setups.after(setting_up, tell)
        else:
            tell()

    def adopt(self, key: AttemptKey) -> None:
        """Without a free descriptor it tries again: nothing is known of the container then, above all not its end."""
        self._not_adopted.discard(key)
        try:
            self._adopt(key)
        except OSError:
            self._not_adopted.add(key)
            self._loop.after(_RETRY_SECONDS, partial(self.adopt, key))

    def _adopt(self, key: AttemptKey) -> None:
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
        with Descriptors() as opened:
            try:
                pidfd = opened.add(os.pidfd_open(process.pid))
            except OSError as error:
                raise_shortage(error)
                self._kept[key] = kept  # the process is gone
                self._end(kept, None)
                return
            is_running = supervisor_protocol.is_running(process)
            if is_running:
                kept.open_streams(self._loop)
            kept.pidfd = opened.keep(pidfd)
        self._kept[key] = kept
        if is_running:
            kept.watch_output(self._loop)
            self._loop.watch(kept.pidfd, partial(self._adopted_ended, kept))
        else:
            self._adopted_ended(kept)

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
        if not kept.is_set_up:
            self._setups.child_ended(kept, status)
        else:
            kept.status = status
            self._end(kept, status)
        return True

    def client_gone(self) -> None:
        for kept in list(self._kept.values()):
            kept.answers.clear()
            if kept.is_reported and kept.ended is None:
                self._end(kept, None)
        self._setups.forget_callbacks()

    # Ends of set-ups (SetupObserver)

    def set_up(self, kept: SupervisedContainer) -> None:
        if kept.status is not None:
            self._end(kept, kept.status, tell=False)
        for answer in kept.answers:
            answer(**kept.record)
        kept.answers.clear()
        if kept.ended is not None:
            self._tell_exit(kept)

    def setup_failed(self, kept: SupervisedContainer, said: child_reports.Report) -> None:
        del self._kept[kept.key]
        self._end_pid_namespace(kept)
        for answer in kept.answers:
            answer(error=said.error, hint=said.hint)
        kept.answers.clear()

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
        kept.stop_relay()
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
        """A namespace that the pod's containers share ends with the last of them. Without a free descriptor it is not
        known which is the last, and this is tried again: the exit does not wait for it."""
        try:
            self._end_unused_pid_namespace(kept)
        except OSError:
            self._loop.after(_RETRY_SECONDS, partial(self._end_pid_namespace, kept))

    def _end_unused_pid_namespace(self, kept: SupervisedContainer) -> None:
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
