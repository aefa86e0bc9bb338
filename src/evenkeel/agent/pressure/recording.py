"""Decisions as the journal keeps them, with all they were made on; and the same decisions made again (E14).

A record has the state before, the snapshot, the thresholds and the settings: `decide` is a function of these four, so
what it said then can be checked at any time, and so can what it would say of other thresholds.
"""

from typing import Any, NamedTuple

from evenkeel.agent.journal import Decision as Recorded
from evenkeel.agent.journal_text import Unreadable, from_text, plain_of, plain_text, to_text
from evenkeel.api.profile import Profile
from evenkeel.errors import EvenkeelError
from evenkeel.policy.eviction.conditions import Pressure
from evenkeel.policy.eviction.decide import Decision, Settings, State, decide
from evenkeel.policy.eviction.rank import Order
from evenkeel.policy.eviction.snapshot import Snapshot
from evenkeel.policy.eviction.thresholds import Signal, Threshold, ThresholdValue
from evenkeel.quantity import Quantity

KIND = "eviction"


class Step(NamedTuple):
    """One call of `decide`, with what it was given and what it said."""

    state: State
    snapshot: Snapshot
    thresholds: tuple[Threshold, ...]
    settings: Settings
    decision: Decision
    is_done: bool = True  # False: another pod was asked to end before, and has its time


def given(step: Step) -> dict[str, object]:
    """The step's input, as plain values."""
    return {
        "state": state_plain(step.state),
        "snapshot": plain_of(to_text(step.snapshot)),
        "thresholds": [_threshold_plain(threshold) for threshold in step.thresholds],
        "settings": dict(step.settings._asdict()),
    }


def said(decision: Decision) -> dict[str, object]:
    """What was decided, as plain values."""
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


def replayed(record: Recorded) -> tuple[Step, dict[str, object]]:
    """The recorded step made again, and what it says now, to be compared with `record.decision`. Raises Unreadable."""
    content = record.snapshot
    if not isinstance(content, dict):
        raise Unreadable(f"decision {record.number} has no snapshot")
    state = state_from(content.get("state"))
    snapshot = from_text(Snapshot, plain_text(content.get("snapshot")))
    try:
        thresholds = tuple(map(_threshold, content["thresholds"]))
        settings = _settings(content["settings"])
    except (KeyError, ValueError, TypeError, EvenkeelError) as error:
        raise Unreadable(f"decision {record.number}: {error}") from None
    _, decision = decide(state, snapshot, thresholds, settings)
    return Step(state, snapshot, thresholds, settings, decision), said(decision)


# The state between two steps: it is kept over restarts, too.


def state_plain(state: State) -> dict[str, object]:
    return {
        "firstCrossed": [[_threshold_plain(one), at] for one, at in state.first_crossed.items()],
        "unresolved": [_threshold_plain(one) for one in state.unresolved],
        "pressureSeen": {str(pressure): at for pressure, at in state.pressure_seen.items()},
        "signalsSeen": {str(signal): at for signal, at in state.signals_seen.items()},
        "conditions": [str(condition) for condition in state.conditions],
    }


def state_from(plain: object) -> State:
    """Raises Unreadable."""
    if not isinstance(plain, dict):
        return State()
    try:
        return State(
            {_threshold(one): float(at) for one, at in plain["firstCrossed"]},
            tuple(map(_threshold, plain["unresolved"])),
            {Pressure(name): float(at) for name, at in plain["pressureSeen"].items()},
            {Signal(name): float(at) for name, at in plain["signalsSeen"].items()},
            tuple(map(Pressure, plain["conditions"])),
        )
    except (KeyError, ValueError, TypeError, AttributeError, EvenkeelError) as error:
        raise Unreadable(f"it is no state of evictions: {error}") from None


def _threshold_plain(threshold: Threshold) -> list[object]:
    value, least = threshold.value, threshold.min_reclaim
    return [
        str(threshold.signal),
        _value_plain(value),
        threshold.grace_period_seconds,
        None if least is None else _value_plain(least),
    ]


def _threshold(plain: Any) -> Threshold:  # noqa: ANN401
    signal, value, grace, least = plain
    return Threshold(Signal(signal), _value(value), float(grace), None if least is None else _value(least))


def _value_plain(value: ThresholdValue) -> list[object]:
    return [None if value.quantity is None else str(value.quantity), value.percentage]


def _value(plain: Any) -> ThresholdValue:  # noqa: ANN401
    quantity, percentage = plain
    return ThresholdValue(None if quantity is None else Quantity.parse(quantity), float(percentage))


def _settings(plain: Any) -> Settings:  # noqa: ANN401
    return Settings(**{**plain, "profile": Profile(plain["profile"]), "order": Order(plain["order"])})
