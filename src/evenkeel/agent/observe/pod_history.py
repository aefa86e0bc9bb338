"""Pod history (`evenkeel why`): what happened to one pod, read from the journal alone (E14).

It lists the pod's events, and every eviction decision in which the pod was considered: it was evicted, or another pod
was.
"""

import asyncio
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from evenkeel.api.resources import CPU
from evenkeel.journal.codec import Unreadable
from evenkeel.journal.records import Event
from evenkeel.journal.store import Decision as Recorded
from evenkeel.journal.store import Journal
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.cpu_shortage import CpuCandidate, cpu_candidates
from evenkeel.policy.eviction.decide import EVICTED, ranking
from evenkeel.policy.eviction.message import Considered, considered, readable
from evenkeel.policy.eviction.snapshot import active
from evenkeel.policy.eviction.usage import Resource
from evenkeel.policy.lifecycle.pod_status import PENDING, pod_phase
from evenkeel.pressure import decision_records
from evenkeel.pressure.decision_records import EVICTION_KIND, CpuStep, replayed_eviction
from evenkeel.pressure.eviction_steps import Step

# Longest time between a decision and its event. The machine may be slow.
_SAME_MOMENT_SECONDS = 30.0
_STALLED = "MemoryHighStall"


class Other(NamedTuple):
    """A pod that was considered in a decision but not evicted, and the reason."""

    pod: Considered
    why: str


class HistoryEntry(NamedTuple):
    """One entry in the history of the pod. `decision` is the number of the decision in the journal, if there is one."""

    at: float
    reason: str
    message: str
    type: str = "Normal"
    container: str = ""
    times: int = 1
    figures: Mapping[str, object] = MappingProxyType({})
    decision: int = 0
    resource: str = ""  # the resource that was short
    stayed: tuple[Other, ...] = ()


class _Decided(NamedTuple):
    """A decision in which the pod was considered."""

    record: Recorded
    reason: str  # of its event
    gone: tuple[str, ...]
    resource: str = ""  # the resource that was short
    others: tuple[Other, ...] = ()  # pods that were not evicted
    is_done: bool = True


class PodHistory(NamedTuple):
    """`chapters` are its entries, oldest first. They have this name in the API too."""

    pod: str
    chapters: tuple[HistoryEntry, ...]
    is_held: bool  # the agent still has the pod
    phase: str = ""
    reason: str = ""


class PodHistories:
    """Reads histories for clients of the agent: one at a time, and each in a thread with its own connection to the
    journal, so that a long one does not block the agent."""

    def __init__(self, journal_path: str) -> None:
        self._journal_path = journal_path
        self._lock = asyncio.Lock()

    async def read(self, key: str) -> PodHistory | None:
        async with self._lock:
            return await asyncio.to_thread(self._read, key)

    def _read(self, key: str) -> PodHistory | None:
        with Journal.read(self._journal_path) as journal:
            return pod_history(journal, key)


def pod_history(journal: Journal, key: str) -> PodHistory | None:
    """The history of the pod namespace/name; None if the journal does not know the pod."""
    record = next((one for one in journal.pods() if one.pod.key == key), None)
    happened = journal.events(key, most=100_000)
    decided = tuple(_decisions_about(journal, key))
    if record is None and not happened and not decided:
        return None
    entries = [_entry(one, decided, key) for one in happened]
    known = {one.decision for one in entries}
    entries += [
        _stayed(one, key)
        for one in decided
        if one.record.number not in known and one.is_done and one.gone and key not in one.gone
    ]
    entries.sort(key=lambda one: one.at)
    if record is None:
        return PodHistory(key, tuple(entries), False)
    verdict = record.state.verdict
    if verdict is not None:
        return PodHistory(key, tuple(entries), True, verdict.phase, verdict.reason)
    return PodHistory(
        key, tuple(entries), True, pod_phase(record.pod, record.state) if record.is_admitted else PENDING
    )


def _decisions_about(journal: Journal, key: str) -> Iterator[_Decided]:
    """Decisions about an eviction or a stall in which this pod was considered."""
    for record in journal.decisions():
        said = record.decision
        if not isinstance(said, dict):
            continue
        try:
            if record.kind == EVICTION_KIND and said.get("evictions"):
                step, _ = replayed_eviction(record)
                if any(seen.pod.key == key for seen in step.snapshot.pods):
                    gone = tuple(one.pod.key for one in step.decision.evictions)
                    is_done = said.get("isDone") is not False
                    yield _Decided(record, EVICTED, gone, _resource(step), tuple(_others(step)), is_done)
            elif record.kind == decision_records.CPU_KIND and said.get("evictions"):
                cpu_step, _ = decision_records.replayed_cpu(record)
                victim = cpu_step.decision.victim
                if victim is not None and any(one.pod.key == key for one in cpu_step.window.pods):
                    yield _Decided(record, EVICTED, (victim.key,), CPU, tuple(_others_by_cpu(cpu_step)))
            elif record.kind == decision_records.STALL_KIND and decision_records.stalled_pod(record) == key:
                yield _Decided(record, _STALLED, ())
        except Unreadable:
            continue


def _entry(event: Event, decided: tuple[_Decided, ...], key: str) -> HistoryEntry:
    entry = HistoryEntry(
        event.at,
        event.reason,
        event.message,
        event.type,
        event.container,
        event.times,
        event.figures,
    )
    its = [one for one in decided if one.reason == event.reason and (not one.gone or key in one.gone)]
    nearest = min(its, key=lambda one: abs(one.record.at - event.at), default=None)
    if nearest is None or abs(nearest.record.at - event.at) > _SAME_MOMENT_SECONDS:
        return entry
    return entry._replace(decision=nearest.record.number, resource=nearest.resource, stayed=nearest.others)


def _stayed(decided: _Decided, key: str) -> HistoryEntry:
    """The entry for a decision in which the pod was considered and another pod was evicted."""
    own = next((one for one in decided.others if one.pod.pod == key), None)
    why = f": it {own.why}" if own is not None else ""
    return HistoryEntry(
        decided.record.at,
        "Spared",
        f"{' and '.join(decided.gone)} was evicted, and this pod stayed{why}",
        decision=decided.record.number,
        resource=decided.resource,
        stayed=() if own is None else (own,),
    )


def _others(step: Step) -> Iterator[Other]:
    acting_on = step.decision.acting_on
    if acting_on is None:
        return
    gone = {one.pod.key for one in step.decision.evictions}
    place = 0
    for one in ranking(acting_on.signal, active(step.snapshot), step.settings):
        place += one.spared is None
        if one.pod.key not in gone:
            why = str(one.spared) if one.spared is not None else f"was number {place} in rank"
            yield Other(considered(one), why)


def _others_by_cpu(step: CpuStep) -> Iterator[Other]:
    """The other candidates for eviction, and the pods that received too little CPU."""
    (_, *others) = cpu_candidates(step.window, step.settings.profile)
    for place, (one, _) in enumerate(others, 2):
        yield Other(_considered(one), f"was number {place} in rank")
    for short in step.decision.short:
        seen = Considered(short.pod, "", 0, short.received_millicpu, short.request_millicpu, False)
        yield Other(seen, "received less than it requested: it was for this pod")


def _considered(one: CpuCandidate) -> Considered:
    above = one.used_millicpu > one.request_millicpu
    return Considered(one.pod, one.qos_class, one.priority, one.used_millicpu, one.request_millicpu, above)


def _resource(step: Step) -> str:
    eviction = step.decision.evictions[0] if step.decision.evictions else None
    if eviction is None or eviction.shortage is None:
        return ""
    return eviction.shortage.resource


_PLAIN = ("Started", "Killing", "Spared", "Evicted", "BackOff", "Returning")  # reason is not repeated


def sentence(entry: HistoryEntry) -> str:
    text = entry.message or entry.reason
    if entry.reason not in _PLAIN and entry.reason.lower() not in text.lower():
        text = f"{entry.reason}: {text}"
    if text.partition(" ")[0].isalpha():  # names and signals keep their case
        text = text[:1].upper() + text[1:]
    if entry.times > 1:
        text = f"{text.rstrip('.')}; {entry.times} times until then"
    return text if text.endswith((".", "!", "?")) else f"{text}."


def stayed_sentence(other: Other, resource: str) -> str:
    """A sentence about a pod that was considered but not evicted. `resource` is the resource that was short."""
    seen = other.pod
    used = "unknown" if seen.usage is None else _amount(seen.usage, resource)
    request = f" of its request of {_amount(seen.request, resource)}" if seen.request else ""
    who = f"{seen.pod} ({seen.qos_class}, priority {seen.priority})" if seen.qos_class else seen.pod
    return f"{who}, using {used}{request}, {other.why}."


def _amount(amount: int, resource: str) -> str:
    if resource == CPU:
        return f"{amount}m cpu"
    return readable(amount, Resource(resource) if resource else Resource.MEMORY)


def end_sentence(history: PodHistory) -> str:
    if not history.is_held:
        return "It is gone, and is no longer desired."
    if history.reason:
        return f"It is {history.phase} now: {history.reason}."
    return f"It is {history.phase} now."
