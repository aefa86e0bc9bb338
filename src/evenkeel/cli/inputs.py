"""The input of commands that plan for a node: manifests, the node's size, and the pods that it admits."""

import argparse
import os
import sys
from collections.abc import Collection, Sequence

from evenkeel.api.config import Profile
from evenkeel.api.manifests import read_manifests
from evenkeel.api.node import Node
from evenkeel.api.pod import Pod
from evenkeel.api.reading import NOTHING_READ, Reading
from evenkeel.cli.config_flags import config_from
from evenkeel.errors import EvenkeelError, InvalidInput
from evenkeel.host.files import manifest_paths, read_text
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.admission import Admission, Refusal, admit
from evenkeel.policy.allocatable import NodeCapacity, reservation_problems
from evenkeel.policy.node_view import NodeView, capacity_of, node_view, parse_node
from evenkeel.policy.provision import PlannedPod


def add_manifest_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f",
        "--filename",
        metavar="FILE",
        nargs="+",
        action="extend",
        required=True,
        help="manifests: YAML or JSON files, directories of them, or - for standard input",
    )


def add_node_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--node",
        metavar="NODE",
        help="the node: its size (32Gi,8cpu) or a file with a Node object (default: a Node among the manifests, "
        "else this machine)",
    )


def read_all(paths: list[str], profile: Profile, *, is_to_run: bool = True) -> Reading:
    """All manifests at `paths`, with every problem of every file."""
    reading = NOTHING_READ
    for given in paths:
        if given.startswith(("http://", "https://")):
            raise EvenkeelError(
                f"{given[:200]}: evenkeel reads files and fetches nothing",
                hint=f"curl -fsSL {given[:200]} | … -f -",
            )
        for path in manifest_paths(given):
            source = "standard input" if path == "-" else path
            reading += read_manifests(read_text(path), source, profile, is_to_run=is_to_run)
    return reading.without_duplicates()


def manifest_directory(source: str) -> str:
    """The directory of a manifest: `web.yaml`, or `web.yaml#2` for its second document."""
    for path in (source, source.rpartition("#")[0]):
        if path and os.path.exists(path):
            return os.path.dirname(os.path.abspath(path))
    return os.getcwd()


def manifests_from(args: argparse.Namespace, profile: Profile) -> Reading:
    """The manifests of `-f`, with the pods of their workloads. Raises an error if one has a problem. Warnings go to
    standard error."""
    reading = read_all(args.filename, profile, is_to_run=False).or_raise().with_every_pod(profile)
    for warning in reading.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return reading


class Decided(NamedTuple):
    """The node of a command, and which of the pods it admits."""

    node: NodeView
    verdicts: tuple[Admission, ...]

    @property
    def admitted(self) -> list[Pod]:
        return [verdict.pod for verdict in self.verdicts if verdict.refusal is None]

    @property
    def refused(self) -> list[tuple[Pod, Refusal]]:
        return [(pod, refusal) for pod, refusal in self.verdicts if refusal is not None]


def decided_from(args: argparse.Namespace, conditions: Collection[str] = ()) -> Decided:
    """Reads configuration, manifests and node from `args`, and admits the pods in order."""
    config = config_from(args)
    reading = manifests_from(args, config.rulebook)
    capacity = node_from(args.node, reading.nodes)
    if problems := list(reservation_problems(capacity, config)):
        raise InvalidInput(problems)
    node = node_view(capacity, config)
    return Decided(node, admit(reading.pods, node.allocatable, node.profile, conditions))


def node_from(text: str | None, nodes: tuple[Node, ...]) -> NodeCapacity:
    """The capacity from `--node`, else from the manifests, else of this machine."""
    if text is None:
        if nodes:
            return _one(nodes, "the manifests")
        from evenkeel.host.capacity import machine_capacity

        return machine_capacity()
    if os.path.exists(text):
        return _one(read_manifests(read_text(text), text).or_raise().nodes, text)
    if text.endswith((".yaml", ".yml", ".json")):
        raise EvenkeelError(f"--node: there is no file {text}")
    return parse_node(text)


def _one(nodes: tuple[Node, ...], source: str) -> NodeCapacity:
    if len(nodes) != 1:
        found = ", ".join(node.metadata.name for node in nodes) or "none"
        raise EvenkeelError(f"--node: {source} must hold one Node, but holds {found}")
    return capacity_of(nodes[0])


def planned_pods(node: NodeView, pods: Sequence[Pod], init: str | None = None) -> list[PlannedPod]:
    """Each pod after its init containers, or while the one called `init` runs (D3)."""
    planned = [PlannedPod(pod, _init_index(pod, init)) for pod in pods]
    if node.config.cpu_manager_policy == "static":
        from evenkeel.policy.exclusive_cores import assign_on

        cores = assign_on(node, pods)
        planned = [
            one._replace(exclusive_cpus=cores.of_pod(one.pod.metadata.uid), shared_cpus=cores.shared)
            for one in planned
        ]
    if init is not None and pods and not any(one.is_starting for one in planned):
        raise EvenkeelError(f"--init: no pod has an init container {init}")
    return planned


def _init_index(pod: Pod, init: str | None) -> int | None:
    found = (index for index, container in enumerate(pod.spec.init_containers) if container.name == init)
    return next(found, None)
