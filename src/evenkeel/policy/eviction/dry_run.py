"""Who would go, in which order, and what that would give back (E15).

The steps are those of the real loop: a decision on a snapshot, and then another on what would be left. Only
the snapshots in between are supposed: that an evicted pod gives back all it used, and that nobody else uses
more or less meanwhile. Deleting unused containers and images is supposed to give back nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

from evenkeel.policy.eviction.decide import Eviction, Reclaim, Settings, State, decide, ranking, victim
from evenkeel.policy.eviction.rank import Ranked
from evenkeel.policy.eviction.relief import freed, without
from evenkeel.policy.eviction.snapshot import PodSnapshot, Snapshot, active
from evenkeel.policy.eviction.thresholds import Signal, Threshold
from evenkeel.policy.eviction.usage import Resource, resource_of

_LOOK_AGAIN_SECONDS = 1.0


class Step(NamedTuple):
    """One pod that would go. What it frees is counted in `resource`."""

    eviction: Eviction
    resource: Resource
    freed: int
    freed_so_far: int
    after_seconds: float = 0.0
    reclaim: tuple[Reclaim, ...] = ()


class DryRun(NamedTuple):
    """`crossed` holds at first, `unresolved` still in the end; `spared` pods could not go for `short`."""

    steps: tuple[Step, ...]
    spared: tuple[Ranked, ...] = ()
    short: Resource | None = None
    crossed: tuple[Threshold, ...] = ()
    unresolved: tuple[Threshold, ...] = ()


def by_thresholds(snapshot: Snapshot, thresholds: Sequence[Threshold], settings: Settings) -> DryRun:
    """What the thresholds would do, the soft ones included once their grace period is over."""
    snapshot = active(snapshot)._replace(time_seconds=0.0)
    # As if the loop had been running: everything was looked at before, and nothing was crossed.
    state = State(signals_seen=dict.fromkeys(Signal, -_LOOK_AGAIN_SECONDS))
    crossed: tuple[Threshold, ...] | None = None
    steps: list[Step] = []
    while True:
        state, decision = decide(state, snapshot, thresholds, settings)
        crossed = decision.crossed if crossed is None else crossed
        now = snapshot.time_seconds
        signal = decision.acting_on.signal if decision.acting_on else Signal.NODEFS_AVAILABLE
        for eviction in decision.evictions:
            step = _step(steps, snapshot, eviction, signal)
            steps.append(step._replace(after_seconds=now, reclaim=decision.reclaim))
            snapshot = without(snapshot, _seen(snapshot, eviction))
        next_look = now + _LOOK_AGAIN_SECONDS
        if not decision.evictions:
            since = state.first_crossed
            graces = [since[one] + one.grace_period_seconds for one in since if one not in state.unresolved]
            if not graces or not snapshot.pods:
                break
            next_look = max(next_look, min(graces))
        snapshot = snapshot._replace(time_seconds=next_look)
    if decision.acting_on is None:
        return DryRun(tuple(steps), crossed=crossed, unresolved=decision.crossed)
    spared = _spared(signal, snapshot, settings)
    return DryRun(tuple(steps), spared, resource_of(signal), crossed, decision.crossed)


def by_shortfall(snapshot: Snapshot, signal: Signal, shortfall: int | None, settings: Settings) -> DryRun:
    """Who would go until `shortfall` is covered, or until nobody is left who may, whatever the thresholds."""
    snapshot = active(snapshot)
    steps: list[Step] = []
    while shortfall is None or not steps or steps[-1].freed_so_far < shortfall:
        eviction = victim(signal, None, snapshot, settings)
        if eviction is None:
            break
        steps.append(_step(steps, snapshot, eviction, signal))
        snapshot = without(snapshot, _seen(snapshot, eviction))
    return DryRun(tuple(steps), _spared(signal, snapshot, settings), resource_of(signal))


def _step(steps: Sequence[Step], snapshot: Snapshot, eviction: Eviction, signal: Signal) -> Step:
    resource = resource_of(signal)
    gain = freed(_seen(snapshot, eviction), signal, snapshot)
    before = (step.freed_so_far for step in reversed(steps) if step.resource is resource)
    return Step(eviction, resource, gain, next(before, 0) + gain)


def _seen(snapshot: Snapshot, eviction: Eviction) -> PodSnapshot:
    return next(seen for seen in snapshot.pods if seen.pod is eviction.pod)


def _spared(signal: Signal, snapshot: Snapshot, settings: Settings) -> tuple[Ranked, ...]:
    return tuple(one for one in ranking(signal, snapshot, settings) if one.spared is not None)
