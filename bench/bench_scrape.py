"""One scrape at 110 pods with three containers each: reading all figures and writing them out, CPU time and bytes.

Two references. In the same run, the C loop of `cgroups` that reads the same statistics files with nothing between the
system calls. And cAdvisor 0.38.7, as Debian has it, measured on a machine like this one with 100 empty cgroups: 10 % of
a core at a housekeeping of one second with its default metrics, which is a millisecond of CPU for each cgroup and look.
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import process_time

from bench.bench_cgroups import applied, cgroups, reference
from bench.figure import Figure, against, ratio_at_most
from bench.reference import compiled
from evenkeel.agent.observe.counters import Counters
from evenkeel.agent.observe.node_snapshot import NodeSnapshot, node_object
from evenkeel.agent.observe.sweep import SweepThread
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.pod import ContainerState, ContainerStateRunning, ContainerStatus, Pod, PodStatus
from evenkeel.cgroup.drivers.base_driver import CgroupfsDriver
from evenkeel.cgroup.statistics import V1_FILES, V2_FILES
from evenkeel.cgroup.tree import Tree, Version
from evenkeel.policy.eviction.snapshot import PodFigures
from evenkeel.policy.node_view import node_view, parse_node
from evenkeel.server.metrics import node_metrics
from evenkeel.server.metrics_cgroups import Labels, cadvisor_metrics, resource_metrics
from evenkeel.server.summary import summary
from evenkeel.server.view_stream import ViewEncoder

ROUNDS = 21
CADVISOR_MS = 1.0  # of CPU for a cgroup and look


class _Disk:
    """Where pods would write."""

    storage_path = images_path = "/"


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory, cgroups() as (driver, planner, planned_pods):
        program = str(compiled("cgroup_reference", directory))
        tree = planner.tree(planned_pods)
        applied(driver, tree)
        pods = tuple(_running(planned.pod) for planned in planned_pods)
        node = node_view(parse_node("64Gi,16cpu"), KubeletConfiguration())
        with closing(SweepThread(node, lambda: driver, _Disk())) as sweeping:

            def look() -> NodeSnapshot:
                sweep = sweeping.take(tree, 1_794_800_000.0)
                disk: dict[str, PodFigures] = {}
                return NodeSnapshot(sweep, node, node_object(node), pods, disk, None, (), Counters(), 0.0)

            files = _files(driver, tree)
            named = Labels()
            views = ViewEncoder()
            answers: dict[str, Callable[[NodeSnapshot], bytes]] = {
                "sweep alone": lambda _: b"",
                "/metrics/resource": lambda node_snapshot: resource_metrics(node_snapshot, named),
                "/metrics": lambda node_snapshot: node_metrics(node_snapshot, named),
                "/metrics/cadvisor": lambda node_snapshot: cadvisor_metrics(node_snapshot, named),
                "/stats/summary": lambda node_snapshot: asyncio.run(summary(node_snapshot)),
                "/view": lambda node_snapshot: asyncio.run(views.view(node_snapshot)).whole,
            }
            for name, answer in answers.items():
                ours, references = [], []
                size = 0
                with reference(program, "read", files) as ask:
                    for _ in range(ROUNDS):
                        start = process_time()
                        size = len(answer(look()))
                        ours.append((process_time() - start) * 1000)
                        references.append(ask("1") / 1000)
                bytes_ = f", {size >> 10} KiB" if size else ""
                yield against(
                    f"one scrape, {name} at 330 containers{bytes_} beside the reads in C",
                    ours,
                    references,
                    "ms CPU",
                    None,
                )
                if name == "/metrics/cadvisor":
                    cadvisor = [CADVISOR_MS * len(tree.cgroups)] * ROUNDS
                    yield against(
                        f"one scrape, {name} beside cAdvisor", ours, cadvisor, "ms CPU", ratio_at_most(0.2)
                    )


def _files(driver: CgroupfsDriver, tree: Tree) -> list[str]:
    names = V1_FILES if driver.version == Version.V1 else V2_FILES
    return [
        f"{directory}/{name}"
        for cgroup in tree.cgroups
        for name in names
        if (directory := driver.files(cgroup.path)[name.partition(".")[0]]) and Path(directory, name).exists()
    ]


def _running(pod: Pod) -> Pod:
    since = "2026-11-16T00:00:00Z"
    state = ContainerState(running=ContainerStateRunning(since))
    statuses = tuple(ContainerStatus(one.name, state, ready=True) for one in pod.spec.containers)
    return pod._replace(
        status=PodStatus("Running", qos_class="Burstable", start_time=since, container_statuses=statuses)
    )
