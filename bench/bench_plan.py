"""Planning 500 pods, and comparing the plan with what the kernel would hold."""

from collections.abc import Callable, Iterator
from functools import partial
from time import process_time

from tests.strategies import as_observed

from bench.figure import Figure, against, value_at_most
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.manifests import read_manifests
from evenkeel.cgroup.diff import diff
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.tree import Setting
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.node_view import node_view
from evenkeel.policy.provision import PlannedPod

PODS = 500
_ROUNDS = 7
_POD = """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: server
    image: host
    resources: {requests: {cpu: 500m, memory: 256Mi}, limits: {cpu: "2", memory: 512Mi}}
  - name: logs
    image: host
    resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {memory: 64Mi}}
"""


def figures() -> Iterator[Figure]:
    pod = read_manifests(_POD, "bench").or_raise().pods[0]
    planned_pods = [
        PlannedPod(pod._replace(metadata=pod.metadata._replace(name=f"web-{i}", uid=f"uid-{i}")))
        for i in range(PODS)
    ]
    for profile in ("documents", "kubernetes"):
        node = node_view(NodeCapacity(256_000, 1 << 42), KubeletConfiguration(profile=profile))
        tree = plan(node, planned_pods)
        settings = sum(len(cgroup.settings) for cgroup in tree.cgroups)
        observed = as_observed(tree)
        planned, compared, bare = [], [], []
        for _ in range(_ROUNDS):
            planned.append(_milliseconds(partial(plan, node, planned_pods)))
            compared.append(_milliseconds(partial(diff, tree, observed)))
            bare.append(_milliseconds(partial(_bare_settings, settings)))
        yield against(f"plan of {PODS} pods, {profile}", planned, bare, "ms", value_at_most(100))
        yield against(f"diff of {PODS} unchanged pods, {profile}", compared, bare, "ms", value_at_most(100))


def _bare_settings(count: int) -> list[Setting]:
    """The least that any planner does: make that many settings."""
    return [Setting("memory.max", str(index), "C3", "limit") for index in range(count)]


def _milliseconds(work: Callable[[], object]) -> float:
    start = process_time()
    work()
    return (process_time() - start) * 1000
