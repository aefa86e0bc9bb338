"""The output of commands: tables, colours for a terminal, JSON and YAML, ages."""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from evenkeel.api.encode import encode

STRUCTURED = ("json", "yaml")

CLASS_COLOURS = {"Guaranteed": "green", "Burstable": "yellow", "BestEffort": "red"}
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


class Paint:
    """Colours text, if enabled."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    def __call__(self, style: str, text: str) -> str:
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self._enabled and text else text


def paint_for(stream: object = None) -> Paint:
    """Colour if `stream` (standard output) is a terminal, unless NO_COLOR is set or the terminal is dumb."""
    isatty = getattr(stream or sys.stdout, "isatty", None)
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Paint(enabled=bool(wanted and isatty and isatty()))


def clipped(line: str, columns: int) -> str:
    """The line cut to the width of the terminal. A wrapped line would spoil the count of lines."""
    shown, width, index = [], 0, 0
    while index < len(line) and width < columns - 1:
        if line[index] == "\x1b":
            end = line.index("m", index) + 1
            shown.append(line[index:end])
            index = end
            continue
        shown.append(line[index])
        width += 1
        index += 1
    return "".join(shown) + ("\x1b[0m" if "\x1b" in line else "")


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints `rows` in columns. The first row has the heads."""
    for line in columns(rows):
        print(line)


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows as lines whose cells stand below each other."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def print_structured(value: object, form: str) -> None:
    """`value` as JSON or YAML on standard output. Control characters are escaped, which both formats allow."""
    plain = encode(value)
    if form == "json":
        sys.stdout.write(f"{_json(plain)}\n")
    else:
        sys.stdout.write(_yaml(plain))


def _json(plain: object) -> str:
    import json

    text = json.dumps(plain, indent=2, ensure_ascii=False)
    if _is_harmless(text):
        return text
    # Such a letter can only be in a string.
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _yaml(plain: object) -> str:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    def dumped(*, allow_unicode: bool) -> str:
        return str(yaml.dump(plain, Dumper=dumper, sort_keys=False, width=120, allow_unicode=allow_unicode))

    text = dumped(allow_unicode=True)
    return text if _is_harmless(text) else dumped(allow_unicode=False)


def _is_harmless(text: str) -> bool:
    return all(map(str.isprintable, text.split("\n")))


NONE = "<none>"
NO_WIDTHS: Mapping[str, int] = MappingProxyType({})


class Table:
    """A table that is printed in parts. Columns grow with each part. `least` gives columns a width for later parts, by
    their heads."""

    def __init__(
        self, heads: Sequence[str], least: Mapping[str, int] = NO_WIDTHS, *, has_heads: bool = True
    ) -> None:
        self._heads = tuple(heads)
        self._widths = [max(len(head) if has_heads else 0, least.get(head, 0)) for head in heads]
        self._has_heads = not has_heads  # whether they are printed already

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
    """`text` on one line and without control characters: a message may hold output of any program."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """The same for text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def pairs(labels: Mapping[str, str]) -> str:
    """Labels, annotations or a selector on one line."""
    return ", ".join(f"{name}={value}" for name, value in labels.items()) or NONE


def age(then: float, now: float | None = None) -> str:
    """The age in at most two units, as in kubectl: 12s, 5m30s, 3h12m, 2d4h."""
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
    """Seconds since the epoch for `2026-11-16T00:32:10Z`. None for no timestamp."""
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
