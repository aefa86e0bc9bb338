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
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.agent.use_over_time import BUCKETS, MOST_COUNT, Period, Watched
from evenkeel.errors import EvenkeelError
from evenkeel.host.files import MAX_BYTES, read_text, write_own

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
