"""The agent's side of the guard (`pressure.guard`), which lets go of pods that are held when the agent is killed.

It is started before there is any pressure, in the agent's cgroup and with its OOM score, in a session of its own; and
again if it ends before the agent does.
"""

import asyncio
import fcntl
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from evenkeel.host.protection import small_command
from evenkeel.pressure.guard import MOST_BYTES, free_line, hold_line

_PIPE_BYTES = 1 << 18  # more than a thousand words, if it should not come to its turn for a while
_STEADY_SECONDS = 60.0  # who has lived as long is started again at once
_LEAST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 1.0, 60.0
_GOING_SECONDS = 10.0


class GuardClient:
    """`hold` and `free` are for any thread, and wait for nobody; the rest is for the agent's loop. `noted` is for any
    thread as well."""

    def __init__(self, noted: Callable[[str], None]) -> None:
        self._noted = noted
        self._held: dict[str, str] = {}
        # The number stays the same when another guard takes over: a thread that is writing to it may have it in hand.
        self._pipe = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = -1  # a descriptor that tells of its end
        self._started_at = 0.0
        self._pause_seconds = 0.0
        self._again: asyncio.TimerHandle | None = None
        self._is_full_noted = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    # For any thread

    def hold(self, lets_go: Mapping[str, str]) -> None:
        """Before somebody is held: what is to be written to which files if the agent ends before it has said `free`."""
        self._held.update(lets_go)
        self._tell([hold_line(file, value) for file, value in lets_go.items()])

    def free(self, files: Iterable[str]) -> None:
        """Nobody is held by these any more."""
        self._tell([free_line(file) for file in files if self._held.pop(file, None) is not None])

    def _tell(self, lines: Sequence[bytes]) -> None:
        """In as few writes as keep each of them whole: whoever tells has no time."""
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
                    "the guard does not come to its turn: if the agent is killed now, some pods may stay held"
                )
        except OSError:
            pass  # it has ended, of which the loop hears; the next one is told of all that is held then

    # For the loop

    def start(self) -> None:
        self._again = None
        try:
            self._process, pipe = _started()
        except OSError as error:
            self._noted(f"the guard cannot be started: {(error.strerror or str(error)).lower()}")
            self._start_again()
            return
        self._started_at = time.monotonic()
        if self._pipe < 0:
            self._pipe = pipe
        else:
            os.dup2(pipe, self._pipe, inheritable=False)
            os.close(pipe)
        # Whoever is held from now on is told by others. Whoever is freed between these two may be let go once more.
        self._tell([hold_line(file, lets_go) for file, lets_go in self._held.copy().items()])
        with suppress(OSError):
            self._ending = os.pidfd_open(self._process.pid)
            asyncio.get_running_loop().add_reader(self._ending, self._ended)

    def close(self) -> None:
        """It goes when it hears no more; whoever is still held is let go."""
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
        """Not at once, if the last one did not live long."""
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
                self._process.returncode = 0  # it will go by itself
            self._process = None


def _started() -> tuple[subprocess.Popen[bytes], int]:
    """The guard, and our end of the pipe, which nobody inherits: while another had it, nobody would be let go."""
    theirs, ours = os.pipe2(os.O_CLOEXEC)
    try:
        os.set_blocking(ours, False)
        with suppress(OSError):  # without it there is room for some hundred words
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        process = subprocess.Popen(  # noqa: S603 no word of it comes from outside
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
