"""Pods on nodes, one after the other: the best node that has room, or what every node lacks.

`Cluster` is the plain reading of the rules, node by node; `arrays.ArrayCluster` is the same in one pass over
all nodes. Of nodes with equal scores the first takes the pod (Kubernetes draws lots), so that the same input
gives the same answer.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from evenkeel.api.config import Profile
from evenkeel.api.node import Node
from evenkeel.api.pod import Pod
from evenkeel.api.resources import PODS
from evenkeel.simulate.node_info import NodeInfo, PodFigures, pod_figures, taint_words, untolerated
from evenkeel.simulate.score import Scoring, scorer


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


class Refusal(NamedTuple):
    """One reason why nodes do not take a pod, and how many give it: too little of a resource, or a taint."""

    nodes: int
    resource: str = ""
    requested: int = 0
    most_free: int = 0  # the most that one of these nodes has free
    taint: str = ""


class Choice(NamedTuple):
    place: int  # of the node
    score: int


class Placement(NamedTuple):
    """Where a pod goes, or (`node` is empty) why it goes nowhere. A node can give several reasons."""

    pod: str
    node: str = ""
    score: int = 0
    refusals: tuple[Refusal, ...] = ()


class Cluster:
    """Nodes and what is on them; one node is looked at after the other."""

    def __init__(self, nodes: Sequence[NodeInfo], scoring: Scoring) -> None:
        self.nodes = nodes
        self.scoring = scoring.or_raise()

    def best(self, pod: PodFigures) -> Choice | None:
        """The node that the pod should go to; the first of equals."""
        return self.best_among(pod, range(len(self.nodes)))

    def best_among(self, pod: PodFigures, places: Iterable[int]) -> Choice | None:
        """The best of the nodes at `places`, which rise."""
        score_of = scorer(pod, self.scoring)
        best = None
        for place in places:
            node = self.nodes[place]
            if fits(pod, node) and not (node.taints and untolerated(node.taints, pod.tolerations)):
                score = score_of(node).total
                if best is None or score > best.score:
                    best = Choice(place, score)
        return best

    def add(self, place: int, pod: PodFigures) -> None:
        """The pod is on that node from now on, whether or not it fits."""
        self.nodes[place].add(pod)

    def refusals(self, pod: PodFigures) -> tuple[Refusal, ...]:
        """Why no node takes the pod: taints first, since a node that repels it is not asked for more."""
        taints: dict[str, Refusal] = {}
        resources: dict[str, Refusal] = {}
        for node in self.nodes:
            taint = untolerated(node.taints, pod.tolerations)
            if taint is not None:
                words = taint_words(taint)
                seen = taints.get(words, Refusal(0, taint=words))
                taints[words] = seen._replace(nodes=seen.nodes + 1)
                continue
            for lack in insufficient(pod, node):
                free = max(lack.capacity - lack.used, 0)
                seen = resources.get(lack.resource, Refusal(0, lack.resource, lack.requested))
                resources[lack.resource] = seen._replace(
                    nodes=seen.nodes + 1, most_free=max(seen.most_free, free)
                )
        return in_order((*taints.values(), *resources.values()))


def schedule(cluster: Cluster, pods: Iterable[Pod], profile: Profile) -> Iterator[Placement]:
    """Each pod in turn, on its node by the time the next one is looked at."""
    for pod in pods:
        figures = pod_figures(pod, profile)
        choice = cluster.best(figures)
        if choice is None:
            yield Placement(pod.key, refusals=cluster.refusals(figures))
        else:
            cluster.add(choice.place, figures)
            yield Placement(pod.key, cluster.nodes[choice.place].name, choice.score)


def node_infos(nodes: Iterable[Node], placed: Iterable[Pod], profile: Profile) -> tuple[NodeInfo, ...]:
    """The nodes with the pods that are on them already, by `spec.nodeName`, and have not ended."""
    infos = tuple(NodeInfo(node) for node in nodes)
    by_name = {info.name: info for info in infos}
    for pod in placed:
        node = by_name.get(pod.spec.node_name)
        if node is not None and pod.status.phase not in ("Succeeded", "Failed"):
            node.add(pod_figures(pod, profile))
    return infos


def in_order(refusals: Iterable[Refusal]) -> tuple[Refusal, ...]:
    """The commonest reason first, then by name."""
    return tuple(sorted(refusals, key=lambda refusal: (-refusal.nodes, refusal.taint, refusal.resource)))
