"""The scores of all nodes for pods of many shapes that are compared alike, worked out once and kept up to date.

When a pod comes to a node, that node's score changes for every shape, and no other score does: so it is worked
out anew for all shapes in one pass, and the next pod of any of them finds its scores ready.
"""

import numpy as np
from numpy.typing import NDArray

from evenkeel.policy.scheduling.node_table import NOTHING_NEEDED, Asked, Comparison, Floats, NodeTable, Shape
from evenkeel.policy.scheduling.score import MAX_SCORE, MAX_WEIGHT
from evenkeel.policy.scheduling.table_score import TableScore, Workspace

Scores = NDArray[np.int16]
assert np.iinfo(np.int16).max >= 2 * MAX_SCORE * MAX_WEIGHT

# The scores of 5,000 nodes for so many shapes are 5 MB. With more, the oldest make room.
MAX_KEPT = 512


class KnownShape:
    """A shape that has been seen, and its scores, if they are kept."""

    __slots__ = ("scores", "shape", "was_scored")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.was_scored = False
        self.scores: Scores | None = None


class KeptScores:
    """For shapes with one `Comparison`."""

    def __init__(self, comparison: Comparison, table: NodeTable, table_score: TableScore) -> None:
        rows, nodes = 1 + len(table.free_rows), table.values.shape[1]
        self._comparison = comparison
        self._table = table
        self._table_score = table_score
        self._all_nodes = Workspace(comparison, rows, nodes)
        self._scores: Scores = np.empty((MAX_KEPT, nodes), np.int16)
        self._owners: list[KnownShape] = []
        self._next = 0
        # What the owners ask for, each in the column with the number of its row of scores.
        self._needed: Floats = np.empty((rows, MAX_KEPT))
        self._added: Floats = np.empty((comparison.compared, MAX_KEPT))
        self._balances: Floats = np.empty(MAX_KEPT)
        self._asked: Asked | None = None
        self._all_owners = Workspace(comparison, 0, 0)

    def of(self, known: KnownShape) -> Floats | Scores:
        """The scores of all nodes for the shape; good until the next call, unless they are kept."""
        if known.scores is not None:
            return known.scores
        by = self._comparison
        scores = self._table_score.scores(by, self._table.offered(by), known.shape.asked, self._all_nodes)
        if known.was_scored:  # many shapes come once only, and are not worth keeping anything for
            self._keep(known, scores)
        known.was_scored = True
        return scores

    def renew(self, place: int) -> None:
        """The figures of the node there have changed."""
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
