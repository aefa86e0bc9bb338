"""Bars for a terminal: the capacity of the node, and the use of a pod between its request and its limit."""

import sys
from collections.abc import Sequence
from itertools import groupby

from evenkeel.cli.output import Paint
from evenkeel.named_tuples import NamedTuple


class Signs(NamedTuple):
    used: str
    above: str  # the request
    requested: str
    rest: str
    reserved: str
    free: str
    request: str
    limit: str
    stems: tuple[str, str, str, str]  # of a tree: a branch, the last branch, and the space below each of them


BLOCKS = Signs("█", "▓", "▒", "▓", "╱", "░", "│", "▕", ("├─ ", "└─ ", "│  ", "   "))
LETTERS = Signs("#", "+", "-", "+", "/", ".", "|", "]", ("|- ", "`- ", "|  ", "   "))


class Shares(NamedTuple):
    """One resource of the node. From the left: the use of pods, by colour, over their requests. From the right: the use
    of the rest of the machine, over its reservation."""

    whole: int
    used: Sequence[tuple[str, float]]
    requested: int
    reserved: int
    rest: float


class Bounds(NamedTuple):
    """`node` is the allocatable amount. It is the scale for a pod without request and limit."""

    used: float | None
    request: int
    limit: int
    node: int


def signs_for(encoding: str | None = None) -> Signs:
    """Block characters if the terminal can show them, else ASCII."""
    given = encoding if encoding is not None else getattr(sys.stdout, "encoding", None)
    try:
        "".join(BLOCKS[:-1]).encode(given or "ascii")
    except (UnicodeEncodeError, LookupError):
        return LETTERS
    return BLOCKS


def capacity_bar(shares: Shares, width: int, paint: Paint, signs: Signs) -> str:
    cells = [_cell(shares, shares.whole * (index + 0.5) / width, signs) for index in range(width)]
    return _painted(cells, paint)


def _cell(shares: Shares, at: float, signs: Signs) -> tuple[str, str]:
    until = 0.0
    for colour, amount in shares.used:
        until += amount
        if at < until:
            return colour, signs.used
    if at > shares.whole - shares.rest:
        return "dim", signs.rest
    if at > shares.whole - shares.reserved:
        return "dim", signs.reserved
    if at < shares.requested:
        return "blue", signs.requested
    return "dim", signs.free


def use_bar(bounds: Bounds, width: int, colour: str, paint: Paint, signs: Signs) -> str:
    """The end of the bar is the limit, if there is one. The tick is the request."""
    if bounds.used is None or width < 1:
        return " " * width
    bare = max(bounds.request * 1.5, bounds.used * 1.15) if bounds.request else max(bounds.node, bounds.used)
    whole = (bounds.limit or bare) or 1
    tick = int(bounds.request / whole * width) if bounds.request else -1
    cells = []
    for index in range(width):
        at = whole * (index + 0.5) / width
        if index == tick:
            cells.append(("bold", signs.request))
        elif at < bounds.used:
            is_within = bounds.request and at < bounds.request
            cells.append((colour, signs.used if is_within else signs.above))
        else:
            cells.append(("dim", signs.free))
    if bounds.limit:
        cells[-1] = ("bold", signs.limit)
    return _painted(cells, paint)


def _painted(cells: Sequence[tuple[str, str]], paint: Paint) -> str:
    runs = (
        (colour, "".join(sign for _, sign in run)) for colour, run in groupby(cells, lambda cell: cell[0])
    )
    return "".join(paint(colour, text) for colour, text in runs)
