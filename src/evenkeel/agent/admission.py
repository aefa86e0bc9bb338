"""Admission of waiting pods (A6, B2), in order of arrival and while there is room. Also keeps the resizes that wait for
room."""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from evenkeel.api.decode import Findings, decode
from evenkeel.api.encode import encode
from evenkeel.api.pod import Pod, Totals, add_to
from evenkeel.journal.records import PodRecord
from evenkeel.journal.store import Journal
from evenkeel.policy.admission import (
    HostPorts,
    Refusal,
    refusal_of,
    refusal_of_ports,
    refusal_under_pressure,
    requested,
    take_ports,
)
from evenkeel.policy.node_view import NodeView


class Verdicts(NamedTuple):
    admitted: tuple[PodRecord, ...]
    refused: tuple[tuple[PodRecord, Refusal], ...]
    is_last: bool = True  # every waiting pod was judged


class Admission:
    """Decides which pods are admitted. The requests of each pod are computed once and kept."""

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._asked: dict[str, tuple[Pod, Totals]] = {}

    def judge(
        self, every: Iterable[PodRecord], conditions: Collection[str] = (), most: int | None = None
    ) -> Verdicts:
        """Judges waiting pods, until `most` are admitted. An admitted pod's requests reduce the room for later pods."""
        waiting: list[PodRecord] = []
        used: Totals = {}
        ports: HostPorts = {}
        for record in every:
            if record.takes_room:
                add_to(used, self._requested(record.pod))
                take_ports(record.pod, ports)
            elif record.is_waiting:
                waiting.append(record)
        admitted: list[PodRecord] = []
        refused: list[tuple[PodRecord, Refusal]] = []
        for record in waiting:
            if len(admitted) == most:
                return Verdicts(tuple(admitted), tuple(refused), is_last=False)
            refusal = self._refusal(record.pod, used, ports, conditions)
            if refusal is None:
                add_to(used, self._requested(record.pod))
                take_ports(record.pod, ports)
                admitted.append(record)
            else:
                refused.append((record, refusal))
        return Verdicts(tuple(admitted), tuple(refused))

    def refusal_of_resize(self, record: PodRecord, after: Pod, every: Iterable[PodRecord]) -> Refusal | None:
        """The reason why the pod cannot be resized to `after` beside all other pods; None if it can."""
        used: Totals = {}
        for other in every:
            if other.takes_room and other.pod.metadata.uid != record.pod.metadata.uid:
                add_to(used, self._requested(other.pod))
        return refusal_of(requested(after, self._node.profile), used, self._node.allocatable)

    def forget(self, uid: str) -> None:
        self._asked.pop(uid, None)

    def _refusal(
        self, pod: Pod, used: Totals, ports: HostPorts, conditions: Collection[str]
    ) -> Refusal | None:
        return (
            refusal_under_pressure(pod, conditions, self._node.profile)
            or refusal_of_ports(pod, ports)
            or refusal_of(self._requested(pod), used, self._node.allocatable)
        )

    def _requested(self, pod: Pod) -> Totals:
        known = self._asked.get(pod.metadata.uid)
        if known is None or known[0] is not pod:
            known = self._asked[pod.metadata.uid] = (pod, requested(pod, self._node.profile))
        return known[1]


_RESIZE = "resize:"  # prefix of a journal key, before the pod's UID: the pod after its resize


class DeferredResizes:
    """Resizes that wait for room. They are kept in the journal."""

    def __init__(self, journal: Journal, admission: Admission, uids: Iterable[str]) -> None:
        """`uids` are the UIDs of the pods in the journal."""
        self._journal = journal
        self._admission = admission
        kept = ((uid, self._kept(uid)) for uid in uids)
        self._wanted = {uid: pod for uid, pod in kept if pod is not None}

    def __iter__(self) -> Iterator[tuple[str, Pod]]:
        """Each deferred resize: the pod's UID, and the pod after the resize."""
        return iter(tuple(self._wanted.items()))

    def defer(self, uid: str, pod: Pod) -> bool:
        """Defers a resize. Returns False if the same resize was already deferred."""
        if self._wanted.get(uid) == pod:
            return False
        self._journal.set_value(_RESIZE + uid, encode(pod))
        self._wanted[uid] = pod
        return True

    def drop(self, uid: str) -> bool:
        """Drops a deferred resize. Returns False if there was none."""
        if uid not in self._wanted:
            return False
        self._journal.set_value(_RESIZE + uid, None)
        del self._wanted[uid]
        return True

    def mark(self) -> dict[str, Pod]:
        """The present deferred resizes, for `back_to`."""
        return dict(self._wanted)

    def back_to(self, mark: dict[str, Pod]) -> None:
        """Undoes, in memory, all changes since `mark`."""
        self._wanted = mark

    def refusal(self, record: PodRecord, every: Iterable[PodRecord]) -> Refusal | None:
        """The reason why the pod's resize waits, in Kubernetes' words; None if no resize waits."""
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
