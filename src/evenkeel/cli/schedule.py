"""`evenkeel schedule`: which of many nodes each pod would go to, and what the nodes lack where it goes to none."""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.manifests import Reading
from evenkeel.api.node import Node, NodeStatus
from evenkeel.api.pod import ObjectMeta, Pod
from evenkeel.api.resources import CPU, MEMORY, PODS, ResourceList
from evenkeel.api.validation.pod_rules import validate_node
from evenkeel.cli.config_flags import add_config_flags, config_from
from evenkeel.cli.inputs import add_manifest_flag, read_all
from evenkeel.cli.output import STRUCTURED, print_structured, print_table
from evenkeel.errors import EvenkeelError, InvalidInput
from evenkeel.host.files import MANIFEST_SUFFIXES
from evenkeel.policy.allocatable import node_allocatable
from evenkeel.policy.node_view import parse_node
from evenkeel.policy.units import bytes_text, cores_text
from evenkeel.quantity import BinarySI, Quantity
from evenkeel.simulate.cluster import Cluster, Placement, Refusal, exceeding, node_infos, schedule
from evenkeel.simulate.node_info import NodeInfo, quantity_of
from evenkeel.simulate.score import Scoring, ShapePoint, Strategy

USAGE = "-f FILE… --nodes NODES… [--strategy NAME] [--load] [-o table|json|yaml] [flags]"
EXAMPLES = """\
Pods are taken by priority, then as they are listed. A pod goes to the node with the highest score among those
that have what it requests (limits count for nothing) and whose taints it tolerates; of equals, to the one listed
first. A pod with spec.nodeName is already there and counts on its node. Affinity, volumes and ports are not
looked at. Exit code 1: some pod fits nowhere.

examples:
  evenkeel schedule -f examples/cluster/pods.yaml --nodes examples/cluster/nodes.yaml
  evenkeel schedule -f pods/ --nodes 20x32Gi,8cpu --load        on twenty nodes of that size
  evenkeel schedule -f pods/ --nodes nodes.yaml --strategy MostAllocated -o json
  kubectl get pods,nodes -A -o yaml | evenkeel schedule -f - --profile kubernetes
"""

# So many looks of a pod at a node take the loop about as long as it takes to import numpy.
_FEW_LOOKS = 20_000
_MOST_NODES = 100_000


class PodScheduled(NamedTuple):
    namespace: str
    name: str
    node: str
    state: str  # Placed, AlreadyThere or Unschedulable
    score: int | None = None
    message: str = ""
    refusals: tuple["RefusalShown", ...] = ()


class RefusalShown(NamedTuple):
    nodes: int
    resource: str
    requested: Quantity | None
    most_free: Quantity | None
    taint: str


class NodeLoad(NamedTuple):
    name: str
    pods: int
    allowed_pods: int
    requested: ResourceList
    allocatable: ResourceList


class Schedule(NamedTuple):
    """What `-o json` prints."""

    strategy: str
    pods: tuple[PodScheduled, ...]
    nodes: tuple[NodeLoad, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_manifest_flag(parser)
    parser.add_argument(
        "--nodes",
        metavar="NODES",
        nargs="+",
        action="extend",
        default=[],
        help="the nodes: files or directories with Node objects, or sizes such as 32Gi,8cpu and 20x32Gi,8cpu; "
        "Node objects among the manifests count too. One that does not say how many pods it takes takes maxPods",
    )
    parser.add_argument(
        "--strategy",
        choices=[*map(str, Strategy)],
        default=Strategy.LEAST_ALLOCATED,
        help="how nodes are compared: spread (LeastAllocated, default), pack (MostAllocated), or by --shape",
    )
    parser.add_argument(
        "--weights",
        type=_weights,
        default=Scoring().resources,
        metavar="NAME=WEIGHT,…",
        help="the resources that the strategy looks at (cpu=1,memory=1)",
    )
    parser.add_argument(
        "--shape",
        type=_shape,
        default=Scoring().shape,
        metavar="USE:SCORE,…",
        help="RequestedToCapacityRatio's score (0 to 10) by percent of use (0:0,100:10, which packs)",
    )
    parser.add_argument("--load", action="store_true", help="also what is requested of each node in the end")
    parser.add_argument(
        "-o", "--output", choices=("table", *STRUCTURED), default="table", help="default: table"
    )
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    config = config_from(args)
    scoring = Scoring(Strategy(args.strategy), args.weights, args.shape)
    files, sizes = _told_apart(args.nodes)
    reading = read_all([*args.filename, *files], config.rulebook).or_raise()
    nodes = _nodes(reading.nodes, sizes, config)
    if not nodes:
        words = "there are no nodes: give a file with Node objects, or a size as --nodes 5x32Gi,8cpu"
        print(f"evenkeel: {words}", file=sys.stderr)
        return 2
    placed, waiting = _sorted_out(reading, {node.metadata.name for node in nodes})
    infos = node_infos(nodes, placed, config.rulebook)
    for warning in (*reading.warnings, *_overfull(infos)):
        print(f"warning: {warning}", file=sys.stderr)

    cluster = _cluster(infos, scoring, len(waiting))
    shown = [PodScheduled(*_name(pod), pod.spec.node_name, "AlreadyThere") for pod in placed]
    for pod, placement in zip(waiting, schedule(cluster, waiting, config.rulebook), strict=True):
        shown.append(_shown(pod, placement, len(nodes)))
    result = Schedule(scoring.strategy, tuple(shown), tuple(map(_load, infos)))
    if args.output in STRUCTURED:
        print_structured(result, args.output)
    else:
        _print_tables(result, with_load=args.load)
    return int(any(pod.state == "Unschedulable" for pod in shown))


# What is given


def _told_apart(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files, and sizes."""
    files = [
        text for text in given if "/" in text or text.endswith(MANIFEST_SUFFIXES) or os.path.exists(text)
    ]
    return files, [text for text in given if text not in files]


def _nodes(written: Sequence[Node], sizes: Iterable[str], config: KubeletConfiguration) -> list[Node]:
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


def _count(text: str) -> tuple[int, str]:
    number, times, size = text.partition("x")
    if times and number.isascii() and number.isdigit() and len(number) < 10:
        return int(number), size
    return 1, text


def _with_pods(node: Node, config: KubeletConfiguration) -> Node:
    """The node, taking as many pods as kubelet would where it does not say how many."""
    stated = node.status.allocatable or node.status.capacity
    if PODS in stated:
        return node
    return node._replace(status=NodeStatus(allocatable={**stated, PODS: Quantity.of(config.max_pods)}))


def _sorted_out(reading: Reading, nodes: set[str]) -> tuple[list[Pod], list[Pod]]:
    """The pods that are on a node, and those that wait for one, in the order in which they are looked at."""
    placed, waiting = [], []
    for pod, origin in zip(reading.pods, reading.origins, strict=True):
        if pod.status.phase in ("Succeeded", "Failed"):
            continue
        if not pod.spec.node_name:
            waiting.append(pod)
        elif pod.spec.node_name in nodes:
            placed.append(pod)
        else:
            message = f"there is no node {pod.spec.node_name}: passed over"
            print(f"warning: {origin._replace(field='spec.nodeName', message=message)}", file=sys.stderr)
    return placed, sorted(waiting, key=lambda pod: -(pod.spec.priority or 0))


def _cluster(infos: Sequence[NodeInfo], scoring: Scoring, pods: int) -> Cluster:
    if len(infos) * pods <= _FEW_LOOKS:
        return Cluster(infos, scoring)
    try:
        from evenkeel.simulate.array_cluster import ArrayCluster
    except ModuleNotFoundError:
        words = "this is slow without numpy: pip install 'evenkeel[scheduling]'"
        print(f"note: {words}", file=sys.stderr)
        return Cluster(infos, scoring)
    return ArrayCluster(infos, scoring)


def _weights(text: str) -> tuple[tuple[str, int], ...]:
    found = []
    for part in text.split(","):
        name, equals, weight = part.strip().partition("=")
        if not name or not (equals and weight.isascii() and weight.isdigit() and len(weight) < 10):
            raise argparse.ArgumentTypeError(f'"{part[:40]}" is no weight: write cpu=1,memory=1')
        found.append((name, int(weight)))
    return _sensible(Scoring(resources=tuple(found))).resources


def _shape(text: str) -> tuple[ShapePoint, ...]:
    found = []
    for part in text.split(","):
        use, _, score = part.strip().partition(":")
        if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in (use, score)):
            raise argparse.ArgumentTypeError(f'"{part[:40]}" is no point of a shape: write 0:0,100:10')
        found.append(ShapePoint(int(use), int(score)))
    return _sensible(Scoring(shape=tuple(found))).shape


def _sensible(scoring: Scoring) -> Scoring:
    try:
        return scoring.or_raise()
    except EvenkeelError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


# What is shown


def _overfull(infos: Iterable[NodeInfo]) -> Iterable[str]:
    for info in infos:
        for lack in exceeding(info):
            used, capacity = _text(lack.resource, lack.used), _text(lack.resource, lack.capacity)
            yield f"node {info.name}: the pods on it take {used} of {capacity} {lack.resource}"


def _name(pod: Pod) -> tuple[str, str]:
    return pod.metadata.namespace or "default", pod.metadata.name


def _shown(pod: Pod, placement: Placement, nodes: int) -> PodScheduled:
    if placement.node:
        return PodScheduled(*_name(pod), placement.node, "Placed", placement.score)
    nobody = f"none of {nodes} nodes takes it" if nodes > 1 else "the only node does not take it"
    message = f"{nobody}: {'; '.join(map(_words, placement.refusals))}"
    refusals = tuple(
        RefusalShown(refusal.nodes, refusal.resource, None, None, refusal.taint)
        if refusal.taint
        else RefusalShown(
            refusal.nodes,
            refusal.resource,
            quantity_of(refusal.resource, refusal.requested),
            quantity_of(refusal.resource, refusal.most_free),
            "",
        )
        for refusal in placement.refusals
    )
    return PodScheduled(*_name(pod), "", "Unschedulable", None, message, refusals)


def _words(refusal: Refusal) -> str:
    one = refusal.nodes == 1
    if refusal.taint:
        return f"{refusal.nodes} {'has' if one else 'have'} the taint {refusal.taint}"
    if refusal.resource == PODS:
        return f"{refusal.nodes} {'takes' if one else 'take'} no more pods"
    requested, most_free = (
        _text(refusal.resource, amount) for amount in (refusal.requested, refusal.most_free)
    )
    least = f"{most_free} is free" if one else f"at most {most_free} is free"
    return (
        f"{refusal.nodes} {'lacks' if one else 'lack'} {refusal.resource} (it requests {requested}, {least})"
    )


def _load(info: NodeInfo) -> NodeLoad:
    amounts = [
        {name: quantity_of(name, amount) for name, amount in sorted(found.items())}
        for found in (info.requested, info.allocatable)
    ]
    return NodeLoad(info.name, info.pods, info.allowed_pods, *amounts)


def _print_tables(result: Schedule, *, with_load: bool) -> None:
    rows = [("POD", "NODE", "SCORE")]
    for pod in result.pods:
        score = (
            "already there" if pod.state == "AlreadyThere" else "" if pod.score is None else str(pod.score)
        )
        rows.append((f"{pod.namespace}/{pod.name}", pod.node or "none", score))
    print_table(rows)
    if with_load:
        print()
        print_table([("NODE", "PODS", "CPU", "MEMORY"), *map(_load_row, result.nodes)])
    refused = [pod for pod in result.pods if pod.state == "Unschedulable"]
    if refused:
        print()
    for pod in refused:
        print(f"{pod.namespace}/{pod.name}: {pod.message}")


def _load_row(node: NodeLoad) -> tuple[str, str, str, str]:
    return (
        node.name,
        f"{node.pods} of {node.allowed_pods}",
        _part(node, CPU),
        _part(node, MEMORY),
    )


def _part(node: NodeLoad, name: str) -> str:
    nothing = Quantity.of(0, BinarySI)
    used, has = (amounts.get(name, nothing) for amounts in (node.requested, node.allocatable))
    share = f" ({100 * used.nanos // has.nanos}%)" if has else ""
    words = (_text(name, amount.milli if name == CPU else amount.value) for amount in (used, has))
    return f"{' of '.join(words)}{share}"


def _text(name: str, amount: int) -> str:
    if name == CPU:
        return cores_text(amount)
    return bytes_text(amount) if quantity_of(name, amount).format == BinarySI else str(amount)
