"""Converts typed objects to the journal's text and back, without any loss.

`api.encode` writes text for people. As in Kubernetes, it omits empty values, so an `emptyDir: {}` is lost. A pod that
is read back would then seem changed. This module omits only values that equal the default of their field.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from evenkeel.api.decode import UNKNOWN_FIELD, Findings, decode
from evenkeel.api.encode import camel
from evenkeel.api.scalars import Duration
from evenkeel.quantity import Quantity

T = TypeVar("T")

plain_text = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class Unreadable(Exception):
    """The journal's text is not such an object. The message says why."""


def to_text(value: object) -> str:
    """The text for `value`, a named tuple of a type that `from_text` can read."""
    return plain_text(_plain(value))


def from_text(cls: type[T], text: object) -> T:
    """The object that `to_text` has converted. Fields that `cls` no longer has are ignored."""
    findings = Findings()
    decoded = decode(cls, plain_of(text), findings)
    for problem in findings.problems:
        if problem.kind != UNKNOWN_FIELD:
            raise Unreadable(str(problem))
    return decoded


def plain_of(text: object) -> Any:  # noqa: ANN401
    """The plain value that `plain_text` has converted."""
    if not isinstance(text, str):
        raise Unreadable("it is not text")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is not JSON: {error}") from None


_NONE = object()  # stands for "no default": equals no value
_AS_IT_IS = {str, int, float, bool, type(None)}
_plain_ways: dict[type, Callable[[Any], object]] = {}  # by type, filled when a type is first used


def _plain(value: object) -> object:
    cls = type(value)
    if cls in _AS_IT_IS:
        return value
    way = _plain_ways.get(cls)
    if way is None:
        way = _plain_ways[cls] = _way(cls)
    return way(value)


def _way(cls: Any) -> Callable[[Any], object]:  # noqa: ANN401
    if issubclass(cls, Quantity | Duration | str):  # a StrEnum member becomes a plain string
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
