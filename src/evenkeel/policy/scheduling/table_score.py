"""The rules of `fit` and `score` on whole rows of a `NodeTable`, operation by operation.

With a few hundred nodes what numpy does around the arithmetic takes longer than the arithmetic: so rows go
through an operation together where they can, results go where they are needed, and numbers are arrays.
"""

import numpy as np
from numpy import absolute, add, divide, floor, less, logical_or, maximum, minimum, multiply, subtract

from evenkeel.policy.scheduling.node_table import Floats, Shape, Truths
from evenkeel.policy.scheduling.score import MAX_SCORE, Scoring, Strategy, shape_score

NOWHERE = -1.0

_ZERO, _HALF, _ONE, _MAX = (np.array(number) for number in (0.0, 0.5, 1.0, float(MAX_SCORE)))


class TableScore:
    """Scores for tables of up to `width` nodes."""

    def __init__(self, scoring: Scoring, width: int) -> None:
        self._strategy = scoring.strategy
        self._plugin_weights: Floats | None = None
        if scoring.strategy_weight != 1 or scoring.balanced_weight != 1:
            self._plugin_weights = np.array(
                [[scoring.strategy_weight], [scoring.balanced_weight]], np.float64
            )
        self._curve: Floats = np.array(
            [shape_score(scoring.shape, utilization) for utilization in range(MAX_SCORE + 1)], np.float64
        )
        self._parts: Floats = np.empty(width * (len(scoring.resources) + len(scoring.balanced)))
        self._both: Floats = np.empty(2 * width)

    def scores(self, table: Floats, shape: Shape, may_enter: Truths | None, out: Floats) -> None:
        """The score of every node of the table; −1 where the pod does not fit or its taints keep it out."""
        by = shape.comparison
        width = len(out)
        count = len(shape.added)
        parts = self._parts[: count * width].reshape(count, width)
        add(table[by.figure_rows], shape.added, parts)
        divide(parts, table[by.capacity_rows], parts)

        both = self._both[: 2 * width].reshape(2, width)
        strategy, balance = both
        self._weigh(parts[: by.weighed], by.weights, strategy)
        if shape.is_balanced:
            self._balance(table, parts[by.weighed :], shape, balance)
        else:
            balance.fill(0.0)
        divide(both, by.divisors, both)
        floor(both, both)
        if self._plugin_weights is not None:
            multiply(both, self._plugin_weights, both)
        add(strategy, balance, out)
        np.putmask(out, _misfits(table, shape, may_enter), NOWHERE)

    def _weigh(self, parts: Floats, weights: Floats | None, out: Floats) -> None:
        """The weighted sum of what the strategy gives each resource, to be divided by the weights' sum."""
        if self._strategy is Strategy.LEAST_ALLOCATED:
            maximum(parts, _ZERO, out=parts)
        else:
            minimum(parts, _MAX, out=parts)
        floor(parts, parts)
        if self._strategy is Strategy.REQUESTED_TO_CAPACITY_RATIO:
            self._follow_curve(parts, weights, out)
            return
        if weights is not None:
            multiply(parts, weights, parts)
        _total(parts, out)

    def _follow_curve(self, parts: Floats, weights: Floats | None, out: Floats) -> None:
        """RequestedToCapacityRatio: zeros count as no opinion, and the mean is rounded, half upwards."""
        values = self._curve[parts.astype(np.intp)]
        if weights is None:
            weights = np.ones((len(parts), 1))
        opinions = ((values > 0) * weights).sum(axis=0)
        _total(values * weights, out)
        divide(out, maximum(opinions, _ONE), out)
        add(out, _HALF, out)

    def _balance(self, table: Floats, parts: Floats, shape: Shape, out: Floats) -> None:
        """BalancedAllocation, to be halved: 100 + 50 + evenness with the pod − evenness without it."""
        if shape.may_exceed:
            minimum(parts, _ONE, out=parts)
        self._evenness(parts, out)
        by = shape.comparison
        if by.before_row:
            add(out, table[by.before_row], out)
            return
        figures, capacities = table[by.figure_rows][by.weighed :], table[by.capacity_rows][by.weighed :]
        before = minimum(divide(figures, capacities), _ONE)
        evenness: Floats = np.empty(len(out))
        self._evenness(before, evenness)
        subtract(out, evenness, out)
        add(out, 1.5 * MAX_SCORE, out)

    def _evenness(self, parts: Floats, out: Floats) -> None:
        """`score.evenness`: the same floats in the same order, since the result is cut to a whole number."""
        if len(parts) == 2:
            subtract(parts[0], parts[1], out)
            multiply(out, _HALF, out)
            absolute(out, out)
        elif len(parts) > 2:
            count = np.array(float(len(parts)))
            _total(parts, out)
            divide(out, count, out)
            subtract(parts, out, parts)
            multiply(parts, parts, parts)
            _total(parts, out)
            divide(out, count, out)
            np.sqrt(out, out)
        else:
            out.fill(0.0)
        subtract(_ONE, out, out)
        multiply(out, _MAX, out)
        floor(out, out)


def _total(parts: Floats, out: Floats) -> None:
    """Their sum, one after the other, as floats must be added to give what a loop gives."""
    if len(parts) == 2:
        add(parts[0], parts[1], out)
        return
    out.fill(0.0)
    for part in parts:
        add(out, part, out)


def _misfits(table: Floats, shape: Shape, may_enter: Truths | None) -> Truths:
    misfits: Truths = logical_or.reduce(less(table[: len(shape.needed)], shape.needed), axis=0)
    if may_enter is not None:
        logical_or(misfits, ~may_enter, misfits)
    return misfits
