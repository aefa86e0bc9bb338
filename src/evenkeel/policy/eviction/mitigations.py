"""Whether it is worth while to have the kernel take memory back before somebody has to go (A15, E3).

It takes a while, and who allocates meanwhile takes it again. Where that would be all of it, an eviction that has to
come anyway would only come later, and find less left.
"""

from collections import deque

_WORTH_SECONDS = 0.25  # for which, at the least, what is taken back has to last
_LEAST_SECONDS = 0.02  # a growth over less is that of single steps, in which the kernel counts
_MOST_SECONDS = 0.5  # what was before that is no longer how it is


class Trend:
    """How fast something has grown, of late."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()  # from one that is old enough to the last

    def note(self, now: float, amount_bytes: int) -> None:
        seen = self._seen
        seen.append((now, amount_bytes))
        while len(seen) > 2 and now - seen[1][0] >= _LEAST_SECONDS and now - seen[0][0] > _MOST_SECONDS:
            seen.popleft()

    @property
    def bytes_per_second(self) -> float:
        """0 where it became less, or too little is known."""
        if not self._seen:
            return 0.0
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        return max(last - first, 0) / (now - began) if now - began >= _LEAST_SECONDS else 0.0


def can_take_back(washable_bytes: int, short_bytes: int, growth_bytes_per_second: float) -> bool:
    """Whether what the kernel could give back with some work is what is short, and what will be in a while."""
    return washable_bytes >= short_bytes + growth_bytes_per_second * _WORTH_SECONDS


_TIGHT_SHARE = 2  # less than half of the reserve is left: they stand still
_GROWN_SHARE = 64  # of the reserve: who is above his request by less cannot do harm before the next look


def is_tight(left_bytes: int, reserve_bytes: int) -> bool:
    """`left_bytes` is what is really left, without what is on its way back; `reserve_bytes` what the threshold
    keeps."""
    return left_bytes < reserve_bytes // _TIGHT_SHARE


def is_loose(left_bytes: int, reserve_bytes: int) -> bool:
    """Not tight, and not about to be again."""
    return left_bytes >= reserve_bytes * 3 // 4


def has_to_be_held(usage_bytes: int, request_bytes: int, reserve_bytes: int) -> bool:
    """Whether the pod is one of those who stand still, or are throttled: never one within its request."""
    return usage_bytes - request_bytes > reserve_bytes // _GROWN_SHARE
