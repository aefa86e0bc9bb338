"""The flags of `get` that choose and order objects by their fields, and that add columns of labels, as in kubectl."""

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any

from evenkeel.errors import EvenkeelError

Json = dict[str, Any]
_TERM = re.compile(r"\s*(?P<path>[A-Za-z][-A-Za-z0-9_.\[\]]*)\s*(?P<sign>==|=|!=)\s*(?P<value>[^,]*?)\s*\Z")


def add_listing_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--field-selector", metavar="FIELDS", help="only those with these values: status.phase=Running"
    )
    parser.add_argument(
        "--sort-by", metavar="PATH", help="in the order of a field: .metadata.creationTimestamp"
    )
    parser.add_argument(
        "-L", "--label-columns", metavar="LABELS", help="a column for each of these labels: app,tier"
    )
    parser.add_argument("--no-headers", action="store_true", help="no line with the heads of the columns")


def field_selector(text: str | None) -> Callable[[Json], bool]:
    """A function that says whether an object has the values of `--field-selector`. Raises EvenkeelError."""
    wanted = []
    for part in text.split(",") if text is not None else ():
        term = _TERM.match(part)
        if term is None:
            raise EvenkeelError(
                f'--field-selector: "{part[:60]}" is not PATH=VALUE or PATH!=VALUE, such as status.phase=Running'
            )
        wanted.append((term["path"].split("."), term["value"], term["sign"] == "!="))
    return lambda one: all((_value(one, path) == value) != is_negated for path, value, is_negated in wanted)


def _value(one: object, path: Sequence[str]) -> str:
    for name in path:
        one = one.get(name) if isinstance(one, dict) else None
    if isinstance(one, bool):
        return "true" if one else "false"
    return "" if one is None else str(one)


def in_order(found: list[Json], path: str | None) -> list[Json]:
    """By namespace and name, as the API server gives them; with `--sort-by`, by the value at the path. Raises
    EvenkeelError."""
    found = sorted(found, key=lambda one: (one["metadata"].get("namespace", ""), one["metadata"]["name"]))
    if path is None:
        return found
    from evenkeel.cli import jsonpath
    from evenkeel.cli.jsonpath_reader import parse, relaxed

    template = parse(relaxed(path))

    def key(one: Json) -> tuple[int, float, str]:
        values = [value for part in jsonpath.found(template, one) for value in part]
        if not values or values[0] is None:
            return 0, 0.0, ""
        if isinstance(values[0], int | float):
            return 1, float(values[0]), ""
        return 2, 0.0, str(values[0])

    return sorted(found, key=key)


def label_names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()
