"""What was watched, in a file of the state directory: advice goes on where the agent before left off.

The file is replaced as a whole or not at all. It is worth little: one that cannot be read is put aside with a word in
the log, and one that cannot be written is written another time.
"""

import binascii
import errno
import json
import logging
import math
import os
import sys
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.errors import EvenkeelError
from evenkeel.host.files import MAX_BYTES, read_text, write_own
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


log = logging.getLogger(__name__)

NAME = "history.json"  # beside the journal
MOST_WATCHED = 2000  # cgroups
_VERSION = 1
_LONGEST_NAME = 1024
_MOST_NUMBER = 2**62


class Span(NamedTuple):
    """One period: when it began, and for how long of it somebody watched."""

    since: float
    seconds: float = 0.0


class Kept(NamedTuple):
    now: Span
    before: Span | None = None
    watched: Mapping[str, Watched] = MappingProxyType({})


class Unusable(EvenkeelError):
    """Not a file of ours, or not one that this version knows."""


def take_up(path: str) -> Kept | None:
    """None if there is none, or none that can be used, which is put aside."""
    if not os.path.lexists(path):
        return None
    try:
        return parse(read_text(path))
    except EvenkeelError as error:
        aside = f"{path}.unusable"
        with suppress(OSError):
            os.replace(path, aside)
        log.warning("%s: what was used before is not known; the file is now %s", error, aside)
        return None


def write(path: str, kept: Kept) -> None:
    """Raises OSError, and then the file is as it was."""
    text = encoded(kept)
    if len(text) > MAX_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    new = f"{path}.new"
    try:
        write_own(new, text, is_lasting=True)
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            os.unlink(new)  # on a full disk others need the room
        raise


def encoded(kept: Kept) -> bytes:
    plain = {
        "version": _VERSION,
        "now": kept.now,
        "before": kept.before,
        "watched": {
            name: [_plain(one.now), _plain(one.before)]
            for name, one in kept.watched.items()
            if len(name) <= _LONGEST_NAME
        },
    }
    return json.dumps(plain, separators=(",", ":")).encode("ascii")


def parse(text: str) -> Kept:
    """Raises Unusable."""
    try:
        plain = json.loads(text)
        version = plain["version"]
        if type(version) is int and version > _VERSION:
            raise Unusable(f"{NAME} is of a newer version of Evenkeel ({version}, not {_VERSION})")
        if version != _VERSION or len(plain["watched"]) > MOST_WATCHED:
            raise Unusable(f"{NAME} is not what Evenkeel writes")
        now, before = _span(plain["now"]), plain["before"]
        return Kept(
            now,
            None if before is None else _span(before),
            {
                name: Watched(_period(one), _period_or_none(other))
                for name, (one, other) in plain["watched"].items()
            },
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Unusable(f"{NAME} cannot be read") from None


def _plain(period: Period | None) -> list[object] | None:
    """The counts as bytes, since as so many numbers they would take ten times as long."""
    if period is None:
        return None
    counts = period.counts
    if sys.byteorder == "big":
        counts = counts[:]
        counts.byteswap()
    text = binascii.b2a_base64(counts.tobytes().rstrip(b"\0"), newline=False).decode("ascii")
    return [round(period.seconds, 3), period.most_bytes, text]


def _period_or_none(plain: object) -> Period | None:
    return None if plain is None else _period(plain)


def _period(plain: object) -> Period:
    if not isinstance(plain, list):
        raise TypeError
    seconds, most, text = plain
    packed = binascii.a2b_base64(text, strict_mode=True).ljust(4 * BUCKETS, b"\0")
    if len(packed) != 4 * BUCKETS:
        raise ValueError
    counts = array("I", packed)
    if sys.byteorder == "big":
        counts.byteswap()
    if max(counts) > MOST_COUNT:
        raise ValueError
    return Period(_amount(seconds), _whole(most, _MOST_NUMBER), counts)


def _span(plain: object) -> Span:
    if not isinstance(plain, list):
        raise TypeError
    since, seconds = plain
    return Span(_amount(since), _amount(seconds))


def _whole(value: object, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError
    return value


def _amount(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError
    return float(value)
