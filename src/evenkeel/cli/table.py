"""Tables whose rows come one by one, and words for what stands in them."""

import sys
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

NONE = "<none>"
NO_WIDTHS: Mapping[str, int] = MappingProxyType({})


class Table:
    """Columns that grow with what they hold. What was printed stays as it is: `print_rows` measures all that it is
    given first, and `least` is for what may come later, the width of a column by its head."""

    def __init__(self, heads: Sequence[str], least: Mapping[str, int] = NO_WIDTHS) -> None:
        self._heads = tuple(heads)
        self._widths = [max(len(head), least.get(head, 0)) for head in heads]
        self._has_heads = False

    def print_rows(self, rows: Sequence[Sequence[str]]) -> None:
        safe_rows = [[printable(cell) for cell in row] for row in rows]
        for row in safe_rows:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, row, strict=True)]
        if not self._has_heads and safe_rows:
            self._has_heads = True
            self._print(self._heads)
        for row in safe_rows:
            self._print(row)
        sys.stdout.flush()

    def _print(self, row: Sequence[str]) -> None:
        cells = (cell.ljust(width) for cell, width in zip(row, self._widths, strict=True))
        print("   ".join(cells).rstrip())


def printable(text: str) -> str:
    """`text` on one line and without control characters: messages hold what a stranger's program wrote."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def age(then: float, now: float | None = None) -> str:
    """How long ago, in the two units that matter, as kubectl has it: 12s, 5m30s, 3h12m, 2d4h."""
    seconds = int((time.time() if now is None else now) - then)
    if seconds < 0:
        return "0s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    return _two(days // 365, "y", days % 365, "d") if days < 8 * 365 else f"{days // 365}y"


def _two(first: int, first_unit: str, second: int, second_unit: str) -> str:
    return f"{first}{first_unit}{second}{second_unit}" if second else f"{first}{first_unit}"


def seconds_of(timestamp: str | None) -> float | None:
    """Seconds since the epoch of `2026-11-16T00:32:10Z`; None where there is none."""
    if not timestamp:
        return None
    from calendar import timegm

    whole, _, rest = timestamp.partition(".")
    try:
        seconds = timegm(time.strptime(whole.rstrip("Z")[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
    fraction = rest.rstrip("Z")
    return seconds + (float(f"0.{fraction}") if fraction.isdigit() else 0.0)


def age_of(timestamp: str | None, now: float | None = None) -> str:
    then = seconds_of(timestamp)
    return "<unknown>" if then is None else age(then, now)
