"""The same choices as `plain_cluster.Cluster`, for thousands of nodes: numpy compares a pod with all nodes at once.

The scores are kept for the next pod of the same shape, for which only the highest score must be found. Nodes that the
table cannot hold exactly are compared one by one.
"""

from collections.abc import Sequence

import numpy as np
from numpy import absolute, add, divide, floor, less, logical_or, maximum, minimum, multiply, subtract
from numpy.typing import NDArray

from evenkeel.api.pod import Toleration
from evenkeel.api.resources import PODS
from evenkeel.simulate.node_info import NodeInfo, PodDemand, taint_text, untolerated
from evenkeel.simulate.node_table import (
    NOTHING_NEEDED,
    OUT_OF_REACH,
    SLOTS,
    Asked,
    Comparison,
    Floats,
    NodeTable,
    Offered,
    Shape,
    Truths,
)
from evenkeel.simulate.plain_cluster import (
    MAX_SCORE,
    MAX_WEIGHT,
    Choice,
    Cluster,
    NodeRefusal,
    Scoring,
    Strategy,
    in_order,
    shape_score,
)

NOWHERE = -1.0

_ZERO, _HALF, _ONE, _MAX = (np.array(number) for number in (0.0, 0.5, 1.0, float(MAX_SCORE)))


# Scores


class Workspace:
    """Arrays for the steps of computing `width` scores. They are allocated once and used again."""

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
    """The scores of `score`, computed for many nodes or many pods at once."""

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
        """A score for each node of `offered`, or for each pod of `asked`; −1 if the pod does not fit.

        The result is valid until the workspace is used again.
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
        """The weighted sum of the strategy's scores, still to be divided by the sum of the weights."""
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
        """RequestedToCapacityRatio: zeros are left out of the mean, and the mean is rounded, half up."""
        values = self._curve[parts.astype(np.intp)]
        if weights is None:
            weights = np.ones((len(parts), 1))
        opinions = ((values > 0) * weights).sum(axis=0)
        _total(values * weights, out)
        divide(out, maximum(opinions, _ONE), out)
        add(out, _HALF, out)


def _subtract_before(by: Comparison, offered: Offered, balance: Floats) -> None:
    """Subtract the evenness without the pod, which the table does not have."""
    parts = minimum(divide(offered.figures[by.weighed :], offered.capacities[by.weighed :]), _ONE)
    before: Floats = np.empty(parts.shape[1])
    _evenness(parts, before)
    subtract(balance, before, balance)
    add(balance, 1.5 * MAX_SCORE, balance)


def _evenness(parts: Floats, out: Floats) -> None:
    """`score.evenness`: the same floats in the same order, because the result is cut to a whole number."""
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
    """The sum of `parts`, added one after the other: floats added in another order give another result."""
    if len(parts) == 2:
        add(parts[0], parts[1], out)
        return
    out.fill(0.0)
    for part in parts:
        add(out, part, out)


# Kept scores

Scores = NDArray[np.int16]
assert np.iinfo(np.int16).max >= 2 * MAX_SCORE * MAX_WEIGHT

# The scores of 5,000 nodes for this many shapes take 5 MB. With more shapes the oldest are dropped.
MAX_KEPT = 512


class KnownShape:
    """A shape that a pod had before, with its scores if they are kept."""

    __slots__ = ("scores", "shape", "was_scored")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.was_scored = False
        self.scores: Scores | None = None


class KeptScores:
    """The scores of all shapes that share one `Comparison`."""

    def __init__(self, comparison: Comparison, table: NodeTable, table_score: TableScore) -> None:
        rows, nodes = 1 + len(table.free_rows), table.values.shape[1]
        self._comparison = comparison
        self._table = table
        self._table_score = table_score
        self._all_nodes = Workspace(comparison, rows, nodes)
        self._scores: Scores = np.empty((MAX_KEPT, nodes), np.int16)
        self._owners: list[KnownShape] = []
        self._next = 0
        # What the owners ask for: the column of an owner has the number of its row in `_scores`.
        self._needed: Floats = np.empty((rows, MAX_KEPT))
        self._added: Floats = np.empty((comparison.compared, MAX_KEPT))
        self._balances: Floats = np.empty(MAX_KEPT)
        self._asked: Asked | None = None
        self._all_owners = Workspace(comparison, 0, 0)

    def of(self, known: KnownShape) -> Floats | Scores:
        """The scores of all nodes for the shape. They are valid until the next call, unless they are kept."""
        if known.scores is not None:
            return known.scores
        by = self._comparison
        scores = self._table_score.scores(by, self._table.offered(by), known.shape.asked, self._all_nodes)
        if known.was_scored:  # many shapes occur only once: their scores are not kept
            self._keep(known, scores)
        known.was_scored = True
        return scores

    def renew(self, place: int) -> None:
        """Compute the scores of one node again, because its figures have changed."""
        if self._asked is not None:
            by = self._comparison
            offered = self._table.offered(by, place)
            scores = self._table_score.scores(by, offered, self._asked, self._all_owners)
            self._scores[: len(scores), place] = scores

    def _keep(self, known: KnownShape, scores: Floats) -> None:
        place = self._next
        self._next = (place + 1) % MAX_KEPT
        for oldest in self._owners[place : place + 1]:
            oldest.scores = None
        self._owners[place : place + 1] = [known]
        known.scores = self._scores[place]
        known.scores[:] = scores
        asked = known.shape.asked
        self._needed[:, place] = NOTHING_NEEDED
        self._needed[: len(asked.needed), place] = asked.needed[:, 0]
        self._added[:, place] = asked.added[:, 0]
        self._balances[place] = 1.0 if asked.balances is None else 0.0

        count = len(self._owners)
        rows = max(len(owner.shape.asked.needed) for owner in self._owners)
        balances = self._balances[:count]
        self._asked = Asked(
            self._needed[:rows, :count],
            self._added[:, :count],
            None if balances.all() else balances,
            any(owner.shape.asked.may_exceed for owner in self._owners),
        )
        self._all_owners = Workspace(self._comparison, rows, count)


# The cluster

MAX_KNOWN = 4 * MAX_KEPT


class ArrayCluster(Cluster):
    """Nodes and the pods on them. Each pod is compared with all nodes at once."""

    def __init__(self, nodes: Sequence[NodeInfo], scoring: Scoring) -> None:
        super().__init__(nodes, scoring)
        self._table = NodeTable(nodes, scoring)
        self._table_score = TableScore(scoring)
        self._known: dict[PodDemand, KnownShape] = {}
        self._kept: dict[int, KeptScores] = {}  # by the number of their comparison
        self._has_taints = any(node.taints for node in nodes)
        self._untainted_by: dict[tuple[Toleration, ...], Truths] = {}

    def best(self, pod: PodDemand) -> Choice | None:
        known = self._known.get(pod) or self._new_shape(pod)
        if known.shape.is_plain or not self.nodes:
            return super().best(pod)
        scores = self._scores(known)
        admitted = self._untainted(pod.tolerations)
        if admitted is not None:
            scores = np.where(admitted, scores, NOWHERE)
        place = int(scores.argmax())
        score = int(scores[place])
        choice = Choice(place, score) if score >= 0 else None
        if not self._table.plain:
            return choice
        other = self.best_among(pod, sorted(self._table.plain))
        if choice is None or other is None:
            return choice or other
        return max(choice, other, key=lambda one: (one.score, -one.place))

    def add(self, place: int, pod: PodDemand) -> None:
        super().add(place, pod)
        known = self._known.get(pod) or self._new_shape(pod)
        plain = len(self._table.plain)
        self._table.grow(place, self.nodes[place], known.shape)
        if len(self._table.plain) > plain:
            self._untainted_by.clear()
        for kept in self._kept.values():
            kept.renew(place)

    def refusals(self, pod: PodDemand) -> tuple[NodeRefusal, ...]:
        rows = self._table.free_rows
        if self._table.plain or any(name not in rows for name, _ in pod.needed):
            return super().refusals(pod)
        admitted = self._untainted(pod.tolerations)
        found: list[NodeRefusal] = []
        if admitted is not None:
            taints: dict[str, int] = {}
            for place in np.flatnonzero(~admitted).tolist():
                taint = untolerated(self.nodes[place].taints, pod.tolerations)
                text = taint_text(taint) if taint else ""
                taints[text] = taints.get(text, 0) + 1
            found += (NodeRefusal(count, taint=text) for text, count in taints.items())
        for name, row, amount in (
            (PODS, SLOTS, 1),
            *((name, rows[name], amount) for name, amount in pod.needed),
        ):
            free = self._table.values[row]
            is_short = free < min(amount, OUT_OF_REACH)
            short = free[is_short if admitted is None else is_short & admitted]
            if short.size:
                found.append(NodeRefusal(short.size, name, amount, max(int(short.max()), 0)))
        return in_order(found)

    def _new_shape(self, pod: PodDemand) -> KnownShape:
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        known = self._known[pod] = KnownShape(self._table.shape_of(pod))
        return known

    def _scores(self, known: KnownShape) -> Floats | Scores:
        """The scores of all nodes. Taints are not considered."""
        comparison = known.shape.comparison
        kept = self._kept.get(comparison.number)
        if kept is None:
            kept = self._kept[comparison.number] = KeptScores(comparison, self._table, self._table_score)
        return kept.of(known)

    def _untainted(self, tolerations: tuple[Toleration, ...]) -> Truths | None:
        """Which nodes of the table have no taint that repels such a pod. None means all nodes."""
        if not self._has_taints and not self._table.plain:
            return None
        known = self._untainted_by.get(tolerations)
        if known is None:
            known = np.array([not untolerated(node.taints, tolerations) for node in self.nodes], np.bool_)
            known[list(self._table.plain)] = False
            self._untainted_by[tolerations] = known
        return known
