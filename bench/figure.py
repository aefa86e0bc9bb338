"""A measured figure beside its reference from the same run, and whether it met its target.

Machines differ, and so does their load. So the ratio to a reference from the same minutes counts."""

from statistics import median
from typing import Literal

from evenkeel.named_tuples import NamedTuple


class Target(NamedTuple):
    bound: float
    of: Literal["ratio", "value"]
    sense: Literal["≤", "≥"]

    def __str__(self) -> str:
        return f"{self.sense} {rounded(self.bound)}{' ×' if self.of == 'ratio' else ''}"


def ratio_at_most(bound: float) -> Target:
    return Target(bound, "ratio", "≤")


def value_at_most(bound: float) -> Target:
    return Target(bound, "value", "≤")


def value_at_least(bound: float) -> Target:
    return Target(bound, "value", "≥")


class Figure(NamedTuple):
    """`reference` is in the same unit as `value`. `failure` says why there is nothing to show."""

    name: str
    value: float | None
    unit: str
    reference: float | None
    ratio: float | None
    target: Target | None
    failure: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target was met; None if there is no target. A figure that could not be measured has not met
        it."""
        if self.target is None:
            return None if not self.failure else False
        measured = self.ratio if self.target.of == "ratio" else self.value
        if self.failure or measured is None:
            return False
        return measured <= self.target.bound if self.target.sense == "≤" else measured >= self.target.bound

    def __str__(self) -> str:
        target = f"target {self.target or 'none'}"
        if self.failure:
            return f"{self.name}: failed ({target}) MISSED: {self.failure}"
        reference = f"reference {rounded(self.reference)}, ratio {rounded(self.ratio)}, {target}"
        mark = {True: " met", False: " MISSED", None: ""}[self.met]
        return f"{self.name}: {rounded(self.value)} {self.unit} ({reference}){mark}"


def against(
    name: str, values: list[float], references: list[float], unit: str, target: Target | None
) -> Figure:
    """The medians of two measurements taken in turns, and their ratio."""
    value, reference = median(values), median(references)
    return Figure(name, value, unit, reference, value / reference, target)


def failed(name: str, why: str, target: Target | None) -> Figure:
    return Figure(name, None, "", None, None, target, why)


def rounded(number: float | None) -> str:
    """Rounded to four significant digits: no measurement here is more precise."""
    if number is None:
        return "none"
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"
