"""Percentages as kubelet computes with them: 32-bit floats, read by the rules of Go's number syntax.

It matters: ten percent of 100Gi is 10737418400 bytes to kubelet, not 10737418240. There is no 32-bit float in
Python, but `struct` rounds to one.
"""

import re
import struct
from math import inf, isfinite, nan

from evenkeel.errors import EvenkeelError


def parse_percentage(text: str) -> float:
    """`7.5%` as the part of the whole that kubelet takes it for. "nan%" and "inf%" are numbers to it."""
    number = _float32(text.rstrip("%"))
    if number is None:
        clipped = text[:40] + ("…" if len(text) > 40 else "")
        raise EvenkeelError(f"{clipped!r} is not a percentage: write 10% or 7.5%")
    # Kubelet divides 32-bit floats. A quotient of two of them, rounded from 64 bits to 32, is the same.
    return to_float32(number / 100)


def to_float32(number: float) -> float:
    """`number` rounded to the nearest 32-bit float; OverflowError where there is none."""
    rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return rounded


_DIGITS = r"\d+(?:_\d+)*"
_HEX_DIGITS = r"[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*"
_EXPONENT = rf"[+-]?{_DIGITS}"
_DECIMAL = re.compile(
    rf"[+-]?(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE]{_EXPONENT})?", re.ASCII
).fullmatch
_HEXADECIMAL = re.compile(
    rf"[+-]?0[xX](?:_?{_HEX_DIGITS}\.?(?:{_HEX_DIGITS})?|\.{_HEX_DIGITS})[pP]{_EXPONENT}", re.ASCII
).fullmatch
_INFINITY = re.compile(r"[+-]?inf(?:inity)?", re.ASCII | re.IGNORECASE).fullmatch
_LONGEST_NUMBER = 80


def _float32(text: str) -> float | None:
    """The 32-bit float nearest to the number that `text` spells, if it spells one that is not too large."""
    if _INFINITY(text):
        return -inf if text[0] == "-" else inf
    if text.lower() == "nan":
        return nan
    if len(text) > _LONGEST_NUMBER:
        return None
    try:
        if _DECIMAL(text):
            number = float(text)
            return _rounded_once(number, text) if isfinite(number) else None
        if _HEXADECIMAL(text):
            return to_float32(float.fromhex(text.replace("_", "")))
    except OverflowError:
        pass
    return None


def _rounded_once(number: float, text: str) -> float:
    """`number`, which is `text` rounded to 64 bits, as if it had been rounded to 32 at once.

    Rounding twice goes wrong only where the 64-bit float lies exactly between two 32-bit ones.
    """
    near = to_float32(number)
    bits: int = struct.unpack("<i", struct.pack("<f", near))[0]
    other: float = struct.unpack("<f", struct.pack("<i", bits + (1 if abs(near) < abs(number) else -1)))[0]
    if near == number or abs(number - near) != abs(other - number):
        return near
    from fractions import Fraction

    true = Fraction(text.replace("_", ""))
    if true == Fraction(number):
        return near
    return max(near, other) if true > Fraction(number) else min(near, other)
