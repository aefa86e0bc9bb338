"""The agent's side of the guard (`pressure.guard`). The guard thaws frozen pods when the agent is killed.

The guard also ends the throttling of pods. It is started before there is any pressure. It runs in the agent's cgroup,
with the agent's OOM score, and in a session of its own. It is started again if it ends before the agent does.
"""

import asyncio
import fcntl
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from evenkeel.errors import reason
from evenkeel.host.protection import small_command
from evenkeel.pressure.guard import MOST_BYTES, free_line, hold_line

_PIPE_BYTES = 1 << 18  # room for more than a thousand lines while the guard gets no CPU
_STEADY_SECONDS = 60.0  # a guard that ran this long is restarted at once
_LEAST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 1.0, 60.0
_GOING_SECONDS = 10.0


class GuardClient:
    """`hold` and `free` may be called from any thread, and never block. The other methods are for the agent's loop.
    `noted` may be called from any thread too."""

    def __init__(self, noted: Callable[[str], None]) -> None:
        self._noted = noted
        self._held: dict[str, str] = {}
        # The descriptor number stays the same when a new guard is started: another thread may be writing to it.
        self._pipe = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = -1  # pidfd of the guard: readable when the guard ends
        self._started_at = 0.0
        self._pause_seconds = 0.0
        self._again: asyncio.TimerHandle | None = None
        self._is_full_noted = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    # For any thread

    def hold(self, lets_go: Mapping[str, str]) -> None:
        """Call this before pods are frozen or throttled. It gives, by file, the value that the guard has to write if
        the agent ends before it calls `free`."""
        self._held.update(lets_go)
        self._tell([hold_line(file, value) for file, value in lets_go.items()])

    def free(self, files: Iterable[str]) -> None:
        """The guard no longer has to write these files."""
        self._tell([free_line(file) for file in files if self._held.pop(file, None) is not None])

    def _tell(self, lines: Sequence[bytes]) -> None:
        """Writes the lines with few system calls, because the caller has no time. Each write is atomic."""
        whole = b""
        for line in lines:
            if len(whole) + len(line) > MOST_BYTES:
                self._write(whole)
                whole = b""
            whole += line
        if whole:
            self._write(whole)

    def _write(self, lines: bytes) -> None:
        try:
            os.write(self._pipe, lines)
        except BlockingIOError:
            if not self._is_full_noted:
                self._is_full_noted = True
                self._noted(
                    "the guard does not come to its turn: if the agent is killed now, some pods may stay frozen or"
                    " throttled"
                )
        except OSError:
            pass  # the guard has ended; the loop notices, and gives all held files to the next guard

    # For the loop

    def start(self) -> None:
        self._again = None
        try:
            self._process, pipe = _started()
        except OSError as error:
            self._noted(f"the guard cannot be started: {reason(error)}")
            self._start_again()
            return
        self._started_at = time.monotonic()
        if self._pipe < 0:
            self._pipe = pipe
        else:
            os.dup2(pipe, self._pipe, inheritable=False)
            os.close(pipe)
        # Files held from now on are sent by `hold`. A file that is freed at this moment may stay with
        # the guard. Then the guard writes it once more at the end.
        self._tell([hold_line(file, lets_go) for file, lets_go in self._held.copy().items()])
        with suppress(OSError):
            self._ending = os.pidfd_open(self._process.pid)
            asyncio.get_running_loop().add_reader(self._ending, self._ended)

    def close(self) -> None:
        """Closes the pipe. The guard then writes the files that are still held, and ends."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            os.close(pipe)
        if self._ending >= 0:
            poll = select.poll()
            poll.register(self._ending, select.POLLIN)
            poll.poll(_GOING_SECONDS * 1000)
        self._take_note()

    def _ended(self) -> None:
        lived = time.monotonic() - self._started_at
        self._take_note()
        self._noted("the guard ended before the agent did: another one is started")
        if lived >= _STEADY_SECONDS:
            self._pause_seconds = 0.0
        self._start_again()

    def _start_again(self) -> None:
        """Starts the guard again. Waits first if the last guard did not run for long."""
        loop = asyncio.get_running_loop()
        self._again = loop.call_later(self._pause_seconds, self.start)
        self._pause_seconds = min(max(self._pause_seconds * 2, _LEAST_PAUSE_SECONDS), _MOST_PAUSE_SECONDS)

    def _take_note(self) -> None:
        if self._ending >= 0:
            asyncio.get_running_loop().remove_reader(self._ending)
            os.close(self._ending)
            self._ending = -1
        if self._process is not None:
            if self._process.poll() is None:
                self._process.returncode = 0  # the guard will end by itself
            self._process = None


def _started() -> tuple[subprocess.Popen[bytes], int]:
    """Starts the guard, and returns it with our end of the pipe. No other process inherits our end: while another
    process had it open, the guard would not see the agent end."""
    theirs, ours = os.pipe2(os.O_CLOEXEC)
    try:
        os.set_blocking(ours, False)
        with suppress(OSError):  # without it, the pipe has room for some hundred lines
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        process = subprocess.Popen(  # noqa: S603 no part of the command comes from outside
            small_command("evenkeel.pressure.guard", str(theirs)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            pass_fds=(theirs,),
            start_new_session=True,
        )
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return process, ours
