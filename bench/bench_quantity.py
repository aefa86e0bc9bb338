"""A million quantities read, beside a million numbers read by Python's own exact types."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from time import perf_counter

from bench.figure import Figure, against, ratio_at_most
from evenkeel.quantity import Quantity

MILLION = 1_000_000
ROUNDS = 3
SUFFIXES = ("m", "Mi", "", "Gi", "k", "Ki", ".5", "u", ".25Gi", "e3")


def figures() -> Iterator[Figure]:
    numbers = [str(i) for i in range(MILLION // len(SUFFIXES))]
    distinct = [number + suffix for number in numbers for suffix in SUFFIXES]
    plain = [str(i) for i in range(MILLION)]
    rounds = [(seconds(Quantity.parse, distinct), seconds(Fraction, plain)) for _ in range(ROUNDS)]
    yield against(
        "a million distinct quantities read, against Fraction()",
        [ours for ours, _ in rounds],
        [theirs for _, theirs in rounds],
        "s",
        ratio_at_most(2),
    )
    repeated = distinct[:1000] * (MILLION // 1000)
    rounds = [(seconds(Quantity.parse, repeated), seconds(int, plain)) for _ in range(ROUNDS)]
    yield against(
        "a million repeated quantities read, against int()",
        [ours for ours, _ in rounds],
        [theirs for _, theirs in rounds],
        "s",
        ratio_at_most(3),
    )


def seconds(read: Callable[[str], object], texts: list[str]) -> float:
    start = perf_counter()
    for text in texts:
        read(text)
    return perf_counter() - start
