"""Who goes first, and who not at all (A20, B16, E13).

Both orders put a pod above its request before one within it. By **class**, BestEffort pods (whose request
is nothing) then go before Burstable and these before Guaranteed ones, by usage over request among those
above it and by usage among those within it. By **priority**, the lower goes first, then the larger usage
over request; processes, which nobody can request, go by priority and number. What is equal after that goes
younger first, then by name, so that the order is always one and the same.

The documents profile spares whom evicting would wrong or not help: pods that use none of what is scarce (or
of which that is not known), and pods within their request unless it is the system's own need. Critical pods
go last. The kubernetes profile spares critical pods only, and puts pods without statistics first.
"""

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import NamedTuple

from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod
from evenkeel.policy.eviction.snapshot import PodSnapshot, Snapshot
from evenkeel.policy.eviction.thresholds import Signal
from evenkeel.policy.eviction.usage import WHOLE_DISK, DiskPart, Resource, usage
from evenkeel.policy.pod_resources import eviction_request
from evenkeel.policy.qos import QoSClass, is_critical, pod_class
from evenkeel.quantity import NANOS, Quantity


class Order(StrEnum):
    CLASS = "class"
    PRIORITY = "priority"


class Need(StrEnum):
    """Whose need it is. For the pods' own, a pod within its request is never evicted (A5)."""

    PODS = "pods"
    SYSTEM = "system"


class Spared(StrEnum):
    """Why a pod is not evicted, as words that follow its name."""

    CRITICAL = "is critical"
    UNKNOWN = "has no figures"
    NO_USAGE = "uses none"
    WITHIN_REQUEST = "is within its request"


class Ranked(NamedTuple):
    """A pod in its place. `usage` and `request` are of the scarce resource; `over` is in billionths of its
    unit. `age` decides among equals: the younger is less."""

    seen: PodSnapshot
    qos: QoSClass
    usage: int | None
    request: Quantity
    over: int
    above_request: bool
    critical: bool
    spared: Spared | None
    priority: int
    age: "Age"

    @property
    def pod(self) -> Pod:
        return self.seen.pod


Age = tuple[tuple[int, ...], str, str]


def rank(
    pods: Iterable[PodSnapshot],
    resource: Resource,
    on_disk: Collection[DiskPart] = WHOLE_DISK,
    *,
    profile: Profile,
    order: Order | None = None,
    need: Need = Need.PODS,
) -> tuple[Ranked, ...]:
    """All of `pods`, who would go first first. `spared` marks those who do not go at all."""
    order = order or default_order(profile)
    is_kubernetes = profile is Profile.KUBERNETES
    facts = _facts_of(resource, profile)
    ranked = []
    for seen in pods:  # hundreds of them, when there is no time
        _, qos, request, critical, priority, age = facts(seen.pod)
        used = usage(seen, resource, on_disk)
        over = (used or 0) * NANOS - request.nanos
        spared = (Spared.CRITICAL if critical else None) if is_kubernetes else _spared(used, over > 0, need)
        ranked.append(Ranked(seen, qos, used, request, over, over > 0, critical, spared, priority, age))
    if is_kubernetes and resource is Resource.INODES:
        # Kubelet holds inodes against the request for bytes here, and only here.
        ranked = [one._replace(over=_over_bytes(one, profile)) for one in ranked]
    key = _priority_key if order is Order.PRIORITY else _class_key
    if is_kubernetes:
        ranked.sort(key=lambda one: (*key(one, resource), one.age))
    else:
        ranked.sort(key=lambda one: (one.spared is not None, one.critical, *key(one, resource), one.age))
    return tuple(ranked)


def default_order(profile: Profile) -> Order:
    return Order.CLASS if profile is Profile.DOCUMENTS else Order.PRIORITY


def need_of(signal: Signal, snapshot: Snapshot, profile: Profile) -> Need:
    """Whose need a shortage of `signal` is.

    Short memory in the pods' cgroup is the pods' own: requests fit into it with the threshold to spare
    (B8), so some pod is above its request, or has just ceased to be. Short memory on the node is the
    system's only if the figures say so: the pods together use no more than they requested, so what is
    missing is used outside them. The other resources have no cgroup to tell the two apart; there, pods
    above their request come first, and when none is left it is the system.
    """
    if signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE:
        return Need.PODS
    if signal is not Signal.MEMORY_AVAILABLE:
        return Need.SYSTEM
    used = _memory_of_pods(snapshot)
    if used is None:
        return Need.PODS
    facts = _facts_of(Resource.MEMORY, profile)
    requested = sum(facts(seen.pod).request.nanos for seen in snapshot.pods)
    return Need.SYSTEM if used * NANOS <= requested else Need.PODS


def _spared(used: int | None, is_above: bool, need: Need) -> Spared | None:  # noqa: FBT001
    if is_above:
        return None
    if used is None:
        return Spared.UNKNOWN
    if used <= 0:
        return Spared.NO_USAGE
    return Spared.WITHIN_REQUEST if need is Need.PODS else None


def _over_bytes(one: Ranked, profile: Profile) -> int:
    return (one.usage or 0) * NANOS - _request(one.pod, Resource.STORAGE, profile).nanos


class _Facts(NamedTuple):
    """What ranking asks of a pod whatever it uses."""

    pod: Pod
    qos: QoSClass
    request: Quantity
    critical: bool
    priority: int
    age: Age


_MOST_KNOWN = 4096
_known: dict[tuple[Resource, Profile], dict[int, _Facts]] = {}


def _facts_of(resource: Resource, profile: Profile) -> Callable[[Pod], _Facts]:
    """They follow from the pod alone and are kept: under pressure the same pods are ranked again and again, and there
    is no time."""
    known = _known.setdefault((resource, profile), {})

    def facts(pod: Pod) -> _Facts:
        one = known.get(id(pod))
        if one is None or one.pod is not pod:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            one = known[id(pod)] = _Facts(
                pod,
                pod_class(pod, profile),
                _request(pod, resource, profile),
                is_critical(pod, profile),
                pod.spec.priority or 0,
                _age(pod),
            )
        return one

    return facts


def _age(pod: Pod) -> Age:
    created = pod.metadata.creation_timestamp or ""
    # Turned round, letter by letter; and what begins alike and is longer is the later one.
    younger_first = (*(-ord(letter) for letter in created), 1)
    return younger_first, pod.key, pod.metadata.uid


def _request(pod: Pod, resource: Resource, profile: Profile) -> Quantity:
    return eviction_request(pod, resource, with_pod_level=profile is Profile.KUBERNETES)


def _priority_key(one: Ranked, resource: Resource) -> tuple[int, ...]:
    if resource is Resource.PIDS:
        return (one.priority, one.seen.stats is not None, -one.over)
    if one.seen.stats is None:
        return (0, 0, one.priority, 0)
    return (1, not one.above_request, one.priority, -one.over)


_CLASS_PLACE = {QoSClass.BEST_EFFORT: 0, QoSClass.BURSTABLE: 1, QoSClass.GUARANTEED: 2}


def _class_key(one: Ranked, resource: Resource) -> tuple[int, ...]:  # noqa: ARG001
    amount = one.over if one.above_request else one.usage or 0
    place = _CLASS_PLACE[one.qos]
    return (one.seen.stats is not None, not one.above_request, place, -amount, one.priority)


def _memory_of_pods(snapshot: Snapshot) -> int | None:
    cgroup = snapshot.node.pods_cgroup_memory
    if cgroup is not None and cgroup.working_set_bytes is not None:
        return cgroup.working_set_bytes
    total = 0
    for seen in snapshot.pods:
        used = usage(seen, Resource.MEMORY)
        if used is None:
            return None
        total += used
    return total
