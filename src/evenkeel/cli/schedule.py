"""`evenkeel schedule`: the node that each pod would go to, or what every node lacks for it."""

import argparse
import os
import sys
from collections.abc import Sequence

from evenkeel.api.resources import CPU, MEMORY
from evenkeel.cli.config_flags import add_config_flags, config_from
from evenkeel.cli.inputs import add_manifest_flag, read_all
from evenkeel.cli.output import STRUCTURED, print_structured, print_table
from evenkeel.errors import EvenkeelError
from evenkeel.host.files import MANIFEST_SUFFIXES
from evenkeel.quantity import BinarySI, Quantity
from evenkeel.simulate.plain_cluster import Scoring, ShapePoint, Strategy
from evenkeel.simulate.scheduler import NodeLoad, Schedule, amount_text, prepare, simulated_nodes

USAGE = "-f FILE… --nodes NODES… [--strategy NAME] [--load] [-o table|json|yaml] [flags]"
EXAMPLES = """\
Pods are scheduled by priority, then in the order of the list. A node fits if it has what the pod requests (limits do
not count) and the pod tolerates its taints. The pod goes to the fitting node with the highest score, or to the first of
them. A pod with spec.nodeName is on its node already. Affinity, volumes and ports are ignored. Exit code 1: a pod fits
on no node.

examples:
  evenkeel schedule -f examples/cluster/pods.yaml --nodes examples/cluster/nodes.yaml
  evenkeel schedule -f pods/ --nodes 20x32Gi,8cpu --load        on twenty nodes of that size
  evenkeel schedule -f pods/ --nodes nodes.yaml --strategy MostAllocated -o json
  kubectl get pods,nodes -A -o yaml | evenkeel schedule -f - --profile kubernetes
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_manifest_flag(parser)
    parser.add_argument(
        "--nodes",
        metavar="NODES",
        nargs="+",
        action="extend",
        default=[],
        help="the nodes: files or directories with Node objects, or sizes such as 32Gi,8cpu and 20x32Gi,8cpu; "
        "Node objects among the manifests count, too. A node without a number of pods takes maxPods",
    )
    parser.add_argument(
        "--strategy",
        choices=[*map(str, Strategy)],
        default=Strategy.LEAST_ALLOCATED,
        help="how nodes are scored: to spread (LeastAllocated, default), to pack (MostAllocated), or by --shape",
    )
    parser.add_argument(
        "--weights",
        type=_weights,
        default=Scoring().resources,
        metavar="NAME=WEIGHT,…",
        help="the weight of each resource in the score (cpu=1,memory=1)",
    )
    parser.add_argument(
        "--shape",
        type=_shape,
        default=Scoring().shape,
        metavar="USE:SCORE,…",
        help="for RequestedToCapacityRatio: the score (0 to 10) at a percentage of use (0:0,100:10, which packs)",
    )
    parser.add_argument("--load", action="store_true", help="print also the requests on each node at the end")
    parser.add_argument(
        "-o", "--output", choices=("table", *STRUCTURED), default="table", help="default: table"
    )
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    config = config_from(args)
    scoring = Scoring(Strategy(args.strategy), args.weights, args.shape)
    files, sizes = _files_and_sizes(args.nodes)
    reading = read_all([*args.filename, *files], config.rulebook, is_to_run=False).or_raise()
    reading = reading.with_every_pod(config.rulebook)
    nodes = simulated_nodes(reading.nodes, sizes, config)
    if not nodes:
        words = "there are no nodes: give a file with Node objects, or a size such as --nodes 5x32Gi,8cpu"
        print(f"evenkeel: {words}", file=sys.stderr)
        return 2
    simulation = prepare(reading, nodes, config, scoring)
    for warning in simulation.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if simulation.note:
        print(f"note: {simulation.note}", file=sys.stderr)
    result = simulation.run()
    if args.output in STRUCTURED:
        print_structured(result, args.output)
    else:
        _print_tables(result, with_load=args.load)
    return int(any(pod.state == "Unschedulable" for pod in result.pods))


def _files_and_sizes(given: Sequence[str]) -> tuple[list[str], list[str]]:
    files = [
        text for text in given if "/" in text or text.endswith(MANIFEST_SUFFIXES) or os.path.exists(text)
    ]
    return files, [text for text in given if text not in files]


def _weights(text: str) -> tuple[tuple[str, int], ...]:
    found = []
    for part in text.split(","):
        name, equals, weight = part.strip().partition("=")
        if not name or not (equals and weight.isascii() and weight.isdigit() and len(weight) < 10):
            raise argparse.ArgumentTypeError(f'"{part[:40]}" is not a weight: write cpu=1,memory=1')
        found.append((name, int(weight)))
    return _valid(Scoring(resources=tuple(found))).resources


def _shape(text: str) -> tuple[ShapePoint, ...]:
    found = []
    for part in text.split(","):
        use, _, score = part.strip().partition(":")
        if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in (use, score)):
            raise argparse.ArgumentTypeError(f'"{part[:40]}" is not a point of a shape: write 0:0,100:10')
        found.append(ShapePoint(int(use), int(score)))
    return _valid(Scoring(shape=tuple(found))).shape


def _valid(scoring: Scoring) -> Scoring:
    try:
        return scoring.or_raise()
    except EvenkeelError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
    words = (amount_text(name, amount.milli if name == CPU else amount.value) for amount in (used, has))
    return f"{' of '.join(words)}{share}"
