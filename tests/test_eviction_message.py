"""Eviction messages, and the messages of a node that refuses pods under pressure."""

from typing import Any

import pytest

from evenkeel.api.config import Profile
from evenkeel.api.encode import encode
from evenkeel.api.pod import Toleration
from evenkeel.api.scalars import Amount
from evenkeel.policy.eviction.conditions import MEMORY_PRESSURE_TAINT, Pressure, pressure_refusal
from evenkeel.policy.eviction.decide import Settings, State, decide
from evenkeel.policy.eviction.message import in_todays_words, readable
from evenkeel.policy.eviction.rank import Order
from evenkeel.policy.eviction.snapshot import ContainerFigures, Snapshot
from evenkeel.policy.eviction.thresholds import parse_thresholds
from evenkeel.policy.eviction.usage import Resource
from tests.eviction_pods import CRITICAL, GI, MI, best_effort, burstable, guaranteed, node, seen

HARD = parse_thresholds(hard={"memory.available": "100Mi", "nodefs.available": "10%", "pid.available": "100"})


def evicted(figures, *pods, settings=None, thresholds=HARD, times=(0,)):
    state = State()
    for time in times:
        state, decision = decide(state, Snapshot(time, figures, pods), thresholds, settings or Settings())
    return decision.victim


@pytest.mark.req("E14")
def test_a_message_states_signal_threshold_figure_usage_by_part_request_and_the_next_in_rank():
    web = burstable("web", 1800, 1024, priority=7)
    sidecar = ContainerFigures("sidecar", Amount(100 * MI))
    app = ContainerFigures("app", Amount(1700 * MI))
    web = web._replace(stats=web.stats._replace(containers=(sidecar, app)))
    eviction = evicted(node(60), web, burstable("api", 2000, 1536), guaranteed("db", 900, 1000))
    assert eviction.message == (
        "memory.available is 60Mi, below the hard threshold of 100Mi."
        " default/web (Burstable, priority 7) uses 1.76Gi of memory (app 1.66Gi, sidecar 100Mi),"
        " 776Mi above its request of 1Gi, and is first in rank by class and usage over request."
        " Next in rank: default/api (Burstable, priority 0) uses 1.95Gi of memory,"
        " 464Mi above its request of 1.5Gi."
    )


@pytest.mark.req("E14")
def test_the_reason_is_there_as_data_too():
    eviction = evicted(node(60), best_effort("batch", 500), burstable("web", 200, 100))
    plain: Any = encode(eviction.shortage)
    assert plain["crossed"] == {
        "signal": "memory.available",
        "threshold": "100Mi",
        "thresholdAmount": 100 * MI,
        "available": 60 * MI,
        "capacity": 16 * GI,
        "hard": True,
        "gracePeriodSeconds": 0.0,
        "minReclaimAmount": 0,
    }
    assert plain["victim"] == {
        "pod": "default/batch",
        "qosClass": "BestEffort",
        "priority": 0,
        "usage": 500 * MI,
        "request": 0,
        "aboveRequest": True,
    }
    assert plain["parts"] == [{"name": "app", "amount": 500 * MI}]
    assert [one["pod"] for one in plain["nextInRank"]] == ["default/web"]


@pytest.mark.req("E14")
def test_for_disk_the_parts_are_layers_logs_and_volumes():
    pod = seen("build", rootfs=300, logs=5, volumes={"objects": 1200}, requests={"ephemeral_storage": "1Gi"})
    message = evicted(node(5000, nodefs=(3000, 51200)), pod).message
    assert "nodefs.available is 2.93Gi, below the hard threshold of 5Gi (10% of 50Gi)." in message
    assert "uses 1.47Gi of disk (volume objects 1.17Gi, app rootfs 300Mi, app logs 5Mi)" in message
    assert "481Mi above its request of 1Gi" in message
    assert message.endswith("No other pod could be evicted.")


@pytest.mark.req("E14")
def test_a_message_that_an_earlier_version_recorded_is_the_same_in_todays_words():
    message = evicted(node(60), best_effort("a", 10)).message
    earlier = message.replace("is first in rank by", "goes first by").replace(
        "could be evicted.", "could go."
    )
    assert earlier != message == in_todays_words(earlier) == in_todays_words(message)


@pytest.mark.req("E14")
def test_processes_are_counted_and_cannot_be_requested():
    message = evicted(node(5000, processes=(1000, 950)), best_effort("forks", processes=800)).message
    assert "pid.available is 50, below the hard threshold of 100." in message
    assert "uses 800 pids, which cannot be requested" in message


@pytest.mark.req("E14")
def test_the_message_of_a_soft_threshold_has_its_grace_period():
    soft = parse_thresholds(soft={"memory.available": "1Gi"}, soft_grace_period={"memory.available": "1m30s"})
    eviction = evicted(node(500), best_effort("a", 10), thresholds=soft, times=(0, 95))
    assert "below the soft threshold of 1Gi for 90 s or longer" in eviction.message


@pytest.mark.req("E14")
def test_figures_that_would_look_equal_are_written_exactly():
    figures = node(0)
    figures = figures._replace(memory=figures.memory._replace(available_bytes=100 * MI - 1))
    assert (
        "is 104857599, below the hard threshold of 104857600"
        in evicted(figures, best_effort("a", 10)).message
    )


@pytest.mark.req("E14")
def test_at_most_three_others_are_named_and_the_rest_counted():
    pods = [best_effort(f"pod{number}", 100 - number) for number in range(9)]
    message = evicted(node(50), *pods).message
    assert [f"pod{number}" in message for number in range(9)] == [True] * 4 + [False] * 5
    assert message.endswith("; and 5 more.")


@pytest.mark.req("E14")
def test_the_message_names_kubelets_order_and_explains_a_pod_without_figures():
    settings = Settings(profile=Profile.KUBERNETES, order=Order.PRIORITY)
    pods = [burstable("silent", None, 512, measured=False), burstable("silent-too", None, 0, measured=False)]
    message = evicted(node(50), *pods, settings=settings).message
    assert "default/silent (Burstable, priority 0) has no figures of its memory, requested 512Mi" in message
    assert "is first in rank by priority and usage over request." in message


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (1023, "1023"),
        (1024, "1Ki"),
        (1536 * MI, "1.5Gi"),
        (100 * MI - 1, "100Mi"),
        (5 * 1024**6, "5Ei"),
    ],
)
def test_bytes_are_written_to_be_read(amount, text):
    assert readable(amount, Resource.MEMORY) == text
    assert readable(amount, Resource.INODES) == str(amount)


# Newcomers under pressure


def refusal(pod, *conditions, profile=Profile.DOCUMENTS):
    return pressure_refusal(pod.pod, conditions, profile)


@pytest.mark.req("B16")
def test_without_pressure_every_pod_is_admitted():
    assert refusal(best_effort("a")) is None
    assert refusal(best_effort("a"), "Ready") is None


@pytest.mark.req("B16")
@pytest.mark.parametrize("profile", Profile)
def test_short_memory_keeps_best_effort_pods_out_unless_they_can_bear_it(profile):
    why = refusal(best_effort("a"), Pressure.MEMORY, profile=profile)
    assert "MemoryPressure" in why
    assert "default/a" in why
    assert MEMORY_PRESSURE_TAINT in why
    assert refusal(burstable("b", 0, 1), Pressure.MEMORY, profile=profile) is None
    assert refusal(best_effort("c", priority=CRITICAL), Pressure.MEMORY, profile=profile) is None


@pytest.mark.req("B16")
@pytest.mark.parametrize("pressure", [Pressure.DISK, Pressure.PID])
def test_other_pressure_refuses_all_but_critical_pods(pressure):
    tolerant = best_effort("t", tolerations=(Toleration(operator="Exists"),))
    for pod in (best_effort("a"), guaranteed("g", 0, 1), tolerant):
        assert str(pressure) in refusal(pod, pressure)
        assert refusal(pod, Pressure.MEMORY, pressure) is not None
    assert refusal(best_effort("c", priority=CRITICAL), Pressure.MEMORY, pressure) is None


@pytest.mark.req("B16")
@pytest.mark.parametrize(
    ("toleration", "bears"),
    [
        (Toleration(key=MEMORY_PRESSURE_TAINT, operator="Exists", effect="NoSchedule"), True),
        (Toleration(key=MEMORY_PRESSURE_TAINT, operator="Exists"), True),
        (Toleration(key=MEMORY_PRESSURE_TAINT), True),
        (Toleration(operator="Exists"), True),
        (Toleration(key=MEMORY_PRESSURE_TAINT, operator="Equal", value="x"), False),
        (Toleration(key=MEMORY_PRESSURE_TAINT, operator="Exists", effect="NoExecute"), False),
        (Toleration(key="node.kubernetes.io/disk-pressure", operator="Exists"), False),
        (Toleration(key=MEMORY_PRESSURE_TAINT, operator="Lt", value=""), False),
    ],
)
def test_a_toleration_must_fit_the_taint(toleration, bears):
    pod = best_effort("a", tolerations=(toleration,))
    assert (refusal(pod, Pressure.MEMORY) is None) is bears


@pytest.mark.req("E14")
def test_queues_of_sockets_are_a_part_of_the_pods_memory_and_are_named():
    batch = best_effort("batch", 5)
    batch = batch._replace(
        stats=batch.stats._replace(
            containers=(ContainerFigures("app", Amount(5 * MI)),), socket_queue_bytes=Amount(600 * MI)
        )
    )
    eviction = evicted(node(60), burstable("web", 300, 200), batch, best_effort("other", 100))
    assert "default/batch (BestEffort, priority 0) uses 605Mi of memory (socket queues 600Mi, app 5Mi)" in (
        eviction.message
    )


@pytest.mark.req("A5")
def test_memory_in_queues_of_sockets_is_no_need_of_the_system():
    """Without it the pods would use no more than they request, and one within its request would be evicted."""
    hoards = burstable("hoards", 10, 100)
    hoards = hoards._replace(stats=hoards.stats._replace(socket_queue_bytes=Amount(600 * MI)))
    eviction = evicted(node(60), guaranteed("web", 300, 400), hoards)
    assert eviction.pod is hoards.pod
