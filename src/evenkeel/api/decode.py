"""From plain values to typed objects. Every problem is reported with its path.

The annotations of the types drive the decoding, so an object is described once. A field that the type does not have is
looked up in `known_fields`. If Kubernetes does not have it, it is an error with the closest existing name. If it is a
field of a pod, `pod_fields` says whether it is refused or has no meaning here. Any other is noted as not honoured.
Decoding continues after an error, so that one run reports all of them.
"""

import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin

from evenkeel.api.encode import camel
from evenkeel.api.scalars import Amount, Duration, Int32
from evenkeel.errors import NODE_RULE, EvenkeelError, Problem
from evenkeel.named_tuples import NamedTuple
from evenkeel.quantity import Quantity

T = TypeVar("T")

# Kinds of problems that have no name in Kubernetes: its decoder only says "bad request".
WRONG_SHAPE = "Decode"
UNKNOWN_FIELD = "FieldUnknown"

# Types of Kubernetes that have no version in their name.
_UNVERSIONED = {
    "KubeletConfiguration",
    "KubeletAuthentication",
    "KubeletX509Authentication",
    "MemorySwapConfiguration",
    "CrashLoopBackOffConfig",
}


class Findings:
    """The findings of decoding: errors, and fields that Kubernetes has and Evenkeel does not support."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.not_honoured: list[str] = []
        self.refused: list[Problem] = []  # fields that change the pod, and that this node cannot honour
        self.suggestions_left = 100  # each costs half a millisecond, and a reader needs no more

    def wrong_shape(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message, WRONG_SHAPE))


class _Failed:
    """The result of a decoder that has reported a problem and has no value."""


_FAILED = _Failed()
_Decoder = Callable[[object, str, Findings], Any]


def decode(cls: type[T], value: object, findings: Findings, path: str = "") -> T:
    """`value` as a `cls`. Fields that cannot be decoded keep their defaults and are reported in `findings`."""
    decoded = _struct(cls)(value, path, findings)
    return cls() if decoded is _FAILED else decoded


class _Field(NamedTuple):
    attribute: str
    decoder: _Decoder


def _struct(cls: type) -> _Decoder:
    """A decoder for the named tuple `cls`, made when first needed."""
    known = _structs.get(cls)
    if known is not None:
        return known
    fields: dict[str, _Field] = {}

    def decode_struct(value: object, path: str, findings: Findings) -> Any:  # noqa: ANN401
        if not isinstance(value, Mapping):
            findings.wrong_shape(path, f"must be a mapping of {_some(fields)}, not {seen(value)}")
            return _FAILED
        found: dict[str, object] = {}
        for name, item in value.items():
            field = fields.get(name)
            if field is None:
                _unknown(cls, name, item, path, findings)
            elif item is not None:
                decoded = field.decoder(item, f"{path}.{name}" if path else name, findings)
                if decoded is not _FAILED:
                    found[field.attribute] = decoded
        return cls(**found)

    _structs[cls] = decode_struct  # before its fields, because a type can contain itself
    for attribute, annotation in _annotations(cls).items():
        fields[camel(attribute)] = _Field(attribute, _decoder(annotation))
    return decode_struct


_structs: dict[type, _Decoder] = {}


def _annotations(cls: type) -> Mapping[str, Any]:
    annotations: Mapping[str, Any] = cls.__annotations__
    return annotations


def _decoder(annotation: Any) -> _Decoder:  # noqa: ANN401
    simple = _SIMPLE.get(annotation)
    if simple is not None:
        return simple
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin in (Union, types.UnionType):
        choices = [argument for argument in arguments if argument is not type(None)]
        return _integer_or_text if set(choices) == {int, str} else _decoder(choices[0])
    if origin is tuple:
        return _sequence(_decoder(arguments[0]), _zero(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_decoder(arguments[1]), _zero(arguments[1]))
    return _struct(annotation)


_ZEROS: dict[object, object] = {str: "", int: 0, Int32: 0, bool: False}


def _zero(annotation: Any) -> object:  # noqa: ANN401
    """The value of a null item, as in Go: the zero of the type. `None` if the decoder of the item must decide."""
    if annotation in _ZEROS:
        return _ZEROS[annotation]
    return annotation() if hasattr(annotation, "_fields") else None


def _sequence(item_decoder: _Decoder, zero: object) -> _Decoder:
    def decode_sequence(value: object, path: str, findings: Findings) -> object:
        if not isinstance(value, list):
            findings.wrong_shape(path, f"must be a list, not {seen(value)}")
            return _FAILED
        items = [
            zero if item is None and zero is not None else item_decoder(item, f"{path}[{index}]", findings)
            for index, item in enumerate(value)
        ]
        return tuple(item for item in items if item is not _FAILED)

    return decode_sequence


def _mapping(item_decoder: _Decoder, zero: object) -> _Decoder:
    def decode_mapping(value: object, path: str, findings: Findings) -> object:
        if not isinstance(value, Mapping):
            findings.wrong_shape(path, f"must be a mapping, not {seen(value)}")
            return _FAILED
        items: dict[str, object] = {}
        for key, item in value.items():
            if item is None and zero is not None:
                items[sys.intern(key)] = zero
                continue
            decoded = item_decoder(item, f"{path}[{key}]", findings)
            if decoded is not _FAILED:
                items[sys.intern(key)] = decoded
        return items

    return decode_mapping


def _text(value: object, path: str, findings: Findings) -> object:
    if isinstance(value, str):
        return value
    quote = ""
    if isinstance(value, bool):
        quote = ": put what you have written in quotes"  # it may be yes or on
    elif isinstance(value, int | float):
        quote = f': put it in quotes, "{_raw(value)}"'
    findings.wrong_shape(path, f"must be a string, not {seen(value)}{quote}")
    return _FAILED


def _integer(bits: int) -> _Decoder:
    def decode_integer(value: object, path: str, findings: Findings) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            if -(1 << bits - 1) <= value < 1 << bits - 1:
                return value
            findings.wrong_shape(path, f"must be a number of at most {bits} bits, not {str(value)[:30]}")
            return _FAILED
        findings.wrong_shape(path, f"must be a whole number, not {seen(value)}")
        return _FAILED

    return decode_integer


_int32 = _integer(32)


def _integer_or_text(value: object, path: str, findings: Findings) -> object:
    return value if isinstance(value, str) else _int32(value, path, findings)


def _number(value: object, path: str, findings: Findings) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            findings.wrong_shape(path, f"must be a number of sensible size, not {str(value)[:30]}…")
            return _FAILED
    findings.wrong_shape(path, f"must be a number, not {seen(value)}")
    return _FAILED


def _truth(value: object, path: str, findings: Findings) -> object:
    if isinstance(value, bool):
        return value
    findings.wrong_shape(path, f"must be true or false, not {seen(value)}")
    return _FAILED


def _quantity(value: object, path: str, findings: Findings) -> object:
    try:
        return Quantity.from_json(value)
    except EvenkeelError as error:
        findings.wrong_shape(path, str(error))
        return _FAILED


def _amount(value: object, path: str, findings: Findings) -> object:
    quantity = _quantity(value, path, findings)
    if not isinstance(quantity, Quantity):
        return quantity
    if quantity.sign < 0:
        findings.wrong_shape(path, f"must not be negative, as {quantity} is")
        return _FAILED
    return quantity.value


def _duration(value: object, path: str, findings: Findings) -> object:
    if not isinstance(value, str):
        findings.wrong_shape(path, f"must be a duration such as 30s or 1m30s, not {seen(value)}")
        return _FAILED
    try:
        return Duration.parse(value)
    except EvenkeelError as error:
        findings.wrong_shape(path, str(error))
        return _FAILED


def _anything(value: object, path: str, findings: Findings) -> object:  # noqa: ARG001
    return value


_SIMPLE: dict[object, _Decoder] = {
    str: _text,
    int: _integer(64),
    Int32: _int32,
    float: _number,
    bool: _truth,
    Quantity: _quantity,
    Amount: _amount,
    Duration: _duration,
    object: _anything,
}


def _unknown(cls: type, name: str, value: object, path: str, findings: Findings) -> None:
    from evenkeel.api import known_fields

    here = f"{path}.{name}" if path else name
    kubernetes_type = cls.__name__ if cls.__name__ in _UNVERSIONED else f"V1{cls.__name__}"
    ours = [camel(attribute) for attribute in _annotations(cls)]
    findings.suggestions_left -= 1
    may_suggest = findings.suggestions_left >= 0
    try:
        theirs = known_fields.fields_of(kubernetes_type)
    except KeyError:  # a type of Evenkeel
        meant = known_fields.closest(name, ours) if may_suggest else None
        findings.problems.append(_no_such_field(here, meant, ours))
        return
    if name in theirs:
        unknown_below(theirs[name], value, here, findings)
        _not_ours(kubernetes_type, name, value, here, findings)
        return
    meant = known_fields.meant(name, kubernetes_type, ours) if may_suggest else None
    findings.problems.append(_no_such_field(here, meant, ours))


def _not_ours(kubernetes_type: str, name: str, value: object, path: str, findings: Findings) -> None:
    from evenkeel.api import pod_fields

    rule = pod_fields.rule_of(kubernetes_type, name)
    if rule is None:
        findings.not_honoured.append(path)
    elif refusal := pod_fields.refusal(rule, value):
        what = "" if isinstance(value, list | Mapping) else f"{seen(value)} "
        findings.refused.append(Problem(path, f"{what}is not supported here: {refusal}", NODE_RULE))


def unknown_below(notation: str, value: object, path: str, findings: Findings) -> None:
    """Reports every problem inside `value`, which has a Kubernetes type without a class here."""
    from evenkeel.api import known_fields

    for found in known_fields.unknown_below(notation, value, path):
        if isinstance(found, known_fields.Unknown):
            findings.problems.append(_no_such_field(found.path, found.closest))
        else:
            findings.wrong_shape(found.path, f"must be {found.due}, not {seen(found.value)}")


def _no_such_field(path: str, meant: str | None, names: Iterable[str] = ()) -> Problem:
    there_are = f"; there are {_some(names)}" if names else ""
    message = f"no such field; did you mean {meant}?" if meant else f"no such field{there_are}"
    return Problem(path, message, UNKNOWN_FIELD)


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:6]) + (" and others" if len(ordered) > 6 else "")


def _raw(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(getattr(value, "text", value))


def seen(value: object) -> str:
    """A short description of `value` for messages."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return f'the text "{value[:40]}"' + ("…" if len(value) > 40 else "")
    return _raw(value)[:40]
