"""The forms of `get -o`: a wide table, names, whole objects, or what a template takes from them, as in kubectl."""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

from evenkeel.cli.output import STRUCTURED, Table, print_structured, printable_lines
from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple

WORDS = ("wide", "name", *STRUCTURED)
JSONPATH = "jsonpath="
COLUMNS = "custom-columns="


class Column(NamedTuple):
    head: str
    cell: Callable[[object], str]  # the cell of an object


def add_output_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        type=_checked,
        metavar="FORM",
        help=f"not a table, but {', '.join(WORDS)}, {JSONPATH}TEMPLATE or {COLUMNS}HEAD:PATH,… (kubectl's templates)",
    )


def _checked(text: str) -> str:
    """The form, once its template can be read."""
    try:
        is_known = text in WORDS or bool(columns_of(text)) or bool(text_maker(text))
    except EvenkeelError as error:
        raise argparse.ArgumentTypeError(error.message) from None
    if not is_known:
        raise argparse.ArgumentTypeError(
            f'"{text[:60]}" is not one of {", ".join(WORDS)}, {JSONPATH}TEMPLATE and {COLUMNS}HEAD:PATH,…'
        )
    return text


def takes_whole(form: str | None) -> bool:
    """Whether the form is of one object, or of a list of them, and not of a row for each."""
    return form is not None and (form in STRUCTURED or form.startswith(JSONPATH))


def print_whole(value: object, form: str) -> None:
    """Prints one object, or a list of them, in a form for which `takes_whole` holds. Raises EvenkeelError."""
    text_of = text_maker(form)
    if text_of is None:
        print_structured(value, form)
        return
    text = text_of(value)
    if sys.stdout.isatty():  # a message may hold output of any program
        text = "\t".join(map(printable_lines, text.split("\t")))
    sys.stdout.write(text)
    sys.stdout.flush()


def text_maker(form: str) -> Callable[[object], str] | None:
    """The text of an object by the template of `jsonpath=…`; None for another form. Raises EvenkeelError."""
    if not form.startswith(JSONPATH):
        return None
    from evenkeel.cli.jsonpath import text_of
    from evenkeel.cli.jsonpath_reader import parse

    return partial(text_of, parse(form.removeprefix(JSONPATH)))


def columns_of(form: str | None) -> list[Column]:
    """The columns of `custom-columns=HEAD:PATH,…`; none for another form. Raises EvenkeelError."""
    if form is None or not form.startswith(COLUMNS):
        return []
    from evenkeel.cli.jsonpath import cell_of
    from evenkeel.cli.jsonpath_reader import parse, relaxed

    columns = []
    for text in form.removeprefix(COLUMNS).split(","):
        head, _, path = text.partition(":")
        if not head or not path:
            raise EvenkeelError(f'"{text[:60]}" is no column: write HEAD:PATH, such as NAME:.metadata.name')
        columns.append(Column(head, partial(cell_of, parse(relaxed(path)))))
    return columns


def heads_of(columns: Sequence[Column]) -> list[str]:
    return [column.head for column in columns]


def cells_of(columns: Sequence[Column], value: object) -> list[str]:
    return [column.cell(value) for column in columns]


def print_columns(columns: Sequence[Column], value: object) -> None:
    """A table of one object."""
    Table(heads_of(columns)).print_rows([cells_of(columns, value)])
