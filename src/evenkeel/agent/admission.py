"""Which of the pods that wait are taken (A6, B2): in order of arrival, as long as there is room."""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from evenkeel.api.aggregate import Totals, add_to
from evenkeel.api.pod import Pod
from evenkeel.journal.records import PodRecord
from evenkeel.policy.admission import Refusal, refusal_of, refusal_under_pressure, requested
from evenkeel.policy.node_view import NodeView

FILE = "file:"  # a source whose pods are tried again when room appears, for as long as they stand there


class Verdicts(NamedTuple):
    admitted: tuple[PodRecord, ...]
    refused: tuple[tuple[PodRecord, Refusal], ...]
    is_last: bool = True  # nobody waits who was not judged


class Admission:
    """What each pod asks for is worked out once; the sums are kept while pods come and go."""

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._asked: dict[str, tuple[Pod, Totals]] = {}

    def judge(
        self, every: Iterable[PodRecord], conditions: Collection[str] = (), most: int | None = None
    ) -> Verdicts:
        """Verdicts on those that wait, until `most` are taken. Each that is taken counts for those after it."""
        waiting: list[PodRecord] = []
        used: Totals = {}
        for held in every:
            if takes_room(held):
                add_to(used, self._requested(held.pod))
            elif is_waiting(held):
                waiting.append(held)
        admitted: list[PodRecord] = []
        refused: list[tuple[PodRecord, Refusal]] = []
        for held in waiting:
            if len(admitted) == most:
                return Verdicts(tuple(admitted), tuple(refused), is_last=False)
            refusal = self._refusal(held.pod, used, conditions)
            if refusal is None:
                add_to(used, self._requested(held.pod))
                admitted.append(held)
            else:
                refused.append((held, refusal))
        return Verdicts(tuple(admitted), tuple(refused))

    def refusal_of_resize(self, held: PodRecord, after: Pod, every: Iterable[PodRecord]) -> Refusal | None:
        """Why the pod cannot be as large as `after` wants it, beside all others."""
        used: Totals = {}
        for other in every:
            if takes_room(other) and other.pod.metadata.uid != held.pod.metadata.uid:
                add_to(used, self._requested(other.pod))
        return refusal_of(requested(after, self._node.profile), used, self._node.allocatable)

    def forget(self, uid: str) -> None:
        self._asked.pop(uid, None)

    def _refusal(self, pod: Pod, used: Totals, conditions: Collection[str]) -> Refusal | None:
        under_pressure = refusal_under_pressure(pod, conditions, self._node.profile)
        return under_pressure or refusal_of(self._requested(pod), used, self._node.allocatable)

    def _requested(self, pod: Pod) -> Totals:
        known = self._asked.get(pod.metadata.uid)
        if known is None or known[0] is not pod:
            known = self._asked[pod.metadata.uid] = (pod, requested(pod, self._node.profile))
        return known[1]


def takes_room(held: PodRecord) -> bool:
    """A pod that was taken and has not ended; one that was told to end holds what it has until it is gone."""
    return held.is_admitted and (held.life.verdict is None or is_running(held))


def is_waiting(held: PodRecord) -> bool:
    return not held.is_admitted and held.life.deleted_at is None


def is_running(held: PodRecord) -> bool:
    """Whether anything of the pod runs, or may be starting."""
    return any(life.is_running or life.is_asked_for for life in held.life.containers.values())


def active(every: Iterable[PodRecord]) -> Iterator[PodRecord]:
    """The pods that have cgroups."""
    return (held for held in every if takes_room(held))
