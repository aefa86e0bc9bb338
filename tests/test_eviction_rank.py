"""The order of evictions, in both orders and both profiles."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import Profile
from evenkeel.policy.eviction.rank import Need, Order, Spared, TraitCache, need_of, rank
from evenkeel.policy.eviction.snapshot import PodSnapshot, Snapshot
from evenkeel.policy.eviction.thresholds import Signal
from evenkeel.policy.eviction.usage import DiskPart, Resource, usage
from evenkeel.policy.oom_score import oom_score_adj
from evenkeel.policy.qos import QoSClass, container_class, is_critical
from tests.eviction_pods import CRITICAL, GI, MI, best_effort, burstable, guaranteed, node, seen
from tests.eviction_strategies import nodes_full_of_pods

DOCUMENTS, KUBERNETES = Profile.DOCUMENTS, Profile.KUBERNETES


def names(ranked):
    return [one.pod.metadata.name for one in ranked]


def order_of(pods, resource=Resource.MEMORY, profile=DOCUMENTS, need=Need.SYSTEM, **more):
    return names(rank(pods, resource, profile=profile, need=need, **more))


def spared_of(pods, resource=Resource.MEMORY, profile=DOCUMENTS, need=Need.PODS):
    ranked = rank(pods, resource, profile=profile, need=need)
    return {one.pod.metadata.name: one.spared for one in ranked if one.spared is not None}


@pytest.mark.req("A20", "B16")
def test_best_effort_pods_are_evicted_first_then_burstable_above_request_then_the_rest():
    pods = [
        guaranteed("guaranteed", 900, 1000),
        burstable("within", 400, 500),
        burstable("far-above", 3000, 1000),
        burstable("little-above", 3100, 3000),
        best_effort("small", 10),
        best_effort("large", 200),
    ]
    assert order_of(pods) == ["large", "small", "far-above", "little-above", "within", "guaranteed"]


@pytest.mark.req("A20", "A5")
def test_a_pod_within_its_request_is_evicted_only_for_the_systems_need():
    pods = [guaranteed("guaranteed", 1000, 1000), burstable("within", 500, 500), best_effort("free", 1)]
    within = {"guaranteed": Spared.WITHIN_REQUEST, "within": Spared.WITHIN_REQUEST}
    assert spared_of(pods, need=Need.PODS) == within
    assert spared_of(pods, need=Need.SYSTEM) == {}


@pytest.mark.req("A20")
def test_pods_that_cannot_help_are_never_chosen():
    pods = [
        best_effort("idle", 0),
        best_effort("unmeasured", measured=False),
        best_effort("no-memory-figure"),
    ]
    assert spared_of(pods, need=Need.SYSTEM) == {
        "idle": Spared.NO_USAGE,
        "unmeasured": Spared.UNKNOWN,
        "no-memory-figure": Spared.UNKNOWN,
    }


@pytest.mark.req("A20")
def test_critical_pods_are_evicted_last_and_by_kubelet_never():
    pods = [
        best_effort("critical", 5000, priority=CRITICAL),
        best_effort("named", 4000, priority_class_name="system-node-critical"),
        guaranteed("guaranteed", 10, 10),
    ]
    assert order_of(pods) == ["guaranteed", "critical", "named"]
    assert spared_of(pods) == {"guaranteed": Spared.WITHIN_REQUEST}
    assert spared_of(pods, profile=KUBERNETES) == {"critical": Spared.CRITICAL}


@pytest.mark.req("A20")
def test_pods_from_files_are_critical_to_kubelet_only():
    static = best_effort("static", 1, annotations={"kubernetes.io/config.source": "file"}).pod
    mirror = best_effort("mirror", 1, annotations={"kubernetes.io/config.mirror": ""}).pod
    from_api = best_effort("api", 1, annotations={"kubernetes.io/config.source": "api"}).pod
    assert is_critical(static, KUBERNETES)
    assert is_critical(mirror, KUBERNETES)
    assert not is_critical(from_api, KUBERNETES)
    assert not is_critical(static, DOCUMENTS)


@pytest.mark.req("B16", "E13")
def test_by_priority_above_request_comes_first_then_the_lower_priority_then_usage_over_request():
    pods = [
        burstable("within-low", 400, 500, priority=-10),
        burstable("above-high", 9000, 1000, priority=100),
        burstable("above-low-little", 600, 500, priority=0),
        burstable("above-low-far", 800, 500),
        guaranteed("within", 900, 1000, priority=0),
    ]
    expected = ["above-low-far", "above-low-little", "above-high", "within-low", "within"]
    assert order_of(pods, profile=KUBERNETES) == expected
    assert order_of(pods, profile=DOCUMENTS, order=Order.PRIORITY) == expected


@pytest.mark.req("E13")
def test_the_order_is_a_setting_in_both_profiles():
    pods = [best_effort("best-effort", 100, priority=50), burstable("burstable", 900, 100, priority=0)]
    for profile in Profile:
        assert order_of(pods, profile=profile, order=Order.CLASS) == ["best-effort", "burstable"]
        assert order_of(pods, profile=profile, order=Order.PRIORITY) == ["burstable", "best-effort"]
    assert order_of(pods, profile=DOCUMENTS) == ["best-effort", "burstable"]
    assert order_of(pods, profile=KUBERNETES) == ["burstable", "best-effort"]


def test_kubelet_puts_pods_without_statistics_first():
    pods = [best_effort("large", 5000), guaranteed("unmeasured", None, 100, measured=False, priority=1000)]
    assert order_of(pods, profile=KUBERNETES) == ["unmeasured", "large"]


@pytest.mark.req("B16")
def test_pods_are_ranked_by_number_of_processes_and_by_kubelet_by_priority_first():
    pods = [
        guaranteed("guaranteed-bomb", 1, 10, processes=9000),
        burstable("few", 1, 10, processes=3, priority=0),
        best_effort("some", processes=30, priority=5),
    ]
    assert order_of(pods, Resource.PIDS) == ["some", "few", "guaranteed-bomb"]
    assert order_of(pods, Resource.PIDS, KUBERNETES) == ["guaranteed-bomb", "few", "some"]


@pytest.mark.req("B16")
def test_disk_counts_only_what_lies_on_the_filesystem_that_is_short():
    pods = [
        seen("layers", rootfs=900, logs=1),
        seen("logs", rootfs=1, logs=500),
        seen("volumes", volumes={"data": 700}),
    ]
    everything = ["layers", "volumes", "logs"]
    assert names(rank(pods, Resource.STORAGE, profile=DOCUMENTS, need=Need.SYSTEM)) == everything
    on_nodefs = rank(pods, Resource.STORAGE, (DiskPart.LOGS, DiskPart.VOLUMES), profile=DOCUMENTS)
    assert names(on_nodefs) == ["volumes", "logs", "layers"]


@pytest.mark.req("B16", "D9")
def test_a_volume_in_memory_is_not_held_against_the_disk():
    pod = seen("a", rootfs=1, volumes={"data": 500})
    (volume,) = pod.pod.spec.volumes
    assert usage(pod, Resource.STORAGE) == 501 * MI
    in_memory = volume._replace(empty_dir=volume.empty_dir._replace(medium="Memory"))
    pod = pod._replace(pod=pod.pod._replace(spec=pod.pod.spec._replace(volumes=(in_memory,))))
    assert usage(pod, Resource.STORAGE) == 1 * MI


def test_a_guaranteed_pod_above_its_storage_request_is_evicted_before_a_pod_within_it():
    both = {"cpu": "1", "memory": "1Gi"}
    storage = {"ephemeral_storage": "1Gi"}
    pods = [
        seen("within", rootfs=900, requests=storage),
        seen("above", rootfs=1100, requests=both | storage, limits=both),
    ]
    assert order_of(pods, Resource.STORAGE) == ["above", "within"]


def test_of_equal_pods_the_younger_is_evicted_first_then_by_name():
    pods = [
        best_effort("b", 10, created="2026-01-01T00:00:00Z"),
        best_effort("a", 10, created="2026-01-01T00:00:00Z"),
        best_effort("young", 10, created="2026-02-01T00:00:00Z"),
        best_effort("undated", 10),
        best_effort("of-that-day", 10, created="2026-02-01"),
    ]
    assert order_of(pods) == ["young", "of-that-day", "a", "b", "undated"]
    assert order_of(reversed(pods)) == order_of(pods)


@pytest.mark.req("A5", "A15", "B8")
def test_short_memory_in_the_pods_cgroup_is_never_the_systems_need():
    snapshot = Snapshot(0.0, node(50, pods=10), (guaranteed("g", 10, 100),))
    assert need_of(Signal.ALLOCATABLE_MEMORY_AVAILABLE, snapshot, DOCUMENTS) is Need.PODS
    assert need_of(Signal.MEMORY_AVAILABLE, snapshot, DOCUMENTS) is Need.SYSTEM


@pytest.mark.req("A5", "A15")
def test_it_is_the_systems_need_only_if_the_pods_use_no_more_than_they_requested():
    pods = (guaranteed("g", 90, 100), burstable("b", 100, 100))

    def need(pods_use, of=pods):
        return need_of(Signal.MEMORY_AVAILABLE, Snapshot(0.0, node(50, pods=pods_use), of), DOCUMENTS)

    assert need(200) is Need.SYSTEM
    assert need(201) is Need.PODS  # some pod is above its request, though no pod of the snapshot is
    assert need(None) is Need.SYSTEM  # no cgroup figure: the pods' own are added up
    assert need(None, (*pods, best_effort("unmeasured", measured=False))) is Need.PODS


# Properties

rankings = {
    "profile": st.sampled_from(Profile),
    "order": st.sampled_from(Order),
    "need": st.sampled_from(Need),
    "resource": st.sampled_from(Resource),
}


@pytest.mark.req("A20", "E13")
@given(pods=nodes_full_of_pods(), shuffled=st.randoms(use_true_random=False), **rankings)
def test_the_ranking_is_one_order_whatever_order_the_pods_come_in(pods, shuffled, resource, **settings):
    ranked = rank(pods, resource, **settings)
    assert sorted(names(ranked)) == sorted(one.pod.metadata.name for one in pods)
    again = list(pods)
    shuffled.shuffle(again)
    assert rank(again, resource, **settings) == ranked


@pytest.mark.req("A20", "E13")
@given(pods=nodes_full_of_pods(), **rankings)
def test_leaving_a_pod_out_leaves_the_order_of_the_others(pods, resource, **settings):
    """What makes it a total order: of any two pods, which one is evicted first does not depend on a third."""
    ranked = rank(pods, resource, **settings)
    for left_out in pods:
        others = [one for one in pods if one is not left_out]
        assert list(rank(others, resource, **settings)) == [one for one in ranked if one.seen is not left_out]


@pytest.mark.req("A5", "A15", "E13")
@given(pods=nodes_full_of_pods(), **rankings)
def test_no_pod_within_its_request_is_evicted_before_one_above_it(pods, resource, **settings):
    """Critical pods, which the documents profile puts last, are compared with each other alone; and the order
    by priority ranks processes, which have no request, by priority."""
    if resource is Resource.PIDS and settings["order"] is Order.PRIORITY:
        return
    ranked = [one for one in rank(pods, resource, **settings) if one.usage is not None and not one.spared]
    for critical in (False, True):
        above = [one.above_request for one in ranked if one.critical is critical]
        assert above == sorted(above, reverse=True)


@pytest.mark.req("A5", "A15")
@given(pods=nodes_full_of_pods(), order=st.sampled_from(Order), resource=st.sampled_from(Resource))
def test_for_the_need_of_pods_no_pod_within_its_request_is_evicted(pods, order, resource):
    ranked = rank(pods, resource, profile=DOCUMENTS, order=order, need=Need.PODS)
    candidates = [one for one in ranked if one.spared is None]
    assert all(one.above_request and one.usage > 0 for one in candidates)
    assert names(ranked)[: len(candidates)] == names(candidates)


# E12: the kernel's choice


def badness(one, capacity):
    """What the kernel compares: ‰ of memory in use, and the score on top."""
    container = one.pod.spec.containers[0]
    used = one.stats.memory_working_set_bytes * 1000 / capacity
    return used + oom_score_adj(one.pod, container, capacity, DOCUMENTS)


ROUNDING = 2  # ‰ of the node: scores are whole numbers, and kept within 2…999


@pytest.mark.req("E12")
@given(
    over=st.integers(1, 4000),
    request=st.integers(1, 4000),
    within=st.integers(1, 4000),
    part=st.floats(0, 1),
)
def test_the_oom_killer_agrees_with_the_order_by_class(over, request, within, part):
    capacity = 16 * GI
    used = int(within * part)
    by_rank = [
        best_effort("best-effort", over),
        burstable("above", request + over, request),
        burstable("within", used, within),
        guaranteed("guaranteed", used, within),
    ]
    scores = [badness(one, capacity) for one in by_rank]
    assert all(first + ROUNDING >= second for first, second in pairwise(scores))
    present = [one for one in by_rank if one.stats.memory_working_set_bytes]
    assert order_of(present) == [one.pod.metadata.name for one in present]


@pytest.mark.req("E12")
@given(pods=nodes_full_of_pods())
def test_the_oom_killer_kills_no_pod_within_its_request_before_one_above_it(pods):
    capacity = 16 * GI
    ranked = rank(pods, Resource.MEMORY, profile=DOCUMENTS, need=Need.SYSTEM)
    known = [one for one in ranked if one.usage is not None and one.usage > ROUNDING * capacity // 1000]
    above = [badness(one.seen, capacity) for one in known if one.above_request]
    within = [badness(one.seen, capacity) for one in known if not one.above_request]
    assert not above or not within or min(above) + ROUNDING >= max(within)


@pytest.mark.req("E12")
def test_a_small_sidecar_is_not_the_first_to_die():
    from evenkeel.api.container import Container
    from evenkeel.api.resources import ResourceRequirements
    from tests.eviction_pods import amounts

    capacity = 16 * GI
    main = burstable("web", 1800, 1024)
    sidecar = Container(name="sidecar", resources=ResourceRequirements(amounts(memory="64Mi")))
    assert container_class(sidecar, "memory") is QoSClass.BURSTABLE
    of_sidecar = 48 * MI * 1000 / capacity + oom_score_adj(main.pod, sidecar, capacity, DOCUMENTS)
    assert of_sidecar < badness(main, capacity)


def test_a_ranking_with_a_cache_is_the_ranking_without_it():
    pods = [best_effort("free", 10), burstable("above", 300, 100), guaranteed("within", 50, 100)]
    traits = TraitCache()
    for profile in (DOCUMENTS, KUBERNETES):
        for resource in Resource:
            alone = rank(pods, resource, profile=profile)
            assert rank(pods, resource, profile=profile, traits=traits) == alone
            assert rank(pods, resource, profile=profile, traits=traits) == alone


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 15), st.integers(0, 400), max_size=12),  # new figures of some pods
            st.sets(st.integers(0, 15), max_size=3),  # pods that are left out, as those that were killed
        ),
        max_size=8,
    )
)
def test_a_ranking_that_starts_from_the_last_one_is_the_ranking_from_the_start(
    steps: list[tuple[dict[int, int], set[int]]],
):
    def used(number: int, mib: int) -> PodSnapshot:
        name = f"pod-{number}"
        return best_effort(name, mib) if number % 2 else burstable(name, mib, 100)

    traits = TraitCache()
    figures = [used(number, 10 * number) for number in range(16)]
    for changes, left_out in steps:
        for number, mib in changes.items():
            figures[number] = PodSnapshot(figures[number].pod, used(number, mib).stats)
        pods = [one for number, one in enumerate(figures) if number not in left_out]
        for need in Need:
            now = rank(pods, Resource.MEMORY, profile=DOCUMENTS, need=need, traits=traits)
            assert now == rank(pods, Resource.MEMORY, profile=DOCUMENTS, need=need)


def test_a_changed_pod_is_ranked_by_its_new_request():
    traits = TraitCache()
    before, after = burstable("resized", 300, 100), burstable("resized", 300, 400)
    assert rank([before], Resource.MEMORY, profile=DOCUMENTS, traits=traits)[0].above_request
    assert not rank([after], Resource.MEMORY, profile=DOCUMENTS, traits=traits)[0].above_request


def test_a_cache_holds_no_pod_that_its_owner_no_longer_has():
    traits = TraitCache()
    stays = best_effort("stays", 1)
    for index in range(50):
        pods = [stays, best_effort(f"pod-{index}", index)]
        rank(pods, Resource.MEMORY, profile=DOCUMENTS, traits=traits)
        traits.keep_only(seen.pod for seen in pods)
    assert len(traits) == 2
    traits.keep_only(())
    assert len(traits) == 0
