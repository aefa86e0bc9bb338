"""The figures of all nodes as one table for numpy: a row for each figure, a column for each node.

The table holds floats, because numpy takes three times as long to divide integers. The result is still exact. Let a and
b be whole numbers with b ≤ 2^46 and a ≤ 100·b, so that both are exact as floats. If a/b is not a whole number, it is at
least 1/b ≥ 2^-46 away from the next one. Floats up to 100 are at most 2^-46 apart, and division gives the nearest of
them. So it cannot reach that whole number, and rounding down gives a // b. A node with larger figures, or without a
resource that every pod is compared by, is left to the plain loop.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evenkeel.api.resources import CPU, MEMORY
from evenkeel.named_tuples import NamedTuple
from evenkeel.simulate.node_info import Amounts, NodeInfo, PodDemand, is_scalar
from evenkeel.simulate.plain_cluster import MAX_SCORE, Scoring, Strategy, evenness, skips_balance

Floats = NDArray[np.float64]
Places = NDArray[np.intp]
Truths = NDArray[np.bool_]

MAX_EXACT = 2**46
OUT_OF_REACH = 2 * MAX_EXACT  # stands for every amount that is larger than any node of the table
NOTHING_NEEDED = -np.inf
SLOTS = 0  # the row with the number of pods that a node may still take


class Comparison(NamedTuple):
    """The figures that nodes are compared by: first those that the strategy weighs, then those of the balance."""

    number: int  # among the comparisons of its table
    rows: slice | Places  # among the compared ones
    compared: int  # number of rows
    weighed: int  # number of rows that the strategy weighs
    weights: Floats | None  # a column; None if all are 1
    divisors: Floats  # of the strategy's sum and of the balance: a column, or 2 for both
    is_usual: bool  # the table has the evenness without the pod


class Offered(NamedTuple):
    """What nodes have: rows of figures, one column for each node."""

    free: Floats
    figures: Floats
    capacities: Floats
    before: Floats | None  # 150 − the evenness without the pod; None if the table does not have it


class Asked(NamedTuple):
    """What pods ask for: rows of amounts, one column for each pod."""

    needed: Floats  # compared with the first rows of `Offered.free`
    added: Floats  # to the figures of the node
    balances: Floats | None  # 0 if the balance is skipped, else 1; None if all are 1
    may_exceed: bool  # a pod may fit a node that is overfull in a compared resource


class Shape(NamedTuple):
    """Everything that the table must know of a pod."""

    comparison: Comparison
    asked: Asked
    growth: Floats  # added to the column of its node
    is_plain: bool  # the table cannot answer for this pod


class NodeTable:
    """The table. Its rows, in this order: the number of pods that still fit; the free amount of each resource; the
    figures that nodes are compared by (for the strategy 100 × the amount left, or 100 × the amount in use unless it is
    LeastAllocated; for the balance the amount requested); the capacities that divide these figures; the balance
    without the pod."""

    def __init__(self, nodes: Sequence[NodeInfo], scoring: Scoring) -> None:
        names = {name for node in nodes for name in node.allocatable}
        self._scoring = scoring
        self._is_least = scoring.strategy is Strategy.LEAST_ALLOCATED
        self._free = sorted(names, key=lambda name: (name != CPU, name != MEMORY, name))
        # A resource that no node has is left out.
        self._weights = {name: weight for name, weight in scoring.resources if name in names}
        self._weighed = tuple(self._weights)
        self._balanced = tuple(name for name in scoring.balanced if name in names)
        self._rare = frozenset(name for name in self._weighed + self._balanced if is_scalar(name))
        self._usual = tuple(name for name in self._balanced if name not in self._rare)
        self._everywhere = {*self._weighed, *self._balanced} - self._rare
        compared = len(self._weighed) + len(self._balanced)
        self._nothing = [0] * (compared + 1)
        self._figures_at = 1 + len(self._free)
        self._capacities_at = self._figures_at + compared
        self._before_at = self._capacities_at + compared
        self.free_rows = {name: 1 + index for index, name in enumerate(self._free)}
        self._comparisons: dict[tuple[tuple[str, ...], tuple[str, ...]], Comparison] = {}
        self.plain: set[int] = set()  # the nodes that are left to the plain loop
        columns = [self._column(node, place) for place, node in enumerate(nodes)]
        self.values: Floats = np.array(columns, np.float64).reshape(len(nodes), self._before_at + 1).T.copy()

    def offered(self, by: Comparison, place: int | None = None) -> Offered:
        """What all nodes have, or the node in the column `place`."""
        values = self.values if place is None else self.values[:, place : place + 1]
        return Offered(
            values[: self._figures_at],
            values[self._figures_at : self._capacities_at][by.rows],
            values[self._capacities_at : self._before_at][by.rows],
            values[self._before_at] if by.is_usual else None,
        )

    def grow(self, place: int, node: NodeInfo, shape: Shape) -> None:
        """Add a pod of that shape to the node in the column `place`."""
        column = self.values[:, place]
        np.add(column, shape.growth, column)
        if max(*node.requested.values(), *node.occupied.values()) > MAX_EXACT:
            self.plain.add(place)
        elif place not in self.plain:
            column[self._before_at] = self._before(node)

    def shape_of(self, pod: PodDemand) -> Shape:
        needed, requests, scored, occupied = map(_within_reach, pod[:4])
        weighed, balanced = self._weighed, self._balanced
        if self._rare:  # these count only for pods that request them
            weighed = tuple(name for name in weighed if name not in self._rare or scored.get(name))
            balanced = tuple(name for name in balanced if name not in self._rare or requests.get(name))
        requested = requests.get
        sign = -MAX_SCORE if self._is_least else MAX_SCORE
        column: list[float] = [-1, *[-requested(name, 0) for name in self._free]]
        column += [sign * occupied.get(name, 0) for name in self._weighed]
        column += [requested(name, 0) for name in self._balanced]
        column += self._nothing
        growth = len(column)
        column += [sign * scored.get(name, 0) for name in weighed]
        column += [requested(name, 0) for name in balanced]
        added = len(column)
        column += self._must_be_free(needed)
        numbers: Floats = np.array(column, np.float64)
        return Shape(
            self._comparisons.get((weighed, balanced)) or self._comparison(weighed, balanced),
            Asked(
                needed=numbers[added:, np.newaxis],
                added=numbers[growth:added, np.newaxis],
                balances=np.zeros(1) if skips_balance(requests, self._scoring.balanced) else None,
                may_exceed=any(not 0 < requested(name, 0) <= needed.get(name, 0) for name in balanced),
            ),
            growth=numbers[:growth],
            # It needs a resource that no node has, or is compared by one that it does not need and its node may lack.
            is_plain=not needed.keys() <= self.free_rows.keys()
            or any(name in self._rare and name not in needed for name in weighed + balanced),
        )

    def _comparison(self, weighed: tuple[str, ...], balanced: tuple[str, ...]) -> Comparison:
        rows = [index for index, name in enumerate(self._weighed) if name in weighed]
        rows += [len(self._weighed) + index for index, name in enumerate(self._balanced) if name in balanced]
        weights = [self._weights[name] for name in weighed]
        is_ratio = self._scoring.strategy is Strategy.REQUESTED_TO_CAPACITY_RATIO
        divisor = 1 if is_ratio else sum(weights) or 1
        made = self._comparisons[weighed, balanced] = Comparison(
            number=len(self._comparisons),
            # A view if all rows are compared, which is the usual case; otherwise a copy.
            rows=np.array(rows, np.intp)
            if weighed + balanced != self._weighed + self._balanced
            else slice(None),
            compared=len(rows),
            weighed=len(weighed),
            weights=_as_column(weights) if any(weight != 1 for weight in weights) else None,
            divisors=np.array(2.0) if divisor == 2 else _as_column([divisor, 2]),
            is_usual=balanced == self._usual,
        )
        return made

    def _column(self, node: NodeInfo, place: int) -> list[float]:
        allocatable, requested, occupied = node.allocatable, node.requested, node.occupied
        column: list[float] = [node.allowed_pods - node.pods]
        column += (allocatable.get(name, 0) - requested.get(name, 0) for name in self._free)
        for name in self._weighed:
            used = occupied.get(name, 0)
            column.append(MAX_SCORE * (allocatable.get(name, 0) - used if self._is_least else used))
        column += (requested.get(name, 0) for name in self._balanced)
        column += (allocatable.get(name, 0) or 1 for name in self._weighed + self._balanced)
        largest = max((0, *allocatable.values(), *requested.values(), *occupied.values()))
        if largest > MAX_EXACT or not all(map(allocatable.get, self._everywhere)):
            self.plain.add(place)
        column.append(0 if place in self.plain else self._before(node))
        return column

    def _before(self, node: NodeInfo) -> float:
        used = [node.requested.get(name, 0) for name in self._usual]
        return 1.5 * MAX_SCORE - evenness(used, [node.allocatable[name] for name in self._usual])

    def _must_be_free(self, needed: dict[str, int]) -> list[float]:
        """One place for a pod and what the pod needs, up to the last row that it needs anything of."""
        last = max((self.free_rows.get(name, 0) for name in needed), default=0)
        return [1, *[needed.get(name, NOTHING_NEEDED) for name in self._free[:last]]]


def _within_reach(amounts: Amounts) -> dict[str, int]:
    return {name: min(amount, OUT_OF_REACH) for name, amount in amounts}


def _as_column(numbers: Sequence[float]) -> Floats:
    return np.array(numbers, np.float64).reshape(-1, 1)
