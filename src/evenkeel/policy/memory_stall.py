"""Containers that stand still at `memory.high`, and what is done about it (C8, E4).

The kernel makes whoever is above that mark take back its own pages, and makes it wait. One that has nothing to take
back waits for ever: neither does it get on, nor does anybody else get anything. It is a stall when for the whole of a
period the container's usage was at the mark and did not move, and for most of that time everything in it waited for
memory.

`raise` then moves the mark towards the limit, a quarter of the way at a time, so that the container gets on, or meets
its limit as it would without the mark; `kill` ends the container, and its restart policy says what follows; `report`
only tells.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from evenkeel.policy.units import bytes_text

UNLIMITED = -1

_AT_MARK = 0.97  # of memory.high, or more: the kernel takes back a little at a time
_FULL_SHARE = 0.5  # of the period: everything in the container waited
_MOVING_SHARE = 0.05  # of memory.high within a period is getting on
_STEPS = 4
_FALLEN_SHARE = 0.8  # of the planned mark: below it, the planned mark is no hindrance any more


class Answer(StrEnum):
    RAISE = "raise"
    KILL = "kill"
    REPORT = "report"


class StallSample(NamedTuple):
    """A container at one moment. `full_us` counts the time in which everything in it waited for memory, `high_events`
    how often it met the mark, both since it was made."""

    at: float = 0.0  # seconds that only grow
    usage_bytes: int = 0
    high_bytes: int = 0  # or UNLIMITED
    full_us: int = 0
    high_events: int = 0


class Stall(NamedTuple):
    """What was seen of one."""

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
    """Those that `stall` needs: the last of them that is a period old, and all after it."""
    last = samples[-1].at
    old = [sample for sample in samples if last - sample.at >= period_seconds]
    return (*old[-1:], *samples[len(old) :])


def stall(samples: Sequence[StallSample], period_seconds: float) -> Stall | None:
    """None where it is none, or where it is too soon to say."""
    if not samples:
        return None
    first, last = samples[0], samples[-1]
    seconds = last.at - first.at
    if seconds < period_seconds or seconds <= 0:
        return None
    high = last.high_bytes
    if high == UNLIMITED:
        return None
    if any(sample.high_bytes != high or sample.usage_bytes < high * _AT_MARK for sample in samples):
        return None
    share = min((last.full_us - first.full_us) / (seconds * 1e6), 1.0)
    used = [sample.usage_bytes for sample in samples]
    moved = max(used) - min(used)
    if share < _FULL_SHARE or moved >= high * _MOVING_SHARE:
        return None
    return Stall(last.usage_bytes, high, seconds, share, moved)


def raised_bytes(planned_bytes: int, now_bytes: int, limit_bytes: int) -> int:
    """The next mark above `now_bytes`, on the way from the planned one to the limit; UNLIMITED when the limit is all
    that is left."""
    step = max((limit_bytes - planned_bytes) // _STEPS, 4096)
    after = now_bytes + step
    return UNLIMITED if after > limit_bytes - step // 2 else after


def has_fallen_back(usage_bytes: int, planned_bytes: int) -> bool:
    """Whether the planned mark may be put back without being met at once."""
    return usage_bytes < planned_bytes * _FALLEN_SHARE
