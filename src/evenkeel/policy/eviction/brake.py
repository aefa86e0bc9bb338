"""When those above their requests are held, so that what is left lasts until memory is back (A15, E12).

A kill is sent within milliseconds, but the memory of who was killed takes longer to come back, and meanwhile others may
use up what lies below a hard threshold: then the kernel's own killer acts, and knows no rank.
"""

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
