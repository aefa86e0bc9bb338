"""A whole simulation: from written nodes and pods to the node of every pod, or the reasons why no node takes it.

`evenkeel schedule` prints what this module returns. It is apart from the command so that other programs and tests can
run a simulation without flags and without a terminal.
"""

from collections.abc import Iterable, Iterator, Sequence

from evenkeel.api.config import KubeletConfiguration, Profile
from evenkeel.api.node import Node, NodeStatus
from evenkeel.api.pod import ObjectMeta, Pod
from evenkeel.api.reading import Reading
from evenkeel.api.resources import CPU, PODS, ResourceList
from evenkeel.api.validation.pod_rules import validate_node
from evenkeel.errors import EvenkeelError, InvalidInput
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.allocatable import node_allocatable
from evenkeel.policy.amounts import bytes_text, cores_text
from evenkeel.policy.node_view import parse_node
from evenkeel.quantity import BinarySI, Quantity
from evenkeel.simulate.node_info import NodeInfo, quantity_of
from evenkeel.simulate.plain_cluster import (
    Cluster,
    NodeRefusal,
    Placement,
    Scoring,
    exceeding,
    node_infos,
    schedule,
)

# To compare this many pods with nodes in a plain loop takes about as long as to import numpy.
FEW_COMPARISONS = 20_000
_MOST_NODES = 100_000


class RefusalShown(NamedTuple):
    nodes: int
    resource: str
    requested: Quantity | None
    most_free: Quantity | None
    taint: str


class PodScheduled(NamedTuple):
    namespace: str
    name: str
    node: str
    state: str  # Placed, AlreadyThere or Unschedulable
    score: int | None = None
    message: str = ""
    refusals: tuple[RefusalShown, ...] = ()


class NodeLoad(NamedTuple):
    name: str
    pods: int
    allowed_pods: int
    requested: ResourceList
    allocatable: ResourceList


class Schedule(NamedTuple):
    """The result of a simulation, as `-o json` prints it."""

    strategy: str
    pods: tuple[PodScheduled, ...]
    nodes: tuple[NodeLoad, ...]


class Simulation(NamedTuple):
    """Everything that a simulation needs, and what the user should know before it runs."""

    cluster: Cluster
    placed: tuple[Pod, ...]  # on a node already
    waiting: tuple[Pod, ...]  # in the order in which they are scheduled
    profile: Profile
    warnings: tuple[str, ...] = ()
    note: str = ""

    def run(self) -> Schedule:
        shown = [PodScheduled(*_name(pod), pod.spec.node_name, "AlreadyThere") for pod in self.placed]
        nodes = self.cluster.nodes
        placements = schedule(self.cluster, self.waiting, self.profile)
        for pod, placement in zip(self.waiting, placements, strict=True):
            shown.append(_scheduled(pod, placement, len(nodes)))
        return Schedule(self.cluster.scoring.strategy, tuple(shown), tuple(map(_load, nodes)))


def prepare(
    reading: Reading, nodes: Sequence[Node], config: KubeletConfiguration, scoring: Scoring
) -> Simulation:
    """The pods of `reading` on `nodes`: by priority, then in the order in which they were written."""
    warnings = []
    placed, waiting = [], []
    names = {node.metadata.name for node in nodes}
    for pod, origin in zip(reading.pods, reading.origins, strict=True):
        if pod.status.phase in ("Succeeded", "Failed"):
            continue
        if not pod.spec.node_name:
            waiting.append(pod)
        elif pod.spec.node_name in names:
            placed.append(pod)
        else:
            message = f"there is no node {pod.spec.node_name}: passed over"
            warnings.append(str(origin._replace(field="spec.nodeName", message=message)))
    waiting.sort(key=lambda pod: -(pod.spec.priority or 0))
    infos = node_infos(nodes, placed, config.rulebook)
    warnings += [*map(str, reading.warnings), *_overfull(infos)]
    cluster, note = _cluster(infos, scoring, len(waiting))
    return Simulation(cluster, tuple(placed), tuple(waiting), config.rulebook, tuple(warnings), note)


def simulated_nodes(
    written: Sequence[Node], sizes: Iterable[str], config: KubeletConfiguration
) -> list[Node]:
    """The Node objects of a manifest, and nodes made from sizes such as `32Gi,8cpu` and `20x32Gi,8cpu`."""
    problems = [
        problem._replace(source=f"node {node.metadata.name}")
        for node in written
        for problem in validate_node(node)
    ]
    if problems:
        raise InvalidInput(problems)
    nodes = [_with_pods(node, config) for node in written]
    for text in sizes:
        count, size = _count(text)
        status = NodeStatus(allocatable=node_allocatable(parse_node(size, "--nodes"), config))
        first = len(nodes) + 1
        if first + count > _MOST_NODES:
            raise EvenkeelError(f'--nodes: "{text[:40]}" makes more than {_MOST_NODES} nodes: write fewer')
        nodes += [Node(ObjectMeta(name=f"node-{first + index}"), status=status) for index in range(count)]
    seen: set[str] = set()
    for node in nodes:
        if node.metadata.name in seen:
            raise EvenkeelError(f"there are two nodes named {node.metadata.name}: give one another name")
        seen.add(node.metadata.name)
    return nodes


def amount_text(name: str, amount: int) -> str:
    """An amount of the resource `name`, for people to read."""
    if name == CPU:
        return cores_text(amount)
    return bytes_text(amount) if quantity_of(name, amount).format == BinarySI else str(amount)


def _count(text: str) -> tuple[int, str]:
    number, times, size = text.partition("x")
    if times and number.isascii() and number.isdigit() and len(number) < 10:
        return int(number), size
    return 1, text


def _with_pods(node: Node, config: KubeletConfiguration) -> Node:
    """The node with kubelet's number of pods, if it does not state one itself."""
    stated = node.status.allocatable or node.status.capacity
    if PODS in stated:
        return node
    return node._replace(status=NodeStatus(allocatable={**stated, PODS: Quantity.of(config.max_pods)}))


def _cluster(infos: Sequence[NodeInfo], scoring: Scoring, pods: int) -> tuple[Cluster, str]:
    if len(infos) * pods <= FEW_COMPARISONS:
        return Cluster(infos, scoring), ""
    try:
        from evenkeel.simulate.array_cluster import ArrayCluster
    except ModuleNotFoundError:
        return Cluster(infos, scoring), "this is slow without numpy: pip install 'evenkeel[scheduling]'"
    return ArrayCluster(infos, scoring), ""


def _overfull(infos: Iterable[NodeInfo]) -> Iterator[str]:
    for info in infos:
        for lack in exceeding(info):
            used, capacity = amount_text(lack.resource, lack.used), amount_text(lack.resource, lack.capacity)
            yield f"node {info.name}: the pods on it take {used} of {capacity} {lack.resource}"


def _name(pod: Pod) -> tuple[str, str]:
    return pod.metadata.namespace or "default", pod.metadata.name


def _scheduled(pod: Pod, placement: Placement, nodes: int) -> PodScheduled:
    if placement.node:
        return PodScheduled(*_name(pod), placement.node, "Placed", placement.score)
    none_of_them = f"none of {nodes} nodes takes it" if nodes > 1 else "the only node does not take it"
    message = f"{none_of_them}: {'; '.join(map(_refusal_text, placement.refusals))}"
    return PodScheduled(
        *_name(pod), "", "Unschedulable", None, message, tuple(map(_refusal_shown, placement.refusals))
    )


def _refusal_shown(refusal: NodeRefusal) -> RefusalShown:
    if refusal.taint:
        return RefusalShown(refusal.nodes, refusal.resource, None, None, refusal.taint)
    requested = quantity_of(refusal.resource, refusal.requested)
    return RefusalShown(
        refusal.nodes, refusal.resource, requested, quantity_of(refusal.resource, refusal.most_free), ""
    )


def _refusal_text(refusal: NodeRefusal) -> str:
    one = refusal.nodes == 1
    if refusal.taint:
        return f"{refusal.nodes} {'has' if one else 'have'} the taint {refusal.taint}"
    if refusal.resource == PODS:
        return f"{refusal.nodes} {'takes' if one else 'take'} no more pods"
    requested = amount_text(refusal.resource, refusal.requested)
    most_free = amount_text(refusal.resource, refusal.most_free)
    free = f"{most_free} is free" if one else f"at most {most_free} is free"
    return (
        f"{refusal.nodes} {'lacks' if one else 'lack'} {refusal.resource} (it requests {requested}, {free})"
    )


def _load(info: NodeInfo) -> NodeLoad:
    amounts = [
        {name: quantity_of(name, amount) for name, amount in sorted(found.items())}
        for found in (info.requested, info.allocatable)
    ]
    return NodeLoad(info.name, info.pods, info.allowed_pods, *amounts)
