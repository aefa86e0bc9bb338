"""A small node in a test's own cgroup: pods come as YAML, and are admitted, planned and reconciled as on any node."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.manifests import read_manifests
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.reconcile import Report, reconcile
from evenkeel.cgroup.tree import Cgroup as Planned
from evenkeel.cgroup.tree import Kind
from evenkeel.policy.admission import admit
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.exclusive_cores import assign_on
from evenkeel.policy.node_view import node_view
from evenkeel.policy.provision import PlannedPod
from tests.kernel.cgroups import Cgroup, hierarchies
from tests.kernel.processes import Program, Spawn

MIB = 1 << 20
# What the kernel needs to keep track of cgroups; of a machine's memory it is no part of the capacity either.
KERNEL_MIB = 16
# How long what a cgroup uses is compared with its limit. While a guest waits for a processor of its host, the kernel
# charges that time to the process that was running. The surplus is paid back in the next periods, or after the
# measurement.
LIMITED_SECONDS = 6.0 if os.environ.get("EVENKEEL_MACHINE") == "host" else 24.0


def pod(name: str, *, spec: str = "", annotations: str = "{}", **containers: str) -> str:
    """A pod as YAML. A container's word is its `resources`; `spec` is what else the pod's spec has, on a line each."""
    lines = [
        "---",
        "apiVersion: v1",
        "kind: Pod",
        f"metadata: {{name: {name}, annotations: {annotations}}}",
        "spec:",
        *(f"  {line}" for line in spec.splitlines()),
        "  containers:",
        *(f"  - {{name: {key}, image: host, resources: {value}}}" for key, value in containers.items()),
    ]
    return "\n".join(lines) + "\n"


class SmallNode:
    """A "node" of at most half a GiB that is the test's root: nothing of it reaches further than that cgroup.

    `settings` are fields of the configuration. The hard eviction threshold is nothing unless they say otherwise: these
    tests are about the kernel, which knows none.
    """

    def __init__(self, root: Cgroup, spawn: Spawn, *, memory_mib: int, cpus: int, **settings: Any) -> None:
        assert memory_mib + KERNEL_MIB <= 512
        self.root = root
        self._spawn = spawn
        self._capacity = NodeCapacity(millicpu=1000 * cpus, memory_bytes=memory_mib * MIB)
        self._settings = {"cgroup_root": f"/{root.paths()[0].name}", "eviction_hard": {}, **settings}
        self._driver = driver_for(detect(), KubeletConfiguration(**self._settings))
        self._planned: dict[tuple[str, str], Planned] = {}
        root.write("cpuset.cpus", f"0-{cpus - 1}")
        limit = "memory.max" if root.has("memory.max") else "memory.limit_in_bytes"
        root.write(limit, (memory_mib + KERNEL_MIB) * MIB)

    def close(self) -> None:
        self._driver.close()

    def apply(self, *manifests: str, init: str = "", **settings: Any) -> Report:
        """Make the kernel equal to the plan for these pods. `init` is the init container that runs now; `settings` are
        what is configured differently from now on."""
        self._settings |= settings
        node = node_view(self._capacity, KubeletConfiguration(**self._settings))
        reading = read_manifests("".join(manifests), "test").or_raise()
        verdicts = admit(reading.pods, node.allocatable, node.profile)
        assert not [verdict for verdict in verdicts if verdict.refusal]
        cores = assign_on(node, reading.pods)
        planned_pods = [
            PlannedPod(
                pod,
                _index(pod.spec.init_containers, init),
                cores.of_pod(pod.metadata.uid),
                cores.shared,
            )
            for pod in reading.pods
        ]
        tree = plan(node, planned_pods, self._driver.version)
        report = reconcile(self._driver, tree)
        assert not report.failures, [str(error) for error in report.failures]
        assert not report.skipped
        again = reconcile(self._driver, tree)
        assert not again.done, "a second pass has nothing to do"
        self._planned = {_key(cgroup): cgroup for cgroup in tree.cgroups}
        return report

    @property
    def pods_root(self) -> Cgroup:
        """The cgroup of all pods."""
        return self._found(self._planned[Kind.ROOT, ""])

    def branch(self, qos: str) -> Cgroup:
        """The cgroup of the Burstable or BestEffort pods."""
        return self._found(self._planned[Kind.BRANCH, qos])

    def pod(self, name: str) -> Cgroup:
        return self._found(self._planned[name, ""])

    def container(self, name: str) -> Cgroup:
        """The cgroup of the container `pod/container`."""
        return self._found(self.planned(name))

    def planned(self, name: str) -> Planned:
        """What the plan has for the container `pod/container`."""
        of_pod, _, of_container = name.partition("/")
        return self._planned[of_pod, of_container]

    def start(self, container: str, program: str, *arguments: str | int | Path) -> Program:
        """Start a program in a container, with the container's OOM score, both before its first instruction.

        Where the machine refuses negative scores (no CAP_SYS_RESOURCE), the process has 0 in place of one.
        """
        score = self.planned(container).oom_score_adj
        assert score is not None
        value = int(score.value) if may_lower_scores() else max(int(score.value), 0)
        return self._spawn(program, *arguments, cgroup=self.container(container), oom_score_adj=value)

    def _found(self, planned: Planned) -> Cgroup:
        directories = {key: mount / planned.path[1:] for key, mount in hierarchies().items()}
        return Cgroup({key: path for key, path in directories.items() if path.exists()})


MakeNode = Callable[..., SmallNode]

# A module that uses one of these fixtures says so: `make_node = planned.make_node`.


@pytest.fixture
def make_node(cgroup_root: Cgroup, spawn: Spawn) -> Iterator[MakeNode]:
    """Makes the test's root a small node."""
    with ExitStack() as stack:

        def make(*, memory_mib: int = 256, cpus: int = 1, **settings: Any) -> SmallNode:
            node = SmallNode(cgroup_root, spawn, memory_mib=memory_mib, cpus=cpus, **settings)
            stack.callback(node.close)
            return node

        yield make


@pytest.fixture
def shared_directory() -> Iterator[Path]:
    """A directory in memory (tmpfs), as an emptyDir volume with `medium: Memory` is."""
    with tempfile.TemporaryDirectory(prefix="evenkeel-", dir="/dev/shm") as path:
        yield Path(path)


def may_lower_scores() -> bool:
    """Whether this machine lets us give a process a negative OOM score: CAP_SYS_RESOURCE is bit 24."""
    effective = next(
        line.split()[1]
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("CapEff")
    )
    return bool(int(effective, 16) >> 24 & 1)


def memory_bytes(cgroup: Cgroup) -> int:
    return int(cgroup.read("memory.current" if cgroup.has("memory.current") else "memory.usage_in_bytes"))


def memory_limit(cgroup: Cgroup) -> int | None:
    """The limit that the kernel has, None where there is none."""
    text = cgroup.read("memory.max" if cgroup.has("memory.max") else "memory.limit_in_bytes")
    return None if text == "max" or int(text) >= 1 << 60 else int(text)


def peak_bytes(cgroup: Cgroup) -> int:
    """The most memory it ever had."""
    return int(cgroup.read("memory.peak" if cgroup.has("memory.peak") else "memory.max_usage_in_bytes"))


def cached_bytes(cgroup: Cgroup) -> int:
    """File cache charged to it."""
    return cgroup.counters("memory.stat")["file" if cgroup.has("memory.current") else "cache"]


def oom_kills(cgroup: Cgroup) -> int:
    return cgroup.counters("memory.events" if cgroup.has("memory.events") else "memory.oom_control")[
        "oom_kill"
    ]


def cpu_seconds(cgroup: Cgroup) -> float:
    """The processor time that its processes have had."""
    if cgroup.has("cpuacct.usage"):
        return int(cgroup.read("cpuacct.usage")) / 1e9
    return cgroup.counters("cpu.stat")["usage_usec"] / 1e6


def throttles(cgroup: Cgroup) -> int:
    """In how many periods it was stopped at its limit."""
    return cgroup.counters("cpu.stat")["nr_throttled"]


def cpu_quota(cgroup: Cgroup) -> float | None:
    """Processors that it may use at most, None where there is no limit."""
    if cgroup.has("cpu.max"):
        quota, period = cgroup.read("cpu.max").split()
    else:
        quota, period = cgroup.read("cpu.cfs_quota_us"), cgroup.read("cpu.cfs_period_us")
    return None if quota in ("max", "-1") else int(quota) / int(period)


def _key(cgroup: Planned) -> tuple[str, str]:
    """Pods and containers by name, the rest by kind."""
    if not cgroup.pod:
        return cgroup.kind, cgroup.qos
    name = cgroup.pod.rpartition("/")[2]
    return name, Kind.INFRASTRUCTURE if cgroup.kind == Kind.INFRASTRUCTURE else cgroup.container


def _index(containers: tuple[Any, ...], name: str) -> int | None:
    return next((index for index, container in enumerate(containers) if container.name == name), None)
