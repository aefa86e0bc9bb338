"""What one cgroup used over weeks, in some hundred bytes: the most memory, and how often how much cpu."""

from array import array
from collections.abc import Sequence

from evenkeel.policy.advice import UseOverTime

# What is kept on disk counts in these: with others it is another version (history_file).
BUCKETS = 96
GROWTH = 1.15  # from one bucket to the next: 1 millicore to 600 cores
MOST_COUNT = 2**31 - 1

LONGEST_SECONDS = 600.0  # between two looks: over more than that nobody watched, or the clock was set
_MOSTLY = 0.95


class Period:
    def __init__(self, seconds: float = 0.0, most_bytes: int = 0, counts: Sequence[int] = ()) -> None:
        self.seconds = seconds  # in which it was watched
        self.most_bytes = most_bytes
        self.counts = array("I", counts or bytes(4 * BUCKETS))


class Watched:
    """One cgroup, in this period and the one before, so that what was once is not advised on for ever."""

    def __init__(self, now: Period | None = None, before: Period | None = None) -> None:
        self.now = now or Period()
        self.before = before
        self._at: float | None = None  # when it was looked at last; None: not since the agent was started
        self._cpu_us = 0

    @property
    def is_seen(self) -> bool:
        """Whether this agent has seen it, and not only one before."""
        return self._at is not None

    def note(self, at: float, cpu_us: int, working_set_bytes: int) -> None:
        now = self.now
        now.most_bytes = max(now.most_bytes, working_set_bytes)
        seconds = at - self._at if self._at is not None else 0.0
        if 0 < seconds <= LONGEST_SECONDS:
            now.seconds += seconds
            if cpu_us >= self._cpu_us:  # else it was made anew
                index = _bucket((cpu_us - self._cpu_us) / seconds / 1000)
                now.counts[index] = min(now.counts[index] + 1, MOST_COUNT)
        self._at, self._cpu_us = at, cpu_us

    def copy(self) -> "Watched":
        """As it is now, for another thread; the period before does not change any more."""
        now = self.now
        return Watched(Period(now.seconds, now.most_bytes, now.counts), self.before)

    def turn(self) -> None:
        """A new period begins."""
        self.before, self.now = self.now, Period()

    @property
    def use(self) -> UseOverTime:
        periods = [one for one in (self.before, self.now) if one is not None]
        return UseOverTime(
            sum(one.seconds for one in periods),
            max(one.most_bytes for one in periods),
            _mostly([sum(numbers) for numbers in zip(*(one.counts for one in periods), strict=True)]),
        )


def _mostly(counts: Sequence[int]) -> int:
    total, seen = sum(counts), 0
    for index, count in enumerate(counts):
        seen += count
        if count and seen >= total * _MOSTLY:
            return round(GROWTH**index) if index else 0
    return 0


def _bucket(millicpu: float) -> int:
    """The first whose bound is not below."""
    bound, index = 1.0, 0
    while bound < millicpu and index < BUCKETS - 1:
        bound *= GROWTH
        index += 1
    return index if millicpu > 0.5 else 0
