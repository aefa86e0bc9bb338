"""Thresholds as bytes, so that a look can be held against them in a moment."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from evenkeel.agent.pressure.figures import Look
from evenkeel.policy.eviction.snapshot import MemoryFigures
from evenkeel.policy.eviction.thresholds import Signal, Threshold, threshold_amount

MEMORY_SIGNALS = (Signal.MEMORY_AVAILABLE, Signal.ALLOCATABLE_MEMORY_AVAILABLE)


class Mark(NamedTuple):
    threshold: Threshold
    due_bytes: int  # below this it is crossed
    over_bytes: int  # below this, once crossed, it is not over: with the minimum reclaim

    def available(self, look: Look) -> int | None:
        figures = _of(self.threshold.signal, look)
        return None if figures is None else figures.available_bytes


def marks_of(thresholds: Iterable[Threshold], look: Look) -> tuple[Mark, ...]:
    """Of those whose signal is known here. A percentage is of the capacity, which does not change between looks."""
    marks = []
    for threshold in thresholds:
        figures = _of(threshold.signal, look)
        if figures is not None:
            capacity = (figures.available_bytes or 0) + (figures.working_set_bytes or 0)
            due = threshold_amount(threshold.value, capacity)
            least = threshold.min_reclaim
            over = due + (threshold_amount(least, capacity) if least is not None else 0)
            marks.append(Mark(threshold, due, over))
    return tuple(marks)


def marks_met(marks: Iterable[Mark], look: Look, unresolved: Collection[Threshold]) -> tuple[Threshold, ...]:
    """Those that `look` is below."""
    found = []
    for mark in marks:
        available = mark.available(look)
        due = mark.over_bytes if unresolved and mark.threshold in unresolved else mark.due_bytes
        if available is not None and available < due:
            found.append(mark.threshold)
    return tuple(found)


def really_left(marks: Iterable[Mark], look: Look) -> list[tuple[int, Mark]]:
    """Of what has a hard threshold, without what is on its way back."""
    return [
        (available - look.returning_bytes, mark)
        for mark in marks
        if mark.threshold.hard and (available := mark.available(look)) is not None
    ]


def is_really_short(marks: Iterable[Mark], look: Look) -> bool:
    """Whether a threshold is crossed without what is on its way back."""
    return any(
        available - look.returning_bytes < mark.over_bytes
        for mark in marks
        if (available := mark.available(look)) is not None
    )


def _of(signal: Signal, look: Look) -> MemoryFigures | None:
    return look.node if signal is Signal.MEMORY_AVAILABLE else look.pods
