"""The kinds of mistake, under the names that Kubernetes gives them in `causes[].reason`."""

from collections.abc import Iterator, Sequence

from evenkeel.errors import Problem

Problems = Iterator[Problem]

_LONGEST_SHOWN = 60


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


def not_supported(field: str, seen: str, supported: Sequence[str]) -> Problem:
    return Problem(field, f"{shown(seen)} is not one of {one_of(supported)}", "FieldValueNotSupported")


def one_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def shown(text: str) -> str:
    """`text` in quotes, with nothing in it that could disturb a terminal, and not too long for a line."""
    clipped = text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
    return '"' + "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in clipped) + '"'
