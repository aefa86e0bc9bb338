"""Programs that tests start: in their cgroup before their first instruction, and never left behind."""

import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kernel.cgroups import Cgroup
from tests.kernel.waiting import PATIENCE_SECONDS, eventually
from tests.machines.programs import programs


class Program:
    """A running program that reads commands and writes answers, one line each."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def give_way(self) -> None:
        """Lets the program run only when no other process wants the processor."""
        os.sched_setscheduler(self.pid, os.SCHED_IDLE, os.sched_param(0))

    def tell(self, line: str) -> None:
        """Sends `line` and does not wait for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def ask(self, line: str, *, within_seconds: float = PATIENCE_SECONDS) -> str:
        """Say `line`; the answer, which comes when it is done."""
        self.tell(line)
        return self.answer(within_seconds=within_seconds)

    def answer(self, *, within_seconds: float = PATIENCE_SECONDS) -> str:
        """The next line the program says."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + within_seconds
        with selectors.DefaultSelector() as events:
            events.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not events.select(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(f"{self._process.args!r} did not answer within {within_seconds:g} s")
                said = os.read(self._process.stdout.fileno(), 4096)
                if not said:
                    raise AssertionError(f"{self._process.args!r} ended with {self.wait()}, no answer")
                self._unread += said
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def wait(self, *, within_seconds: float = PATIENCE_SECONDS) -> int:
        """Its exit status once it has ended; −9 if it was killed."""
        try:
            return self._process.wait(timeout=within_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self._process.args!r} still runs after {within_seconds:g} s") from None

    def kill(self) -> None:
        """Kill it, unless it has ended, and take note of its end."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:  # the rest of what it was told
                pass


Spawn = Callable[..., Program]


def read_until(reader: Program, is_so: Callable[[], bool]) -> None:
    """Has a `cache` program read its file, again if need be, until `is_so`. Each time the file is taken out of the
    cache first, so that its pages were read once. To read once is not enough: a kernel may drop cache at any time, also
    without need where DAMON pages out what it finds cold."""

    def is_so_after_reading() -> bool:
        reader.ask("drop")
        reader.ask("read")
        return is_so()

    eventually(is_so_after_reading)


@contextmanager
def spawning() -> Iterator[Spawn]:
    """A function that starts programs; at the end all of them are killed."""
    started: list[Program] = []

    def spawn(
        name: str,
        *arguments: str | int | Path,
        cgroup: Cgroup | None = None,
        oom_score_adj: int | None = None,
    ) -> Program:
        """Start a program of tests/kernel/programs, or one with a path, in `cgroup` and with that OOM score."""
        directory = programs()
        places = cgroup.paths() if cgroup else []
        score = "-" if oom_score_adj is None else oom_score_adj
        command = [directory / "enter", score, *places, "--", directory / name, *arguments]
        process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        program = Program(process)
        started.append(program)
        return program

    try:
        yield spawn
    finally:
        for program in started:
            program.kill()
