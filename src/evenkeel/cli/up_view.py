"""The output of a running `evenkeel up` or `evenkeel demo`: a live table on a terminal, else a line for each event."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import datetime

from evenkeel.agent.front import Front
from evenkeel.agent.observe.node_snapshot import NodeUsage
from evenkeel.api.encode import encode
from evenkeel.api.pod import Pod
from evenkeel.cli.output import Paint, clipped, paint_for, printable
from evenkeel.cli.pod_text import summary
from evenkeel.journal.records import WARNING, Event
from evenkeel.policy.amounts import bytes_text, cores_text

_REFRESH_SECONDS = 1.0
_LATEST = 8  # events below the table
_COLOURS = {"Pending": "yellow", "Succeeded": "dim", "Failed": "red"}  # of a row, by the phase of its pod


def view_of(front: Front, since: float) -> "Table | Lines":
    """The view that suits standard output. It begins with the events since that time."""
    coming = front.follow()
    before = [event for event in front.events() if event.at >= since]
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return Table(front, before, coming)
    return Lines(before, coming)


class _LogAbove(logging.Handler):
    """Prints log lines above the table."""

    def __init__(self, table: "Table") -> None:
        super().__init__()
        self._table = table

    def emit(self, record: logging.LogRecord) -> None:
        self._table.say(self.format(record))


def log_above(view: "Table | Lines") -> None:
    """From now on log lines are printed above the table, if there is one."""
    if isinstance(view, Table):
        root = logging.getLogger()
        above = _LogAbove(view)
        above.setFormatter(root.handlers[0].formatter if root.handlers else None)
        root.handlers[:] = [above]


def line_of(event: Event, paint: Paint) -> str:
    at = datetime.fromtimestamp(event.at).astimezone().strftime("%H:%M:%S")
    colour = "yellow" if event.type == WARNING else "green"
    pod = f"{printable(event.pod)} " if event.pod else ""
    return f"{paint('dim', at)} {paint(colour, event.reason)} {paint('bold', pod)}{printable(event.message)}"


class Lines:
    """A line for each event."""

    def __init__(self, before: Sequence[Event], coming: AsyncIterator[Event]) -> None:
        self._before = before
        self._coming = coming

    async def run(self) -> None:
        """Until cancelled."""
        for event in self._before:
            print(line_of(event, paint_for()), flush=True)
        async for event in self._coming:
            print(line_of(event, paint_for()), flush=True)

    def say(self, text: str) -> None:
        print(text, flush=True)

    def freeze(self) -> None: ...

    def finish(self) -> None: ...


class Table:
    """A table that is drawn over itself: the cursor goes up by the lines of the last drawing."""

    def __init__(self, front: Front, before: Sequence[Event], coming: AsyncIterator[Event]) -> None:
        self._front = front
        self._coming = coming
        self._paint = paint_for()
        self._latest = list(before[-_LATEST:])
        self._drawn = 0
        self._is_frozen = False
        self._last: NodeUsage | None = None

    def say(self, text: str) -> None:
        """Prints a line that stays above the table."""
        if self._is_frozen:
            print(text, flush=True)
            return
        self._write([text], _columns_and_rows()[0])
        self._drawn = 0
        self._draw()

    def freeze(self) -> None:
        """Stops updating the table, because the agent ends. Later lines are printed below it."""
        self._is_frozen = True

    def finish(self) -> None:
        """Draws the table for the last time."""
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
        async for event in self._coming:
            self._latest = [*self._latest, event][-_LATEST:]

    def _draw(self) -> None:
        columns, rows = _columns_and_rows()
        self._write(self._lines(max(rows - 1, 3)), columns)

    def _write(self, lines: list[str], columns: int) -> None:
        """Replaces the last drawing."""
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        body = "".join(f"\x1b[2K{clipped(line, columns)}\n" for line in lines)
        sys.stdout.write(f"{up}\r{body}\x1b[J")
        sys.stdout.flush()
        self._drawn = len(lines)

    def _lines(self, most: int) -> list[str]:
        """Returns at most `most` lines. If not all pods fit, the first ones are shown. The last events have up to half
        of the lines."""
        usage = self._front.usage()
        before = self._last
        # Over a shorter time the CPU use is mostly noise.
        if before is None or usage.at - before.at >= _REFRESH_SECONDS / 2:
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
        below = ["", *(line_of(event, self._paint) for event in self._latest)][: most // 2]
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
    line = summary(plain)
    return pod.key.removeprefix("default/"), line.ready_text, line.status, str(line.restarts)
