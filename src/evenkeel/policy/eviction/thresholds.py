"""Eviction thresholds: from the texts of the configuration to values that can be compared with figures (B16).

The rules are kubelet's, because a threshold must mean the same in both. This includes the unexpected ones: only the
texts "0%" and "100%" switch a threshold off, and a soft threshold with a grace period of zero is hard.
"""

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from math import inf, isfinite, nan
from typing import TypeVar

from evenkeel.api.config import PODS_ENFORCED, KubeletConfiguration, defaulted
from evenkeel.api.scalars import Duration
from evenkeel.errors import EvenkeelError, InvalidInput, Problem
from evenkeel.named_tuples import NamedTuple
from evenkeel.quantity import BinarySI, Quantity

_Parsed = TypeVar("_Parsed")


class Signal(StrEnum):
    """A figure that eviction watches, by kubelet's name."""

    MEMORY_AVAILABLE = "memory.available"
    ALLOCATABLE_MEMORY_AVAILABLE = "allocatableMemory.available"  # in the pods' cgroup (B8)
    NODEFS_AVAILABLE = "nodefs.available"
    NODEFS_INODES_FREE = "nodefs.inodesFree"
    IMAGEFS_AVAILABLE = "imagefs.available"
    IMAGEFS_INODES_FREE = "imagefs.inodesFree"
    CONTAINERFS_AVAILABLE = "containerfs.available"
    CONTAINERFS_INODES_FREE = "containerfs.inodesFree"
    PID_AVAILABLE = "pid.available"


class ThresholdValue(NamedTuple):
    """An amount or, if there is none, a part of the capacity: 0.1 is ten percent."""

    quantity: Quantity | None = None
    percentage: float = 0.0

    def __str__(self) -> str:
        # Seven digits are what a 32-bit float holds.
        return str(self.quantity) if self.quantity is not None else f"{self.percentage * 100:.7g}%"


class Threshold(NamedTuple):
    """Evict a pod when less than `value` of `signal` has been left for `grace_period_seconds`."""

    signal: Signal
    value: ThresholdValue
    grace_period_seconds: float = 0.0
    min_reclaim: ThresholdValue | None = None

    @property
    def hard(self) -> bool:
        return self.grace_period_seconds == 0

    def __str__(self) -> str:
        return f"{self.signal}<{self.value}"


def config_thresholds(config: KubeletConfiguration) -> tuple[Threshold, ...]:
    """Every threshold that the agent watches: those of the node, and the hard memory threshold also in the pods'
    cgroup (B8)."""
    full = defaulted(config)
    return parse_thresholds(
        hard=full.eviction_hard,
        soft=full.eviction_soft,
        soft_grace_period=full.eviction_soft_grace_period,
        minimum_reclaim=full.eviction_minimum_reclaim,
        enforce_node_allocatable=full.enforce_node_allocatable,
    )


def config_reclaims(config: KubeletConfiguration) -> dict[Signal, ThresholdValue]:
    """How much more than the shortage is reclaimed, by signal. It is set even for signals without a threshold."""
    reclaims = _reclaims(defaulted(config).eviction_minimum_reclaim, [])
    if (of_node := reclaims.get(Signal.MEMORY_AVAILABLE)) is not None:
        reclaims[Signal.ALLOCATABLE_MEMORY_AVAILABLE] = of_node
    return reclaims


def config_graces_seconds(config: KubeletConfiguration) -> dict[Signal, float]:
    """The grace periods of soft thresholds, by signal. They are set even for signals without a threshold."""
    graces = _graces(defaulted(config).eviction_soft_grace_period, [])
    return {signal: grace.seconds for signal, grace in graces.items()}


def parse_thresholds(
    *,
    hard: Mapping[str, str] | None = None,
    soft: Mapping[str, str] | None = None,
    soft_grace_period: Mapping[str, str] | None = None,
    minimum_reclaim: Mapping[str, str] | None = None,
    enforce_node_allocatable: tuple[str, ...] = (),
) -> tuple[Threshold, ...]:
    """The thresholds of the four settings. Raises `InvalidInput` with every problem."""
    problems: list[Problem] = []
    hard_values = _values(hard, "evictionHard", "--eviction-hard", problems)
    soft_values = _values(soft, "evictionSoft", "--eviction-soft", problems)
    graces = _graces(soft_grace_period, problems)
    reclaims = _reclaims(minimum_reclaim, problems)

    found = [Threshold(signal, value, 0.0, reclaims.get(signal)) for signal, value in hard_values.items()]
    for signal, value in soft_values.items():
        grace = graces.get(signal)
        if grace is not None:
            found.append(Threshold(signal, value, grace.seconds, reclaims.get(signal)))
        elif signal not in (soft_grace_period or ()):
            problems.append(
                Problem(
                    f"evictionSoft[{signal}], evictionSoftGracePeriod",
                    f"--eviction-soft has a threshold for {signal}, so --eviction-soft-grace-period must say"
                    f" how long it may last: write {signal}=1m30s there, or move it to --eviction-hard",
                    "FieldValueRequired",
                )
            )
    if problems:
        raise InvalidInput(problems)
    if PODS_ENFORCED in enforce_node_allocatable:
        # B8: pods must be evicted before the OOM killer acts in their cgroup.
        found += [
            Threshold(Signal.ALLOCATABLE_MEMORY_AVAILABLE, known.value, 0.0, known.min_reclaim)
            for known in found
            if known.signal is Signal.MEMORY_AVAILABLE and known.hard
        ]
    return tuple(found)


def parse_flag(text: str, separator: str = "<", example: str = "memory.available<100Mi") -> dict[str, str]:
    """A flag such as `memory.available<100Mi,nodefs.available<10%`, as the mapping that the file would have.

    Only the form is checked. `separator` is "<" for thresholds and "=" for the other settings.
    """
    settings: dict[str, str] = {}
    for part in text.split(",") if text.strip() else ():
        name, found, value = (word.strip() for word in part.partition(separator))
        if not found or not name or not value:
            raise EvenkeelError(
                f"{_shown(part.strip())} is not a name and a value with {separator} between: write {example}"
            )
        if name in settings:
            raise EvenkeelError(f"{name[:60]} stands twice: name it once")
        settings[name] = value
    return settings


def threshold_quantity(value: ThresholdValue, capacity: int) -> Quantity:
    """The amount that `value` stands for, if there is `capacity` in total."""
    if value.quantity is not None:
        return value.quantity
    amount = float(capacity) * value.percentage
    # Kubelet accepts "nan%" and "inf%". As thresholds they are never crossed: no figure is below zero.
    return Quantity.of(int(amount) if isfinite(amount) else 0, BinarySI)


def threshold_amount(value: ThresholdValue, capacity: int) -> int:
    """`threshold_quantity` in whole units, rounded up."""
    return threshold_quantity(value, capacity).value


def _parsed(
    settings: Mapping[str, str] | None,
    field: str,
    flag: str,
    parse: Callable[[str], _Parsed],
    problems: list[Problem],
) -> Iterator[tuple[str, Signal, str, _Parsed]]:
    """Each setting that can be parsed: its path, its signal, its text and its value."""
    for at, signal, text in _signals(settings, field, flag, problems):
        try:
            value = parse(text)
        except EvenkeelError as error:
            problems.append(Problem(at, f"{flag}: {error}"))
        else:
            yield at, signal, text, value


def _values(
    settings: Mapping[str, str] | None, field: str, flag: str, problems: list[Problem]
) -> dict[Signal, ThresholdValue]:
    found: dict[Signal, ThresholdValue] = {}
    for at, signal, text, value in _parsed(settings, field, flag, _value, problems):
        if text in ("0%", "100%"):
            continue  # this is how kubelet switches a default threshold off
        if value.quantity is not None and value.quantity.sign <= 0:
            problems.append(Problem(at, f"{flag} must be more than nothing, not {text}; 0% switches it off"))
        elif value.percentage < 0 or value.percentage > 1:
            problems.append(Problem(at, f"{flag} must be from 0% to 100%, not {_shown(text)}"))
        else:
            found[signal] = value
    return found


def _graces(settings: Mapping[str, str] | None, problems: list[Problem]) -> dict[Signal, Duration]:
    flag = "--eviction-soft-grace-period"
    found: dict[Signal, Duration] = {}
    for at, signal, text, grace in _parsed(
        settings, "evictionSoftGracePeriod", flag, Duration.parse, problems
    ):
        if grace < 0:
            problems.append(Problem(at, f"{flag} must not be negative, as {text} is: write 1m30s"))
        else:
            found[signal] = grace
    return found


def _reclaims(settings: Mapping[str, str] | None, problems: list[Problem]) -> dict[Signal, ThresholdValue]:
    flag = "--eviction-minimum-reclaim"
    found: dict[Signal, ThresholdValue] = {}
    for at, signal, text, value in _parsed(settings, "evictionMinimumReclaim", flag, _value, problems):
        if value.quantity is not None and value.quantity.sign < 0:
            problems.append(Problem(at, f"{flag} must not be negative, as {text} is: write 100Mi or 5%"))
        elif value.quantity is None and value.percentage <= 0:
            problems.append(Problem(at, f"{flag} must be more than 0%, not {_shown(text)}"))
        else:
            found[signal] = value
    return found


def _signals(
    settings: Mapping[str, str] | None, field: str, flag: str, problems: list[Problem]
) -> Iterator[tuple[str, Signal, str]]:
    for name, text in (settings or {}).items():
        at = f"{field}[{name[:60]}]"
        try:
            yield at, Signal(name), text
        except ValueError:
            from evenkeel.api.known_fields import closest

            meant = closest(name, Signal)
            mend = f"did you mean {meant}?" if meant else f"there are {', '.join(Signal)}"
            problems.append(Problem(at, f"{flag}: {_shown(name)} is no eviction signal; {mend}"))


def _value(text: str) -> ThresholdValue:
    if text.endswith("%"):
        return ThresholdValue(percentage=parse_percentage(text))
    return ThresholdValue(quantity=Quantity.parse(text))


def _shown(text: str) -> str:
    clipped = text[:40] + ("…" if len(text) > 40 else "")
    return f'"{clipped}"' if clipped.isprintable() else repr(clipped)


# Percentages, in the 32-bit floats of kubelet


def parse_percentage(text: str) -> float:
    """`7.5%` as a part of the whole, computed as kubelet does. It accepts "nan%" and "inf%", too."""
    number = _float32(text.rstrip("%"))
    if number is None:
        clipped = text[:40] + ("…" if len(text) > 40 else "")
        raise EvenkeelError(f"{clipped!r} is not a percentage: write 10% or 7.5%")
    # Kubelet divides 32-bit floats. Division in 64 bits, rounded to 32, gives the same result.
    return to_float32(number / 100)


def to_float32(number: float) -> float:
    """`number` rounded to the nearest 32-bit float; OverflowError if it is too large."""
    rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return rounded


_DIGITS = r"\d+(?:_\d+)*"
_HEX_DIGITS = r"[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*"
_EXPONENT = rf"[+-]?{_DIGITS}"
# Compiled when first needed: the default thresholds need the first one, and most configurations no other.
_DECIMAL = rf"[+-]?(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE]{_EXPONENT})?"
_HEXADECIMAL = rf"[+-]?0[xX](?:_?{_HEX_DIGITS}\.?(?:{_HEX_DIGITS})?|\.{_HEX_DIGITS})[pP]{_EXPONENT}"
_INFINITIES = {f"{sign}{word}" for sign in ("", "+", "-") for word in ("inf", "infinity")}
_LONGEST_NUMBER = 80


def _float32(text: str) -> float | None:
    """The 32-bit float nearest to the number in `text`; None if `text` is not a number or is too large."""
    if text.lower() in _INFINITIES:
        return -inf if text[0] == "-" else inf
    if text.lower() == "nan":
        return nan
    if len(text) > _LONGEST_NUMBER:
        return None
    try:
        if re.fullmatch(_DECIMAL, text, re.ASCII):
            number = float(text)
            return _rounded_once(number, text) if isfinite(number) else None
        if re.fullmatch(_HEXADECIMAL, text, re.ASCII):
            return to_float32(float.fromhex(text.replace("_", "")))
    except OverflowError:
        pass
    return None


def _rounded_once(number: float, text: str) -> float:
    """`text` rounded directly to 32 bits; `number` is `text` rounded to 64 bits.

    Rounding twice is wrong only if the 64-bit float is exactly between two 32-bit floats.
    """
    near = to_float32(number)
    if near == number:
        return near
    bits: int = struct.unpack("<i", struct.pack("<f", near))[0]
    other: float = struct.unpack("<f", struct.pack("<i", bits + (1 if abs(near) < abs(number) else -1)))[0]
    if abs(number - near) != abs(other - number):
        return near
    from fractions import Fraction

    true = Fraction(text.replace("_", ""))
    if true == Fraction(number):
        return near
    return max(near, other) if true > Fraction(number) else min(near, other)
