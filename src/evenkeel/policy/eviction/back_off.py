"""How long an evicted pod stays away at least (E16): longer each time, and from the beginning after a quiet while."""

from typing import NamedTuple

FIRST_SECONDS = 10.0
GREATEST_SECONDS = 300.0
QUIET_SECONDS = 600.0


class BackOff(NamedTuple):
    times: int = 0  # evictions without a quiet while between them
    seconds: float = 0.0
    evicted_at: float = 0.0  # the last time

    @property
    def not_before(self) -> float:
        return self.evicted_at + self.seconds


NO_BACK_OFF = BackOff()


def after_eviction(before: BackOff, at: float) -> BackOff:
    # What it stayed away does not count as quiet.
    if not before.times or at - before.not_before >= QUIET_SECONDS:
        return BackOff(1, FIRST_SECONDS, at)
    return BackOff(before.times + 1, min(before.seconds * 2, GREATEST_SECONDS), at)
