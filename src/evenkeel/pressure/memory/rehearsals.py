"""When the memory watch rehearses an eviction, on the way to a threshold.

A rehearsal finds the pod that would be evicted and prepares its eviction, so that at the line nothing is done for the
first time, and only the pods are read that may have become the first since.
"""

from collections.abc import Iterable

from evenkeel.pressure.memory.pod_usages import RECENT_SECONDS

# A threshold is near if the fastest growth could reach it in this time. On the way there are marks: at each of them the
# kernel wakes the watch (v1), which finds out anew who would be evicted.
_NEAR_SECONDS = 0.05
_MARKS_SECONDS = (_NEAR_SECONDS, 0.008, 0.001)
_NOW_AND_THEN_SECONDS = 0.5  # between two rehearsals near a threshold
# After the last mark, as long as the pods grow: the figures of the last rehearsal can then still be used at the line.
_LAST_SECONDS = 0.75 * RECENT_SECONDS
# Less than this part of the way from the last mark to the line, in the time between two rehearsals, is no growth. They
# may also stand still for a moment: on a busy machine others have their turn.
_GROWING_SHARE = 16
_STILL_SECONDS = 0.1


class Rehearsals:
    """`growth_bytes_per_second` is what all pods together can use up in a second at the most."""

    def __init__(self, growth_bytes_per_second: int) -> None:
        # In bytes, from each mark to the line.
        self._ways = [int(growth_bytes_per_second * seconds) for seconds in _MARKS_SECONDS]
        self._at = 0.0
        self._left = 0  # bytes to the nearest threshold at that time
        self._grown_at = 0.0
        self._is_growing = False  # after the last mark

    def marks(self, lines: Iterable[int]) -> list[int]:
        """The marks on the way to these lines, in bytes of usage."""
        marks = [line - way for line in lines for way in self._ways]
        return [mark for mark in marks if mark > 0]

    def is_due(self, lefts: Iterable[int], now: float) -> bool:
        """Whether a rehearsal is due with so many bytes left to each threshold: now and then, up to the last mark each
        time when half of the rest of the way is behind, and then again and again as long as the pods grow."""
        near, last = self._ways[0], self._ways[-1]
        left = min(lefts, default=near)
        if left >= near:
            self._left, self._is_growing = near, False
            return False
        is_half = left <= max(self._left // 2, last) < self._left
        if not is_half and now < self._at + (self.pause_seconds or _NOW_AND_THEN_SECONDS):
            return False
        if self._left - left >= last // _GROWING_SHARE:
            self._grown_at = now
        self._is_growing = left <= last and now < self._grown_at + _STILL_SECONDS
        self._left = left
        return True

    def done(self, now: float) -> None:
        self._at = now

    @property
    def pause_seconds(self) -> float | None:
        """The longest time until the watch has to look again for the next rehearsal. None: there is no hurry."""
        return _LAST_SECONDS if self._is_growing else None
