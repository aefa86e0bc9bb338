"""Eviction decisions, one step of the loop at a time."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import KubeletConfiguration, Profile
from evenkeel.api.scalars import Amount, Duration
from evenkeel.policy.eviction.conditions import (
    Observation,
    Pressure,
    is_relieved,
    observations,
    thresholds_met,
    with_containerfs,
)
from evenkeel.policy.eviction.decide import (
    Reclaim,
    Settings,
    State,
    decide,
    of_thresholds,
    reclaimable,
    settings_from,
)
from evenkeel.policy.eviction.rank import Order
from evenkeel.policy.eviction.snapshot import MemoryFigures, NodeFigures, PodSnapshot, Snapshot
from evenkeel.policy.eviction.thresholds import Signal, parse_thresholds
from evenkeel.quantity import Quantity
from tests.eviction_pods import (
    CRITICAL,
    MI,
    best_effort,
    burstable,
    disruptions,
    evicted_status,
    filesystem,
    guaranteed,
    node,
    seen,
)
from tests.eviction_strategies import settings_strategy, snapshots, thresholds_strategy

DOCUMENTS = Settings()
KUBERNETES = Settings(profile=Profile.KUBERNETES, order=Order.PRIORITY)
HARD = parse_thresholds(hard={"memory.available": "100Mi"})
SOFT = parse_thresholds(
    soft={"memory.available": "1Gi"}, soft_grace_period={"memory.available": "30s"}
)  # fmt: skip


def step(snapshot, thresholds=HARD, settings=DOCUMENTS, state=None):
    return decide(state or State(), snapshot, thresholds, settings)


def victim_of(snapshot, thresholds=HARD, settings=DOCUMENTS, state=None):
    evicted = step(snapshot, thresholds, settings, state)[1].victim
    return None if evicted is None else evicted.pod.metadata.name


def at(seconds, available, *pods, **more):
    return Snapshot(float(seconds), node(available, **more), pods)


# Observations and thresholds


@pytest.mark.req("B16")
def test_every_signal_is_observed_where_both_its_figures_are_known():
    figures = node(
        1000, 4000, pods=300, pods_left=700, processes=(500, 120), nodefs=(5, 50, 7, 70),
        imagefs=filesystem(6, 60, 8, 80),
    )  # fmt: skip
    assert observations(figures) == {
        Signal.MEMORY_AVAILABLE: Observation(1000 * MI, 4000 * MI),
        Signal.ALLOCATABLE_MEMORY_AVAILABLE: Observation(700 * MI, 1000 * MI),
        Signal.NODEFS_AVAILABLE: Observation(5 * MI, 50 * MI),
        Signal.NODEFS_INODES_FREE: Observation(7, 70),
        Signal.IMAGEFS_AVAILABLE: Observation(6 * MI, 60 * MI),
        Signal.IMAGEFS_INODES_FREE: Observation(8, 80),
        Signal.CONTAINERFS_AVAILABLE: Observation(6 * MI, 60 * MI),
        Signal.CONTAINERFS_INODES_FREE: Observation(8, 80),
        Signal.PID_AVAILABLE: Observation(380, 500),
    }
    assert observations(NodeFigures(memory=MemoryFigures(available_bytes=Amount(5)))) == {}


@pytest.mark.req("B16")
def test_a_threshold_is_met_below_it_and_not_at_it():
    seen_at = {signal: Observation(100 * MI, 4000 * MI) for signal in (Signal.MEMORY_AVAILABLE,)}
    assert thresholds_met(HARD, seen_at) == ()
    assert thresholds_met(HARD, {Signal.MEMORY_AVAILABLE: Observation(100 * MI - 1, 4000 * MI)}) == HARD
    assert thresholds_met(HARD, {}) == ()


@pytest.mark.req("B16")
def test_a_threshold_once_met_lasts_until_its_minimum_reclaim_is_there_too():
    thresholds = parse_thresholds(
        hard={"memory.available": "100Mi"}, minimum_reclaim={"memory.available": "50Mi"}
    )
    pods = (best_effort("a", 10), best_effort("b", 20), best_effort("c", 30))
    assert victim_of(at(0, 120, *pods), thresholds) is None
    state, first = step(at(0, 90, *pods), thresholds)
    assert first.victim.pod.metadata.name == "c"
    state, second = step(at(10, 120, *pods[:2]), thresholds, state=state)
    assert second.victim.pod.metadata.name == "b"
    assert "50Mi above that are to be reclaimed" in second.victim.message
    _, third = step(at(20, 150, *pods[:1]), thresholds, state=state)
    assert third.victim is None


def test_the_containerfs_follows_the_filesystem_it_lies_on():
    thresholds = parse_thresholds(
        hard={"nodefs.available": "1Gi", "imagefs.available": "2Gi", "containerfs.available": "9Gi"}
    )

    def containerfs(**flags):
        found = with_containerfs(thresholds, NodeFigures(**flags))
        return [str(one.value) for one in found if one.signal is Signal.CONTAINERFS_AVAILABLE]

    assert containerfs() == ["1Gi"]
    assert containerfs(dedicated_imagefs=True) == ["2Gi"]
    assert containerfs(dedicated_imagefs=True, separate_containerfs=True) == ["1Gi"]


# Who goes, and how


@pytest.mark.req("A15", "A20", "B16")
def test_a_hard_threshold_evicts_the_first_in_rank_at_once():
    pods = (guaranteed("g", 900, 1000), best_effort("b", 50), burstable("above", 700, 100))
    _, decision = step(at(0, 99, *pods))
    assert decision.victim.pod.metadata.name == "b"
    assert decision.victim.grace_period_seconds == 0
    assert decision.conditions == (Pressure.MEMORY,)
    assert decision.evictions == (decision.victim,)


@pytest.mark.req("E2")
def test_figures_that_were_acted_on_are_not_acted_on_again():
    snapshot = at(5, 50, best_effort("a", 10), best_effort("b", 20))
    state, first = step(snapshot)
    assert first.victim is not None
    state, second = step(snapshot, state=state)
    assert second.victim is None
    _, third = step(snapshot._replace(time_seconds=5.01), state=state)
    assert third.victim is not None


@pytest.mark.req("A5", "A15", "B8")
def test_pods_within_their_requests_survive_a_full_pods_cgroup():
    thresholds = parse_thresholds(hard={"memory.available": "100Mi"}, enforce_node_allocatable=("pods",))
    snapshot = at(0, 4000, guaranteed("g", 900, 1000), burstable("b", 900, 1000), pods=1990, pods_left=10)
    state, decision = step(snapshot, thresholds)
    assert [one.signal for one in decision.due] == [Signal.ALLOCATABLE_MEMORY_AVAILABLE]
    assert decision.victim is None
    assert state.conditions == (Pressure.MEMORY,)
    above = snapshot._replace(pods=(*snapshot.pods, burstable("above", 190, 100)))
    assert victim_of(above, thresholds) == "above"
    assert victim_of(snapshot, thresholds, KUBERNETES) == "b"


@pytest.mark.req("A5", "A15")
def test_when_system_daemons_use_the_memory_a_pod_within_its_request_may_be_evicted():
    snapshot = at(0, 50, guaranteed("g", 900, 1000), burstable("b", 800, 1000), pods=1700)
    _, decision = step(snapshot)
    assert decision.victim.pod.metadata.name == "b"
    assert "for the system's need" in decision.victim.message
    assert victim_of(at(0, 50, *snapshot.pods, pods=2100)) is None


@pytest.mark.req("A5", "B16")
def test_if_no_pod_may_be_evicted_for_memory_the_next_urgent_threshold_is_acted_on():
    thresholds = parse_thresholds(
        hard={"memory.available": "100Mi", "pid.available": "10"}, enforce_node_allocatable=("pods",)
    )
    pods = (guaranteed("quiet", 900, 1000, processes=2), guaranteed("forks", 900, 1000, processes=400))
    snapshot = at(0, 4000, *pods, pods=1800, pods_left=10, processes=(500, 495))
    _, decision = step(snapshot, thresholds)
    assert decision.acting_on.signal is Signal.PID_AVAILABLE
    assert decision.victim.pod.metadata.name == "forks"


@pytest.mark.req("B16")
def test_a_soft_threshold_waits_for_its_grace_period():
    pods = (best_effort("a", 10),)
    state, first = step(at(0, 500, *pods), SOFT)
    assert first.victim is None
    assert first.conditions == (Pressure.MEMORY,)
    state, second = step(at(29, 500, *pods), SOFT, state=state)
    assert second.victim is None
    _, third = step(at(30, 500, *pods), SOFT, state=state)
    assert third.victim is not None
    _, recovered = step(at(29.5, 2000, *pods), SOFT, state=state)
    assert recovered.crossed == ()


@pytest.mark.req("B16")
def test_a_soft_threshold_that_recovers_starts_anew():
    pods = (best_effort("a", 10),)
    state, _ = step(at(0, 500, *pods), SOFT)
    state, _ = step(at(20, 2000, *pods), SOFT, state=state)
    state, _ = step(at(25, 500, *pods), SOFT, state=state)
    state, decision = step(at(50, 500, *pods), SOFT, state=state)
    assert decision.victim is None
    assert step(at(55, 500, *pods), SOFT, state=state)[1].victim is not None


@pytest.mark.req("B16")
@pytest.mark.parametrize(
    ("settings", "own", "grace"),
    [
        (DOCUMENTS._replace(max_pod_grace_period_seconds=10), 45, 10),
        (DOCUMENTS._replace(max_pod_grace_period_seconds=60), 45, 45),
        (DOCUMENTS._replace(max_pod_grace_period_seconds=60), None, 60),
        (DOCUMENTS._replace(max_pod_grace_period_seconds=-1), 45, 45),
        (DOCUMENTS._replace(max_pod_grace_period_seconds=-1), None, 30),
        (KUBERNETES._replace(max_pod_grace_period_seconds=10), 45, 10),
    ],
)
def test_a_soft_eviction_leaves_time_to_end(settings, own, grace):
    pods = (best_effort("a", 10, termination_grace_period_seconds=own),)
    state, _ = step(at(0, 500, *pods), SOFT, settings)
    _, decision = step(at(40, 500, *pods), SOFT, settings, state)
    assert decision.victim.grace_period_seconds == grace


@pytest.mark.req("B16")
def test_conditions_stay_for_the_transition_period():
    settings = DOCUMENTS._replace(pressure_transition_period_seconds=60)
    state, _ = step(at(0, 50), settings=settings)
    state, decision = step(at(59, 5000), settings=settings, state=state)
    assert decision.conditions == (Pressure.MEMORY,)
    _, decision = step(at(60, 5000), settings=settings, state=state)
    assert decision.conditions == ()


@pytest.mark.req("B16")
def test_memory_comes_before_processes_and_these_before_disk_and_hard_before_soft():
    thresholds = parse_thresholds(
        hard={"nodefs.available": "10%", "pid.available": "50", "memory.available": "100Mi"},
        soft={"memory.available": "1Gi"},
        soft_grace_period={"memory.available": "0s"},
    )
    pods = (seen("a", 10, rootfs=10, processes=10),)
    figures = {"processes": (100, 90), "nodefs": (1, 100)}
    _, decision = step(at(0, 50, *pods, **figures), thresholds)
    assert [(one.signal, one.hard) for one in decision.due][:3] == [
        (Signal.MEMORY_AVAILABLE, True),
        (Signal.MEMORY_AVAILABLE, True),
        (Signal.PID_AVAILABLE, True),
    ]
    assert decision.due[3].signal is Signal.NODEFS_AVAILABLE
    assert decision.acting_on == decision.due[0]
    _, decision = step(at(0, 5000, *pods, **figures), thresholds)
    assert decision.acting_on.signal is Signal.PID_AVAILABLE


@pytest.mark.req("B16")
def test_unused_containers_and_images_are_deleted_before_a_pod_is_evicted_for_disk():
    thresholds = parse_thresholds(hard={"nodefs.available": "10%"})
    _, decision = step(at(0, 5000, seen("a", rootfs=9), nodefs=(5, 100)), thresholds)
    assert decision.reclaim == (Reclaim.CONTAINERS, Reclaim.IMAGES)
    assert decision.victim.pod.metadata.name == "a"
    assert is_relieved(thresholds, node(5000, nodefs=(10, 100)))
    assert not is_relieved(thresholds, node(5000, nodefs=(9, 100)))


def test_the_filesystems_decide_what_can_be_deleted():
    split = NodeFigures(dedicated_imagefs=True, separate_containerfs=True)
    dedicated = NodeFigures(dedicated_imagefs=True)
    both = (Reclaim.CONTAINERS, Reclaim.IMAGES)
    assert reclaimable(Signal.NODEFS_AVAILABLE, NodeFigures()) == both
    assert reclaimable(Signal.NODEFS_AVAILABLE, dedicated) == ()
    assert reclaimable(Signal.IMAGEFS_INODES_FREE, dedicated) == both
    assert reclaimable(Signal.IMAGEFS_AVAILABLE, split) == (Reclaim.IMAGES,)
    assert reclaimable(Signal.CONTAINERFS_AVAILABLE, split) == (Reclaim.CONTAINERS,)
    assert reclaimable(Signal.MEMORY_AVAILABLE, split) == ()


@pytest.mark.req("B16")
def test_pods_that_have_ended_are_no_candidates():
    ended = best_effort("ended", 900)
    ended = ended._replace(pod=ended.pod._replace(status=ended.pod.status._replace(phase="Failed")))
    assert victim_of(at(0, 50, ended, best_effort("running", 1))) == "running"


# Storage limits


def limited(name, *, used, size="", limit="", **more):
    pod = seen(name, limits={"ephemeral_storage": limit} if limit else None, volumes={"data": used}, **more)
    if not size:
        return pod
    volume = pod.pod.spec.volumes[0]
    source = volume.empty_dir._replace(size_limit=Quantity.parse(size))
    spec = pod.pod.spec._replace(volumes=(volume._replace(empty_dir=source),))
    return pod._replace(pod=pod.pod._replace(spec=spec))


@pytest.mark.req("B12")
def test_every_pod_above_its_own_storage_limit_is_evicted_and_no_other():
    pods = (
        limited("volume", used=501, size="500Mi"),
        limited("within", used=500, size="500Mi"),
        limited("all-of-it", used=50, limit="100Mi", rootfs=30, logs=20),
        limited("together", used=60, limit="100Mi", rootfs=30, logs=20),
        seen("container", limits={"ephemeral_storage": "10Mi"}, rootfs=5, logs=6),
        best_effort("innocent", 900, rootfs=5000),
    )
    _, decision = step(at(0, 50, *pods))
    gone = {one.pod.metadata.name: one for one in decision.evictions}
    assert sorted(gone) == ["container", "together", "volume"]
    assert decision.victim is None  # what these give back is measured first
    assert "emptyDir volume data of 500Mi, in use 501Mi" in gone["volume"].message
    parts = "(volume data 60Mi, app rootfs 30Mi, app logs 20Mi)"
    assert f"all containers together of 100Mi, in use 110Mi {parts}" in gone["together"].message
    assert disruptions(evicted_status(gone["volume"])) == []


@pytest.mark.req("B12")
def test_a_limit_of_a_container_is_checked_apart_from_the_pod():
    """With layers on a filesystem of their own, a container answers for its logs, and the pod for all."""
    pod = seen("pod", limits={"ephemeral_storage": "10Mi"}, rootfs=2, logs=11)
    pod = pod._replace(stats=pod.stats._replace(ephemeral_storage_used_bytes=5 * MI))
    _, decision = step(at(0, 5000, pod, dedicated_imagefs=True))
    assert decision.over_limit[0].limit.what == "container app"
    assert decision.over_limit[0].limit.usage_bytes == 11 * MI


@pytest.mark.req("B12")
def test_storage_limits_can_be_switched_off_and_kubelet_excepts_critical_pods():
    over = limited("over", used=501, size="500Mi", priority=CRITICAL)
    assert step(at(0, 5000, over))[1].over_limit
    assert not step(at(0, 5000, over), settings=KUBERNETES)[1].over_limit
    off = DOCUMENTS._replace(local_storage_capacity_isolation=False)
    assert not step(at(0, 5000, over), settings=off)[1].over_limit
    state, decision = step(at(0, 50, over), (), off)
    assert (state, decision.crossed, decision.evictions) == (State(), (), ())


# Status, settings


@pytest.mark.req("A20")
def test_the_status_of_an_evicted_pod_says_failed_evicted_and_why():
    _, decision = step(at(0, 50, best_effort("a", 10)))
    status = evicted_status(decision.victim, at=datetime(2026, 9, 1, 12, tzinfo=UTC).timestamp())
    assert (status.phase, status.reason) == ("Failed", "Evicted")
    assert status.message == decision.victim.message
    (condition,) = disruptions(status)
    assert (condition.type, condition.status, condition.reason) == (
        "DisruptionTarget",
        "True",
        "TerminationByKubelet",
    )
    assert condition.last_transition_time == "2026-09-01T12:00:00Z"


@pytest.mark.req("E13")
def test_settings_come_from_the_configuration():
    config = KubeletConfiguration(
        profile="kubernetes",
        eviction_order="class",
        eviction_max_pod_grace_period=7,
        eviction_pressure_transition_period=Duration.parse("90s"),
        local_storage_capacity_isolation=False,
    )
    assert settings_from(config) == Settings(Profile.KUBERNETES, Order.CLASS, 7, 90.0, False)
    assert settings_from(KubeletConfiguration()).order is Order.CLASS
    assert settings_from(KubeletConfiguration(profile="kubernetes")).order is Order.PRIORITY


# Properties


@pytest.mark.req("E2")
@given(first=snapshots(), second=snapshots(20.0), thresholds=thresholds_strategy, settings=settings_strategy)
def test_a_decision_is_a_pure_function_that_evicts_at_most_one_pod_for_a_shortage(
    first, second, thresholds, settings
):
    state = State()
    for snapshot in (first, second):
        after, decision = decide(state, snapshot, thresholds, settings)
        assert (after, decision) == decide(state, snapshot, thresholds, settings)
        assert len([one for one in decision.evictions if one.shortage is not None]) <= 1
        assert not (decision.over_limit and decision.victim)
        for one in decision.evictions:
            assert any(one.pod is other.pod for other in snapshot.pods)
            assert one.message.endswith(".")
            assert (one.shortage is None) != (one.limit is None)
        state = after


@pytest.mark.req("A5", "A15")
@given(snapshot=snapshots(), thresholds=thresholds_strategy, order=st.sampled_from(Order))
def test_no_pod_within_its_request_is_evicted_while_one_above_it_could_be(snapshot, thresholds, order):
    _, decision = decide(State(), snapshot, thresholds, Settings(order=order))
    if decision.victim is None:
        return
    reason = decision.victim.shortage
    if not reason.victim.above_request:
        assert reason.need == "system"
        assert not any(one.above_request and one.priority < CRITICAL for one in reason.next_in_rank)
    assert reason.victim.usage > 0


def test_an_empty_snapshot_needs_no_decision():
    for settings in (DOCUMENTS, KUBERNETES):
        state, decision = step(Snapshot(), settings=settings)
        assert decision.evictions == ()
        assert state.unresolved == ()
    assert victim_of(Snapshot(0.0, node(50), (PodSnapshot(),))) is None


@pytest.mark.req("B16")
def test_no_pod_is_evicted_for_a_threshold_that_is_no_longer_configured():
    before = parse_thresholds(hard={"memory.available": "100Mi"})
    now = parse_thresholds(hard={"memory.available": "10Mi"})
    state = State({before[0]: 1.0, now[0]: 2.0}, before + now)
    kept = of_thresholds(state, now)
    assert kept == State({now[0]: 2.0}, now)
    assert of_thresholds(state, before + now) == state
