"""Which node takes a pod: the nodes with room for it, their scores in the integers of Kubernetes (A10), and the best.

A strategy compares what pods request with what the node has: LeastAllocated (LeastRequested in the documents) spreads,
MostAllocated packs, RequestedToCapacityRatio follows a curve. BalancedAllocation asks whether the pod makes the use of
the node's resources more even or less. Each score is 0…100; the score of a node is their weighted sum.

`Cluster` applies the rules node by node and is easy to check; `array_cluster.ArrayCluster` applies the same rules to
all nodes at once. Of nodes with equal scores the first takes the pod (Kubernetes takes a random one), so that the same
input gives the same answer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from math import sqrt

from evenkeel.api.config import Profile
from evenkeel.api.node import Node
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU, MEMORY, PODS
from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple
from evenkeel.simulate.node_info import NodeInfo, PodDemand, is_scalar, pod_demand, taint_text, untolerated

MAX_SCORE = 100
MAX_WEIGHT = 100
MAX_SHAPE_SCORE = 10


class Strategy(StrEnum):
    LEAST_ALLOCATED = "LeastAllocated"
    MOST_ALLOCATED = "MostAllocated"
    REQUESTED_TO_CAPACITY_RATIO = "RequestedToCapacityRatio"


class ShapePoint(NamedTuple):
    """RequestedToCapacityRatio's score (0…10) at a utilization (0…100); straight lines join the points."""

    utilization: int
    score: int


class Scoring(NamedTuple):
    """How nodes are compared. The defaults are Kubernetes'."""

    strategy: Strategy = Strategy.LEAST_ALLOCATED
    resources: tuple[tuple[str, int], ...] = ((CPU, 1), (MEMORY, 1))  # name and weight
    shape: tuple[ShapePoint, ...] = (ShapePoint(0, 0), ShapePoint(100, MAX_SHAPE_SCORE))
    balanced: tuple[str, ...] = (CPU, MEMORY)  # the resources of BalancedAllocation
    strategy_weight: int = 1
    balanced_weight: int = 1

    def or_raise(self) -> "Scoring":
        """The scoring itself if it is valid; otherwise an error. The bounds are those of Kubernetes."""
        if not self.resources:
            raise EvenkeelError("a strategy needs at least one resource, such as cpu=1")
        for name, weight in self.resources:
            if not 1 <= weight <= MAX_WEIGHT:
                raise EvenkeelError(f"the weight of {name} must be from 1 to {MAX_WEIGHT}, not {weight}")
        names = [name for name, _ in self.resources]
        if len(set(names)) < len(names):
            raise EvenkeelError(f"a resource can be weighed once only, not as in {','.join(names)}")
        for weight in (self.strategy_weight, self.balanced_weight):
            if not 0 <= weight <= MAX_WEIGHT:
                raise EvenkeelError(f"the weight of a score must be from 0 to {MAX_WEIGHT}, not {weight}")
        _check_shape(self.shape)
        return self


class NodeScore(NamedTuple):
    strategy: int
    balanced: int
    total: int


def scorer(pod: PodDemand, scoring: Scoring) -> Callable[[NodeInfo], NodeScore]:
    """A function that gives a node its scores for the pod, whether or not the pod fits."""
    asked, requests = dict(pod.scored), dict(pod.requests)
    is_balanced = not skips_balance(requests, scoring.balanced)

    def score(node: NodeInfo) -> NodeScore:
        strategy = strategy_score(asked, node, scoring)
        balanced = balanced_score(requests, node, scoring.balanced) if is_balanced else 0
        total = strategy * scoring.strategy_weight + balanced * scoring.balanced_weight
        return NodeScore(strategy, balanced, total)

    return score


def strategy_score(asked: Mapping[str, int], node: NodeInfo, scoring: Scoring) -> int:
    """The strategy's score, from the `occupied` amounts of the node and the `scored` amounts of the pod."""
    score = weights = 0
    for name, weight in scoring.resources:
        capacity = node.allocatable.get(name, 0)
        more = asked.get(name, 0)
        if not capacity or (not more and is_scalar(name)):
            continue
        used = node.occupied.get(name, 0) + more
        if scoring.strategy is Strategy.LEAST_ALLOCATED:
            score += weight * ((capacity - used) * MAX_SCORE // capacity if used <= capacity else 0)
        elif scoring.strategy is Strategy.MOST_ALLOCATED:
            score += weight * (min(used, capacity) * MAX_SCORE // capacity)
        else:
            of_resource = shape_score(scoring.shape, min(used, capacity) * MAX_SCORE // capacity)
            if not of_resource:
                continue  # Kubernetes leaves a zero out of the mean
            score += weight * of_resource
        weights += weight
    if not weights:
        return 0
    if scoring.strategy is Strategy.REQUESTED_TO_CAPACITY_RATIO:
        return (2 * score + weights) // (2 * weights)  # rounded to the nearest, half up
    return score // weights


def shape_score(shape: Sequence[ShapePoint], utilization: int) -> int:
    """The value of the curve at `utilization`, on a scale of 0…100."""
    scale = MAX_SCORE // MAX_SHAPE_SCORE
    before = shape[0]
    for point in shape:
        if utilization <= point.utilization:
            if point is before:
                break
            rise = (point.score - before.score) * scale * (utilization - before.utilization)
            run = point.utilization - before.utilization
            # Go divides towards zero. On a falling line that is up.
            return before.score * scale + (rise // run if rise >= 0 else -(-rise // run))
        before = point
    return before.score * scale


def balanced_score(requests: Mapping[str, int], node: NodeInfo, resources: Sequence[str]) -> int:
    """75 if the pod does not change how evenly resources are used; more if the use becomes more even, less if less."""
    before, after, capacities = [], [], []
    for name in resources:
        capacity = node.allocatable.get(name, 0)
        more = requests.get(name, 0)
        if not capacity or (not more and is_scalar(name)):
            continue
        used = node.requested.get(name, 0)
        capacities.append(capacity)
        before.append(used)
        after.append(used + more)
    change = evenness(after, capacities) - evenness(before, capacities)
    return MAX_SCORE // 2 + (MAX_SCORE // 2 + change) // 2


def evenness(used: Sequence[int], capacities: Sequence[int]) -> int:
    """100 if the same part of every resource is used; less if the parts differ.

    The floats are computed in the order of Kubernetes. The result is cut to an integer, so every bit counts.
    """
    parts = [min(float(one) / float(all_of_it), 1.0) for one, all_of_it in zip(used, capacities, strict=True)]
    deviation = 0.0
    if len(parts) == 2:
        deviation = abs((parts[0] - parts[1]) / 2)
    elif len(parts) > 2:
        total = squares = 0.0
        for part in parts:  # not sum(): since Python 3.12 it is more precise than Kubernetes
            total += part
        mean = total / len(parts)
        for part in parts:
            squares += (part - mean) * (part - mean)
        deviation = sqrt(squares / len(parts))
    return int((1 - deviation) * MAX_SCORE)


def skips_balance(requests: Mapping[str, int], resources: Sequence[str]) -> bool:
    """Whether the pod requests none of `resources`: then nodes are not compared by their balance."""
    return not any(requests.get(name, 0) for name in resources)


def _check_shape(shape: Sequence[ShapePoint]) -> None:
    if not shape:
        raise EvenkeelError("a shape needs at least one point, such as 0:0,100:10")
    for point in shape:
        if not 0 <= point.utilization <= MAX_SCORE:
            raise EvenkeelError(
                f"a shape's utilization must be from 0 to {MAX_SCORE}, not {point.utilization}"
            )
        if not 0 <= point.score <= MAX_SHAPE_SCORE:
            raise EvenkeelError(f"the scores of a shape are 0 to {MAX_SHAPE_SCORE}, not {point.score}")
    if any(one.utilization >= other.utilization for one, other in pairwise(shape)):
        raise EvenkeelError("the utilizations of a shape must rise from point to point, as in 0:0,100:10")


class Insufficient(NamedTuple):
    """A resource of which a node has too little."""

    resource: str
    requested: int
    used: int
    capacity: int


def fits(pod: PodDemand, node: NodeInfo) -> bool:
    """Whether the node has everything that the pod needs. Faster than `insufficient`."""
    if node.pods >= node.allowed_pods:
        return False
    allocatable, requested = node.allocatable, node.requested
    # A resource that the pod does not request does not matter, even if the node is short of it.
    return all(amount <= allocatable.get(name, 0) - requested.get(name, 0) for name, amount in pod.needed)


def insufficient(pod: PodDemand, node: NodeInfo) -> tuple[Insufficient, ...]:
    """Every resource of which the node has too little for the pod."""
    found = []
    if node.pods >= node.allowed_pods:
        found.append(Insufficient(PODS, 1, node.pods, node.allowed_pods))
    for name, amount in pod.needed:
        capacity, used = node.allocatable.get(name, 0), node.requested.get(name, 0)
        if amount > capacity - used:
            found.append(Insufficient(name, amount, used, capacity))
    return tuple(found)


def exceeding(node: NodeInfo) -> tuple[Insufficient, ...]:
    """Every resource of which the pods already on the node request more than it has (A9)."""
    found = [Insufficient(PODS, 0, node.pods, node.allowed_pods)] if node.pods > node.allowed_pods else []
    for name, used in sorted(node.requested.items()):
        capacity = node.allocatable.get(name, 0)
        if used > capacity:
            found.append(Insufficient(name, 0, used, capacity))
    return tuple(found)


class NodeRefusal(NamedTuple):
    """One reason why nodes refuse a pod, and the number of these nodes: too little of a resource, or a taint."""

    nodes: int
    resource: str = ""
    requested: int = 0
    most_free: int = 0  # the most that one of these nodes has free
    taint: str = ""


class Choice(NamedTuple):
    place: int  # the index of the node
    score: int


class Placement(NamedTuple):
    """The node of a pod, or (`node` is empty) why no node takes it. One node can have several reasons."""

    pod: str
    node: str = ""
    score: int = 0
    refusals: tuple[NodeRefusal, ...] = ()


class Cluster:
    """Nodes and the pods on them. Each pod is compared with one node after the other."""

    def __init__(self, nodes: Sequence[NodeInfo], scoring: Scoring) -> None:
        self.nodes = nodes
        self.scoring = scoring.or_raise()

    def best(self, pod: PodDemand) -> Choice | None:
        """The node with the highest score; the first of equals. None if no node takes the pod."""
        return self.best_among(pod, range(len(self.nodes)))

    def best_among(self, pod: PodDemand, places: Iterable[int]) -> Choice | None:
        """The best of the nodes at `places`, which must be in rising order."""
        score_of = scorer(pod, self.scoring)
        best = None
        for place in places:
            node = self.nodes[place]
            if fits(pod, node) and not (node.taints and untolerated(node.taints, pod.tolerations)):
                score = score_of(node).total
                if best is None or score > best.score:
                    best = Choice(place, score)
        return best

    def add(self, place: int, pod: PodDemand) -> None:
        """Count the pod on that node, whether or not it fits."""
        self.nodes[place].add(pod)

    def refusals(self, pod: PodDemand) -> tuple[NodeRefusal, ...]:
        """Why no node takes the pod. A node whose taint repels it is counted for the taint only."""
        taints: dict[str, NodeRefusal] = {}
        resources: dict[str, NodeRefusal] = {}
        for node in self.nodes:
            taint = untolerated(node.taints, pod.tolerations)
            if taint is not None:
                text = taint_text(taint)
                seen = taints.get(text, NodeRefusal(0, taint=text))
                taints[text] = seen._replace(nodes=seen.nodes + 1)
                continue
            for lack in insufficient(pod, node):
                free = max(lack.capacity - lack.used, 0)
                seen = resources.get(lack.resource, NodeRefusal(0, lack.resource, lack.requested))
                resources[lack.resource] = seen._replace(
                    nodes=seen.nodes + 1, most_free=max(seen.most_free, free)
                )
        return in_order((*taints.values(), *resources.values()))


def schedule(cluster: Cluster, pods: Iterable[Pod], profile: Profile) -> Iterator[Placement]:
    """Schedule each pod in turn. It is counted on its node before the next pod is scheduled."""
    for pod in pods:
        figures = pod_demand(pod, profile)
        choice = cluster.best(figures)
        if choice is None:
            yield Placement(pod.key, refusals=cluster.refusals(figures))
        else:
            cluster.add(choice.place, figures)
            yield Placement(pod.key, cluster.nodes[choice.place].name, choice.score)


def node_infos(nodes: Iterable[Node], placed: Iterable[Pod], profile: Profile) -> tuple[NodeInfo, ...]:
    """The nodes with the pods that `spec.nodeName` puts on them. Pods that have ended do not count."""
    infos = tuple(NodeInfo(node) for node in nodes)
    by_name = {info.name: info for info in infos}
    for pod in placed:
        node = by_name.get(pod.spec.node_name)
        if node is not None and pod.status.phase not in ("Succeeded", "Failed"):
            node.add(pod_demand(pod, profile))
    return infos


def in_order(refusals: Iterable[NodeRefusal]) -> tuple[NodeRefusal, ...]:
    """The most frequent reason first, then by name."""
    return tuple(sorted(refusals, key=lambda refusal: (-refusal.nodes, refusal.taint, refusal.resource)))
