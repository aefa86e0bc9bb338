"""Preemption: which pods end so that a critical pod can be admitted, as kubelet chooses them.

A critical pod is not refused for lack of room while other pods could make room. As few pods as possible end, and no pod
of a higher class ends if pods of lower classes are enough. First come the fewest Guaranteed pods that are needed even
if all other pods end, then the fewest Burstable pods, then the fewest BestEffort pods."""

from collections.abc import Iterable, Mapping, Sequence

from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU, MEMORY, ResourceList, Totals
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.qos import QoSClass, is_critical, pod_class
from evenkeel.quantity import ZERO, Quantity

PREEMPTED = "Preempting"  # kubelet's reason of a pod that has ended for a critical one


class Candidate(NamedTuple):
    """A pod that may have to end, with what admission counts for it (`admission.requested`)."""

    pod: Pod
    asked: ResourceList


def shortage(asked: ResourceList, used: Mapping[str, Quantity], allocatable: ResourceList) -> Totals:
    """The missing amount of each resource, so that `asked` would fit; empty if it fits."""
    missing = {
        name: used.get(name, ZERO) + amount - allocatable.get(name, ZERO)
        for name, amount in asked.items()
        if amount
    }
    return {name: amount for name, amount in missing.items() if amount > ZERO}


def may_preempt(preemptor: Pod, other: Pod, profile: Profile) -> bool:
    """The rule of kubelet: a critical pod takes the place of one that is not critical, or of a lower priority."""
    if not is_critical(preemptor, profile):
        return False
    return not is_critical(other, profile) or (preemptor.spec.priority or 0) > (other.spec.priority or 0)


def pods_to_preempt(
    preemptor: Pod, candidates: Iterable[Candidate], missing: ResourceList, profile: Profile
) -> tuple[Pod, ...] | None:
    """The pods that end for the critical pod `preemptor`, which lacks `missing`. None if even all pods that may end are
    not enough: then no pod ends."""
    by_class: dict[QoSClass, list[Candidate]] = {one: [] for one in QoSClass}
    for candidate in candidates:
        if may_preempt(preemptor, candidate.pod, profile):
            by_class[pod_class(candidate.pod, profile)].append(candidate)
    best_effort, burstable = by_class[QoSClass.BEST_EFFORT], by_class[QoSClass.BURSTABLE]
    guaranteed = by_class[QoSClass.GUARANTEED]
    if _left(missing, [*best_effort, *burstable, *guaranteed]):
        return None
    first = _fewest(guaranteed, _left(missing, [*best_effort, *burstable]))
    second = _fewest(burstable, _left(missing, [*best_effort, *first]))
    third = _fewest(best_effort, _left(missing, [*second, *first]))
    return tuple(one.pod for one in (*third, *second, *first))


def _left(missing: ResourceList, ended: Sequence[Candidate]) -> Totals:
    """The amounts that are still missing when these pods have ended."""
    left = {
        name: amount - sum((one.asked.get(name, ZERO) for one in ended), ZERO)
        for name, amount in missing.items()
    }
    return {name: amount for name, amount in left.items() if amount > ZERO}


def _fewest(candidates: Sequence[Candidate], missing: ResourceList) -> list[Candidate]:
    """Pods that together have enough of what is missing. Each round takes the pod whose requests leave the least
    missing. Of several such pods it takes the one with the smallest requests. `candidates` together have enough."""
    left, others, taken = dict(missing), list(candidates), list[Candidate]()
    while left:
        # Of pods that are equal in all this, kubelet takes the last one. The last pod of the list then gets its place.
        best = min(
            reversed(range(len(others))), key=lambda at: (_distance(left, others[at]), _size(others[at]))
        )
        taken.append(others[best])
        others[best] = others[-1]
        others.pop()
        left = _left(left, taken[-1:])
    return taken


def _distance(missing: ResourceList, one: Candidate) -> float:
    """How much would still be missing. Every resource counts the same, whatever its amounts."""
    total = 0.0
    for name, amount in missing.items():
        rest = amount - one.asked.get(name, ZERO)
        if rest > ZERO:
            total += (rest.milli / amount.milli) ** 2
    return total


def _size(one: Candidate) -> tuple[Quantity, Quantity]:
    return one.asked.get(MEMORY, ZERO), one.asked.get(CPU, ZERO)
