"""Eviction decisions: one step of the control loop, from a snapshot and the state before to an action (A15, B16, E2).

The step is a function. The loop takes a snapshot, calls `decide`, carries out the decision and takes a new snapshot. It
evicts one pod and then measures again, so that no pod is evicted for memory that is already being freed.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

from evenkeel.api.config import KubeletConfiguration, Profile, defaulted
from evenkeel.api.defaults import DEFAULT_GRACE_PERIOD_SECONDS
from evenkeel.api.pod import Pod
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction import conditions as node_conditions
from evenkeel.policy.eviction.conditions import (
    NO_OBSERVATIONS,
    Observations,
    Pressure,
    observations,
    thresholds_met,
    with_containerfs,
)
from evenkeel.policy.eviction.message import Shortage, crossed, limit_message, shortage, shortage_message
from evenkeel.policy.eviction.rank import Need, Order, Ranked, TraitCache, need_of, rank
from evenkeel.policy.eviction.snapshot import NodeFigures, PodSnapshot, Snapshot, active
from evenkeel.policy.eviction.thresholds import Signal, Threshold
from evenkeel.policy.eviction.usage import LimitExceeded, Resource, disk_parts, limit_exceeded, resource_of
from evenkeel.policy.qos import is_critical

EVICTED = "Evicted"
DISRUPTION_TARGET = "DisruptionTarget"
TERMINATED_BY_NODE = "TerminationByKubelet"
_LIMIT_GRACE_SECONDS = 1
_HARD_GRACE_SECONDS = {Profile.DOCUMENTS: 0, Profile.KUBERNETES: 1}


class Settings(NamedTuple):
    profile: Profile = Profile.DOCUMENTS
    order: Order = Order.CLASS
    max_pod_grace_period_seconds: int = 0
    pressure_transition_period_seconds: float = 300.0
    local_storage_capacity_isolation: bool = True


class State(NamedTuple):
    """The state that one step passes to the next."""

    first_crossed: Mapping[Threshold, float] = MappingProxyType({})
    unresolved: tuple[Threshold, ...] = ()
    pressure_seen: Mapping[Pressure, float] = MappingProxyType({})
    signals_seen: Mapping[Signal, float] = MappingProxyType({})
    conditions: tuple[Pressure, ...] = ()


def of_thresholds(state: State, thresholds: Collection[Threshold]) -> State:
    """The state, limited to `thresholds`: no pod is evicted for a threshold that is not configured any more."""
    return state._replace(
        first_crossed={one: at for one, at in state.first_crossed.items() if one in thresholds},
        unresolved=tuple(one for one in state.unresolved if one in thresholds),
    )


class Reclaim(StrEnum):
    """The garbage that can be deleted before any pod is evicted."""

    CONTAINERS = "unused containers"
    IMAGES = "unused images"


class Eviction(NamedTuple):
    """The eviction of a whole pod. Exactly one of `shortage` and `limit` says why."""

    pod: Pod
    grace_period_seconds: int
    shortage: Shortage | None = None
    limit: LimitExceeded | None = None

    @property
    def message(self) -> str:
        """Why, in sentences. They are written when they are asked for: under memory pressure there is no time."""
        if self.shortage is not None:
            return shortage_message(self.shortage)
        return limit_message(self.pod.key, self.limit) if self.limit is not None else ""

    @property
    def is_disruption(self) -> bool:
        """Whether the node needed the resources of the pod (the condition DisruptionTarget, A20)."""
        return self.limit is None


class Decision(NamedTuple):
    """The actions to take.

    All pods `over_limit` are evicted, because each exceeds its own limit. `due` are the thresholds that require action,
    the most urgent first; `acting_on` is the one that this decision acts on. `reclaim` is deleted first. If
    `is_relieved` then says of new figures that this was enough, `victim` is not evicted.
    """

    observations: Observations = NO_OBSERVATIONS
    crossed: tuple[Threshold, ...] = ()
    conditions: tuple[Pressure, ...] = ()
    over_limit: tuple[Eviction, ...] = ()
    due: tuple[Threshold, ...] = ()
    acting_on: Threshold | None = None
    reclaim: tuple[Reclaim, ...] = ()
    victim: Eviction | None = None

    @property
    def evictions(self) -> tuple[Eviction, ...]:
        return self.over_limit if self.victim is None else (*self.over_limit, self.victim)


def settings_from(config: KubeletConfiguration) -> Settings:
    full = defaulted(config)
    return Settings(
        profile=full.rulebook,
        order=Order(full.eviction_order),
        max_pod_grace_period_seconds=full.eviction_max_pod_grace_period,
        pressure_transition_period_seconds=full.eviction_pressure_transition_period.seconds,
        local_storage_capacity_isolation=full.local_storage_capacity_isolation,
    )


def decide(
    state: State,
    snapshot: Snapshot,
    thresholds: Sequence[Threshold],
    settings: Settings,
    traits: TraitCache | None = None,
) -> tuple[State, Decision]:
    """The state after `snapshot`, and what to do about it. `traits` saves time and changes no decision."""
    if not thresholds and not settings.local_storage_capacity_isolation:
        return state, Decision(conditions=state.conditions)
    now = snapshot.time_seconds
    snapshot = active(snapshot)
    seen = observations(snapshot.node)

    met = thresholds_met(_watched(state, thresholds, snapshot.node, settings), seen)
    still = thresholds_met(state.unresolved, seen, enforce_min_reclaim=True)
    met += tuple(threshold for threshold in still if threshold not in met)
    first_crossed = {threshold: state.first_crossed.get(threshold, now) for threshold in met}
    pressure_seen = node_conditions.last_seen(state.pressure_seen, met, now)
    conditions = node_conditions.reported(pressure_seen, settings.pressure_transition_period_seconds, now)
    # A hard threshold has no grace period and counts at once.
    lasting = tuple(t for t in met if now - first_crossed[t] >= t.grace_period_seconds)
    after = State(first_crossed, lasting, pressure_seen, dict.fromkeys(seen, now), conditions)
    decision = Decision(seen, met, conditions)

    if settings.local_storage_capacity_isolation:
        over_limit = _over_limit(snapshot, settings.profile)
        if over_limit:
            # Their storage will be freed: measure again before another pod is evicted.
            return after, decision._replace(over_limit=over_limit)
    # The same figures cause only one eviction: what it frees may not be in them yet.
    fresh = (t for t in lasting if t.signal not in state.signals_seen or now > state.signals_seen[t.signal])
    due = tuple(sorted(fresh, key=_urgency))
    if not due:
        return after, decision
    threshold, evicted = _act(due, snapshot, settings, TraitCache() if traits is None else traits)
    return after, decision._replace(
        due=due,
        acting_on=threshold,
        reclaim=reclaimable(threshold.signal, snapshot.node),
        victim=evicted,
    )


def victim(
    signal: Signal,
    threshold: Threshold | None,
    snapshot: Snapshot,
    settings: Settings,
    traits: TraitCache | None = None,
) -> Eviction | None:
    """The pod that is evicted first when `signal` is short, or None if no pod may be evicted.

    `threshold` is the threshold that was crossed; None for a shortage that is only assumed.
    """
    need = need_of(signal, snapshot, settings.profile, traits)
    candidates = [one for one in ranking(signal, snapshot, settings, need, traits) if one.spared is None]
    if not candidates:
        return None
    chosen = candidates[0].seen
    reason = shortage(
        resource_of(signal),
        None if threshold is None else crossed(threshold, observations(snapshot.node)[signal]),
        candidates,
        disk_parts(signal, snapshot.node),
        settings.order,
        need,
    )
    grace = _grace_seconds(chosen, threshold, settings)
    return Eviction(chosen.pod, grace, shortage=reason)


def ranking(
    signal: Signal,
    snapshot: Snapshot,
    settings: Settings,
    need: Need | None = None,
    traits: TraitCache | None = None,
) -> tuple[Ranked, ...]:
    """All pods in the order of their eviction for `signal`. Pods that would not be evicted are marked as spared."""
    return rank(
        snapshot.pods,
        resource_of(signal),
        disk_parts(signal, snapshot.node),
        profile=settings.profile,
        order=settings.order,
        need=need or need_of(signal, snapshot, settings.profile, traits),
        traits=traits,
    )


def reclaimable(signal: Signal, node: NodeFigures) -> tuple[Reclaim, ...]:
    """The garbage to delete from the filesystem of `signal` before any pod is evicted."""
    if resource_of(signal) not in (Resource.STORAGE, Resource.INODES):
        return ()
    filesystem = signal.partition(".")[0]
    if node.dedicated_imagefs and node.separate_containerfs:
        return (Reclaim.IMAGES,) if filesystem == "imagefs" else (Reclaim.CONTAINERS,)
    if node.dedicated_imagefs and filesystem == "nodefs":
        return ()
    return (Reclaim.CONTAINERS, Reclaim.IMAGES)


def _watched(
    state: State, thresholds: Sequence[Threshold], node: NodeFigures, settings: Settings
) -> Sequence[Threshold]:
    # Kubelet finds out the filesystems in its first round and watches the containerfs from the second round.
    if settings.profile is Profile.KUBERNETES and not state.signals_seen:
        return thresholds
    return with_containerfs(thresholds, node)


def _act(
    due: Sequence[Threshold], snapshot: Snapshot, settings: Settings, traits: TraitCache
) -> tuple[Threshold, Eviction | None]:
    """The most urgent threshold for which a pod may be evicted, and its victim. Kubelet considers the first only."""
    for threshold in due if settings.profile is Profile.DOCUMENTS else due[:1]:
        evicted = victim(threshold.signal, threshold, snapshot, settings, traits)
        if evicted is not None:
            return threshold, evicted
    return due[0], None


def _urgency(threshold: Threshold) -> tuple[int, bool, int]:
    """Memory first, because the kernel kills for it; then processes, because without them nothing can be repaired; then
    disk. Hard before soft, then in the order of `Signal`."""
    resource = resource_of(threshold.signal)
    kind = {Resource.MEMORY: 0, Resource.PIDS: 1}.get(resource, 2)
    return (kind, not threshold.hard, tuple(Signal).index(threshold.signal))


def _over_limit(snapshot: Snapshot, profile: Profile) -> tuple[Eviction, ...]:
    found = []
    for seen in snapshot.pods:
        exceeded = limit_exceeded(seen, snapshot.node)
        # A limit applies to every pod. Kubelet makes an exception for critical pods.
        if exceeded is None or (profile is Profile.KUBERNETES and is_critical(seen.pod, profile)):
            continue
        found.append(Eviction(seen.pod, _LIMIT_GRACE_SECONDS, limit=exceeded))
    return tuple(found)


def _grace_seconds(seen: PodSnapshot, threshold: Threshold | None, settings: Settings) -> int:
    if threshold is None or threshold.hard:
        return _HARD_GRACE_SECONDS[settings.profile]
    most = settings.max_pod_grace_period_seconds
    own = seen.pod.spec.termination_grace_period_seconds
    if most < 0 and settings.profile is Profile.DOCUMENTS:
        return DEFAULT_GRACE_PERIOD_SECONDS if own is None else own  # the pod keeps its own grace period
    return most if own is None else min(most, own)
