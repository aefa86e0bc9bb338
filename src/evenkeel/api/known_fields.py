"""Every field that Kubernetes has, to tell a field that Evenkeel does not support from a field that does not exist.

The first is refused or has no meaning here (`pod_fields`). The second is a typing error, and the error suggests the
right name. This works at any depth: a misspelt field inside `spec.affinity` is an error, although Evenkeel does nothing
with affinity.

The table (`known_fields_table`, written by `tools/known_fields.py`) is type → field → notation. A notation is
    `string` `integer` `number` `boolean`  the scalars of JSON
    `quantity`                             a string or a number, as `500m`, `1Gi`, `2`
    `int-or-string`                        a port's number or name, `25%`, …
    `date-time` `duration`                 strings
    `any`                                  not described any further
    `V1Container`                          a type of the table
    `T[]`                                  a list of T
    `{T}`                                  a map from strings to T

This module is imported only when an unknown field is found, so that other input does not pay for the table.
"""

from collections.abc import Iterable, Iterator, Mapping

from evenkeel.api.known_fields_table import TYPES
from evenkeel.named_tuples import NamedTuple


class Unknown(NamedTuple):
    """A field that Kubernetes does not have. `path` ends with `name`; `closest` is the field that was probably
    meant."""

    path: str
    name: str
    closest: str | None


class Misshapen(NamedTuple):
    """A value that does not have the type of its field. `due` describes the right type."""

    path: str
    value: object
    due: str


def fields_of(type_name: str) -> Mapping[str, str]:
    """The fields of a type (`V1PodSpec`, `KubeletConfiguration`) with the notation of each."""
    return TYPES[type_name]


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that was probably meant by `name`; None if none is close enough."""
    by_letters = {_letters(candidate): candidate for candidate in sorted(candidates, reverse=True)}
    letters = _letters(name)
    if not 1 < len(letters) < _LONGEST_NAME:
        return None
    for number in (letters, letters + "s", letters.removesuffix("s")):  # `cgroups-per-qos`, `limit`, `images`
        if number in by_letters:
            return by_letters[number]
    from difflib import get_close_matches

    # A word of three letters with two letters exchanged has a similarity of 2/3.
    if near := get_close_matches(letters, by_letters, n=1, cutoff=0.72 if len(letters) > 3 else 0.65):
        return by_letters[near[0]]
    longer = [candidate for other, candidate in by_letters.items() if _contains(letters, other)]
    return longer[0] if len(longer) == 1 else None


def meant(name: str, type_name: str, ours: Iterable[str] = ()) -> str | None:
    """The field of the type, or of `ours`, that was probably meant by `name`.

    If there is none, a field one level deeper, if only one place has it: `limits` in a container is `resources.limits`.
    """
    fields = fields_of(type_name)
    deeper = [f"{field}.{name}" for field, notation in fields.items() if name in TYPES.get(notation, ())]
    return closest(name, {*fields, *ours}) or (deeper[0] if len(deeper) == 1 else None)


def unknown_below(notation: str, value: object, path: str) -> Iterator[Unknown | Misshapen]:
    """Everything that is wrong in a plain value (from YAML or JSON) of that notation.

    Paths are written as in Kubernetes: `spec.tolerations[0].key`, `metadata.labels[app]`. A value that occurs twice (a
    YAML alias) is examined once, so that cycles and "billion laughs" cost no more than their text.
    """
    return _Walk().below(notation, value, path)


class _Walk:
    def __init__(self) -> None:
        self.met: set[tuple[int, str]] = set()
        self.suggestions_left = 100  # each costs half a millisecond, and a reader needs no more

    def below(self, notation: str, value: object, path: str) -> Iterator[Unknown | Misshapen]:
        if value is None or notation == "any":  # null always means "not set"
            return
        if notation in _DUE:
            if not _fits(notation, value):
                yield Misshapen(path, value, _DUE[notation])
        elif notation.endswith("[]"):
            if not isinstance(value, list):
                yield Misshapen(path, value, "a list")
            elif self._first_time(notation, value):
                for index, item in enumerate(value):
                    yield from self.below(notation[:-2], item, f"{path}[{index}]")
        elif not isinstance(value, dict):
            yield Misshapen(path, value, "a mapping")
        elif self._first_time(notation, value):
            if notation.startswith("{"):
                for key, item in value.items():
                    yield from self.below(notation[1:-1], item, f"{path}[{_key(key)}]")
            else:
                yield from self._fields(notation, value, path)

    def _fields(
        self, type_name: str, value: dict[object, object], path: str
    ) -> Iterator[Unknown | Misshapen]:
        fields = fields_of(type_name)
        for key, item in value.items():
            name = _key(key)
            where = f"{path}.{name}" if path else name
            if name in fields:
                yield from self.below(fields[name], item, where)
            else:
                yield Unknown(where, name, self._meant(name, type_name))

    def _meant(self, name: str, type_name: str) -> str | None:
        self.suggestions_left -= 1
        return meant(name, type_name) if self.suggestions_left >= 0 else None

    def _first_time(self, notation: str, value: object) -> bool:
        visit = (id(value), notation)
        first = visit not in self.met
        self.met.add(visit)
        return first


# No field is half as long. To compare longer names would only cost time.
_LONGEST_NAME = 100

_DUE = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "quantity": "a quantity such as 500m or 1Gi",
    "int-or-string": "a whole number or a string",
    "date-time": "a time such as 2026-01-31T12:00:00Z",
    "duration": "a duration such as 30s or 1m30s",
}


def _fits(notation: str, value: object) -> bool:
    if isinstance(value, bool):
        return notation == "boolean"
    number = isinstance(value, (int, float))
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    # Everything that is no list, map, number or boolean is a text.
    text = not number and not isinstance(value, (list, dict))
    match notation:
        case "boolean":
            return False
        case "integer":
            return whole
        case "number":
            return number
        case "quantity":
            return text or number
        case "int-or-string":
            return text or whole
    return text


def _key(key: object) -> str:
    """The key of a map as in JSON: `on:` in YAML is `true`, `1:` is `1`."""
    if isinstance(key, str):
        return key
    return "null" if key is None else str(key).lower()


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _contains(letters: str, other: str) -> bool:
    if len(letters) > 3:
        return letters in other  # `gracePeriodSeconds` in `terminationGracePeriodSeconds`
    rest = iter(other)
    return len(other) < 9 and letters[0] == other[0] and all(letter in rest for letter in letters)  # `cmd`
