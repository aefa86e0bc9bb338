"""Memory stalls: containers that make no progress at `memory.high`, and what is done about it (C8, E4).

The kernel makes a container above `memory.high` reclaim its own pages, and slows it down. A container with nothing to
reclaim can wait there for ever. It stalls if for a whole period its usage was at `memory.high` and did not change, and
everything in it waited for memory most of the time.

`raise` then moves `memory.high` towards the limit, a quarter of the way at a time, until the container makes progress
or meets its limit. `kill` ends the container, and its restart policy decides what follows. `report` only records it.
"""

from collections.abc import Sequence
from enum import StrEnum

from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.amounts import bytes_text

UNLIMITED = -1

_AT_HIGH = 0.97  # of memory.high, or more: the kernel reclaims in small steps
_FULL_SHARE = 0.5  # of the period in which everything in the container waited
_MOVING_SHARE = 0.05  # a change by this part of memory.high in a period is progress
_STEPS = 4
_FALLEN_SHARE = 0.8  # of the planned memory.high: below it, the planned value can be restored


class Answer(StrEnum):
    RAISE = "raise"
    KILL = "kill"
    REPORT = "report"


class StallSample(NamedTuple):
    """A container at one time. `full_us` counts the time in which everything in it waited for memory, `high_events` how
    often it was above memory.high. Both count from its start."""

    at: float = 0.0  # seconds of a clock that only grows
    usage_bytes: int = 0
    high_bytes: int = 0  # or UNLIMITED
    full_us: int = 0
    high_events: int = 0


class Stall(NamedTuple):
    """The figures of one stall."""

    usage_bytes: int
    high_bytes: int
    seconds: float
    waited_share: float
    moved_bytes: int

    @property
    def sentence(self) -> str:
        return (
            f"it stalls at memory.high: {bytes_text(self.usage_bytes)} in use of {bytes_text(self.high_bytes)}, moved"
            f" by {bytes_text(self.moved_bytes)} in {self.seconds:.3g} s, {self.waited_share:.0%} of which everything"
            " in it waited for memory"
        )


def recent(samples: Sequence[StallSample], period_seconds: float) -> tuple[StallSample, ...]:
    """The samples that `stall` needs: the last one that is a period old, and all after it."""
    last = samples[-1].at
    old = [sample for sample in samples if last - sample.at >= period_seconds]
    return (*old[-1:], *samples[len(old) :])


def stall(samples: Sequence[StallSample], period_seconds: float) -> Stall | None:
    """The stall that `samples` show; None if there is none, or if the period is not over yet."""
    if not samples:
        return None
    first, last = samples[0], samples[-1]
    seconds = last.at - first.at
    if seconds < period_seconds or seconds <= 0:
        return None
    high = last.high_bytes
    if high == UNLIMITED:
        return None
    if any(sample.high_bytes != high or sample.usage_bytes < high * _AT_HIGH for sample in samples):
        return None
    share = min((last.full_us - first.full_us) / (seconds * 1e6), 1.0)
    used = [sample.usage_bytes for sample in samples]
    moved = max(used) - min(used)
    if share < _FULL_SHARE or moved >= high * _MOVING_SHARE:
        return None
    return Stall(last.usage_bytes, high, seconds, share, moved)


def raised_bytes(planned_bytes: int, now_bytes: int, limit_bytes: int) -> int:
    """The next value of memory.high after `now_bytes`, one step from the planned value towards the limit. UNLIMITED if
    the next step would be at the limit."""
    step = max((limit_bytes - planned_bytes) // _STEPS, 4096)
    after = now_bytes + step
    return UNLIMITED if after > limit_bytes - step // 2 else after


def has_fallen_back(usage_bytes: int, planned_bytes: int) -> bool:
    """Whether usage is so low that the planned memory.high can be restored."""
    return usage_bytes < planned_bytes * _FALLEN_SHARE
