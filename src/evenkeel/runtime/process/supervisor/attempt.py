"""One attempt of a container, as the supervisor keeps it: its process, its streams, and how it ended.

The supervisor holds the writing side of the container's standard input, or the one side of its terminal. So they
outlive the agent and its clients.
"""

import errno
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from evenkeel.errors import EvenkeelError
from evenkeel.runtime import syscalls
from evenkeel.runtime.log_relay import LogLimits, LogRelay
from evenkeel.runtime.paths import TERMINATION_LOG, AttemptKey
from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.supervisor import child_reports
from evenkeel.runtime.process.supervisor.event_loop import Descriptors, Loop, Timer, open_fifo
from evenkeel.runtime.process.supervisor.start_plan import Plan
from evenkeel.runtime.process.supervisor_protocol import ExitFile, ProcessFile
from evenkeel.runtime.termination_messages import termination_message

Answer = Callable[..., None]

STREAMS = (supervisor_protocol.STDOUT, supervisor_protocol.STDERR)
# Of a container whose input ends with its first client, the output before it is kept for that client: so many turns of
# stdout and stderr, and so much of each.
_MOST_UNSEEN_TURNS = 8
_MOST_UNSEEN_BYTES = 32 << 10


class Copy(Protocol):
    """Takes the output for a client (`attachments`)."""

    @property
    def is_full(self) -> bool: ...

    def take(self, stream: bytes, chunk: bytes) -> None: ...

    def finish(self) -> None: ...


class SupervisedContainer:
    """One attempt.

    It is being set up (`answers` wait for that), it runs, or it has ended and its record is not yet written.
    """

    __slots__ = ("_copies", "_is_paused", "_unseen", "answers", "directory", "ended", "failed", "is_reported", "key",
                 "log", "overdue", "pidfd", "plan", "process", "relay", "report", "said", "status", "stdin",
                 "terminal")  # fmt: skip

    def __init__(self, key: AttemptKey, directory: str, plan: Plan, process: ProcessFile) -> None:
        self.key = key
        self.directory = directory
        self.plan = plan._replace(filesystem={})
        self.process = process
        self.relay: LogRelay | None = None
        self.report: socket.socket | None = None  # the child reports through it during its set-up
        self.log = -1  # its termination log, read when it has ended
        self.said = b""
        # Why the set-up failed; kept until its process is gone.
        self.failed: child_reports.Report | None = None
        self.overdue: Timer | None = None
        self.answers: list[Answer] = []
        self.pidfd = -1  # only of an adopted container
        self.status: int | None = None  # from waitpid, if it ended before its report was read
        self.is_reported = False  # the client knows that an adopted container has ended
        self.ended: ExitFile | None = None
        self.stdin = -1  # the writing side of its standard input
        self.terminal = -1  # our side of its terminal
        self._copies: list[Copy] = []
        self._is_paused = False  # its output is not read for a while
        self._unseen: list[tuple[bytes, bytearray]] | None = [] if plan.stdin_once else None

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
        self.relay = self._relay(loop, stdout, stderr)
        self.watch_output(loop)

    def take_terminal(self, loop: Loop, terminal: int) -> None:
        """Takes our side of the container's terminal over from the process that made it."""
        self.terminal = terminal
        os.set_blocking(terminal, False)
        self.relay_output(loop, os.dup(terminal), -1)

    def open_streams(self, loop: Loop) -> None:
        """Opens what an adopted container writes to and reads from. Its FIFOs still exist, with the output written
        meanwhile. A terminal went with the supervisor that had it.

        Raises OSError if no descriptor is left for one of them; then none is open. A container whose output nobody
        reads would wait at a full pipe for ever.
        """
        with Descriptors() as opened:
            log = opened.add_found(self._termination_log)
            stdin = -1
            if self.plan.stdin and not self.plan.terminal:
                stdin = opened.add_found(partial(self._fifo, supervisor_protocol.STDIN))  # or it has ended
            streams = [opened.add_found(partial(self._fifo, name)) for name in STREAMS]
            if -1 not in streams:  # else it runs on without a log
                with suppress(TypeError):  # its plan is not known
                    self.relay = self._relay(loop, *streams)
                    for stream in streams:
                        opened.keep(stream)
            self.log, self.stdin = opened.keep(log), opened.keep(stdin)

    def _fifo(self, name: str) -> int:
        return open_fifo(f"{self.directory}/{name}")

    def stop_relay(self) -> None:
        if self.relay is not None:
            self.relay.finish()
            self.relay = None
        for copy in list(self._copies):
            copy.finish()
        self._unseen = None
        self._close_input()

    def unlink_streams(self) -> None:
        for name in (supervisor_protocol.PROCESS, supervisor_protocol.STDIN, *STREAMS):
            with suppress(OSError):
                os.unlink(f"{self.directory}/{name}")

    def watch_output(self, loop: Loop) -> None:
        """Reads on, unless the container is above its rate or a client must read first."""
        if self.relay is not None and not self._is_paused and not self._is_held:
            for descriptor in self.relay.descriptors:
                loop.watch(descriptor, partial(self._pump, loop, descriptor))

    @property
    def _is_held(self) -> bool:
        return any(copy.is_full for copy in self._copies)

    def _relay(self, loop: Loop, stdout: int, stderr: int) -> LogRelay:
        limits = LogLimits(*self.plan.log_limits)
        return LogRelay(stdout, stderr, self.plan.log, limits, on_chunk=self._copy, on_end=loop.unwatch)

    def _pump(self, loop: Loop, descriptor: int) -> None:
        assert self.relay is not None
        pause_seconds = self.relay.pump(descriptor)
        for one in self.relay.descriptors if pause_seconds > 0 or self._is_held else ():
            loop.unwatch(one)
        if pause_seconds > 0:
            self._is_paused = True
            loop.after(pause_seconds, partial(self._resume, loop))

    def _resume(self, loop: Loop) -> None:
        self._is_paused = False
        self.watch_output(loop)

    # Its clients

    def add_copy(self, copy: Copy, *, has_output: bool) -> None:
        """From now on the copy gets the output. The first client of a container whose input ends with it gets all
        output, as far as it is kept."""
        self._copies.append(copy)
        if has_output and self._unseen is not None:
            for stream, chunk in self._unseen:
                copy.take(stream, bytes(chunk))
            self._unseen = None

    def remove_copy(self, copy: Copy) -> None:
        self._copies = [one for one in self._copies if one is not copy]

    def input_streams(self, *, is_wanted: bool) -> list[int]:
        """Returns new descriptors for a client: the terminal, or the standard input if it is wanted. Raises
        EvenkeelError."""
        if is_wanted and not self.plan.stdin:
            raise EvenkeelError(
                "the container has no standard input", hint="write stdin: true in its manifest"
            )
        if self.plan.terminal:
            if self.terminal < 0:
                raise EvenkeelError(
                    "the container's terminal went with the supervisor that had it", hint="restart the pod"
                )
            return [os.dup(self.terminal)]
        if is_wanted and self.stdin < 0:
            raise EvenkeelError(
                "the container's standard input has ended with its first client",
                hint="stdinOnce: true in its manifest says so",
            )
        return [os.dup(self.stdin)] if is_wanted else []

    def client_ended_input(self) -> None:
        """A terminal has no end of input, as in container runtimes."""
        if self.plan.stdin_once and not self.plan.terminal:
            self._close_input()
            with suppress(OSError):
                os.unlink(f"{self.directory}/{supervisor_protocol.STDIN}")  # for the next supervisor

    def _close_input(self) -> None:
        for descriptor in {self.stdin, self.terminal} - {-1}:
            os.close(descriptor)
        self.stdin = self.terminal = -1

    def _copy(self, stream: bytes, chunk: bytes) -> None:
        for copy in self._copies:
            copy.take(stream, chunk)
        if self._unseen is not None:
            if not self._unseen or self._unseen[-1][0] != stream:
                self._unseen.append((stream, bytearray()))
            self._unseen[-1][1].extend(chunk)
            del self._unseen[:-_MOST_UNSEEN_TURNS]
            del self._unseen[-1][1][:-_MOST_UNSEEN_BYTES]

    # Its termination message

    def _termination_log(self) -> int:
        """Opens the termination log of a container that another supervisor started. Raises OSError.

        The container controls this path. It is opened only if it is a regular file inside the container.
        """
        with Descriptors() as opened:
            root = opened.add(
                os.open(f"/proc/{self.process.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            )
            resolve = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_SYMLINKS
            flags = os.O_RDONLY | os.O_NONBLOCK
            log = opened.add(syscalls.open_within(root, "dev/termination-log", flags, resolve))
            if not stat.S_ISREG(os.fstat(log).st_mode):
                raise FileNotFoundError(errno.ENOENT, "the container has put something else there")
            return opened.keep(log)

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
