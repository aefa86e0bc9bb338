"""Templates of `-o jsonpath=…` and `-o custom-columns=…`, in the dialect of kubectl, applied to objects. Pure.

The dialect is not that of RFC 9535: paths stand in braces with text around them, `{range}` and `{end}` repeat a part,
dots of a name are escaped, and a missing field is skipped. `jsonpath_reader` reads the text of a template."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple

Value = Any  # of JSON
FEWEST = 1  # of steps in a slice


class JsonPathError(EvenkeelError):
    """A template that cannot be read, or does not fit the object."""


class Field(NamedTuple):
    name: str


class Every(NamedTuple):
    """All members of an object, or all elements of a list: `*`."""


class Below(NamedTuple):
    """The value and everything below it that has something below itself: `..`."""


class Slice(NamedTuple):
    """Elements of a list. An index is a slice of one element."""

    first: int | None
    last: int | None
    step: int | None
    is_index: bool


class Union(NamedTuple):
    paths: tuple["Path", ...]


class Filter(NamedTuple):
    """Elements for which `left` exists, or compares with `right`."""

    left: "Path"
    operator: str = ""
    right: "Path" = ()


class Literal(NamedTuple):
    value: str | int | float | bool


Step = Field | Every | Below | Slice | Union | Filter | Literal
Path = tuple[Step, ...]


class Range(NamedTuple):
    """Parts that are repeated for each value of the path."""

    path: Path
    parts: "Template"


Template = tuple[Path | Range, ...]


def found(template: Template, value: Value) -> list[list[Value]]:
    """The values of each path and text, in order. Raises JsonPathError."""
    results: list[list[Value]] = []
    for part in template:
        if isinstance(part, Range):
            for one in _walk(part.path, [value]):
                results += found(part.parts, one)
        else:
            results.append(_walk(part, [value]))
    return results


def text_of(template: Template, value: Value) -> str:
    """The text that kubectl prints for the object. Raises JsonPathError."""
    return "".join(" ".join(map(_printed, values)) for values in found(template, value))


def cell_of(template: Template, value: Value) -> str:
    """The same for a column: with commas, and `<none>` if there is nothing."""
    return ",".join(_printed(one) for values in found(template, value) for one in values) or "<none>"


def _printed(value: Value) -> str:
    if isinstance(value, str):
        return value
    # Go escapes these three in JSON.
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    if isinstance(value, dict | list):
        for sign in "<>&":
            written = written.replace(sign, f"\\u{ord(sign):04x}")
    return written


# Values


def _walk(path: Path, values: list[Value]) -> list[Value]:
    for step in path:
        match step:
            case Literal():
                values = [step.value for _ in values]
            case Field():
                values = [one[step.name] for one in values if isinstance(one, dict) and step.name in one]
            case Every():
                values = [member for one in values for member in _members(one)]
            case Below():
                values = [one for value in values for one in _below(value)]
            case Slice():
                values = [element for one in values for element in _sliced(step, one)]
            case Union():
                values = [one for path in step.paths for one in _walk(path, values)]
            case Filter():
                values = [element for one in values for element in _filtered(step, one)]
    return values


def _members(value: Value) -> Iterable[Value]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _below(value: Value) -> Iterator[Value]:
    members = _members(value)
    if members or (isinstance(value, str) and value):
        yield value
    for member in members:
        yield from _below(member)


def _sliced(step: Slice, value: Value) -> Sequence[Value]:
    if value is None:
        return ()
    elements = _list(value, "[…]")
    count = len(elements)
    first = step.first or 0
    first += count if first < 0 else 0
    if step.is_index:
        if not 0 <= first < count:
            raise JsonPathError(f"[{step.first}] is outside a list of {count}")
        return (elements[first],)
    last = count if step.last is None else step.last
    last += count if last < 0 else 0
    if first == last:
        return ()
    if not (0 <= first < last <= count):
        raise JsonPathError(f"[{_shown(step.first)}:{_shown(step.last)}] is outside a list of {count}")
    return elements[first : last : step.step or FEWEST]


def _shown(index: int | None) -> str:
    return "" if index is None else str(index)


def _filtered(step: Filter, value: Value) -> Iterator[Value]:
    for element in _list(value, "[?(…)]"):
        if not step.operator:
            if _exists(step.left, element):
                yield element
            continue
        left = _walk(step.left, [element])
        right = _walk(step.right, [element])
        if left and right and _compares(_only(left), step.operator, _only(right)):
            yield element


def _exists(path: Path, value: Value) -> bool:
    try:
        return bool(_walk(path, [value]))
    except JsonPathError:  # an index outside a list, or into what is no list
        return False


def _only(values: list[Value]) -> Value:
    if len(values) > 1:
        raise JsonPathError(f"a filter compares one value, and here are {len(values)}")
    return values[0]


def _compares(left: Value, operator: str, right: Value) -> bool:
    is_ordered = operator not in ("==", "!=")
    kinds = {type(left), type(right)}
    if len(kinds) > 1 or not kinds <= {str, int, float, bool} or (is_ordered and bool in kinds):
        raise JsonPathError(
            f"a filter cannot compare {_printed(left)[:40]} with {_printed(right)[:40]} by {operator}: texts stand in "
            "quotes, and numbers without"
        )
    match operator:
        case "==":
            return bool(left == right)
        case "!=":
            return bool(left != right)
        case "<":
            return bool(left < right)
        case "<=":
            return bool(left <= right)
        case ">":
            return bool(left > right)
        case _:
            return bool(left >= right)


def _list(value: Value, step: str) -> list[Value]:
    if not isinstance(value, list):
        raise JsonPathError(f"{step} is for lists, and this is none: {_printed(value)[:60]}")
    return value
