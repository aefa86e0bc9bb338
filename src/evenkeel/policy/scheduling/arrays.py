"""The same choices as `cluster.Cluster`, for thousands of nodes: one pass over all of them for a pod.

The scores are kept for the next pod of that shape; then there is nothing to do but to look for the highest.
Nodes that the table cannot hold exactly are looked at one by one.
"""

from collections.abc import Sequence

import numpy as np

from evenkeel.api.pod import Toleration
from evenkeel.api.resources import PODS
from evenkeel.policy.scheduling.cluster import Choice, Cluster, Refusal, in_order
from evenkeel.policy.scheduling.kept_scores import MAX_KEPT, KeptScores, KnownShape, Scores
from evenkeel.policy.scheduling.node_info import NodeInfo, PodFigures
from evenkeel.policy.scheduling.node_table import OUT_OF_REACH, SLOTS, Floats, NodeTable, Truths
from evenkeel.policy.scheduling.score import Scoring
from evenkeel.policy.scheduling.table_score import NOWHERE, TableScore
from evenkeel.policy.scheduling.taints import taint_words, untolerated

MAX_KNOWN = 4 * MAX_KEPT


class ArrayCluster(Cluster):
    """Nodes and what is on them, all looked at in one pass."""

    def __init__(self, nodes: Sequence[NodeInfo], scoring: Scoring) -> None:
        super().__init__(nodes, scoring)
        self._table = NodeTable(nodes, scoring)
        self._table_score = TableScore(scoring)
        self._known: dict[PodFigures, KnownShape] = {}
        self._kept: dict[int, KeptScores] = {}  # by the number of their comparison
        self._has_taints = any(node.taints for node in nodes)
        self._doors: dict[tuple[Toleration, ...], Truths] = {}

    def best(self, pod: PodFigures) -> Choice | None:
        known = self._known.get(pod) or self._new_shape(pod)
        if known.shape.is_plain or not self.nodes:
            return super().best(pod)
        scores = self._scores(known)
        doors = self._open_doors(pod.tolerations)
        if doors is not None:
            scores = np.where(doors, scores, NOWHERE)
        place = int(scores.argmax())
        score = int(scores[place])
        choice = Choice(place, score) if score >= 0 else None
        if not self._table.plain:
            return choice
        other = self.best_among(pod, sorted(self._table.plain))
        if choice is None or other is None:
            return choice or other
        return max(choice, other, key=lambda one: (one.score, -one.place))

    def add(self, place: int, pod: PodFigures) -> None:
        super().add(place, pod)
        known = self._known.get(pod) or self._new_shape(pod)
        plain = len(self._table.plain)
        self._table.grow(place, self.nodes[place], known.shape)
        if len(self._table.plain) > plain:
            self._doors.clear()
        for kept in self._kept.values():
            kept.renew(place)

    def refusals(self, pod: PodFigures) -> tuple[Refusal, ...]:
        rows = self._table.free_rows
        if self._table.plain or any(name not in rows for name, _ in pod.needed):
            return super().refusals(pod)
        doors = self._open_doors(pod.tolerations)
        found: list[Refusal] = []
        if doors is not None:
            taints: dict[str, int] = {}
            for place in np.flatnonzero(~doors).tolist():
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
            short = free[is_short if doors is None else is_short & doors]
            if short.size:
                found.append(Refusal(short.size, name, amount, max(int(short.max()), 0)))
        return in_order(found)

    def _new_shape(self, pod: PodFigures) -> KnownShape:
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        known = self._known[pod] = KnownShape(self._table.shape_of(pod))
        return known

    def _scores(self, known: KnownShape) -> Floats | Scores:
        """The scores of all nodes, without regard to taints."""
        comparison = known.shape.comparison
        kept = self._kept.get(comparison.number)
        if kept is None:
            kept = self._kept[comparison.number] = KeptScores(comparison, self._table, self._table_score)
        return kept.of(known)

    def _open_doors(self, tolerations: tuple[Toleration, ...]) -> Truths | None:
        """The nodes of the table whose taints let such a pod in; None: all nodes."""
        if not self._has_taints and not self._table.plain:
            return None
        known = self._doors.get(tolerations)
        if known is None:
            known = np.array([not untolerated(node.taints, tolerations) for node in self.nodes], np.bool_)
            known[list(self._table.plain)] = False
            self._doors[tolerations] = known
        return known
