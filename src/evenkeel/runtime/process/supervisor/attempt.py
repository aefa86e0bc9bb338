"""One attempt of a container, as the supervisor keeps it: its process, its output, and how it ended."""

import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from evenkeel.runtime import syscalls
from evenkeel.runtime.log_reading import termination_message
from evenkeel.runtime.log_relay import LogLimits, LogRelay
from evenkeel.runtime.paths import TERMINATION_LOG, AttemptKey
from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.supervisor import spawn
from evenkeel.runtime.process.supervisor.event_loop import Descriptors, Loop, Timer
from evenkeel.runtime.process.supervisor_protocol import ExitFile, ProcessFile

Answer = Callable[..., None]

STREAMS = (supervisor_protocol.STDOUT, supervisor_protocol.STDERR)


class SupervisedContainer:
    """One attempt.

    It is being set up (`answers` wait for that), it runs, or it has ended and its record is not yet written.
    """

    __slots__ = ("answers", "directory", "ended", "failed", "is_reported", "key", "log", "overdue", "pidfd", "plan",
                 "process", "relay", "report", "said", "status")  # fmt: skip

    def __init__(self, key: AttemptKey, directory: str, plan: spawn.Plan, process: ProcessFile) -> None:
        self.key = key
        self.directory = directory
        self.plan = plan._replace(filesystem={})
        self.process = process
        self.relay: LogRelay | None = None
        self.report: socket.socket | None = None  # the child reports through it during its set-up
        self.log = -1  # its termination log, read when it has ended
        self.said = b""
        self.failed: spawn.Report | None = None  # why the set-up failed; kept until its process is gone
        self.overdue: Timer | None = None
        self.answers: list[Answer] = []
        self.pidfd = -1  # only of an adopted container
        self.status: int | None = None  # from waitpid, if it ended before its report was read
        self.is_reported = False  # the client knows that an adopted container has ended
        self.ended: ExitFile | None = None

    @property
    def is_adopted(self) -> bool:
        return self.pidfd >= 0

    @property
    def is_set_up(self) -> bool:
        return self.report is None and self.failed is None

    @property
    def record(self) -> dict[str, Any]:
        """The attempt as the client gets it."""
        ended = None if self.ended is None else self.ended._asdict()
        return {"attempt": list(self.key), **self.process._asdict(), "exit": ended}

    # Its output

    def relay_output(self, loop: Loop, stdout: int, stderr: int) -> None:
        """Copies what the container writes to its log. The descriptors now belong to the relay."""
        self.relay = LogRelay(stdout, stderr, self.plan.log, LogLimits(*self.plan.log_limits))
        self._watch_output(loop)

    def relay_anew(self, loop: Loop) -> None:
        """Relays the log of an adopted container again. Its FIFOs still exist, with the output written meanwhile."""
        try:
            with Descriptors() as opened:
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
                streams = [opened.add(os.open(f"{self.directory}/{name}", flags)) for name in STREAMS]
                limits = LogLimits(*self.plan.log_limits)
                stdout, stderr = map(opened.keep, streams)
                self.relay = LogRelay(stdout, stderr, self.plan.log, limits)
        except (OSError, TypeError):
            return  # it runs on without a log
        self._watch_output(loop)

    def stop_relay(self, loop: Loop) -> None:
        if self.relay is not None:
            for descriptor in self.relay.descriptors:
                loop.unwatch(descriptor)
            self.relay.finish()
            self.relay = None

    def unlink_streams(self) -> None:
        for name in (supervisor_protocol.PROCESS, *STREAMS):
            with suppress(OSError):
                os.unlink(f"{self.directory}/{name}")

    def _watch_output(self, loop: Loop) -> None:
        if self.relay is not None:
            for descriptor in self.relay.descriptors:
                loop.watch(descriptor, partial(self._pump, loop, descriptor))

    def _pump(self, loop: Loop, descriptor: int) -> None:
        assert self.relay is not None
        before = self.relay.descriptors
        pause_seconds = self.relay.pump(descriptor)
        still = self.relay.descriptors
        for one in before if pause_seconds > 0 else set(before).difference(still):
            loop.unwatch(one)
        if pause_seconds > 0:
            loop.after(pause_seconds, partial(self._watch_output, loop))

    # Its termination message

    def open_termination_log(self) -> None:
        """Opens the termination log of a container that another supervisor started, if that is possible.

        The container controls this path. It is opened only if it is a regular file inside the container.
        """
        with suppress(OSError), Descriptors() as opened:
            root = opened.add(
                os.open(f"/proc/{self.process.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            )
            resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_SYMLINKS
            flags = os.O_RDONLY | os.O_NONBLOCK
            log = opened.add(syscalls.open_within(root, "dev/termination-log", flags, resolve))
            if stat.S_ISREG(os.fstat(log).st_mode):
                self.log = opened.keep(log)

    def termination_message(self, *, is_error: bool) -> str:
        try:
            return termination_message(
                f"{self.directory}/{TERMINATION_LOG}",
                self.plan.log,
                self.plan.message_policy,
                is_error=is_error,
                descriptor=self.log,
            )
        except Exception:  # noqa: BLE001 the exit is recorded even if the log cannot be read
            return ""

    def close_termination_log(self) -> None:
        if self.log >= 0:
            os.close(self.log)
            self.log = -1
