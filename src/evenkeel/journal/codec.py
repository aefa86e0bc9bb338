"""Typed objects as the journal's text and back, without any loss.

`api.encode` writes what people read and leaves out what is empty, as Kubernetes does; then an `emptyDir: {}` is lost,
and a pod read back would seem changed. Here only what equals the field's own default is left out.
"""

import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from evenkeel.api.decode import UNKNOWN_FIELD, Findings, decode
from evenkeel.api.encode import camel
from evenkeel.api.scalars import Duration
from evenkeel.quantity import Quantity

T = TypeVar("T")

plain_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


_SEAL = "#"  # with which no JSON ends


class Unreadable(Exception):
    """What stands in the journal is no such object; the text says why."""


def to_text(value: object) -> str:
    """`value`, a named tuple of those that `from_text` can make, as text."""
    return plain_text(_plain(value))


def from_text(cls: type[T], text: object) -> T:
    """What `to_text` was given. Fields that `cls` no longer has are passed over."""
    findings = Findings()
    decoded = decode(cls, plain_of(text), findings)
    for problem in findings.problems:
        if problem.kind != UNKNOWN_FIELD:
            raise Unreadable(str(problem))
    return decoded


def plain_of(text: object) -> Any:  # noqa: ANN401
    """The plain value that `plain_text` was given."""
    if not isinstance(text, str):
        raise Unreadable("it is not text")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is not JSON: {error}") from None


def sealed(text: str) -> str:
    """`text` with a checksum, by which a flipped bit is noticed."""
    return f"{text}{_SEAL}{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


def opened(text: object) -> object:
    """What `sealed` was given; rows of older journals have no checksum. Raises Unreadable if it does not fit."""
    if not isinstance(text, str) or text[-9:-8] != _SEAL:
        return text
    content = text[:-9]
    if f"{zlib.crc32(content.encode('utf-8', 'surrogatepass')):08x}" != text[-8:]:
        raise Unreadable("its checksum does not fit: something on the disk has changed it")
    return content


def packed(plain: object) -> bytes:
    return zlib.compress(plain_text(plain).encode(), 3)


def unpacked(content: object) -> Any:  # noqa: ANN401
    if not isinstance(content, bytes):
        raise Unreadable("it is not compressed")
    try:
        return plain_of(zlib.decompress(content).decode())
    except (zlib.error, ValueError) as error:
        raise Unreadable(f"it cannot be decompressed: {error}") from None


def storable(text: str) -> str | bytes:
    """`text` for a column: half a surrogate pair, as in the name of a file that is not UTF-8, is no SQLite text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def stored(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogatepass")
    if isinstance(value, str):
        return value
    raise Unreadable(f"{value!r} is not text")


_NONE = object()  # equals nothing: the default of a field that has none
_AS_IT_IS = {str, int, float, bool, type(None)}
_plain_ways: dict[type, Callable[[Any], object]] = {}  # how values of each type are written, as types are met


def _plain(value: object) -> object:
    cls = type(value)
    if cls in _AS_IT_IS:
        return value
    way = _plain_ways.get(cls)
    if way is None:
        way = _plain_ways[cls] = _way(cls)
    return way(value)


def _way(cls: Any) -> Callable[[Any], object]:  # noqa: ANN401
    if issubclass(cls, Quantity | Duration | str):  # a member of a StrEnum is a plain word outside
        return str
    if hasattr(cls, "_fields"):
        return _struct(cls)
    if issubclass(cls, Mapping):
        return lambda value: {str(key): _plain(item) for key, item in value.items()}
    if issubclass(cls, tuple | list):
        return lambda value: [_plain(item) for item in value]
    return lambda value: value


def _struct(cls: Any) -> Callable[[Any], object]:  # noqa: ANN401
    names = tuple(map(camel, cls._fields))
    defaults = tuple(cls._field_defaults.get(name, _NONE) for name in cls._fields)

    def plain_struct(value: tuple[object, ...]) -> object:
        return {
            name: _plain(item)
            for name, default, item in zip(names, defaults, value, strict=True)
            if item is not default and item != default
        }

    return plain_struct
