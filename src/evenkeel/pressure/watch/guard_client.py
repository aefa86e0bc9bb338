"""The watch's side of its guard (`pressure.watch.guard`). The guard releases held pods when the watch is killed.

The guard is started before there is any pressure. It runs in the watch's cgroup, with its OOM score, and in a session
of its own. It is started again if it ends before the watch does.
"""

import fcntl
import os
import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from evenkeel.errors import reason
from evenkeel.host.protection import small_command
from evenkeel.pressure.watch.guard import MOST_BYTES, free_line, hold_line

_PIPE_BYTES = 1 << 18  # room for more than a thousand lines while the guard gets no CPU
_STEADY_SECONDS = 60.0  # a guard that ran this long is restarted at once
_LEAST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 1.0, 60.0
_GOING_SECONDS = 10.0


class Waiter(Protocol):
    """Calls back when a descriptor is ready (`KernelTriggers`)."""

    def call_when_ready(self, descriptor: int, call: Callable[[], None]) -> None: ...
    def forget(self, descriptor: int) -> None: ...


class GuardClient:
    """`hold` and `free` never block. `noted` gets problems, as sentences. `pause` is called every now and then."""

    def __init__(self, waiter: Waiter, noted: Callable[[str], None]) -> None:
        self._waiter = waiter
        self._noted = noted
        self._held: dict[str, str] = {}
        self._pipe = -1
        self.pid: int | None = None
        self._ending = -1  # pidfd of the guard: readable when the guard ends
        self._started_at = 0.0
        self._pause_seconds = 0.0
        self._again_at: float | None = None
        self._missed: dict[str, None] = {}  # files that the guard does not know, because its pipe was full

    def hold(self, lets_go: Mapping[str, str]) -> None:
        """Call this before pods are frozen or throttled. It gives, by file, the value that the guard has to write if
        the watch ends before it calls `free`."""
        # Values that the guard already has are not sent again.
        new = [
            (file, value)
            for file, value in lets_go.items()
            if file in self._missed or self._held.get(file) != value
        ]
        self._held.update(new)
        self._tell([file for file, _ in new])

    def free(self, files: Iterable[str]) -> None:
        """The guard no longer has to write these files."""
        self._tell([file for file in files if self._held.pop(file, None) is not None])

    @property
    def has_missed(self) -> bool:
        """Whether the guard lacks some files, because it gets no CPU time and its pipe was full."""
        return bool(self._missed)

    def start(self) -> None:
        self._again_at = None
        try:
            self.pid, self._pipe = _started()
        except OSError as error:
            self._noted(f"the guard cannot be started: {reason(error)}")
            self._start_later()
            return
        self._started_at = time.monotonic()
        self._missed.clear()
        self._tell(list(self._held))
        with suppress(OSError):
            self._ending = os.pidfd_open(self.pid)
            self._waiter.call_when_ready(self._ending, self._ended)

    def start_if_due(self, now: float) -> None:
        """Starts the guard again, if it has ended and its pause is over. Sends it the files that it lacks."""
        if self._again_at is not None and now >= self._again_at:
            self.start()
        elif self._missed:
            self._tell(list(self._missed))

    def close(self) -> None:
        """Closes the pipe. The guard then writes the files that are still held, and ends."""
        self._again_at = None
        self._close_pipe()
        if self._ending >= 0:
            poll = select.poll()
            poll.register(self._ending, select.POLLIN)
            poll.poll(_GOING_SECONDS * 1000)
        self._take_note()

    def _ended(self) -> None:
        lived = time.monotonic() - self._started_at
        self._close_pipe()
        self._take_note()
        self._noted("the guard ended before the watch over memory did: another one is started")
        if lived >= _STEADY_SECONDS:
            self._pause_seconds = 0.0
        self._start_later()

    def _start_later(self) -> None:
        """Waits first if the last guard did not run for long."""
        self._again_at = time.monotonic() + self._pause_seconds
        self._pause_seconds = min(max(self._pause_seconds * 2, _LEAST_PAUSE_SECONDS), _MOST_PAUSE_SECONDS)

    def _close_pipe(self) -> None:
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            os.close(pipe)

    def _take_note(self) -> None:
        if self._ending >= 0:
            self._waiter.forget(self._ending)
            os.close(self._ending)
            self._ending = -1
        if self.pid is not None:
            with suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            self.pid = None

    def _tell(self, files: Sequence[str]) -> None:
        """Sends the present state of these files. It makes few system calls, because the caller has no time. Each write
        is atomic."""
        whole = b""
        sent: list[str] = []
        for file in files:
            held = self._held.get(file)
            line = free_line(file) if held is None else hold_line(file, held)
            if len(whole) + len(line) > MOST_BYTES:
                self._write(whole, sent)
                whole, sent = b"", []
            whole += line
            sent.append(file)
        if whole:
            self._write(whole, sent)

    def _write(self, lines: bytes, files: Sequence[str]) -> None:
        try:
            os.write(self._pipe, lines)
        except BlockingIOError:
            if not self._missed:
                self._noted(
                    "the guard does not come to its turn: if the watch over memory is killed now, some pods may stay"
                    " frozen or throttled"
                )
            self._missed.update(dict.fromkeys(files))
        except OSError:
            pass  # the guard has ended; the next one gets all held files
        else:
            for file in files if self._missed else ():
                self._missed.pop(file, None)


def _started() -> tuple[int, int]:
    """Starts the guard, and returns its number and our end of the pipe. No other process inherits our end: while
    another process had it open, the guard would not see the watch end."""
    theirs, ours = os.pipe2(os.O_CLOEXEC)
    try:
        os.set_blocking(ours, False)
        with suppress(OSError):  # without it, the pipe has room for some hundred lines
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_inheritable(theirs, True)
        command = small_command("evenkeel.pressure.watch.guard", str(theirs))
        # All other descriptors of this process are closed in the guard, because Python opens them so.
        return os.posix_spawn(command[0], command, {}, setsid=True), ours
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
