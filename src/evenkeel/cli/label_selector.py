"""Label selectors of the command line, in kubectl's grammar: `app=web,tier!=cache,env in (prod,test),!canary`."""

import re
from collections.abc import Callable, Mapping

from evenkeel.api.validation.name_rules import label_value, qualified_name
from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple

_KEY = r"[A-Za-z0-9][-A-Za-z0-9_./]*"
_VALUE = r"[-A-Za-z0-9_.]*"
_TERM = re.compile(
    rf"\s*(?:(?P<absent>!)\s*(?P<no_key>{_KEY})"
    rf"|(?P<key>{_KEY})(?:\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)"
    rf"|\s*(?P<sign>==|=|!=)\s*(?P<value>{_VALUE}))?)\s*(?:,|$)"
)


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
