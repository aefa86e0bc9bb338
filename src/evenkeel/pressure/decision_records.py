"""Decisions as the journal stores them, with all their input, so that each decision can be replayed (E14).

A record contains the state before, the snapshot, the thresholds and the settings. `decide` depends only on these four.
So its result can be checked at any time, and can also be computed for other thresholds.
"""

from collections.abc import Iterator, Mapping, Sequence

from evenkeel.errors import EvenkeelError
from evenkeel.journal.codec import Unreadable, from_text, plain_of, plain_text, to_text
from evenkeel.journal.store import Decision as Recorded
from evenkeel.journal.store import Journal
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.cpu_shortage import CpuDecision, CpuSettings, CpuState, CpuWindow, decide_cpu
from evenkeel.policy.eviction.decide import Decision, decide
from evenkeel.policy.eviction.message import in_todays_words
from evenkeel.policy.eviction.snapshot import Snapshot
from evenkeel.policy.memory_stall import Stall, StallSample, stall
from evenkeel.pressure.eviction_steps import (
    Step,
    settings_from_plain,
    settings_plain,
    state_from,
    state_plain,
    threshold_from,
    threshold_plain,
)

EVICTION_KIND = "eviction"


def eviction_given(step: Step) -> dict[str, object]:
    """The input of the step, as plain values."""
    return {
        "state": state_plain(step.state),
        "snapshot": plain_of(to_text(step.snapshot)),
        "thresholds": [threshold_plain(threshold) for threshold in step.thresholds],
        "settings": settings_plain(step.settings),
    }


def eviction_said(decision: Decision) -> dict[str, object]:
    """The decision, as plain values."""
    return {
        "crossed": [str(threshold) for threshold in decision.crossed],
        "conditions": [str(condition) for condition in decision.conditions],
        "actingOn": "" if decision.acting_on is None else str(decision.acting_on),
        "evictions": [
            {
                "pod": eviction.pod.key,
                "uid": eviction.pod.metadata.uid,
                "graceSeconds": eviction.grace_period_seconds,
                "message": eviction.message,
            }
            for eviction in decision.evictions
        ],
    }


def replayed_eviction(record: Recorded) -> tuple[Step, dict[str, object]]:
    """Replays the recorded step. Returns it with the new result, to be compared with `record.decision`. Raises
    Unreadable."""
    content = record.snapshot
    if not isinstance(content, dict):
        raise Unreadable(f"decision {record.number} has no snapshot")
    state = state_from(content.get("state"))
    snapshot = from_text(Snapshot, plain_text(content.get("snapshot")))
    try:
        thresholds = tuple(map(threshold_from, content["thresholds"]))
        settings = settings_from_plain(content["settings"])
    except (KeyError, ValueError, TypeError, EvenkeelError) as error:
        raise Unreadable(f"decision {record.number}: {error}") from None
    _, decision = decide(state, snapshot, thresholds, settings)
    return Step(state, snapshot, thresholds, settings, decision), eviction_said(decision)


CPU_KIND = "cpu"  # kind of these decisions in the journal


class CpuStep(NamedTuple):
    """One call of `decide_cpu`, with its input and its result."""

    state: CpuState
    window: CpuWindow
    settings: CpuSettings
    decision: CpuDecision


def cpu_given(state: CpuState, window: CpuWindow, settings: CpuSettings) -> dict[str, object]:
    return {
        "state": plain_of(to_text(state)),
        "window": plain_of(to_text(window)),
        "settings": plain_of(to_text(settings)),
    }


def cpu_said(decision: CpuDecision) -> dict[str, object]:
    """The decision, as plain values."""
    victim = decision.victim
    return {
        "short": [one._asdict() for one in decision.short],
        "isPressure": decision.is_pressure,
        "evictions": []
        if victim is None
        else [
            {
                "pod": victim.key,
                "uid": victim.metadata.uid,
                "graceSeconds": decision.grace_seconds,
                "message": decision.message,
            }
        ],
    }


def replayed_cpu(record: Recorded) -> tuple[CpuStep, dict[str, object]]:
    """Replays the recorded step. Returns it with the new result, to be compared with `record.decision`. Raises
    Unreadable."""
    content = record.snapshot
    if not isinstance(content, dict):
        raise Unreadable(f"decision {record.number} has no snapshot")
    state = from_text(CpuState, plain_text(content.get("state")))
    window = from_text(CpuWindow, plain_text(content.get("window")))
    settings = from_text(CpuSettings, plain_text(content.get("settings")))
    decision = decide_cpu(state, window, settings)[1]
    return CpuStep(state, window, settings, decision), cpu_said(decision)


STALL_KIND = "memoryStall"  # kind of these decisions in the journal


def stall_given(
    pod: str, container: str, period_seconds: float, samples: Sequence[StallSample]
) -> dict[str, object]:
    return {
        "pod": pod,
        "container": container,
        "periodSeconds": period_seconds,
        "samples": [list(sample) for sample in samples],
    }


def stalled_pod(record: Recorded) -> str:
    """The pod that stalled, as namespace/name."""
    return str(record.snapshot.get("pod", "")) if isinstance(record.snapshot, dict) else ""


def stall_said(found: Stall | None) -> dict[str, object]:
    return {"stall": None if found is None else list(found)}


def replayed_stall(record: Recorded) -> dict[str, object]:
    """Evaluates the recorded samples again. The result is to be compared with `record.decision`. Raises Unreadable."""
    content = record.snapshot
    try:
        assert isinstance(content, dict)
        samples = [StallSample(*sample) for sample in content["samples"]]
        return stall_said(stall(samples, float(content["periodSeconds"])))
    except (AssertionError, KeyError, TypeError, ValueError):
        raise Unreadable(f"decision {record.number} has no samples") from None


class Again(NamedTuple):
    """A recorded decision and its replay. `step` is set if the decision can be replayed with other thresholds."""

    record: Recorded
    was: Mapping[str, object]
    now: Mapping[str, object] = {}
    unreadable: str = ""
    step: Step | None = None

    @property
    def differs(self) -> tuple[str, ...]:
        """The names of the values that differ."""
        return tuple(
            name for name, value in self.now.items() if _in_todays_words(self.was.get(name)) != value
        )


def _in_todays_words(recorded: object) -> object:
    """A recorded value, with the messages of evictions in it as they are written now."""
    if not isinstance(recorded, list):
        return recorded
    return [
        {**one, "message": in_todays_words(one["message"])}
        if isinstance(one, dict) and isinstance(one.get("message"), str)
        else one
        for one in recorded
    ]


def made_again(journal: Journal, after: int = 0) -> Iterator[Again]:
    """Replays the decisions after the given number, oldest first."""
    for record in journal.decisions(after=after):
        was = record.decision if isinstance(record.decision, dict) else {}
        try:
            if record.kind == EVICTION_KIND:
                step, now = replayed_eviction(record)
                yield Again(record, was, now, step=step)
            elif record.kind == CPU_KIND:
                yield Again(record, was, replayed_cpu(record)[1])
            elif record.kind == STALL_KIND:
                yield Again(record, was, replayed_stall(record))
            else:
                yield Again(record, was, unreadable=f"decisions of kind {record.kind} are not known")
        except Unreadable as error:
            yield Again(record, was, unreadable=str(error))
