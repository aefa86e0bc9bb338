"""What commands print: colour only for a terminal that wants it, and machine formats from typed values."""

import os
import sys
from collections.abc import Sequence

from evenkeel.api.encode import encode

STRUCTURED = ("json", "yaml")

CLASS_COLOURS = {"Guaranteed": "green", "Burstable": "yellow", "BestEffort": "red"}
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


class Paint:
    """Puts colour around words, or not."""

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
    """No longer than the terminal is wide: a line that wraps would be counted wrong."""
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
    """`rows` in columns, the first as their heads."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_structured(value: object, form: str) -> None:
    """`value` as JSON or YAML on standard output."""
    plain = encode(value)
    if form == "json":
        import json

        json.dump(plain, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        import yaml

        dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        yaml.dump(plain, sys.stdout, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
