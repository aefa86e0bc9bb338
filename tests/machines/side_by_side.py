"""Runs the parts of the kernel tests beside each other, and says how far each is while it works.

Each part is a process of its own, `python -m tests.machines part NAME`, whose output is kept in a log. What is shown is
a line now and then for all of them, a failing test as soon as it failed, and a table at the end; so it reads the same
in a terminal and in the log of a CI.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import MappingProxyType
from typing import IO

from tests.machines import PROJECT
from tests.machines.cache import CACHE
from tests.machines.parts import Part
from tests.machines.progress import Lane, Progress, Result, line, table, whole_left_seconds
from tests.machines.reports import FAILED, Ended, read
from tests.machines.run import skipped_status

LINE_EVERY_SECONDS = 30.0
# Of parts on the host: each one more takes processors that all others wait for.
HOST_PLACES = 4
# Of a part that ended without its tests.
LAST_LINES = 30
# A line of a report carries all that pytest says of a failure.
LONGEST_LINE_BYTES = 64 << 20
LOGS = CACHE / "log"
Command = Callable[[Part], Sequence[str]]


def part_command(part: Part) -> list[str]:
    return [sys.executable, "-m", "tests.machines", "part", part.name, "--reports"]


def run_side_by_side(
    parts: Sequence[Part],
    command: Command = part_command,
    logs: Path = LOGS,
    missing: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Run `parts`, those that are alone after the others; 0 if all of them passed. Those of `missing` are left out, for
    the reason that it has."""
    logs.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_Run(command, logs).all(parts, missing))


class _Run:
    def __init__(self, command: Command, logs: Path) -> None:
        self._command = command
        self._logs = logs
        self._began = time.monotonic()
        self._python = os.path.relpath(sys.executable, PROJECT)
        # By the lane of a part. Tests of this machine mostly wait; a guest keeps a processor busy.
        self._places = {"host": HOST_PLACES, "guests": os.cpu_count() or 1, "rest": 1}
        self._waiting: list[Part] = []
        self._running: list[Progress] = []

    async def all(self, parts: Sequence[Part], missing: Mapping[str, str]) -> int:
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        assert main
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, main.cancel)
        free = {lane: asyncio.Semaphore(places) for lane, places in self._places.items()}
        results = [self._left_out(part, missing[part.name]) for part in parts if part.name in missing]
        order = [part.name for part in parts]
        parts = [part for part in parts if part.name not in missing]
        self._waiting = list(parts)
        teller = asyncio.create_task(self._tell())
        try:
            async with asyncio.TaskGroup() as group:
                for part in parts:
                    if not part.is_alone:
                        group.create_task(self._within(free[part.lane], part, results))
            results += [await self._run(part) for part in parts if part.is_alone]
        except asyncio.CancelledError:
            print("interrupted: every machine has been ended", flush=True)
            return 128 + signal.SIGINT
        finally:
            teller.cancel()
        results.sort(key=lambda result: order.index(result.progress.part.name))
        print(f"\n{table(results, time.monotonic() - self._began)}", flush=True)
        return 1 if any(result.status for result in results) else 0

    async def _within(
        self, place: AbstractAsyncContextManager[None], part: Part, results: list[Result]
    ) -> None:
        async with place:
            results.append(await self._run(part))

    async def _run(self, part: Part) -> Result:
        """One part to its end; cancelled, it ends what it started and waits for that."""
        progress = Progress(part, self._began, time.monotonic(), self._last_seconds(part))
        self._waiting.remove(part)
        self._running.append(progress)
        print(progress.started(), flush=True)
        # In a session of its own, so that ^C reaches it once and from here; without us it ends as well.
        process = await asyncio.create_subprocess_exec(
            "setpriv", "--pdeathsig", "TERM", "--", *self._command(part),
            cwd=PROJECT, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            limit=LONGEST_LINE_BYTES, start_new_session=True,
        )  # fmt: skip
        log = self._logs / f"{part.name}.txt"
        try:
            with log.open("w") as written:
                last = await self._follow(process, progress, written)
            status = await process.wait()
        finally:
            self._running.remove(progress)
            await _end(process)
        self._keep_seconds(progress)
        return self._ended(progress, status, last, log)

    def _left_out(self, part: Part, reason: str) -> Result:
        print(reason, flush=True)
        return Result(Progress(part, self._began, self._began, {}), 0.0, skipped_status(), reason)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(LINE_EVERY_SECONDS)
            now = time.monotonic()
            lanes = [
                Lane(
                    [one.left_seconds(now) for one in self._running if one.part.lane == lane],
                    [self._expected_seconds(one) for one in self._beside() if one.lane == lane],
                    places,
                )
                for lane, places in self._places.items()
            ]
            alone = [self._expected_seconds(part) for part in self._waiting if part.is_alone]
            left = whole_left_seconds(lanes, alone)
            print(line(now - self._began, left, self._running, self._waiting), flush=True)

    def _beside(self) -> list[Part]:
        """The waiting parts that may run beside others."""
        return [part for part in self._waiting if not part.is_alone]

    async def _follow(
        self, process: asyncio.subprocess.Process, progress: Progress, log: IO[str]
    ) -> list[str]:
        """Read the output to its end; its last lines that are for people."""
        assert process.stdout
        last: list[str] = []
        async for content in process.stdout:
            said = content.decode(errors="replace").rstrip("\r\n")
            report = read(said)
            if report is None:
                last = [*last, said][-LAST_LINES:]
                log.write(f"{said}\n")
                log.flush()
                continue
            progress.note(report)
            if isinstance(report, Ended):
                log.write(f"{report.outcome} in {report.seconds:.1f} s: {report.test}\n")
                if report.outcome == FAILED:
                    print(progress.failure(report, time.monotonic(), self._python), flush=True)
        return last

    def _ended(self, progress: Progress, status: int, last: list[str], log: Path) -> Result:
        now = time.monotonic()
        note = ""
        if progress.unfinished:
            note = f"ended within {progress.unfinished}"
        elif status and not progress.count(FAILED):
            note = f"ended with status {status}"
        elif not status and not progress.outcomes:
            note = last[-1] if last else "no test fits this machine"
        reported = os.path.relpath(log, PROJECT)
        lines = [f"{progress.ended(now)}{f', all it said is in {reported}' if status else ''}"]
        if status and note:
            lines += [f"    {line}" for line in last]
        print("\n".join(lines), flush=True)
        return Result(progress, now - progress.began, status, note, last if status and note else ())

    def _last_seconds(self, part: Part) -> dict[str, float]:
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self._logs / f"{part.name}.seconds").read_text()))
        return {}

    def _expected_seconds(self, part: Part) -> float:
        return sum(self._last_seconds(part).values()) or part.usual_seconds

    def _keep_seconds(self, progress: Progress) -> None:
        if progress.took_seconds:
            (self._logs / f"{progress.part.name}.seconds").write_text(json.dumps(progress.took_seconds))


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask it to end; it ends its machine and removes what is its own before it goes, and may have words to say."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()
