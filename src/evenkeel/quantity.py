"""Kubernetes quantities ("500m", "1.5Gi", "1e3"), exact: a whole number of nanos, never a float.

The rules are those of resource.Quantity in Kubernetes: which texts are accepted, how finer values are rounded, which
format a sum has, and how a value is printed, including when the original text is printed. A quantity is immutable, so
equal texts share one value.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from evenkeel.errors import EvenkeelError

# How a value is printed. "" is the format of a JSON null: a zero whose sum has the format of the other summand.
Format: TypeAlias = Literal["DecimalSI", "BinarySI", "DecimalExponent", ""]
DecimalSI: Final = "DecimalSI"
BinarySI: Final = "BinarySI"
DecimalExponent: Final = "DecimalExponent"


class QuantityError(EvenkeelError):
    """A text or JSON value that is not a quantity. The message suggests one that is."""


class Quantity:
    """An exact amount with a format. Only the amount counts in comparisons and hashes."""

    __slots__ = ("_exponent", "_text", "format", "nanos")

    nanos: int
    format: Format
    _text: str | None
    _exponent: int | None

    def __new__(cls, text: str) -> "Quantity":  # noqa: PYI034 - there are no subclasses
        return cls.parse(text)

    @staticmethod
    def parse(text: str) -> "Quantity":
        """The quantity in `text`. Spaces are not allowed, not even at the ends."""
        return _read_cached(text) if len(text) <= _CACHED_LENGTH else _read(text)

    @staticmethod
    def from_json(value: object) -> "Quantity":
        """The quantity of a decoded JSON or YAML value: a text (spaces at the ends are allowed), a number or null.

        A float can have its text in the document as `.text`, because 1e3 and 1000 are printed differently.
        """
        if isinstance(value, str):
            return Quantity.parse(value.strip(_JSON_SPACE))
        if value is None:
            return _NULL
        if isinstance(value, int) and not isinstance(value, bool):
            if value.bit_length() > _MAX_BITS:
                raise QuantityError(f"a number of {value.bit_length()} bits is not a quantity: {_TOO_LARGE}")
            return Quantity.parse(int.__repr__(value))
        if isinstance(value, float):
            text = getattr(value, "text", None)
            return Quantity.parse(text if isinstance(text, str) else float.__repr__(value))
        raise QuantityError(
            f"{_json_kind(value)} is not a quantity: write a number or a text such as {_EXAMPLES}"
        )

    @staticmethod
    def of(value: int, format: Format = DecimalSI) -> "Quantity":  # noqa: A002
        return _make(value * NANOS, format)

    @staticmethod
    def of_milli(value: int, format: Format = DecimalSI) -> "Quantity":  # noqa: A002
        return _make(value * _NANOS_IN_MILLI, format)

    @property
    def value(self) -> int:
        """Whole units, rounded away from zero: a tenth of a byte becomes a byte."""
        return _rounded_up(self.nanos, NANOS)

    @property
    def milli(self) -> int:
        """Thousandths, rounded away from zero."""
        return _rounded_up(self.nanos, _NANOS_IN_MILLI)

    @property
    def int64_value(self) -> int:
        """`value` as Kubernetes computes it in 64 bits: a larger amount overflows."""
        return self._int64(self.value, 0)

    @property
    def int64_milli(self) -> int:
        return self._int64(self.milli, 3)

    def _int64(self, exact: int, places: int) -> int:
        if -_INT64 <= exact < _INT64:
            return exact
        if self._exponent is not None and self._exponent + places not in _SCALES_THAT_WRAP:
            return 0
        return (exact + _INT64) % (2 * _INT64) - _INT64

    @property
    def sign(self) -> int:
        return (self.nanos > 0) - (self.nanos < 0)

    def round_up_milli(self) -> "Quantity":
        """The quantity in whole thousandths, rounded away from zero, as the API server stores it."""
        nanos = self.milli * _NANOS_IN_MILLI
        return self if nanos == self.nanos else _make(nanos, self.format)

    def canonical(self) -> str:
        """The canonical text of the amount: no fraction, and the largest suffix without loss."""
        return _canonical(self.nanos, self.format)

    def __str__(self) -> str:
        if self._text is None:
            _set_text(self, _canonical(self.nanos, self.format))
        return self._text or ""

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __lt__(self, other: "Quantity") -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self.nanos < other.nanos

    def __le__(self, other: "Quantity") -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self.nanos <= other.nanos

    def __gt__(self, other: "Quantity") -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self.nanos > other.nanos

    def __ge__(self, other: "Quantity") -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self.nanos >= other.nanos

    def __add__(self, other: "Quantity") -> "Quantity":
        if not isinstance(other, Quantity):
            return NotImplemented
        return _make(self.nanos + other.nanos, self.format if self.nanos else other.format)

    def __sub__(self, other: "Quantity") -> "Quantity":
        if not isinstance(other, Quantity):
            return NotImplemented
        return _make(self.nanos - other.nanos, self.format if self.nanos else other.format)

    def __neg__(self) -> "Quantity":
        return _make(-self.nanos, self.format)

    def __bool__(self) -> bool:
        return self.nanos != 0

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Quantity does not change: {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Quantity does not change: {name} cannot be deleted")

    def __reduce__(self) -> "tuple[Callable[..., Quantity], tuple[int, Format, str | None, int | None]]":
        return _make, (self.nanos, self.format, self._text, self._exponent)


NANOS: Final = 10**9
_NANOS_IN_MILLI: Final = 10**6
_INT64: Final = 2**63
# Kubernetes scales an int64 by one multiplication, which overflows, or by tens, which gives zero on overflow.
_SCALES_THAT_WRAP: Final = frozenset({0, 1, 2, 3, 6, 9})
_MAX_BINARY_NANOS: Final = (2**63 - 1) * NANOS
_MIN_INT64_NANOS: Final = -(2**63) * NANOS

# No real amount has 4000 digits. Without a bound a short text ("1e999999999") could fill the memory.
_MAX_DIGITS: Final = 4000
_MAX_BITS: Final = 13288
_MAX_EXPONENT: Final = 2**31 - 1
# Longer texts are not cached, so the cache never takes more than a few MB.
_CACHED_LENGTH: Final = 24
_CACHED_TEXTS: Final = 4096

_DECIMAL_EXPONENT: Final = {
    "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
}  # fmt: skip
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL_EXPONENT.items()}
_BINARY_BITS: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BINARY_SUFFIXES: Final = ("", *_BINARY_BITS)

# Kubernetes stores short numbers as an int64 and a power of ten, and only these keep their original text. Longer
# numbers are big decimals. They are printed in canonical form and need at least one digit: "Gi" is zero, "Ei" is an
# error.
_SHORT_DECIMAL_DIGITS: Final = 18
_SHORT_BINARY_DIGITS: Final = {suffix: 14 - bits * 3 // 10 for suffix, bits in _BINARY_BITS.items()}

# The characters that Go trims, without control characters: JSON escapes these, and Kubernetes trims before it
# unescapes.
_JSON_SPACE: Final = (
    " \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000\u2000\u2001\u2002\u2003\u2004\u2005"
    "\u2006\u2007\u2008\u2009\u200a"
)

_shape = re.compile(
    r"([+-]?)0*+([0-9]*+)(?:\.([0-9]*+))?([KMGTPE]i|[numkMGTPE]?|[eE][+-]?[0-9]++)", re.ASCII
).fullmatch
_new: Final = object.__new__
_set_nanos: Final[Callable[[Quantity, int], None]] = Quantity.__dict__["nanos"].__set__
_set_format: Final[Callable[[Quantity, Format], None]] = Quantity.__dict__["format"].__set__
_set_text: Final[Callable[[Quantity, str | None], None]] = Quantity.__dict__["_text"].__set__
_set_exponent: Final[Callable[[Quantity, int | None], None]] = Quantity.__dict__["_exponent"].__set__


def _make(nanos: int, form: Format, text: str | None = None, exponent: int | None = None) -> Quantity:
    """`exponent` is the power of ten of a number that Kubernetes stores as an int64; None for a big decimal."""
    made = _new(Quantity)
    _set_nanos(made, nanos)
    _set_format(made, form)
    _set_text(made, text)
    _set_exponent(made, exponent)
    return made


ZERO: Final = _make(0, DecimalSI, "0")
_NULL: Final = _make(0, "", "0")


def _rounded_up(nanos: int, unit: int) -> int:
    return -(-nanos // unit) if nanos > 0 else nanos // unit


def _read(text: str) -> Quantity:
    found = _shape(text)
    if found is None or not text:
        raise QuantityError(_complaint(text))
    sign, whole, fraction, suffix = found.groups()
    decimals = len(fraction) if fraction else 0
    digits = whole + fraction if fraction else whole
    if len(digits) > _MAX_DIGITS:
        raise QuantityError(f"{_shown(text)} is not a quantity: {_TOO_LARGE}")
    mantissa = int(digits) if digits else 0

    form: Format
    exponent: int | None = 0
    if (bits := _BINARY_BITS.get(suffix)) is not None:
        form = BinarySI
        short = not decimals and (len(whole) or 1) <= _SHORT_BINARY_DIGITS[suffix]
        echoes = short and mantissa & 7 != 0
        nanos = (mantissa << bits) * NANOS
        if decimals:
            nanos = -(-nanos // 10**decimals)
        if nanos > _MAX_BINARY_NANOS:
            nanos = _MAX_BINARY_NANOS
        elif 0 < nanos < NANOS:
            form = DecimalSI
    else:
        exponent = _DECIMAL_EXPONENT.get(suffix)
        form = DecimalSI
        if exponent is None:
            exponent = _exponent(suffix, text)
            form = DecimalExponent
        exponent -= decimals
        short = exponent >= -9 and (len(whole) or 1) + decimals <= _SHORT_DECIMAL_DIGITS
        echoes = short and exponent % 3 == 0 and whole != "" and not digits.endswith("000")
        nanos = _scaled(mantissa, exponent + 9, len(digits), text)

    if not (short or digits or "0" in text[: found.start(4)]):
        raise QuantityError(_complaint(text))
    return _make(
        -nanos if sign == "-" else nanos, form, str(text) if echoes else None, exponent if short else None
    )


_read_cached = lru_cache(_CACHED_TEXTS)(_read)


def _exponent(suffix: str, text: str) -> int:
    # The digits are counted first, because int() of a million digits takes long.
    magnitude = suffix[1:].lstrip("+-").lstrip("0")
    if len(magnitude) > 10 or (exponent := int(magnitude or "0")) > _MAX_EXPONENT:
        raise QuantityError(
            f"{_shown(text)} is not a quantity: its exponent is out of all bounds; write 1e3 or 1E-3"
        )
    return -exponent if suffix[1] == "-" else exponent


def _scaled(mantissa: int, shift: int, length: int, text: str) -> int:
    """mantissa × 10^shift, rounded away from zero, so that a small request does not become zero."""
    if not mantissa:
        return 0
    if -shift > length:
        return 1
    if length + shift > _MAX_DIGITS + 9:
        raise QuantityError(f"{_shown(text)} is not a quantity: {_TOO_LARGE}")
    power: int = 10 ** abs(shift)
    return mantissa * power if shift >= 0 else -(-mantissa // power)


def _canonical(nanos: int, form: Format) -> str:
    if not nanos:
        return "0"
    # Below 1024, or with a fraction, a binary suffix would lose digits. The decimal form is used then.
    if form == BinarySI and abs(nanos) >= 1024 * NANOS and nanos % NANOS == 0:
        units, times = nanos // NANOS, 0
        # The smallest int64 is not divided: "-8Ei" would not be parsed as the same amount.
        while units % 1024 == 0 and times < 6 and nanos != _MIN_INT64_NANOS:
            units //= 1024
            times += 1
        return f"{units}{_BINARY_SUFFIXES[times]}"
    digits = str(nanos)
    thousands = (len(digits) - len(digits.rstrip("0"))) // 3
    number = digits[: len(digits) - 3 * thousands]
    exponent = 3 * thousands - 9
    if form in (DecimalSI, BinarySI) and exponent in _DECIMAL_SUFFIX:
        return number + _DECIMAL_SUFFIX[exponent]
    return f"{number}e{exponent}" if exponent else number


_EXAMPLES: Final = '2, "500m" or "1Gi"'
_TOO_LARGE: Final = f"it is too large; write at most {_MAX_DIGITS} digits"
_SUFFIXES: Final = "the suffixes are n u m k M G T P E and Ki Mi Gi Ti Pi Ei"


def _complaint(text: str) -> str:
    return f"{_shown(text)} is not a quantity: {_why_not(text)}"


def _why_not(text: str) -> str:
    if not text:
        return f"it is empty; write {_EXAMPLES}"
    together = "".join(text.split())
    if together != text and together and _shape(together):
        return f"it has spaces; write {_clipped(together)}"
    plain = text.replace(",", "").replace("_", "")
    if plain != text and plain and _shape(plain):
        return "digits are not grouped, and the decimal sign is a point; write 1000 or 1.5"
    found = re.match(r"[+-]?[0-9]*+\.?[0-9]*+", text, re.ASCII)
    number = found.group() if found else ""
    suffix = text[len(number) :]
    if not number.strip("+-."):
        return f"it does not begin with a number in the digits 0 to 9; write {_EXAMPLES}"
    nearest = [_clipped(number) + near for near in _nearest(suffix)]
    if nearest:
        return f"unknown suffix {_shown(suffix)}; write {' or '.join(nearest)}"
    if suffix[0] in "eE":
        return f"an exponent is a whole number with nothing after it; write 1e3 or 1E-3, not {_shown(suffix)}"
    if suffix[0] == ".":
        return f"it has more than one point; write {_clipped(number)}"
    if suffix[0] == "%":
        return f"a share is not an amount; write {_EXAMPLES}"
    return f"unknown suffix {_shown(suffix)}; {_SUFFIXES}"


def _nearest(suffix: str) -> tuple[str, ...]:
    """The suffixes that were probably meant: the word bytes, the wrong case, a unit that is not needed."""
    word = suffix.strip().lower()
    if word in ("b", "byte", "bytes", "cpu", "cpus", "core", "cores"):
        return ("",)
    if word in ("mcpu", "millicpu", "mcore", "mcores", "millicore", "millicores"):
        return ("m",)
    if word in ("\u00b5", "\u03bc"):
        return ("u",)
    word = word.removesuffix("s").removesuffix("yte").removesuffix("b")
    if word in ("n", "u"):
        return (word,)
    binary = word.removesuffix("i").upper() + "i"
    if binary not in _BINARY_BITS:
        return ()
    return (binary,) if word.endswith("i") else ("k" if word == "k" else word.upper(), binary)


def _shown(text: str) -> str:
    text = _clipped(text)
    return f'"{text if text.isprintable() else text.encode("unicode_escape").decode("ascii")}"'


def _clipped(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"


def _json_kind(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "a list"
    return "a mapping" if isinstance(value, dict) else f"a value of type {type(value).__name__}"
