"""What `evenkeel up` shows while it runs: a table that is kept up to date on a terminal, a line for each thing that
happens elsewhere."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import datetime

from evenkeel.agent.front import Front, NodeUsage
from evenkeel.api.encode import encode
from evenkeel.api.pod import Pod
from evenkeel.cli.output import Paint, clipped, paint_for
from evenkeel.cli.pod_text import summary
from evenkeel.journal.records import WARNING, Event
from evenkeel.policy.units import bytes_text, cores_text

_REFRESH_SECONDS = 1.0
_LATEST = 8  # happenings below the table
_COLOURS = {"Pending": "yellow", "Succeeded": "dim", "Failed": "red"}  # of a pod's line, by its phase


def view_of(front: Front, since: float) -> "Table | Lines":
    """What suits standard output. It begins with what happened since that time."""
    listening = front.follow()
    before = [happening for happening in front.happenings() if happening.at >= since]
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return Table(front, before, listening)
    return Lines(before, listening)


class _Above(logging.Handler):
    """Log lines that do not tear the table apart."""

    def __init__(self, table: "Table") -> None:
        super().__init__()
        self._table = table

    def emit(self, record: logging.LogRecord) -> None:
        self._table.say(self.format(record))


def say_above(view: "Table | Lines") -> None:
    """From now on what is logged stands above the table, if there is one."""
    if isinstance(view, Table):
        root = logging.getLogger()
        above = _Above(view)
        above.setFormatter(root.handlers[0].formatter if root.handlers else None)
        root.handlers[:] = [above]


def line_of(happening: Event, paint: Paint) -> str:
    at = datetime.fromtimestamp(happening.at).astimezone().strftime("%H:%M:%S")
    colour = "yellow" if happening.type == WARNING else "green"
    who = f"{happening.pod} " if happening.pod else ""
    return f"{paint('dim', at)} {paint(colour, happening.reason)} {paint('bold', who)}{happening.message}"


class Lines:
    """Each thing that happens, as it happens."""

    def __init__(self, before: Sequence[Event], listening: AsyncIterator[Event]) -> None:
        self._before = before
        self._listening = listening

    async def run(self) -> None:
        """Until cancelled."""
        for happening in self._before:
            print(line_of(happening, paint_for()), flush=True)
        async for happening in self._listening:
            print(line_of(happening, paint_for()), flush=True)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def freeze(self) -> None: ...

    def finish(self) -> None: ...


class Table:
    """Drawn over itself: the cursor goes up as many lines as were written."""

    def __init__(self, front: Front, before: Sequence[Event], listening: AsyncIterator[Event]) -> None:
        self._front = front
        self._listening = listening
        self._paint = paint_for()
        self._latest = list(before[-_LATEST:])
        self._drawn = 0
        self._is_frozen = False
        self._last: NodeUsage | None = None

    def say(self, text: str) -> None:
        """A line that stays, above the table."""
        if self._is_frozen:
            print(text, flush=True)
            return
        self._write([text], _columns_and_rows()[0])
        self._drawn = 0
        self._draw()

    def freeze(self) -> None:
        """The table stays as it is: whom it asks goes away, and what is said from now on stands below it."""
        self._is_frozen = True

    def finish(self) -> None:
        """Shows how things stand now, to stay."""
        self._draw()
        self.freeze()

    async def run(self) -> None:
        """Until cancelled."""
        listening = asyncio.create_task(self._listen())
        try:
            while not self._is_frozen:
                self._draw()
                await asyncio.sleep(_REFRESH_SECONDS)
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def _listen(self) -> None:
        async for happening in self._listening:
            self._latest = [*self._latest, happening][-_LATEST:]

    def _draw(self) -> None:
        columns, rows = _columns_and_rows()
        self._write(self._lines(max(rows - 1, 3)), columns)

    def _write(self, lines: list[str], columns: int) -> None:
        """In place of what was written last."""
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        body = "".join(f"\x1b[2K{clipped(line, columns)}\n" for line in lines)
        sys.stdout.write(f"{up}\r{body}\x1b[J")
        sys.stdout.flush()
        self._drawn = len(lines)

    def _lines(self, most: int) -> list[str]:
        """At most so many; of more pods than fit the first are shown, and what happened last has its room too."""
        usage = self._front.usage()
        before = self._last
        if (
            before is None or usage.at - before.at >= _REFRESH_SECONDS / 2
        ):  # over less, cpu use is mostly chance
            self._last = usage
        memory = {(one.pod, one.container): one.statistics for one in usage.containers}
        earlier = {(one.pod, one.container): one.statistics for one in before.containers} if before else {}
        seconds = usage.at - before.at if before else 0.0
        rows = [("NAME", "READY", "STATUS", "RESTARTS", "QOS", "CPU", "MEMORY")]
        colours = ["bold"]
        for pod in self._front.pods():
            now, then = memory.get((pod.key, "")), earlier.get((pod.key, ""))
            cpu = "-"
            if now and then and seconds > 0:
                cpu = cores_text(max(round((now.cpu_usage_us - then.cpu_usage_us) / seconds / 1000), 0))
            used = bytes_text(now.memory_working_set_bytes) if now else "-"
            rows.append((*_columns(pod), pod.status.qos_class, cpu, used))
            colours.append(_COLOURS.get(pod.status.phase, ""))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        ]
        lines = [
            self._paint(colour, line) if colour else line for colour, line in zip(colours, lines, strict=True)
        ]
        used_bytes = usage.pods.memory_working_set_bytes if usage.pods else 0
        head = f"pods use {bytes_text(used_bytes)} of {bytes_text(usage.capacity_bytes)} memory"
        below = ["", *(line_of(happening, self._paint) for happening in self._latest)][: most // 2]
        room = most - 1 - len(below)
        if len(lines) > room:
            hidden = len(lines) - room + 1
            lines = [*lines[: room - 1], self._paint("dim", f"and {hidden} more: evenkeel get pods")]
        return [self._paint("dim", head), *lines, *below][:most]


def _columns_and_rows() -> tuple[int, int]:
    try:
        return os.get_terminal_size()
    except OSError:
        return 100, 40


def _columns(pod: Pod) -> tuple[str, str, str, str]:
    plain = encode(pod)
    assert isinstance(plain, dict)
    told = summary(plain)
    return pod.key.removeprefix("default/"), told.ready_text, told.status, str(told.restarts)
