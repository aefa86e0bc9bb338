"""Admission of pods that wait (A6, B2), in order of arrival and as long as there is room; and resizes that wait for
room."""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from evenkeel.api.decode import Findings, decode
from evenkeel.api.encode import encode
from evenkeel.api.pod import Pod, Totals, add_to
from evenkeel.journal.records import PodRecord
from evenkeel.journal.store import Journal
from evenkeel.policy.admission import Refusal, refusal_of, refusal_under_pressure, requested
from evenkeel.policy.node_view import NodeView

FILE = "file:"  # a source whose pods are tried again when room appears, for as long as they stand there


class Verdicts(NamedTuple):
    admitted: tuple[PodRecord, ...]
    refused: tuple[tuple[PodRecord, Refusal], ...]
    is_last: bool = True  # every pod that waits was judged


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
        for record in every:
            if record.takes_room:
                add_to(used, self._requested(record.pod))
            elif record.is_waiting:
                waiting.append(record)
        admitted: list[PodRecord] = []
        refused: list[tuple[PodRecord, Refusal]] = []
        for record in waiting:
            if len(admitted) == most:
                return Verdicts(tuple(admitted), tuple(refused), is_last=False)
            refusal = self._refusal(record.pod, used, conditions)
            if refusal is None:
                add_to(used, self._requested(record.pod))
                admitted.append(record)
            else:
                refused.append((record, refusal))
        return Verdicts(tuple(admitted), tuple(refused))

    def refusal_of_resize(self, record: PodRecord, after: Pod, every: Iterable[PodRecord]) -> Refusal | None:
        """Why the pod cannot be as large as `after` wants it, beside all others."""
        used: Totals = {}
        for other in every:
            if other.takes_room and other.pod.metadata.uid != record.pod.metadata.uid:
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


_RESIZE = "resize:"  # a value in the journal, with the pod's UID: the pod as it is to be when there is room


class DeferredResizes:
    """Pods that are to be larger and have to wait for room. Kept in the journal."""

    def __init__(self, journal: Journal, admission: Admission, uids: Iterable[str]) -> None:
        """`uids` are those of the pods that the journal has."""
        self._journal = journal
        self._admission = admission
        kept = ((uid, self._kept(uid)) for uid in uids)
        self._wanted = {uid: pod for uid, pod in kept if pod is not None}

    def __iter__(self) -> Iterator[tuple[str, Pod]]:
        """UIDs, and the pods as they are to be."""
        return iter(tuple(self._wanted.items()))

    def defer(self, uid: str, pod: Pod) -> bool:
        """Whether that is news."""
        if self._wanted.get(uid) == pod:
            return False
        self._journal.set_value(_RESIZE + uid, encode(pod))
        self._wanted[uid] = pod
        return True

    def drop(self, uid: str) -> bool:
        """Whether one was deferred."""
        if uid not in self._wanted:
            return False
        self._journal.set_value(_RESIZE + uid, None)
        del self._wanted[uid]
        return True

    def mark(self) -> dict[str, Pod]:
        """What is deferred now, for `back_to`."""
        return dict(self._wanted)

    def back_to(self, mark: dict[str, Pod]) -> None:
        """Undoes in memory what has changed since then."""
        self._wanted = mark

    def refusal(self, record: PodRecord, every: Iterable[PodRecord]) -> Refusal | None:
        """Why the pod is not as large yet as it is to be, with Kubernetes' word for the reason."""
        after = self._wanted.get(record.uid)
        if after is None or not record.takes_room:
            return None
        never = self._admission.refusal_of_resize(record, after, ())
        if never is not None:
            return Refusal("Infeasible", never.message)
        refusal = self._admission.refusal_of_resize(record, after, every)
        return Refusal("Deferred", refusal.message) if refusal is not None else None

    def _kept(self, uid: str) -> Pod | None:
        findings = Findings()
        kept = self._journal.value(_RESIZE + uid)
        pod = decode(Pod, kept, findings) if kept is not None else None
        return None if findings.problems else pod
