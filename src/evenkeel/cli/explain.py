"""`evenkeel explain`: what a node would do with pods, and why. It needs no root and no agent: it prints the same plan
that the agent applies."""

import argparse
import sys
from collections.abc import Iterator, Mapping

from evenkeel.api.resources import CPU, MEMORY, ResourceList
from evenkeel.cgroup.kernel_files import default_value, same_value
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.tree import Cgroup, Kind, Naming, Setting, Tree, Version
from evenkeel.cli.config_flags import add_config_flags
from evenkeel.cli.inputs import add_manifest_flag, add_node_flag, decided_from, planned_pods
from evenkeel.cli.output import CLASS_COLOURS, STRUCTURED, Paint, paint_for, print_structured
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.admission import Admission
from evenkeel.policy.allocatable import node_capacity
from evenkeel.policy.amounts import resource_text
from evenkeel.policy.node_view import NodeView
from evenkeel.policy.qos import container_class, pod_class

USAGE = "-f FILE… [--node NODE] [--cgroup v1|v2|systemd] [-o tree|json|yaml] [flags]"
EXAMPLES = """examples:
  evenkeel explain -f pod.yaml                          on a node as large as this machine
  evenkeel explain -f examples/ --node 32Gi,8cpu        on a node of that size
  evenkeel explain -f pod.yaml --profile kubernetes     as today's kubelet does it
  evenkeel explain -f pod.yaml --cgroup v1 -o json      the files of cgroup v1, for a program
  evenkeel explain -f pod.yaml --kube-reserved memory=2Gi --system-reserved memory=1Gi
"""
_CGROUPS = {
    "v1": (Version.V1, Naming.CGROUPFS),
    "v2": (Version.V2, Naming.CGROUPFS),
    "systemd": (Version.V2, Naming.SYSTEMD),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_manifest_flag(parser)
    add_node_flag(parser)
    parser.add_argument(
        "--cgroup",
        choices=_CGROUPS,
        help="the kind of files and names (default: v2, or that of --cgroup-driver)",
    )
    parser.add_argument(
        "--init", metavar="CONTAINER", help="show the settings while this init container runs (D3)"
    )
    parser.add_argument(
        "--pressure",
        choices=("MemoryPressure", "DiskPressure", "PIDPressure"),
        action="append",
        help="a pressure that the node is under when the pods arrive",
    )
    parser.add_argument("-o", "--output", choices=("tree", *STRUCTURED), default="tree", help="default: tree")
    parser.add_argument(
        "-a", "--all", action="store_true", help="show also settings that are the kernel's defaults"
    )
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    node, verdicts = decided = decided_from(args, args.pressure or ())
    kind = args.cgroup or ("systemd" if node.config.cgroup_driver == "systemd" else "v2")
    tree = plan(node, planned_pods(node, decided.admitted, args.init), *_CGROUPS[kind])
    explanation = _explanation(node, verdicts, tree)
    if args.output in STRUCTURED:
        print_structured(explanation, args.output)
    else:
        paint = paint_for()
        sys.stdout.write(
            "\n".join([*_head(explanation.node, kind), "", *tree_lines(tree, paint, all_files=args.all), ""])
        )
        for pod in explanation.pods:
            if not pod.admitted:
                print(f"{paint('red', 'refused')} {pod.namespace}/{pod.name}: {pod.reason}: {pod.message}")
    return int(bool(decided.refused))


class NodeExplained(NamedTuple):
    profile: str
    capacity: ResourceList
    allocatable: ResourceList


class ContainerExplained(NamedTuple):
    name: str
    memory_qos_class: str
    cpu_qos_class: str
    oom_score_adj: int | None


class PodExplained(NamedTuple):
    namespace: str
    name: str
    uid: str
    qos_class: str
    admitted: bool
    reason: str
    message: str
    containers: tuple[ContainerExplained, ...]


class Explanation(NamedTuple):
    """The output of `-o json`."""

    node: NodeExplained
    pods: tuple[PodExplained, ...]
    cgroups: tuple[Cgroup, ...]


def _explanation(node: NodeView, verdicts: tuple[Admission, ...], tree: Tree) -> Explanation:
    scores = {
        (cgroup.pod, cgroup.container): int(cgroup.oom_score_adj.value)
        for cgroup in tree.cgroups
        if cgroup.oom_score_adj is not None and cgroup.container
    }
    return Explanation(
        node=NodeExplained(str(node.profile), _capacity(node), node.allocatable),
        pods=tuple(_pod(node, verdict, scores) for verdict in verdicts),
        cgroups=tree.cgroups,
    )


def _pod(node: NodeView, verdict: Admission, scores: Mapping[tuple[str, str], int]) -> PodExplained:
    pod, refusal = verdict
    return PodExplained(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        qos_class=str(pod_class(pod, node.profile)),
        admitted=refusal is None,
        reason=refusal.reason if refusal else "",
        message=refusal.message if refusal else "",
        containers=tuple(
            ContainerExplained(
                name=container.name,
                memory_qos_class=str(container_class(container, MEMORY)),
                cpu_qos_class=str(container_class(container, CPU)),
                oom_score_adj=scores.get((pod.key, container.name)),
            )
            for container in pod.spec.every_container
        ),
    )


def _capacity(node: NodeView) -> ResourceList:
    return node_capacity(node.capacity, node.config)


def _head(node: NodeExplained, kind: str) -> list[str]:
    """The capacity of the node, and its allocatable amounts."""
    has, may_use = (
        ", ".join(f"{name} {resource_text(name, amount)}" for name, amount in resources.items())
        for resources in (node.capacity, node.allocatable)
    )
    return [f"node: {has}", f"pods may use: {may_use}", f"profile {node.profile}, cgroup {kind}"]


def tree_lines(tree: Tree, paint: Paint, *, all_files: bool) -> Iterator[str]:
    """The tree from top to bottom. Settings that are the kernel's defaults are left out unless `all_files`."""
    children: dict[str, list[Cgroup]] = {}
    paths = {cgroup.path for cgroup in tree.cgroups}
    for cgroup in tree.cgroups:
        parent = cgroup.path.rpartition("/")[0]
        children.setdefault(parent if parent in paths else "", []).append(cgroup)
    shown = {
        cgroup.path: [s for s in _settings(cgroup) if all_files or not _is_default(s, tree)]
        for cgroup in tree.cgroups
    }
    widths = [
        max((len(part) for settings in shown.values() for part in (s[index] for s in settings)), default=0)
        for index in range(3)
    ]
    for cgroup in children.get("", []):
        yield from _cgroup_lines(cgroup, "", "", children, shown, widths, paint)


def _cgroup_lines(
    cgroup: Cgroup,
    first: str,
    rest: str,
    children: dict[str, list[Cgroup]],
    shown: dict[str, list[Setting]],
    widths: list[int],
    paint: Paint,
) -> Iterator[str]:
    below = children.get(cgroup.path, [])
    yield paint("dim", first) + _title(cgroup, paint, is_top=not first)
    for setting in shown[cgroup.path]:
        stem = paint("dim", rest + ("│  " if below else "   "))
        file, value, rule = (setting[index].ljust(widths[index]) for index in range(3))
        yield f"{stem}{file}  {paint('bold', value)}  {paint('cyan', rule)}  {paint('dim', setting.reason)}".rstrip()
    for index, child in enumerate(below):
        is_last = index == len(below) - 1
        yield from _cgroup_lines(
            child,
            rest + ("└─ " if is_last else "├─ "),
            rest + ("   " if is_last else "│  "),
            children,
            shown,
            widths,
            paint,
        )


def _title(cgroup: Cgroup, paint: Paint, *, is_top: bool) -> str:
    name = paint("bold", cgroup.path if is_top else cgroup.path.rpartition("/")[2])
    if cgroup.kind == Kind.POD:
        return f"{name}  pod {paint('bold', cgroup.pod)}  {_class(cgroup.qos, paint)}"
    if cgroup.kind == Kind.CONTAINER:
        return f"{name}  container, memory {_class(cgroup.memory_qos, paint)}, cpu {_class(cgroup.cpu_qos, paint)}"
    notes = {
        Kind.ROOT: "all pods",
        Kind.BRANCH: f"{_class(cgroup.qos, paint)} pods",
        Kind.INFRASTRUCTURE: "the pod's own overhead",
        Kind.RESERVED: "daemons",
    }
    return f"{name}  {notes.get(cgroup.kind, '')}".rstrip()


def _class(qos: str, paint: Paint) -> str:
    return paint(CLASS_COLOURS.get(qos, "bold"), qos)


def _settings(cgroup: Cgroup) -> tuple[Setting, ...]:
    return cgroup.settings if cgroup.oom_score_adj is None else (cgroup.oom_score_adj, *cgroup.settings)


def _is_default(setting: Setting, tree: Tree) -> bool:
    default = default_value(setting.file, tree.version)
    return default is not None and same_value(setting.file, setting.value, default)
