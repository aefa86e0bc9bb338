"""Values that know how and where they were written, as `api.yaml_text` reads them.

They need no YAML library. Who meets these values but reads no YAML does not load it: it takes a MiB, and a node of a
cluster reads none.
"""

from typing import Any, Self

from evenkeel.named_tuples import NamedTuple


class SpelledFloat(float):
    """A float that keeps its text: `0.1` is exact as text and not as a float."""

    text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number


class SpelledInt(int):
    """A number that is written in another way than in plain decimals: `0644` is 420."""

    text: str

    def __new__(cls, number: int, text: str) -> Self:
        one = super().__new__(cls, number)
        one.text = text
        return one


class LinedDict(dict[str, Any]):
    """A mapping that knows the line of each of its keys."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


class LinedList(list[Any]):
    """A list that knows the line of each of its items."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[int] = []


class Document(NamedTuple):
    value: object
    line: int
