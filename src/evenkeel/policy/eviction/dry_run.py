"""Dry run: which pods would be evicted, in which order, and what that would free (E15).

The steps are those of the real loop: a decision on a snapshot, then another on what would be left. Only the snapshots
in between are assumed: an evicted pod frees all that it used, and no other pod uses more or less meanwhile. The
deletion of unused containers and images is assumed to free nothing.
"""

from collections.abc import Sequence

from evenkeel.api.scalars import Amount
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.decide import Eviction, Reclaim, Settings, State, decide, ranking, victim
from evenkeel.policy.eviction.rank import Ranked
from evenkeel.policy.eviction.snapshot import (
    FilesystemFigures,
    MemoryFigures,
    PodSnapshot,
    ProcessFigures,
    Snapshot,
    active,
)
from evenkeel.policy.eviction.thresholds import Signal, Threshold
from evenkeel.policy.eviction.usage import Resource, disk_parts, resource_of, usage

_STEP_SECONDS = 1.0


class Step(NamedTuple):
    """One pod that would be evicted. `freed` counts units of `resource`."""

    eviction: Eviction
    resource: Resource
    freed: int
    freed_so_far: int
    after_seconds: float = 0.0
    reclaim: tuple[Reclaim, ...] = ()


class DryRun(NamedTuple):
    """`crossed` are the thresholds crossed at first, `unresolved` those still crossed at the end. `spared` are the pods
    that could not be evicted for `short`."""

    steps: tuple[Step, ...]
    spared: tuple[Ranked, ...] = ()
    short: Resource | None = None
    crossed: tuple[Threshold, ...] = ()
    unresolved: tuple[Threshold, ...] = ()


def by_thresholds(snapshot: Snapshot, thresholds: Sequence[Threshold], settings: Settings) -> DryRun:
    """The evictions that the thresholds would cause. Soft thresholds act when their grace period is over."""
    snapshot = active(snapshot)._replace(time_seconds=0.0)
    # As if the loop had been running: every signal was measured before, and no threshold was crossed.
    state = State(signals_seen=dict.fromkeys(Signal, -_STEP_SECONDS))
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
        next_at = now + _STEP_SECONDS
        if not decision.evictions:
            since = state.first_crossed
            graces = [since[one] + one.grace_period_seconds for one in since if one not in state.unresolved]
            if not graces or not snapshot.pods:
                break
            next_at = max(next_at, min(graces))
        snapshot = snapshot._replace(time_seconds=next_at)
    if decision.acting_on is None:
        return DryRun(tuple(steps), crossed=crossed, unresolved=decision.crossed)
    spared = _spared(signal, snapshot, settings)
    return DryRun(tuple(steps), spared, resource_of(signal), crossed, decision.crossed)


def by_shortfall(snapshot: Snapshot, signal: Signal, shortfall: int | None, settings: Settings) -> DryRun:
    """The evictions until `shortfall` is covered or no pod may be evicted. Thresholds do not count."""
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


# What an eviction would free


def freed(seen: PodSnapshot, signal: Signal, snapshot: Snapshot) -> int:
    """How much the eviction of the pod would add to `signal`."""
    return usage(_owned(seen), resource_of(signal), disk_parts(signal, snapshot.node)) or 0


def without(snapshot: Snapshot, seen: PodSnapshot) -> Snapshot:
    """`snapshot` as it would be if only this pod had ended."""
    node = snapshot.node
    memory = freed(seen, Signal.MEMORY_AVAILABLE, snapshot)
    return snapshot._replace(
        pods=tuple(other for other in snapshot.pods if other is not seen),
        node=node._replace(
            memory=_memory(node.memory, memory),
            pods_cgroup_memory=_memory(node.pods_cgroup_memory, memory),
            processes=_processes(node.processes, freed(seen, Signal.PID_AVAILABLE, snapshot)),
            nodefs=_filesystem(
                node.nodefs,
                freed(seen, Signal.NODEFS_AVAILABLE, snapshot),
                freed(seen, Signal.NODEFS_INODES_FREE, snapshot),
            ),
            imagefs=_filesystem(
                node.imagefs,
                freed(seen, Signal.IMAGEFS_AVAILABLE, snapshot),
                freed(seen, Signal.IMAGEFS_INODES_FREE, snapshot),
            ),
            containerfs=_filesystem(
                node.containerfs,
                freed(seen, Signal.CONTAINERFS_AVAILABLE, snapshot),
                freed(seen, Signal.CONTAINERFS_INODES_FREE, snapshot),
            ),
        ),
    )


def _owned(seen: PodSnapshot) -> PodSnapshot:
    """The pod without its hostPath volumes: these directories stay when the pod is evicted."""
    if seen.stats is None:
        return seen
    kept = {volume.name for volume in seen.pod.spec.volumes if volume.host_path is not None}
    volumes = tuple(volume for volume in seen.stats.volumes if volume.name not in kept)
    return seen._replace(stats=seen.stats._replace(volumes=volumes))


def _memory(figures: MemoryFigures | None, freed_bytes: int) -> MemoryFigures | None:
    if figures is None or figures.available_bytes is None or figures.working_set_bytes is None:
        return figures
    less = min(freed_bytes, figures.working_set_bytes)
    return MemoryFigures(Amount(figures.available_bytes + less), Amount(figures.working_set_bytes - less))


def _processes(figures: ProcessFigures | None, ended: int) -> ProcessFigures | None:
    if figures is None or figures.running is None:
        return figures
    return figures._replace(running=Amount(max(figures.running - ended, 0)))


def _filesystem(
    figures: FilesystemFigures | None, freed_bytes: int, freed_inodes: int
) -> FilesystemFigures | None:
    if figures is None:
        return None
    return figures._replace(
        available_bytes=_raised(figures.available_bytes, freed_bytes, figures.capacity_bytes),
        inodes_free=_raised(figures.inodes_free, freed_inodes, figures.inodes),
    )


def _raised(amount: Amount | None, by: int, most: Amount | None) -> Amount | None:
    if amount is None:
        return None
    raised = amount + by
    return Amount(raised if most is None else max(min(raised, most), amount))
