"""Pods, nodes and configurations for tests: builders in few words, and strategies that draw them."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from evenkeel.api.config import KubeletConfiguration, Profile
from evenkeel.api.container import Container
from evenkeel.api.defaults import default_pod
from evenkeel.api.pod import ObjectMeta, Pod, PodSpec
from evenkeel.api.resources import CPU, MEMORY, ResourceRequirements
from evenkeel.api.scalars import Duration
from evenkeel.cgroup.diff import Observed
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.tree import Kind, Tree, Version
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.node_view import NodeView, node_view
from evenkeel.policy.provision import PlannedPod
from evenkeel.quantity import ZERO, Quantity

MIB, GIB = 2**20, 2**30
Amounts = Mapping[str, str]


def asks(requests: Amounts | None = None, limits: Amounts | None = None) -> ResourceRequirements:
    return ResourceRequirements(amounts(requests), amounts(limits))


def amounts(texts: Amounts | None) -> dict[str, Quantity]:
    return {name: Quantity.parse(text) for name, text in (texts or {}).items()}


def container(
    requests: Amounts | None = None, limits: Amounts | None = None, name: str = "c", **more: Any
) -> Container:
    return Container(name=name, image="host", resources=asks(requests, limits), **more)


def sidecar(requests: Amounts | None = None, limits: Amounts | None = None, name: str = "side") -> Container:
    return container(requests, limits, name, restart_policy="Always")


def pod(
    *containers: Container,
    init: tuple[Container, ...] = (),
    own: ResourceRequirements | None = None,
    name: str = "p",
    annotations: Mapping[str, str] | None = None,
    overhead: Amounts | None = None,
    **spec: Any,
) -> Pod:
    """A pod whose UID is its name, as written: without defaults."""
    return Pod(
        ObjectMeta(name=name, uid=name, annotations=annotations or {}),
        PodSpec(
            containers=containers, init_containers=init, resources=own, overhead=amounts(overhead), **spec
        ),
    )


def node(
    memory: str = "32Gi", cpus: int = 8, hugepages: Mapping[int, int] | None = None, **config: Any
) -> NodeView:
    capacity = NodeCapacity(1000 * cpus, Quantity.parse(memory).value, 100 * GIB, hugepages or {})
    return node_view(capacity, KubeletConfiguration(**config))


def planned(
    view: NodeView, *what: Pod | PlannedPod, version: Version = Version.V2
) -> dict[str, dict[str, str]]:
    """The plan for defaulted pods as path → file → value; the path begins at the pods' root."""
    pods_at = [
        each if isinstance(each, PlannedPod) else PlannedPod(default_pod(each, view.profile)) for each in what
    ]
    tree = plan(view, pods_at, version)
    root = next((cgroup.path for cgroup in tree.cgroups if cgroup.kind == Kind.ROOT), "")
    return {
        cgroup.path.removeprefix(f"{root}/") if cgroup.path != root else "": {
            **{setting.file: setting.value for setting in cgroup.settings},
            **({"oom_score_adj": cgroup.oom_score_adj.value} if cgroup.oom_score_adj else {}),
        }
        for cgroup in tree.cgroups
    }


# What JSON and YAML can both hold. Whole numbers stay below those that turn into text.
_words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp", "Cn", "Co"]), max_size=8)
plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_words, inner, max_size=4),
    max_leaves=12,
)

_AMOUNTS = {
    CPU: [Quantity.of_milli(milli) for milli in (0, 1, 100, 250, 600, 1000, 1500, 2000)],
    MEMORY: [Quantity.of(value) for value in (0, 1, 12_289, MIB, 100 * MIB, GIB, 3 * GIB)],
}
# Of each resource, every request within a limit: each of the two there or not, and the request possibly 0.
_PAIRS = {
    name: [
        (request, limit)
        for limit in (None, *choices[1:])
        for request in (None, *choices)
        if None in (request, limit) or request <= limit
    ]
    for name, choices in _AMOUNTS.items()
}
requirements = st.builds(
    lambda *pairs: ResourceRequirements(
        {name: pair[0] for name, pair in zip(_PAIRS, pairs, strict=True) if pair[0] is not None},
        {name: pair[1] for name, pair in zip(_PAIRS, pairs, strict=True) if pair[1] is not None},
    ),
    *(st.sampled_from(pairs) for pairs in _PAIRS.values()),
)


@st.composite
def valid_pods(draw: st.DrawFn, name: str = "p", profile: Profile = Profile.DOCUMENTS) -> Pod:
    """A pod as it is once it has its defaults: init containers, sidecars, overhead and a limit of its own, or not."""
    regular = draw(st.lists(requirements, min_size=1, max_size=3))
    init = draw(st.lists(st.tuples(requirements, st.sampled_from([None, "Always"])), max_size=2))
    spec = PodSpec(
        containers=tuple(Container(f"c{n}", "host", resources=each) for n, each in enumerate(regular)),
        init_containers=tuple(
            Container(f"i{n}", "host", resources=each, restart_policy=policy)
            for n, (each, policy) in enumerate(init)
        ),
        overhead=draw(st.sampled_from([{}, {CPU: Quantity("50m"), MEMORY: Quantity("64Mi")}])),
    )
    whole = default_pod(Pod(ObjectMeta(name=name, uid=name), spec), profile)
    limited = draw(st.sampled_from([(), (CPU,), (MEMORY,), (CPU, MEMORY)]))
    if not limited:
        return whole
    # D1: no container may have a limit above the pod's, nor may their requests together exceed it.
    own = {
        resource: sum(
            (
                max(each.resources.requests.get(resource, ZERO), each.resources.limits.get(resource, ZERO))
                for each in whole.spec.every_container
            ),
            Quantity("1Gi") if resource == MEMORY else Quantity("300m"),
        )
        for resource in limited
    }
    return default_pod(
        whole._replace(spec=whole.spec._replace(resources=ResourceRequirements(limits=own))), profile
    )


pods = valid_pods()


@st.composite
def planned_pods(draw: st.DrawFn, profile: Profile = Profile.DOCUMENTS, most: int = 4) -> list[PlannedPod]:
    """Some pods of one node, each running or at one of its init containers."""
    found = []
    for name in draw(st.lists(st.sampled_from("abcdef"), unique=True, max_size=most)):
        some = draw(valid_pods(name, profile))
        last = len(some.spec.init_containers) - 1
        init = draw(st.none() | st.integers(0, last)) if last >= 0 else None
        found.append(PlannedPod(some, init))
    return found


# Configurations that change what the plan holds; all of them are valid, alone and together.
configs = st.fixed_dictionaries(
    {},
    optional={
        "cgroup_root": st.sampled_from(["/", "/a/b"]),
        "feature_gates": st.sampled_from([{"MemoryQoS": False}, {"MemoryQoS": True}]),
        "memory_throttling_factor": st.sampled_from([0.1, 0.9, 1.0]),
        "fair_cpu_sharing": st.booleans(),
        "cpu_burst": st.sampled_from([0, 50, 100]),
        "cpu_cfs_quota": st.booleans(),
        "cpu_cfs_quota_period": st.sampled_from([Duration.parse("20ms"), Duration.parse("250ms")]),
        "fail_swap_on": st.booleans(),
        "kube_reserved": st.sampled_from([{"memory": "2Gi", "cpu": "1"}, {"memory": "1Gi"}]),
        "enforce_node_allocatable": st.sampled_from([(), ("pods",), ("pods", "kube-reserved")]),
        "kube_reserved_cgroup": st.just("/kube"),
        "pod_pids_limit": st.sampled_from([-1, 100]),
        "oom_group_kill": st.booleans(),
    },
)
profiles = st.sampled_from(list(Profile))
nodes = st.builds(
    lambda profile, config, cpus, pages: node(cpus=cpus, hugepages=pages, profile=str(profile), **config),
    profiles,
    configs,
    st.sampled_from([1, 8, 200]),
    st.sampled_from([{}, {2 * MIB: 512}]),
)


def as_observed(tree: Tree) -> Observed:
    """What a driver would read if the kernel held `tree`."""
    return {cgroup.path: {one.file: one.value for one in cgroup.settings} for cgroup in tree.cgroups}
