"""What became of a pod and why, from the journal alone (E14): what happened to it, and every decision about evictions
that it was part of, as the one that went or as one that stayed."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.agent.journal import Decision as Recorded
from evenkeel.agent.journal import Journal
from evenkeel.agent.journal_text import Unreadable
from evenkeel.agent.pressure.recording import KIND, Step, replayed
from evenkeel.agent.records import Happening
from evenkeel.policy.eviction.decide import EVICTED, ranking
from evenkeel.policy.eviction.message import Considered, considered
from evenkeel.policy.eviction.snapshot import active

_SAME_MOMENT_SECONDS = 5.0  # between a decision and the telling of it


class Other(NamedTuple):
    """A pod that was considered in a decision, and why it stayed."""

    pod: Considered
    why: str


class Chapter(NamedTuple):
    """One thing that happened to the pod. `decision` is the number of the journal's record, where there is one."""

    at: float
    reason: str
    message: str
    type: str = "Normal"
    container: str = ""
    times: int = 1
    figures: Mapping[str, object] = MappingProxyType({})
    decision: int = 0
    resource: str = ""  # what was short
    stayed: tuple[Other, ...] = ()


class Story(NamedTuple):
    pod: str
    chapters: tuple[Chapter, ...]
    is_held: bool  # the agent has it still
    phase: str = ""
    reason: str = ""


def story_of(journal: Journal, key: str) -> Story | None:
    """Of the pod namespace/name; None if the journal has never heard of it."""
    held = next((one for one in journal.pods() if one.pod.key == key), None)
    happened = journal.happenings(key, most=100_000)
    decided = tuple(_decisions_about(journal, key))
    if held is None and not happened and not decided:
        return None
    chapters = [_chapter(one, decided, key) for one in happened]
    told = {one.decision for one in chapters}
    chapters += [
        _stayed(record, step, key) for record, step in decided if record.number not in told and step.is_done
    ]
    chapters.sort(key=lambda one: one.at)
    verdict = held.life.verdict if held is not None else None
    if verdict is not None:
        return Story(key, tuple(chapters), True, verdict.phase, verdict.reason)
    runs = held is not None and any(one.is_running for one in held.life.containers.values())
    return Story(key, tuple(chapters), held is not None, "Running" if runs else "Pending" if held else "")


def _decisions_about(journal: Journal, key: str) -> Iterator[tuple[Recorded, Step]]:
    """Those in which somebody went, and the pod was there."""
    for record in journal.decisions(KIND):
        said = record.decision
        if not isinstance(said, dict) or not said.get("evictions"):
            continue
        try:
            step, _ = replayed(record)
        except Unreadable:
            continue
        if any(seen.pod.key == key for seen in step.snapshot.pods):
            yield record, step._replace(is_done=said.get("isDone") is not False)


def _chapter(happening: Happening, decided: tuple[tuple[Recorded, Step], ...], key: str) -> Chapter:
    chapter = Chapter(
        happening.at,
        happening.reason,
        happening.message,
        happening.type,
        happening.container,
        happening.times,
        happening.figures,
    )
    if happening.reason != EVICTED:
        return chapter
    for record, step in decided:
        is_its = any(one.pod.key == key for one in step.decision.evictions)
        if is_its and abs(record.at - happening.at) < _SAME_MOMENT_SECONDS:
            return chapter._replace(
                decision=record.number, resource=_resource(step), stayed=tuple(_others(step, key))
            )
    return chapter


def _stayed(record: Recorded, step: Step, key: str) -> Chapter:
    """The pod was considered, and another one went."""
    gone = " and ".join(one.pod.key for one in step.decision.evictions)
    own = next((one for one in _others(step, "") if one.pod.pod == key), None)
    why = f": it {own.why}" if own is not None else ""
    return Chapter(
        record.at,
        "Spared",
        f"{gone} was evicted, and this pod stayed{why}",
        decision=record.number,
        resource=_resource(step),
        stayed=() if own is None else (own,),
    )


def _others(step: Step, key: str) -> Iterator[Other]:
    acting_on = step.decision.acting_on
    if acting_on is None:
        return
    gone = {one.pod.key for one in step.decision.evictions}
    place = 0
    for one in ranking(acting_on.signal, active(step.snapshot), step.settings):
        place += one.spared is None
        if one.pod.key != key and one.pod.key not in gone:
            why = str(one.spared) if one.spared is not None else f"was number {place} in rank"
            yield Other(considered(one), why)


def _resource(step: Step) -> str:
    eviction = step.decision.evictions[0] if step.decision.evictions else None
    if eviction is None or eviction.shortage is None:
        return ""
    return eviction.shortage.resource
