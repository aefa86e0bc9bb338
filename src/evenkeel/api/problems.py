"""Problems in documents: the kinds of mistakes, the paths of fields (`spec.containers[0].name`), and their lines.

Validation, decoding and manifests report problems with the same words, because they all make them here.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from evenkeel.api.lined_values import Document, LinedDict, LinedList
from evenkeel.errors import NODE_RULE, Problem

Problems = Iterator[Problem]

_LONGEST_SHOWN = 60
_LONGEST_INDEX = 9


def required(field: str, message: str) -> Problem:
    return Problem(field, message, "FieldValueRequired")


def invalid(field: str, message: str) -> Problem:
    return Problem(field, message, "FieldValueInvalid")


def forbidden(field: str, message: str) -> Problem:
    return Problem(field, message, "FieldValueForbidden")


def duplicate(field: str, message: str) -> Problem:
    return Problem(field, message, "FieldValueDuplicate")


def not_found(field: str, message: str) -> Problem:
    return Problem(field, message, "FieldValueNotFound")


def too_long(field: str, message: str) -> Problem:
    return Problem(field, message, "FieldValueTooLong")


def too_many(field: str, seen: int, most: int) -> Problem:
    return Problem(field, f"has {seen} items, and may have {most}", "FieldValueTooMany")


def not_supported(field: str, seen: str, supported: Sequence[str]) -> Problem:
    return Problem(field, f"{shown(seen)} is not one of {one_of(supported)}", "FieldValueNotSupported")


def unusable(field: str, message: str) -> Problem:
    """The pod is valid in Kubernetes, but this node cannot run it."""
    return Problem(field, message, NODE_RULE)


def without_effect(field: str, names: Sequence[str]) -> Problem:
    """One warning for all these fields, at the first of them. A single field is not named twice."""
    others = f": {', '.join(names)}" if len(names) > 1 else ""
    return Problem(field, f"not honoured here, and without effect{others}")


def one_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def shown(text: str) -> str:
    """`text` in quotes, without control characters and short enough for a line."""
    clipped = text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
    return '"' + "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in clipped) + '"'


# Paths and lines


def join(path: str, field: str) -> str:
    return f"{path}.{field}" if path and field else path or field


def without_indices(path: str) -> str:
    return re.sub(r"\[\d+\]", "[]", path)


def line_of(document: Document, field: str) -> int:
    """The line of `field`, or of the innermost field around it that is in the document."""
    value, line = document.value, document.line
    if not field:
        return line
    for name, index in re.findall(r"([^.\[\]]+)|\[([^\]]*)\]", field):
        if isinstance(value, LinedList) and (place := _index(index)) is not None and place < len(value):
            line, value = value.lines[place], value[place]
        elif isinstance(value, LinedDict) and (name or index) in value.lines:
            line, value = value.lines[name or index], value[name or index]
        else:
            break
    return line


class Misshapen:
    """Fields that could not be decoded. Problems that only follow from that are not reported."""

    def __init__(self, fields: Collection[str]) -> None:
        self._fields = frozenset(fields)
        self._around = frozenset(outer for field in fields for outer in _outwards(field))

    def explains(self, field: str, kind: str) -> bool:
        """Whether a problem of `field` may only follow from a misshapen field: `field` is inside of one, or it is
        reported as missing and may have been inside of one."""
        if not self._fields:
            return False
        if kind == "FieldValueRequired" and field in self._around:
            return True
        return any(outer in self._fields for outer in _outwards(field))


def _index(text: str) -> int | None:
    """None if the text is not an index: a key of a mapping can contain brackets, too."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_INDEX else None


def _outwards(field: str) -> Iterator[str]:
    """`field`, and each path around it."""
    yield field
    for end in range(len(field) - 1, 0, -1):
        if field[end] in ".[":
            yield field[:end]


def number_problems(value: int | None, field: str, most: int = 2**31 - 1) -> Problems:
    if value is not None and not 0 <= value <= most:
        yield invalid(field, f"must be a whole number from 0 to {most}, not {value}")


def choice_problems(value: str, field: str, known: tuple[str, ...]) -> Problems:
    if value and value not in known:
        yield not_supported(field, value, known)
