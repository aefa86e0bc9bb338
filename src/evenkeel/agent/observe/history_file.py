"""The file of the usage history, in the state directory. It lets a new agent continue the advice of the former one.

The file is replaced as a whole or not at all. The agent can work without it. A file that cannot be read is renamed and
a warning is logged. If the file cannot be written, it is written at the next save.
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

from evenkeel.errors import EvenkeelError
from evenkeel.host.files import MAX_BYTES, read_text, write_own
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.advice import UseOverTime

# The file on disk uses these buckets. If they change, the file's version must change (_VERSION).
BUCKETS = 96
GROWTH = 1.15  # from one bucket to the next: 1 millicore to 600 cores
MOST_COUNT = 2**31 - 1

LONGEST_SECONDS = 600.0  # between two samples; if longer, no agent ran, or the clock was set
_MOSTLY = 0.95


class Period:
    def __init__(self, seconds: float = 0.0, most_bytes: int = 0, counts: Sequence[int] = ()) -> None:
        self.seconds = seconds  # time in which the cgroup was watched
        self.most_bytes = most_bytes
        self.counts = array("I", counts or bytes(4 * BUCKETS))


class Watched:
    """The usage of one cgroup in this period and the previous one. Older usage no longer influences the advice."""

    def __init__(self, now: Period | None = None, before: Period | None = None) -> None:
        self.now = now or Period()
        self.before = before
        self._at: float | None = None  # time of the last sample; None: none since the agent was started
        self._cpu_us = 0

    @property
    def is_seen(self) -> bool:
        """Whether this agent has sampled the cgroup, not only a former agent."""
        return self._at is not None

    def note(self, at: float, cpu_us: int, working_set_bytes: int) -> None:
        now = self.now
        now.most_bytes = max(now.most_bytes, working_set_bytes)
        seconds = at - self._at if self._at is not None else 0.0
        if 0 < seconds <= LONGEST_SECONDS:
            now.seconds += seconds
            if cpu_us >= self._cpu_us:  # else the cgroup was created again
                index = _bucket((cpu_us - self._cpu_us) / seconds / 1000)
                now.counts[index] = min(now.counts[index] + 1, MOST_COUNT)
        self._at, self._cpu_us = at, cpu_us

    def copy(self) -> "Watched":
        """A copy for another thread. The previous period is shared, for it no longer changes."""
        now = self.now
        return Watched(Period(now.seconds, now.most_bytes, now.counts), self.before)

    def turn(self) -> None:
        """Begins a new period."""
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
    """The first bucket with a bound of at least `millicpu`."""
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
    """One period: its start, and how long an agent watched during it."""

    since: float
    seconds: float = 0.0


class Kept(NamedTuple):
    now: Span
    before: Span | None = None
    watched: Mapping[str, Watched] = MappingProxyType({})


class Unusable(EvenkeelError):
    """The file is not a history file, or its version is not known."""


def take_up(path: str) -> Kept | None:
    """Reads the file; None if there is none. A file that cannot be used is renamed, and the result is None."""
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
    """Replaces the file. Raises OSError; the old file is then unchanged."""
    text = encoded(kept)
    if len(text) > MAX_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    new = f"{path}.new"
    try:
        write_own(new, text, is_lasting=True)
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            os.unlink(new)  # frees its space on a full disk
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
    """Reads the text of the file. Raises Unusable."""
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
    """The period as plain values. The counts are encoded as bytes: as numbers they would take ten times as long."""
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
