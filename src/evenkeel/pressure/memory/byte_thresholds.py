"""Byte thresholds: eviction thresholds in bytes of this machine, compared with a sample."""

from collections.abc import Collection, Iterable

from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.snapshot import MemoryFigures
from evenkeel.policy.eviction.thresholds import Signal, Threshold, threshold_amount
from evenkeel.pressure.memory.sampling import MemorySample


class ByteThreshold(NamedTuple):
    threshold: Threshold
    due_bytes: int  # the threshold is crossed below this
    over_bytes: int  # once crossed, it stays crossed below this: it includes the minimum reclaim

    def available(self, sample: MemorySample) -> int | None:
        figures = _of(self.threshold.signal, sample)
        return None if figures is None else figures.available_bytes


def byte_thresholds(thresholds: Iterable[Threshold], sample: MemorySample) -> tuple[ByteThreshold, ...]:
    """The thresholds whose signal can be measured here. A percentage refers to the capacity, which does not change."""
    levels = []
    for threshold in thresholds:
        figures = _of(threshold.signal, sample)
        if figures is not None:
            capacity = (figures.available_bytes or 0) + (figures.working_set_bytes or 0)
            due = threshold_amount(threshold.value, capacity)
            least = threshold.min_reclaim
            over = due + (threshold_amount(least, capacity) if least is not None else 0)
            levels.append(ByteThreshold(threshold, due, over))
    return tuple(levels)


def levels_crossed(
    levels: Iterable[ByteThreshold], sample: MemorySample, unresolved: Collection[Threshold]
) -> tuple[Threshold, ...]:
    """The thresholds that are crossed. An `unresolved` threshold stays crossed until its minimum reclaim is free
    too."""
    found = []
    for level in levels:
        available = level.available(sample)
        due = level.over_bytes if unresolved and level.threshold in unresolved else level.due_bytes
        if available is not None and available < due:
            found.append(level.threshold)
    return tuple(found)


def left_without_pending(
    levels: Iterable[ByteThreshold], sample: MemorySample
) -> list[tuple[int, ByteThreshold]]:
    """The bytes left for each hard threshold, without the memory that is still being freed."""
    return [
        (available - sample.pending_bytes, level)
        for level in levels
        if level.threshold.hard and (available := level.available(sample)) is not None
    ]


def is_short_without_pending(levels: Iterable[ByteThreshold], sample: MemorySample) -> bool:
    """Whether a threshold is crossed if memory that is still being freed does not count."""
    return any(
        available - sample.pending_bytes < level.over_bytes
        for level in levels
        if (available := level.available(sample)) is not None
    )


def _of(signal: Signal, sample: MemorySample) -> MemoryFigures | None:
    return sample.node if signal is Signal.MEMORY_AVAILABLE else sample.pods
