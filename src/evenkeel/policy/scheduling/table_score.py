"""The rules of `fit` and `score` on whole arrays: one pod against all nodes, or one node against many pods.

With a few hundred scores what numpy does around the arithmetic takes longer than the arithmetic: so rows go
through an operation together where they can, results go where they are needed, and numbers are arrays.
"""

import numpy as np
from numpy import absolute, add, divide, floor, less, logical_or, maximum, minimum, multiply, subtract

from evenkeel.policy.scheduling.node_table import Asked, Comparison, Floats, Offered, Truths
from evenkeel.policy.scheduling.score import MAX_SCORE, Scoring, Strategy, shape_score

NOWHERE = -1.0

_ZERO, _HALF, _ONE, _MAX = (np.array(number) for number in (0.0, 0.5, 1.0, float(MAX_SCORE)))


class Workspace:
    """Room for the steps on the way to `width` scores, made once and used again and again."""

    def __init__(self, by: Comparison, height: int, width: int) -> None:
        self.parts: Floats = np.empty((by.compared, width))
        self.weighed = self.parts[: by.weighed]
        self.balanced = self.parts[by.weighed :]
        self.both: Floats = np.empty((2, width))
        self.strategy, self.balance = self.both
        self.too_little: Truths = np.empty((height, width), np.bool_)
        self.misfits: Truths = np.empty(width, np.bool_)
        self.scores: Floats = np.empty(width)


class TableScore:
    def __init__(self, scoring: Scoring) -> None:
        self._strategy = scoring.strategy
        self._plugin_weights: Floats | None = None
        if scoring.strategy_weight != 1 or scoring.balanced_weight != 1:
            self._plugin_weights = np.array(
                [[scoring.strategy_weight], [scoring.balanced_weight]], np.float64
            )
        self._curve: Floats = np.array(
            [shape_score(scoring.shape, utilization) for utilization in range(MAX_SCORE + 1)], np.float64
        )

    def scores(self, by: Comparison, offered: Offered, asked: Asked, work: Workspace) -> Floats:
        """A score for each node of `offered`, or each pod of `asked`; −1 where there is too little.

        They are good until the workspace is used again.
        """
        add(offered.figures, asked.added, work.parts)
        divide(work.parts, offered.capacities, work.parts)
        self._weigh(work.weighed, by.weights, work.strategy)
        if asked.may_exceed:
            minimum(work.balanced, _ONE, out=work.balanced)
        _evenness(work.balanced, work.balance)
        if offered.before is None:
            _subtract_before(by, offered, work.balance)
        else:
            add(work.balance, offered.before, work.balance)
        divide(work.both, by.divisors, work.both)
        floor(work.both, work.both)
        if asked.balances is not None:
            multiply(work.balance, asked.balances, work.balance)
        if self._plugin_weights is not None:
            multiply(work.both, self._plugin_weights, work.both)
        add(work.strategy, work.balance, work.scores)

        rows = len(asked.needed)
        less(offered.free[:rows], asked.needed, work.too_little[:rows])
        logical_or.reduce(work.too_little[:rows], axis=0, out=work.misfits)
        np.putmask(work.scores, work.misfits, NOWHERE)
        return work.scores

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


def _subtract_before(by: Comparison, offered: Offered, balance: Floats) -> None:
    """What the table does not hold: the evenness without the pod."""
    parts = minimum(divide(offered.figures[by.weighed :], offered.capacities[by.weighed :]), _ONE)
    before: Floats = np.empty(parts.shape[1])
    _evenness(parts, before)
    subtract(balance, before, balance)
    add(balance, 1.5 * MAX_SCORE, balance)


def _evenness(parts: Floats, out: Floats) -> None:
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
