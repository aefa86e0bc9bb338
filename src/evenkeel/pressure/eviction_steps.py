"""A step of an eviction decision, and its input as plain values: for the journal, and between processes."""

from typing import Any

from evenkeel.api.config import Profile
from evenkeel.errors import EvenkeelError
from evenkeel.journal.codec import Unreadable
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.conditions import Pressure
from evenkeel.policy.eviction.decide import Decision, Settings, State
from evenkeel.policy.eviction.rank import Order
from evenkeel.policy.eviction.snapshot import Snapshot
from evenkeel.policy.eviction.thresholds import Signal, Threshold, ThresholdValue
from evenkeel.quantity import Quantity


class Step(NamedTuple):
    """One call of `decide`, with its input and its result."""

    state: State
    snapshot: Snapshot
    thresholds: tuple[Threshold, ...]
    settings: Settings
    decision: Decision
    is_done: bool = True  # False: another pod was asked to end before, and its grace period is not over


# The state between two steps. It also survives restarts.


def state_plain(state: State) -> dict[str, object]:
    return {
        "firstCrossed": [[threshold_plain(one), at] for one, at in state.first_crossed.items()],
        "unresolved": [threshold_plain(one) for one in state.unresolved],
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
            {threshold_from(one): float(at) for one, at in plain["firstCrossed"]},
            tuple(map(threshold_from, plain["unresolved"])),
            {Pressure(name): float(at) for name, at in plain["pressureSeen"].items()},
            {Signal(name): float(at) for name, at in plain["signalsSeen"].items()},
            tuple(map(Pressure, plain["conditions"])),
        )
    except (KeyError, ValueError, TypeError, AttributeError, EvenkeelError) as error:
        raise Unreadable(f"it is no state of evictions: {error}") from None


def threshold_plain(threshold: Threshold) -> list[object]:
    value, least = threshold.value, threshold.min_reclaim
    return [
        str(threshold.signal),
        _value_plain(value),
        threshold.grace_period_seconds,
        None if least is None else _value_plain(least),
    ]


def threshold_from(plain: Any) -> Threshold:  # noqa: ANN401
    """Raises ValueError, TypeError or EvenkeelError."""
    signal, value, grace, least = plain
    return Threshold(Signal(signal), _value(value), float(grace), None if least is None else _value(least))


def _value_plain(value: ThresholdValue) -> list[object]:
    return [None if value.quantity is None else str(value.quantity), value.percentage]


def _value(plain: Any) -> ThresholdValue:  # noqa: ANN401
    quantity, percentage = plain
    return ThresholdValue(None if quantity is None else Quantity.parse(quantity), float(percentage))


def settings_plain(settings: Settings) -> dict[str, object]:
    return dict(settings._asdict())


def settings_from_plain(plain: Any) -> Settings:  # noqa: ANN401
    return Settings(**{**plain, "profile": Profile(plain["profile"]), "order": Order(plain["order"])})
