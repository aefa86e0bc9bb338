"""Admission of waiting pods (A6, B2), in order of arrival and while there is room. Also keeps the resizes that wait for
room."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from evenkeel.api.decode import Findings, decode
from evenkeel.api.encode import encode
from evenkeel.api.pod import Pod
from evenkeel.api.resources import Totals, add_to
from evenkeel.journal.records import PodRecord
from evenkeel.journal.store import Journal
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.admission import (
    HostPorts,
    Refusal,
    SharedPorts,
    is_shortage,
    refusal_of,
    refusal_of_ports,
    refusal_under_pressure,
    requested,
    shared_port,
    take_ports,
)
from evenkeel.policy.node_affinity import refusal_of_node
from evenkeel.policy.node_view import NodeView
from evenkeel.policy.pod_resources import RESIZE_ERROR
from evenkeel.policy.preemption import Candidate, pods_to_preempt, shortage
from evenkeel.policy.qos import is_critical
from evenkeel.quantity import ZERO

_MOST_LISTED = 3  # pods that a message names


class Preemption(NamedTuple):
    """A pod that must end, and the critical pod that waits for its room."""

    victim: PodRecord
    critical: Pod


class AdmissionResult(NamedTuple):
    """A critical pod that waits for the end of others is neither admitted nor refused."""

    admitted: tuple[tuple[PodRecord, str], ...]  # each with the warning of `shared_port`
    refused: tuple[tuple[PodRecord, Refusal], ...]
    is_last: bool = True  # every waiting pod was judged
    preemptions: tuple[Preemption, ...] = ()
    waiting: tuple[tuple[PodRecord, str], ...] = ()  # critical pods, with what each waits for


class Admission:
    """Decides which pods are admitted. The requests of each pod are computed once and kept."""

    def __init__(
        self,
        node: NodeView,
        is_in_host_network: Callable[[Pod], bool],
        runtime_refusal: Callable[[Pod], Refusal | None],
        labels: Mapping[str, str],
    ) -> None:
        """`runtime_refusal` returns the reason why the runtime cannot run a pod; None if it can. `labels` are those of
        the node."""
        self._labels = labels
        self._node = node
        self._is_in_host_network = is_in_host_network
        self._runtime_refusal = runtime_refusal
        self._asked: dict[str, tuple[Pod, Totals]] = {}

    def judge(
        self, every: Iterable[PodRecord], conditions: Collection[str] = (), most: int | None = None
    ) -> AdmissionResult:
        """Judges waiting pods, until `most` are admitted. An admitted pod's requests reduce the room for later pods.
        Critical pods come first, for their room must not be taken by others."""
        waiting: list[PodRecord] = []
        running: list[PodRecord] = []
        used: Totals = {}
        ending: Totals = {}  # the requests of ending pods: a critical pod waits for this room
        ending_keys: list[str] = []
        ports: HostPorts = {}
        shared: SharedPorts = {}
        for record in every:
            if record.takes_room:
                add_to(used, self._requested(record.pod))
                take_ports(record.pod, ports)
                self._shared_port(record.pod, shared)
                if _is_ending(record):
                    add_to(ending, self._requested(record.pod))
                    ending_keys.append(record.pod.key)
                else:
                    running.append(record)
            elif record.is_waiting:
                waiting.append(record)
        admitted: list[tuple[PodRecord, str]] = []
        refused: list[tuple[PodRecord, Refusal]] = []
        preemptions: list[Preemption] = []
        for_room: list[tuple[PodRecord, str]] = []
        waiting.sort(key=lambda record: not is_critical(record.pod, self._node.profile))
        for record in waiting:
            if len(admitted) == most:
                break
            lacks = self._refusal(record.pod, used, ports, conditions)
            victims = [] if lacks is None else self._victims(record.pod, lacks, running, used, ending)
            # The runtime is asked first: no pod must end for a pod that the runtime refuses.
            refusal = lacks if victims is None else self._runtime_refusal(record.pod.with_ephemeral())
            if refusal is not None:
                refused.append((record, refusal))
                continue
            if lacks is None:
                admitted.append((record, self._shared_port(record.pod, shared)))
            for victim in victims or ():
                running.remove(victim)
                add_to(ending, self._requested(victim.pod))
                ending_keys.append(victim.pod.key)
                preemptions.append(Preemption(victim, record.pod))
            if lacks is not None:
                for_room.append((record, f"waits for the end of {_listed(ending_keys)}: {lacks.message}"))
            add_to(used, self._requested(record.pod))
            take_ports(record.pod, ports)
        is_last = len(admitted) + len(refused) + len(for_room) == len(waiting)
        return AdmissionResult(tuple(admitted), tuple(refused), is_last, tuple(preemptions), tuple(for_room))

    def _victims(
        self, pod: Pod, refusal: Refusal, running: Sequence[PodRecord], used: Totals, ending: Totals
    ) -> list[PodRecord] | None:
        """The pods that end for the critical pod; none if enough of them end already. None if the pod is not critical,
        if it is refused for something else than room, or if no set of pods has enough."""
        profile = self._node.profile
        if not is_shortage(refusal) or not is_critical(pod, profile):
            return None
        kept = {name: amount - ending.get(name, ZERO) for name, amount in used.items()}
        missing = shortage(self._requested(pod), kept, self._node.allocatable)
        candidates = [Candidate(one.pod, self._requested(one.pod)) for one in running]
        found = pods_to_preempt(pod, candidates, missing, profile)
        if found is None:
            return None
        chosen = {one.metadata.uid for one in found}
        return [one for one in running if one.uid in chosen]

    def refusal_of_resize(self, record: PodRecord, after: Pod, every: Iterable[PodRecord]) -> Refusal | None:
        """The reason why the pod cannot be resized to `after` beside all other pods; None if it can. It must not take
        the room that critical pods wait for: there must be enough for all once the ending pods are gone."""
        used: Totals = {}
        used_later: Totals = {}
        for other in every:
            if other.uid == record.uid:
                continue
            asked = self._requested(other.pod)
            if other.takes_room:
                add_to(used, asked)
            if self._waits_for_room(other) or (other.takes_room and not _is_ending(other)):
                add_to(used_later, asked)
        wanted, has = requested(after, self._node.profile), self._requested(record.pod)
        # A pod that shrinks takes nothing from the pods that wait.
        grown = {name: amount for name, amount in wanted.items() if amount > has.get(name, ZERO)}
        allocatable = self._node.allocatable
        return refusal_of(wanted, used, allocatable) or refusal_of(grown, used_later, allocatable)

    def _waits_for_room(self, record: PodRecord) -> bool:
        """Whether it is a critical pod that other pods end for, or one that is not judged yet. One that was refused
        reserves nothing."""
        is_open = record.is_waiting and record.state.verdict is None
        return is_open and is_critical(record.pod, self._node.profile)

    def forget(self, uid: str) -> None:
        self._asked.pop(uid, None)

    def _refusal(
        self, pod: Pod, used: Totals, ports: HostPorts, conditions: Collection[str]
    ) -> Refusal | None:
        return (
            refusal_of_node(pod, self._labels)
            or refusal_under_pressure(pod, conditions, self._node.profile)
            or refusal_of_ports(pod, ports)
            or refusal_of(self._requested(pod), used, self._node.allocatable)
        )

    def _shared_port(self, pod: Pod, ports: SharedPorts) -> str:
        has_ports = any(container.ports for container in pod.spec.containers)
        return shared_port(pod, ports) if has_ports and self._is_in_host_network(pod) else ""

    def _requested(self, pod: Pod) -> Totals:
        known = self._asked.get(pod.metadata.uid)
        if known is None or known[0] is not pod:
            known = self._asked[pod.metadata.uid] = (pod, requested(pod, self._node.profile))
        return known[1]


def _is_ending(record: PodRecord) -> bool:
    return record.state.verdict is not None or record.state.deleted_at is not None


def _listed(keys: Sequence[str]) -> str:
    """The first pods by name, and how many others there are."""
    first, others = sorted(keys)[:_MOST_LISTED], len(keys) - _MOST_LISTED
    words = f"pod{'s' if len(keys) > 1 else ''} {', '.join(first)}"
    return f"{words} and {others} more" if others > 0 else words


_RESIZE = "resize:"  # prefix of a journal key, before the pod's UID: the pod after its resize


class Deferred(NamedTuple):
    """A resize that waits. `too_low` says which memory limit would be below what is held; else there is no room."""

    pod: Pod  # after the resize
    too_low: str = ""


class DeferredResizes:
    """Resizes that wait for room, or for the pod to hold less memory. They are in the journal, too: a change is made in
    memory at once, and `PodStore` writes it together with the pods. So a crash leaves a resize waiting, or granted."""

    def __init__(self, journal: Journal, admission: Admission, uids: Iterable[str]) -> None:
        """`uids` are the UIDs of the pods in the journal."""
        self._journal = journal
        self._admission = admission
        kept = ((uid, self._kept(uid)) for uid in uids)
        # The first attempt finds again which limit was too low.
        self._wanted = {uid: Deferred(pod) for uid, pod in kept if pod is not None}
        self._unsaved: dict[str, None] = {}

    def __iter__(self) -> Iterator[tuple[str, Pod]]:
        """Each deferred resize: the pod's UID, and the pod after the resize."""
        return iter(tuple((uid, one.pod) for uid, one in self._wanted.items()))

    def defer(self, uid: str, resize: Deferred) -> bool:
        """Defers a resize. Returns False if the same resize was already deferred, for the same reason."""
        known = self._wanted.get(uid)
        if known is not None and known.pod == resize.pod and bool(known.too_low) == bool(resize.too_low):
            return False  # the first message stays: the same reason with another figure is no news
        self._wanted[uid] = resize
        self._unsaved[uid] = None
        return True

    def drop(self, uid: str) -> bool:
        """Drops a deferred resize. Returns False if there was none."""
        if uid not in self._wanted:
            return False
        del self._wanted[uid]
        self._unsaved[uid] = None
        return True

    @property
    def is_committed(self) -> bool:
        return not self._unsaved

    def write(self) -> None:
        """Writes the changes, in the transaction of the pods. Raises JournalError."""
        for uid in self._unsaved:
            wanted = self._wanted.get(uid)
            self._journal.set_value(_RESIZE + uid, None if wanted is None else encode(wanted.pod))

    def committed(self) -> None:
        self._unsaved.clear()

    def mark(self) -> tuple[dict[str, Deferred], dict[str, None]]:
        """The present deferred resizes, for `back_to`."""
        return dict(self._wanted), dict(self._unsaved)

    def back_to(self, mark: tuple[dict[str, Deferred], dict[str, None]]) -> None:
        """Undoes, in memory, all changes since `mark`."""
        self._wanted, self._unsaved = mark

    def refusal(self, record: PodRecord, every: Iterable[PodRecord]) -> Refusal | None:
        """The reason why the pod's resize waits, in Kubernetes' words; None if no resize waits."""
        wanted = self._wanted.get(record.uid)
        if wanted is None or not record.takes_room:
            return None
        never = self._admission.refusal_of_resize(record, wanted.pod, ())
        if never is not None:
            return Refusal("Infeasible", never.message)
        refusal = self._admission.refusal_of_resize(record, wanted.pod, every)
        if refusal is not None:
            return Refusal("Deferred", refusal.message)
        return Refusal(RESIZE_ERROR, wanted.too_low) if wanted.too_low else None

    def _kept(self, uid: str) -> Pod | None:
        findings = Findings()
        kept = self._journal.value(_RESIZE + uid)
        pod = decode(Pod, kept, findings) if kept is not None else None
        return None if findings.problems else pod
