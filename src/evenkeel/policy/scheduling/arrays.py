"""The same choices as `cluster.Cluster`, for thousands of nodes: one pass over all of them for a pod.

Pods of one shape share the scores of the nodes: from the second such pod on, only the nodes that have changed
since the last one are worked out again.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evenkeel.api.pod import Toleration
from evenkeel.api.resources import PODS
from evenkeel.policy.scheduling.cluster import Choice, Cluster, Refusal, in_order
from evenkeel.policy.scheduling.fit import fits
from evenkeel.policy.scheduling.node_info import NodeInfo, PodFigures
from evenkeel.policy.scheduling.node_table import (
    OUT_OF_REACH,
    SLOTS,
    Floats,
    NodeTable,
    Places,
    Shape,
    Truths,
)
from evenkeel.policy.scheduling.score import MAX_SCORE, MAX_WEIGHT, Scoring, node_score
from evenkeel.policy.scheduling.table_score import NOWHERE, TableScore
from evenkeel.policy.scheduling.taints import taint_words, untolerated

# Shapes that are remembered: the scores of 5,000 nodes for 1,000 shapes are 10 MB.
MAX_SHAPES = 1000

Scores = NDArray[np.int16]
assert np.iinfo(np.int16).max >= 2 * MAX_SCORE * MAX_WEIGHT


class _Column:
    """The scores of all nodes for pods of one shape, as they were after the first `seen` changes."""

    __slots__ = ("may_enter", "scores", "seen", "shape")

    def __init__(self, shape: Shape, may_enter: Truths | None) -> None:
        self.shape = shape
        self.may_enter = may_enter
        self.scores: Scores | None = None
        self.seen: int | None = None


class ArrayCluster(Cluster):
    """Nodes and what is on them, all looked at in one pass."""

    def __init__(self, nodes: Sequence[NodeInfo], scoring: Scoring) -> None:
        super().__init__(nodes, scoring)
        self._table = NodeTable(nodes, scoring)
        self._table_score = TableScore(scoring, len(nodes))
        self._fresh: Floats = np.empty(len(nodes))
        self._changed: Places = np.empty(1024, np.intp)  # the places of the nodes that changed, in order
        self._changes = 0
        self._columns: dict[PodFigures, _Column] = {}
        self._may_enter: dict[tuple[Toleration, ...], Truths] = {}
        self._has_taints = any(node.taints for node in nodes)

    def best(self, pod: PodFigures) -> Choice | None:
        column = self._columns.get(pod) or self._new_column(pod)
        if column.shape.is_plain or not self.nodes:
            return super().best(pod)
        scores = self._scores(column, pod)
        place = int(scores.argmax())
        score = int(scores[place])
        return Choice(place, score) if score >= 0 else None

    def add(self, place: int, pod: PodFigures) -> None:
        super().add(place, pod)
        column = self._columns.get(pod) or self._new_column(pod)
        self._table.grow(place, self.nodes[place], column.shape)
        if self._changes == len(self._changed):
            self._changed = np.concatenate((self._changed, np.empty_like(self._changed)))
        self._changed[self._changes] = place
        self._changes += 1

    def refusals(self, pod: PodFigures) -> tuple[Refusal, ...]:
        rows = self._table.free_rows
        if self._table.plain or any(name not in rows for name, _ in pod.needed):
            return super().refusals(pod)
        may_enter = self._doors(pod.tolerations)
        found: list[Refusal] = []
        if may_enter is not None:
            taints: dict[str, int] = {}
            for place in np.flatnonzero(~may_enter).tolist():
                taint = untolerated(self.nodes[place].taints, pod.tolerations)
                words = taint_words(taint) if taint else ""
                taints[words] = taints.get(words, 0) + 1
            found += (Refusal(count, taint=words) for words, count in taints.items())
        for name, row, amount in (
            (PODS, SLOTS, 1),
            *((name, rows[name], amount) for name, amount in pod.needed),
        ):
            free = self._table.values[row]
            is_short = free < min(amount, OUT_OF_REACH)
            short = free[is_short if may_enter is None else is_short & may_enter]
            if short.size:
                found.append(Refusal(short.size, name, amount, max(int(short.max()), 0)))
        return in_order(found)

    def _new_column(self, pod: PodFigures) -> _Column:
        if len(self._columns) >= MAX_SHAPES:
            del self._columns[next(iter(self._columns))]
        column = self._columns[pod] = _Column(self._table.shape_of(pod), self._doors(pod.tolerations))
        return column

    def _doors(self, tolerations: tuple[Toleration, ...]) -> Truths | None:
        """The nodes whose taints let such a pod in; None: all of them."""
        if not self._has_taints:
            return None
        known = self._may_enter.get(tolerations)
        if known is None:
            known = np.array([not untolerated(node.taints, tolerations) for node in self.nodes], np.bool_)
            self._may_enter[tolerations] = known
        return known

    def _scores(self, column: _Column, pod: PodFigures) -> Floats | Scores:
        """The scores of all nodes for the pod, up to date."""
        seen, column.seen = column.seen, self._changes
        if column.scores is not None and seen is not None:
            changed = self._changed[seen : self._changes]
            if len(changed) <= len(self.nodes) // 4:
                self._renew(column, column.scores, changed, pod)
                return column.scores
        self._table_score.scores(self._table.values, column.shape, column.may_enter, self._fresh)
        for place in self._table.plain:
            self._fresh[place] = self._plain_score(self.nodes[place], pod)
        if seen is not None:  # kept from the second time on: most shapes that come once do not come again
            column.scores = self._fresh.astype(np.int16)
        return self._fresh

    def _renew(self, column: _Column, scores: Scores, changed: Places, pod: PodFigures) -> None:
        if not len(changed):
            return
        may_enter = None if column.may_enter is None else column.may_enter[changed]
        fresh = self._fresh[: len(changed)]
        self._table_score.scores(self._table.gather(changed), column.shape, may_enter, fresh)
        scores[changed] = fresh
        if self._table.plain:
            for place in self._table.plain.intersection(changed.tolist()):
                scores[place] = self._plain_score(self.nodes[place], pod)

    def _plain_score(self, node: NodeInfo, pod: PodFigures) -> float:
        if not fits(pod, node) or untolerated(node.taints, pod.tolerations):
            return NOWHERE
        return float(node_score(pod, node, self.scoring).total)
