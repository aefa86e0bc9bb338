"""Objects of any kind as `get` shows them: found by name or by labels, then printed as a table, as names, or whole."""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from evenkeel.cli.client import Client, found_by_name, reported
from evenkeel.cli.listing_flags import field_selector, in_order
from evenkeel.cli.output import NO_WIDTHS, NONE, Table
from evenkeel.cli.output_forms import cells_of, columns_of, heads_of, print_whole, takes_whole
from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple

Json = dict[str, Any]
Row = Callable[[Json], list[str]]
NO_NAMES: Mapping[str, Sequence[str]] = MappingProxyType({})
_NAME_COLUMN = 0
_KEY = r"[A-Za-z0-9][-A-Za-z0-9_./]*"
_VALUE = r"[-A-Za-z0-9_.]*"
_TERM = re.compile(
    rf"\s*(?:(?P<absent>!)\s*(?P<no_key>{_KEY})"
    rf"|(?P<key>{_KEY})(?:\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)"
    rf"|\s*(?P<sign>==|=|!=)\s*(?P<value>{_VALUE}))?)\s*(?:,|$)"
)


class Listing(NamedTuple):
    """How the objects of one kind are found and shown. `in_namespace` takes an empty namespace for all of them. `table`
    is asked for the heads and the row of an object; the first column is its name."""

    plural: str
    in_namespace: Callable[[Client, str], list[Json]]
    by_name: Callable[[Client, str, str], Json]
    full_name: Callable[[Json], str]
    table: Callable[["Request"], tuple[list[str], Row]]


def add_selector_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-l", "--selector", metavar="LABELS", help="only those with these labels: app=web,tier!=db"
    )


def selecting(selector: str | None) -> Callable[[Mapping[str, str]], bool]:
    """Whether labels are selected by the text of `--selector`; without it everything is."""
    if selector is None:
        return lambda labels: True  # noqa: ARG005

    return label_selector(selector)


class Request(NamedTuple):
    """The request of the user. An empty namespace stands for all of them."""

    client: Client
    namespace: str
    names: Sequence[str] = ()
    selects: Callable[[Mapping[str, str]], bool] = selecting(None)
    form: str | None = None
    shows_labels: bool = False
    has_fields: Callable[[Json], bool] = field_selector(None)
    sort_by: str | None = None
    label_columns: tuple[str, ...] = ()
    has_heads: bool = True

    @property
    def is_wide(self) -> bool:
        return self.form == "wide"

    def takes(self, one: Json) -> bool:
        meta = one["metadata"]
        return (
            (not self.names or meta["name"] in self.names)
            and self.selects(meta.get("labels", {}))
            and self.has_fields(one)
        )

    def found(self, listing: Listing) -> tuple[list[Json], list[str]]:
        """The objects, and why some could not be read."""
        if self.names:
            return found_by_name(self.names, lambda name: listing.by_name(self.client, self.namespace, name))
        found = [one for one in listing.in_namespace(self.client, self.namespace) if self.takes(one)]
        return in_order(found, self.sort_by), []


def show(listings: Sequence[Listing], request: Request, names: Mapping[str, Sequence[str]] = NO_NAMES) -> int:
    """Prints what was asked for, once. `names` has those of each kind, if each kind has its own. Returns the exit
    code."""
    answers = [
        (listing, *request._replace(names=names.get(listing.plural, request.names)).found(listing))
        for listing in listings
    ]
    failures = [failure for _, _, failed in answers for failure in failed]
    everything = [one for _, found, _ in answers for one in found]
    if request.form and takes_whole(request.form):
        if len(request.names) == 1 and len(everything) == 1:
            print_whole(everything[0], request.form)
        elif not failures:
            print_whole({"apiVersion": "v1", "kind": "List", "items": everything}, request.form)
        return reported(failures)
    is_first = True
    for listing, found, _ in answers:
        if found:
            if not is_first and request.form != "name":
                print()
            printer(listing, request, has_kinds=len(listings) > 1)(found)
            is_first = False
    if not everything and not failures and request.form != "name":
        what = listings[0].plural if len(listings) == 1 else "objects"
        print(f"no {what}{_where(request)}", file=sys.stderr)
    return reported(failures)


def _where(request: Request) -> str:
    return f" in namespace {request.namespace}" if request.namespace else ""


def printer(
    listing: Listing,
    request: Request,
    *,
    has_kinds: bool = False,
    widths: Mapping[str, int] = NO_WIDTHS,
) -> Callable[[Sequence[Json]], None]:
    """A function that prints objects, and can be called again for changes."""
    if request.form == "name":
        return lambda found: _print_lines(map(listing.full_name, found))
    if request.form and takes_whole(request.form):
        form = request.form
        return lambda found: _print_documents(found, form)
    if columns := columns_of(request.form):
        chosen = Table(heads_of(columns), widths, has_heads=request.has_heads)
        return lambda found: chosen.print_rows([cells_of(columns, one) for one in found])
    heads, row = listing.table(request)
    has_namespace = not request.namespace

    def cells(one: Json) -> list[str]:
        shown = row(one)
        if has_kinds:
            shown[_NAME_COLUMN] = listing.full_name(one)
        if has_namespace:
            shown.insert(0, one["metadata"].get("namespace", "default"))
        labels = one["metadata"].get("labels", {})
        shown += [labels.get(name, NONE) for name in request.label_columns]
        if request.shows_labels:
            shown.append(",".join(f"{key}={value}" for key, value in labels.items()) or NONE)
        return shown

    heads = [
        *(("NAMESPACE",) if has_namespace else ()),
        *heads,
        *(name.rpartition("/")[2].upper() for name in request.label_columns),
        *(("LABELS",) if request.shows_labels else ()),
    ]
    table = Table(heads, widths, has_heads=request.has_heads)
    return lambda found: table.print_rows([cells(one) for one in found])


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _print_documents(found: Sequence[Json], form: str) -> None:
    for one in found:
        print_whole(one, form)
        if form == "yaml":
            print("---")
        sys.stdout.flush()


class Requirement(NamedTuple):
    """Without `values`, the label must be there. `is_negated` turns the answer round."""

    key: str
    values: frozenset[str] | None
    is_negated: bool

    def holds(self, labels: Mapping[str, str]) -> bool:
        # An absent label has no value, so `!=` and `notin` take it.
        found = self.key in labels if self.values is None else labels.get(self.key) in self.values
        return found != self.is_negated


def label_selector(text: str) -> Callable[[Mapping[str, str]], bool]:
    """A function that says whether `text` selects labels. Raises EvenkeelError if it is no selector."""
    requirements = _requirements(text)
    return lambda labels: all(requirement.holds(labels) for requirement in requirements)


def _requirements(text: str) -> list[Requirement]:
    found, position = [], 0
    while position < max(1, len(text)):
        term = _TERM.match(text, position)
        if term is None or (term.end() == len(text) and text.rstrip().endswith(",")):
            raise _wrong(text, text[position:].strip())
        found.append(_requirement(term, text))
        position = term.end()
    return found


def _requirement(term: re.Match[str], text: str) -> Requirement:
    from evenkeel.api.validation.name_rules import label_value, qualified_name

    key = term["key"] or term["no_key"]
    if qualified_name(key):
        raise _wrong(text, key)
    values: frozenset[str] | None = None
    if term["set"]:
        values = frozenset(value.strip() for value in term["values"].split(","))
    elif term["sign"]:
        values = frozenset((term["value"],))
    for value in values or ():
        if label_value(value):
            raise _wrong(text, value)
    is_negated = bool(term["absent"]) or term["set"] == "notin" or term["sign"] == "!="
    return Requirement(key, values, is_negated)


def _wrong(text: str, part: str) -> EvenkeelError:
    return EvenkeelError(
        f'--selector: "{text[:80]}" cannot be read at "{part[:40]}"',
        hint="write app=web,tier!=cache,'env in (prod,test)',canary or '!canary'",
    )
