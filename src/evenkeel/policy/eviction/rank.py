"""Ranking: the order in which pods are evicted, and the pods that are not evicted at all (A20, B16, E13).

Both orders put a pod above its request before a pod within its request. By **class**, BestEffort pods (their request
is zero) are evicted before Burstable pods, and these before Guaranteed pods; in one class, usage over request decides
among pods above their request, and usage among pods within it. By **priority**, the lower priority is evicted first,
then the larger usage over request; processes cannot be requested, so there priority and number decide. Among equals
the younger pod is evicted first, then the name decides, so that the order is always the same.

The documents profile spares pods whose eviction would not help or would break a promise: pods that use none of the
scarce resource, pods without figures, and pods within their request unless the system itself needs the resource.
Critical pods are evicted last. The kubernetes profile spares critical pods only, and puts pods without statistics
first.
"""

from bisect import insort
from collections.abc import Callable, Collection, Iterable
from enum import StrEnum

from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod
from evenkeel.named_tuples import NamedTuple
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
    """The need for the scarce resource: of pods, or of the system. For the need of other pods, a pod within its request
    is never evicted (A5)."""

    PODS = "pods"
    SYSTEM = "system"


class Spared(StrEnum):
    """Why a pod is not evicted. The text follows the pod's name in a sentence."""

    CRITICAL = "is critical"
    UNKNOWN = "has no figures"
    NO_USAGE = "uses none"
    WITHIN_REQUEST = "is within its request"


class Ranked(NamedTuple):
    """A pod in the ranking. `usage` and `request` are of the scarce resource; `over` is usage above request, in
    billionths of the resource's unit. `age` decides among equals: the younger pod has the lesser one."""

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


Age = tuple[bytes, str, str]
Place = tuple[tuple[object, ...], Ranked]  # what the ranking compares, and the pod


def rank(
    pods: Iterable[PodSnapshot],
    resource: Resource,
    on_disk: Collection[DiskPart] = WHOLE_DISK,
    *,
    profile: Profile,
    order: Order | None = None,
    need: Need = Need.PODS,
    traits: "TraitCache | None" = None,
) -> tuple[Ranked, ...]:
    """All of `pods`, the first victim first. `spared` marks the pods that are not evicted at all."""
    order = order or default_order(profile)
    cache = TraitCache() if traits is None else traits
    standing = cache.standing((resource, frozenset(on_disk), profile, order, need))

    def place_of(seen: PodSnapshot) -> Place:
        one = _ranked(seen, resource, on_disk, profile, need, cache)
        return _sort_key(one, resource, profile, order), one

    return standing.in_order(tuple(pods), place_of)


class Standing:
    """The order of pods when they were last ranked in one way. A pod keeps its place while its figures are the same
    object, so only pods with new figures are compared again: hundreds of pods, at the moment when time is short."""

    def __init__(self) -> None:
        self.places: dict[int, Place] = {}  # by the pod's identity
        # Of the last ranking: the pods as they were given and, by their numbers there, what is compared.
        self._pods: tuple[PodSnapshot, ...] = ()
        self._keys: list[tuple[object, ...]] = []
        self._ranked: list[Ranked] = []
        self._order: list[int] = []  # the numbers, the first victim first

    def in_order(
        self, pods: tuple[PodSnapshot, ...], place_of: Callable[[PodSnapshot], Place]
    ) -> tuple[Ranked, ...]:
        """The pods, the first victim first. `place_of` is called for pods with new figures."""
        if len(pods) != len(self._pods):
            places = [self._place(seen, place_of) for seen in pods]
            self._keys = [key for key, _ in places]
            self._ranked = [one for _, one in places]
            self._order = sorted(range(len(pods)), key=self._keys.__getitem__)
        else:
            before = self._pods
            self._move(
                [number for number, seen in enumerate(pods) if seen is not before[number]], pods, place_of
            )
        self._pods = pods
        return tuple([self._ranked[number] for number in self._order])

    def _move(
        self, moved: list[int], pods: tuple[PodSnapshot, ...], place_of: Callable[[PodSnapshot], Place]
    ) -> None:
        for number in moved:
            self._keys[number], self._ranked[number] = self._place(pods[number], place_of)
        if len(moved) > _FEW:
            self._order.sort(key=self._keys.__getitem__)
            return
        for number in moved:
            self._order.remove(number)
        for number in moved:
            insort(self._order, number, key=self._keys.__getitem__)

    def _place(self, seen: PodSnapshot, place_of: Callable[[PodSnapshot], Place]) -> Place:
        place = self.places.get(id(seen.pod))
        if place is None or place[1].seen is not seen:
            place = self.places[id(seen.pod)] = place_of(seen)
        return place

    def keep_only(self, identities: Collection[int]) -> None:
        """Forgets all pods but those with these identities."""
        for identity in self.places.keys() - identities:
            del self.places[identity]
        self._pods = ()


_FEW = 8  # pods that are put into an order one by one. To sort all takes less time for more than that


def _ranked(
    seen: PodSnapshot,
    resource: Resource,
    on_disk: Collection[DiskPart],
    profile: Profile,
    need: Need,
    cache: "TraitCache",
) -> Ranked:
    _, qos, request, critical, priority, age = cache.reader(resource, profile)(seen.pod)
    used = usage(seen, resource, on_disk)
    over = (used or 0) * NANOS - request.nanos
    if profile is not Profile.KUBERNETES:
        spared = _spared(used, over > 0, need)
        return Ranked(seen, qos, used, request, over, over > 0, critical, spared, priority, age)
    is_above = over > 0
    if resource is Resource.INODES:
        # Kubelet compares inodes with the request for bytes here, and only here.
        over = (used or 0) * NANOS - _request(seen.pod, Resource.STORAGE, profile).nanos
    spared = Spared.CRITICAL if critical else None
    return Ranked(seen, qos, used, request, over, is_above, critical, spared, priority, age)


def _sort_key(one: Ranked, resource: Resource, profile: Profile, order: Order) -> tuple[object, ...]:
    key = (_priority_key if order is Order.PRIORITY else _class_key)(one, resource)
    if profile is Profile.KUBERNETES:
        return (*key, one.age)
    return (one.spared is not None, one.critical, *key, one.age)


def default_order(profile: Profile) -> Order:
    return Order.CLASS if profile is Profile.DOCUMENTS else Order.PRIORITY


def need_of(signal: Signal, snapshot: Snapshot, profile: Profile, traits: "TraitCache | None" = None) -> Need:
    """Whether pods or the system need what `signal` counts.

    A shortage in the pods' cgroup is caused by pods: all requests fit into it with the threshold to spare (B8), so
    some pod is above its request, or was a moment ago. A shortage of the node's memory is the system's only where the
    pods together use no more than they requested: then the missing memory is used outside the pods. For the other
    resources no cgroup separates pods from the system. There pods above their request are evicted first; when none is
    left, the system needs the rest.
    """
    if signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE:
        return Need.PODS
    if signal is not Signal.MEMORY_AVAILABLE:
        return Need.SYSTEM
    used = _memory_of_pods(snapshot)
    if used is None:
        return Need.PODS
    traits_of = (TraitCache() if traits is None else traits).reader(Resource.MEMORY, profile)
    requested = sum(traits_of(seen.pod).request.nanos for seen in snapshot.pods)
    return Need.SYSTEM if used * NANOS <= requested else Need.PODS


class PodTraits(NamedTuple):
    """The facts that ranking reads from a pod's specification. They do not depend on the pod's usage."""

    pod: Pod
    qos: QoSClass
    request: Quantity
    critical: bool
    priority: int
    age: Age


class TraitCache:
    """The traits of pods that are ranked again and again: computed once for each pod, because under memory pressure
    there is no time to compute them.

    It belongs to one caller and one thread. The owner calls `keep_only` when its pods change, so the cache never holds
    more than the owner's pods.
    """

    def __init__(self) -> None:
        # By the pod's identity: to compare whole pods would take longer than to compute the traits.
        self._known: dict[tuple[Resource, Profile], dict[int, PodTraits]] = {}
        self._standings: dict[object, Standing] = {}  # by the way of ranking

    def reader(self, resource: Resource, profile: Profile) -> Callable[[Pod], PodTraits]:
        """A function that returns the traits of one pod."""
        known = self._known.setdefault((resource, profile), {})

        def traits_of(pod: Pod) -> PodTraits:
            found = known.get(id(pod))  # `found` holds the pod, so its identity is not used a second time
            if found is None:
                found = known[id(pod)] = PodTraits(
                    pod,
                    pod_class(pod, profile),
                    _request(pod, resource, profile),
                    is_critical(pod, profile),
                    pod.spec.priority or 0,
                    _age(pod),
                )
            return found

        return traits_of

    def standing(self, way: object) -> Standing:
        """The order of the pods when they were last ranked in this way."""
        found = self._standings.get(way)
        if found is None:
            found = self._standings[way] = Standing()
        return found

    def keep_only(self, pods: Iterable[Pod]) -> None:
        """Forget every pod that is not one of `pods`."""
        current = {id(pod) for pod in pods}
        for known in self._known.values():
            for identity in known.keys() - current:
                del known[identity]
        for standing in self._standings.values():
            standing.keep_only(current)

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))


def _spared(used: int | None, is_above: bool, need: Need) -> Spared | None:  # noqa: FBT001
    if is_above:
        return None
    if used is None:
        return Spared.UNKNOWN
    if used <= 0:
        return Spared.NO_USAGE
    return Spared.WITHIN_REQUEST if need is Need.PODS else None


def _age(pod: Pod) -> Age:
    created = pod.metadata.creation_timestamp or ""
    # Negated byte by byte: the later time sorts first. Of two texts that begin alike the longer is the later.
    younger_first = bytes([_LAST_BYTE - byte for byte in created.encode("utf-8", "surrogatepass")])
    return younger_first + _END, pod.key, pod.metadata.uid


_LAST_BYTE = 0xFE  # no text in UTF-8 has a higher one
_END = b"\xff"


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
