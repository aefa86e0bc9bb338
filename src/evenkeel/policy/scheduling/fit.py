"""Does the pod fit the node: PodFitsResources, by requests and never by limits (A9)."""

from typing import NamedTuple

from evenkeel.api.resources import PODS
from evenkeel.policy.scheduling.node_info import NodeInfo, PodFigures


class Insufficient(NamedTuple):
    """One resource that a node has too little of."""

    resource: str
    requested: int
    used: int
    capacity: int

    @property
    def is_hopeless(self) -> bool:
        """Not even an empty node would do."""
        return self.resource != PODS and self.requested > self.capacity


def fits(pod: PodFigures, node: NodeInfo) -> bool:
    """As `insufficient`, for those who only want to know whether."""
    if node.pods >= node.allowed_pods:
        return False
    allocatable, requested = node.allocatable, node.requested
    # What the pod does not request cannot keep it away, even where the node has given too much of it.
    return all(amount <= allocatable.get(name, 0) - requested.get(name, 0) for name, amount in pod.needed)


def insufficient(pod: PodFigures, node: NodeInfo) -> tuple[Insufficient, ...]:
    """Everything that the node has too little of."""
    found = []
    if node.pods >= node.allowed_pods:
        found.append(Insufficient(PODS, 1, node.pods, node.allowed_pods))
    for name, amount in pod.needed:
        capacity, used = node.allocatable.get(name, 0), node.requested.get(name, 0)
        if amount > capacity - used:
            found.append(Insufficient(name, amount, used, capacity))
    return tuple(found)


def exceeding(node: NodeInfo) -> tuple[Insufficient, ...]:
    """What the pods already on the node request more of than it has (A9: do they exceed its capacity)."""
    found = [Insufficient(PODS, 0, node.pods, node.allowed_pods)] if node.pods > node.allowed_pods else []
    for name, used in sorted(node.requested.items()):
        capacity = node.allocatable.get(name, 0)
        if used > capacity:
            found.append(Insufficient(name, 0, used, capacity))
    return tuple(found)
