"""Which unused images are removed, by kubelet's two thresholds. Pure.

When the disk is filled to the high threshold, images are removed until it is filled to the low one, least recently used
first. An image in use is never removed.
"""

from collections.abc import Iterable

from evenkeel.api.config import KubeletConfiguration, defaulted
from evenkeel.named_tuples import NamedTuple

_WHOLE = 100


class ImageAge(NamedTuple):
    """An image that may be removed. Times are seconds since the epoch."""

    id: str
    size_bytes: int
    first_seen: float
    last_used: float  # when a container was last seen with it; 0.0 if never


class GarbageSettings(NamedTuple):
    high_percent: int = 85
    low_percent: int = 80
    minimum_age_seconds: float = 120.0
    maximum_age_seconds: float = 0.0  # 0: none


class Garbage(NamedTuple):
    """The images to remove, in this order. `wanted_bytes` is how much the low mark needs."""

    aged: tuple[str, ...] = ()  # unused for longer than the maximum
    candidates: tuple[ImageAge, ...] = ()  # removed one by one until `wanted_bytes` are free
    wanted_bytes: int = 0


def garbage_settings(config: KubeletConfiguration) -> GarbageSettings:
    full = defaulted(config)
    return GarbageSettings(
        full.image_gc_high_threshold_percent,
        full.image_gc_low_threshold_percent,
        full.image_minimum_gc_age.seconds,
        full.image_maximum_gc_age.seconds,
    )


def garbage(
    unused: Iterable[ImageAge],
    capacity_bytes: int,
    available_bytes: int,
    now: float,
    settings: GarbageSettings,
) -> Garbage:
    """`unused` are the images that no container has. The capacity is that of their filesystem, and above 0."""
    images = sorted(unused, key=lambda one: (one.last_used, one.first_seen))
    aged: tuple[str, ...] = ()
    if settings.maximum_age_seconds:
        aged = tuple(
            one.id
            for one in images
            if now - max(one.last_used, one.first_seen) > settings.maximum_age_seconds
        )
    used_percent = _WHOLE - available_bytes * _WHOLE // capacity_bytes
    if settings.high_percent >= _WHOLE or used_percent < settings.high_percent:
        return Garbage(aged)
    wanted = capacity_bytes * (_WHOLE - settings.low_percent) // _WHOLE - available_bytes
    old = tuple(
        one for one in images if now - one.first_seen >= settings.minimum_age_seconds and one.id not in aged
    )
    return Garbage(aged, old, max(wanted, 0))
