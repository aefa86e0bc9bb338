"""Advice about requests and reservations, from usage over time."""

import pytest

from evenkeel.agent.observe.history import Advice, History
from evenkeel.agent.observe.history_file import Watched
from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup.tree import Kind
from evenkeel.cli.doctor import over_time
from evenkeel.host.checks import State
from evenkeel.policy.advice import (
    ContainerUse,
    UseOverTime,
    request_suggestions,
    reservation_findings,
)
from evenkeel.policy.allocatable import Reserved
from evenkeel.quantity import Quantity
from tests.fake_front import FakeFront, running, served
from tests.models.agents import pods_of
from tests.models.manifests import PODS
from tests.models.node_snapshots import GIB, MIB, SnapshotMaker, sample

HOUR = 3600.0


def container(memory="1Gi", cpu="1", most=MIB, mostly=1, seconds=HOUR):
    requests = {"memory": Quantity(memory), "cpu": Quantity(cpu)}
    return ContainerUse("default/web", "app", requests, UseOverTime(seconds, most, mostly))


def test_a_request_far_above_use_is_reported_with_what_would_be_right():
    (memory,) = request_suggestions([container(most=100 * MIB, mostly=900)])
    assert (memory.resource, memory.text) == ("memory", "128Mi")
    assert memory.reason == (
        "it never used more than 100Mi in 60 minutes and requests 1Gi: the rest is kept from other pods"
    )


def test_use_above_the_request_is_reported_with_what_may_happen():
    (memory,) = request_suggestions([container("64Mi", most=300 * MIB, mostly=900)])
    assert memory.suggested >= 300 * MIB * 1.15
    assert "may be evicted" in memory.reason


def test_cpu_follows_what_was_enough_nearly_always():
    (cpu,) = request_suggestions([container("1Gi", "4", GIB * 9 // 10, 500)])
    assert (cpu.resource, cpu.suggested, cpu.text) == ("cpu", 580, "580m")


@pytest.mark.parametrize(
    "one",
    [
        container(most=GIB * 8 // 10, mostly=800),  # about right
        container("32Mi", "50m", MIB, 1),  # too small to matter
        container(most=MIB, seconds=60),  # not watched for long
        container("0", "0", 4 * GIB, 4000),  # requests nothing, on purpose
    ],
)
def test_what_is_not_worth_a_word_is_not_reported(one):
    assert request_suggestions([one]) == ()


def test_the_furthest_off_comes_first():
    near, far = container(most=300 * MIB, mostly=900), container("8Gi", most=MIB, mostly=900)
    assert [one.requested for one in request_suggestions([near, far])] == [8 * GIB, GIB]


@pytest.mark.req("B14")
def test_a_reservation_smaller_than_use_is_reported_with_the_flag():
    reserved = Reserved({}, {"memory": Quantity("256Mi")})
    (finding,) = reservation_findings(
        reserved, {"system-reserved": UseOverTime(HOUR, 600 * MIB, 0)}, UseOverTime(HOUR, GIB, 0)
    )
    assert finding.flag == "--system-reserved memory=704Mi"
    assert finding.reserved == 256 * MIB
    assert "was promised to pods" in finding.reason


@pytest.mark.req("B14")
def test_without_cgroups_of_daemons_everything_that_is_no_pod_counts():
    reserved = Reserved({"memory": Quantity("1Gi")}, {"cpu": Quantity("2")})
    (finding,) = reservation_findings(reserved, {}, UseOverTime(HOUR, 2 * GIB, 1500))
    assert (finding.resource, finding.reserved, finding.used) == ("memory", GIB, 2 * GIB)
    assert reservation_findings(reserved, {}, UseOverTime(HOUR, GIB // 2, 1500)) == ()


@pytest.mark.req("B15")
def test_people_who_are_logged_in_are_counted_with_the_system():
    found = reservation_findings(Reserved({}, {}), {"user.slice": UseOverTime(HOUR, 300 * MIB, 5)}, None)
    assert (found[0].daemons, found[0].used, found[0].requirement) == ("user.slice", 300 * MIB, "B15")


def test_long_observations_are_kept_in_little_memory():
    watched = Watched()
    cpu_us = 0
    watched.note(0.0, cpu_us, 0)
    for number in range(1, 101):
        busy = 2000 if number > 97 else 100  # millicores, three times of a hundred
        spent = busy * 1000 * 30
        cpu_us += spent
        watched.note(30.0 * number, cpu_us, number * MIB)
    assert watched.use.seconds == 3000
    assert watched.use.memory_most_bytes == 100 * MIB
    assert 100 <= watched.use.millicpu_mostly <= 115


def test_a_counter_that_starts_anew_is_no_use():
    watched = Watched()
    watched.note(0.0, 10_000_000, MIB)
    watched.note(30.0, 0, MIB)
    assert watched.use.millicpu_mostly == 0


def busy(cgroup, number):
    one = sample(cgroup, number)
    return one._replace(statistics=one.statistics._replace(cpu_usage_us=number * 1_000_000))


def test_history_forgets_removed_containers_and_advises_on_the_others():
    maker = SnapshotMaker(KubeletConfiguration(system_reserved={"memory": "1Gi"}))
    pods = tuple(
        running(pod) for pod in pods_of(PODS.replace("memory: 64Mi", "memory: 8Gi").replace("128Mi", "8Gi"))
    )
    history = History(maker.view, 1_794_800_000.0)
    for number in range(30):
        node_snapshot = maker.node_snapshot(pods, sampled=busy)
        sweep = node_snapshot.sweep._replace(at=1_794_800_000.0 + 30 * number)
        history.note(sweep)
    paths = [(one.pod, one.container, one.path) for one in sweep.tree.cgroups if one.kind == Kind.CONTAINER]
    advice = history.advice(pods, paths)
    assert [(one.pod, one.resource, one.text) for one in advice.requests] == [
        ("default/web", "memory", "128Mi")
    ]
    assert advice.reservations[0].daemons == "everything that is no pod"
    watched = len(history.watched)
    history.note(maker.node_snapshot(pods[:1]).sweep)
    assert len(history.watched) == watched - 1


@pytest.mark.req("B14")
def test_doctor_asks_the_agent_that_runs(tmp_path):
    front = FakeFront()
    front.advised = Advice(
        0.0,
        7200.0,
        7200.0,
        request_suggestions([container(most=100 * MIB, mostly=900)]),
        reservation_findings(
            Reserved({}, {}), {"user.slice": UseOverTime(HOUR, MIB, 1)}, UseOverTime(HOUR, GIB, 1)
        ),
    )
    with served(front, tmp_path):
        checks = list(over_time(str(tmp_path)))
    by_state = {state: [one for one in checks if one.state == state] for state in State}
    assert [one.mends for one in by_state[State.NOTE]] == [
        ("--system-reserved memory=1184Mi",),
        ("--system-reserved cpu=10m",),
        ("resources.requests.memory: 128Mi",),
    ]
    assert any("people logged in" in one.seen for one in by_state[State.OK])


def test_doctor_is_content_if_all_fits_and_silent_if_nothing_was_observed(tmp_path):
    assert list(over_time(str(tmp_path))) == []
    front = FakeFront()
    with served(front, tmp_path):
        (check,) = over_time(str(tmp_path))
        front.advised = front.advised._replace(watched_seconds=60.0)
        (soon,) = over_time(str(tmp_path))
    assert (soon.state, "too short for advice" in soon.seen) == (State.OK, True)
    assert (check.state, check.seen) == (
        State.OK,
        "requests and reservations fit the use of the last 60 minutes",
    )
