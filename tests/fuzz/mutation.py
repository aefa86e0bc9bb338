"""Bytes changed at random, for as long as is allowed: seconds or a minute in `make test`, hours in `make soak`.

`EVENKEEL_FUZZ_SECONDS` says how long each fuzzer runs, and `EVENKEEL_SEED` where it begins; what fails names its seed
(conftest.py).
"""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence

SECONDS = float(os.environ.get("EVENKEEL_FUZZ_SECONDS") or 4)
# The same ones each time, so that a failure is one of the code; `make soak` begins elsewhere.
FIRST_SEED = int(os.environ.get("EVENKEEL_SEED") or 1)
given: list[int] = []  # the seed that was given last
_WORDS = (b"0", b"-1", b"9" * 40, b"1e999", b"null", b"~", b"{}", b"[]", b"\xff\xfe", b"\0", b"\n", b"- ", b": ",
          b"&a ", b"*a", b"!!python/object:os.system", b"<<: *a", b"%", b"'", b'"', b"\t", b"\r\n\r\n")  # fmt: skip


def seeds() -> Iterator[int]:
    """One after the other until the time is over, and at least one."""
    ends = time.monotonic() + SECONDS
    given[:] = [FIRST_SEED]
    yield FIRST_SEED
    while time.monotonic() < ends:
        given[0] += 1
        yield given[0]


def mutated(samples: Sequence[bytes], seed: int) -> bytes:
    """One of the samples, or parts of two, with a few changes."""
    chance = random.Random(seed)
    content = bytearray(chance.choice(samples))
    if chance.random() < 0.2:
        other = chance.choice(samples)
        content[chance.randrange(len(content) + 1) :] = other[chance.randrange(len(other) + 1) :]
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        chance.choice(_CHANGES)(content, chance)
    return bytes(content)


def _flip(content: bytearray, chance: random.Random) -> None:
    if content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def _insert(content: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(content) + 1)
    content[at:at] = chance.choice(_WORDS)


def _replace(content: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(content) + 1)
    content[at : at + chance.randrange(12)] = chance.choice(_WORDS)


def _remove(content: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(content) + 1)
    del content[at : at + chance.choice((1, 3, 20, 200))]


def _repeat(content: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(content) + 1)
    content[at:at] = content[at : at + chance.randrange(60)] * chance.choice((1, 2, 30))


_CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _insert,
    _replace,
    _remove,
    _repeat,
)
