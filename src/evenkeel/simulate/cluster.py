"""Pods on nodes, one after the other: the best node that has room for a pod, or what every node lacks.

`Cluster` applies the rules node by node and is easy to check; `array_cluster.ArrayCluster` applies the same rules to
all nodes at once. Of nodes with equal scores the first takes the pod (Kubernetes takes a random one), so that the same
input gives the same answer.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from evenkeel.api.config import Profile
from evenkeel.api.node import Node
from evenkeel.api.pod import Pod
from evenkeel.api.resources import PODS
from evenkeel.simulate.node_info import NodeInfo, PodDemand, pod_demand, taint_text, untolerated
from evenkeel.simulate.score import Scoring, scorer


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
