"""How each event changes the state of a pod."""

import pytest

from evenkeel.api.config import CrashLoopBackOffConfig, KubeletConfiguration, Profile
from evenkeel.api.config_file import read_config
from evenkeel.api.config_validation import validate_config
from evenkeel.api.container import ExecAction, Probe
from evenkeel.api.scalars import Duration
from evenkeel.policy.lifecycle import changes, stops
from evenkeel.policy.lifecycle.actions import Stop
from evenkeel.policy.lifecycle.pod_state import (
    ContainerRecord,
    LifecycleSettings,
    PodState,
    TerminalStatus,
    settings_of,
)
from tests.simulated_pod import SimulatedPod
from tests.strategies import asks, container, pod

ASK = Probe(exec=ExecAction(("true",)))
BEST_EFFORT = pod(container(name="a"), container(name="b"))
BURSTABLE = pod(container({"memory": "1Gi"}, name="a"), container(name="b"))
BOTH = {"cpu": "1", "memory": "1Gi"}
GUARANTEED = pod(container(BOTH, BOTH, name="a"))


def test_a_start_without_its_image_is_no_attempt_and_is_tried_again_less_and_less_often():
    simulated = SimulatedPod(pod(container(name="a"), restart_policy="Never"))
    waits = []
    for _ in range(8):
        assert simulated.look().start == ("a",)
        simulated.state = changes.asked_to_start(simulated.state, "a")
        simulated.state = changes.no_image(
            simulated.state, "a", "ErrImageNeverPull", "no such image", simulated.now, simulated.settings
        )
        todo = simulated.look()
        assert (todo.start, todo.waiting["a"]) == ((), ("ErrImageNeverPull", "no such image"))
        assert todo.wake_at is not None
        waits.append(todo.wake_at - simulated.now)
        simulated.now = todo.wake_at
    assert waits == [10, 20, 40, 80, 160, 300, 300, 300]
    assert (simulated.phase, simulated.state.container("a").attempt) == ("Pending", 0)
    simulated.step()
    assert (simulated.phase, simulated.state.container("a").attempt) == ("Running", 1)
    assert simulated.state.container("a").backoff_seconds == 0  # which is for what has run


def test_a_container_with_another_image_does_not_wait_for_the_former_one():
    simulated = SimulatedPod(pod(container(name="a")))
    for reason in ("ErrImagePull", "ErrImagePull"):
        simulated.state = changes.asked_to_start(simulated.state, "a")
        simulated.state = changes.no_image(
            simulated.state, "a", reason, "no such image", simulated.now, simulated.settings
        )
    assert simulated.look().start == ()
    simulated.state = changes.other_image(simulated.state, "a")
    todo = simulated.look()
    assert (todo.start, todo.waiting["a"].reason) == (("a",), "ContainerCreating")


def test_a_start_is_counted_before_it_is_done():
    state = changes.asked_to_start(PodState(), "a")
    assert state.container("a") == ContainerRecord(attempt=1, is_asked_for=True)
    with pytest.raises(AssertionError):
        changes.asked_to_start(state, "a")


def test_a_start_that_was_never_done_is_not_counted():
    assert (
        changes.not_started(changes.asked_to_start(PodState(), "a"), "a").container("a") == ContainerRecord()
    )
    simulated = SimulatedPod(BEST_EFFORT)
    simulated.step()
    assert changes.not_started(simulated.state, "a") == simulated.state


def test_the_facts_of_a_running_container_are_kept():
    state = changes.asked_to_start(PodState(), "a")
    applied = asks({"cpu": "1"})
    state = changes.started(
        state, container(name="a"), 7.5, pid=12, pid_start_ticks=99, oom_kills_at_start=2, resources=applied
    )
    it = state.container("a")
    assert (it.attempt, it.started_at, it.pid, it.pid_start_ticks) == (1, 7.5, 12, 99)
    assert (it.oom_kills_at_start, it.resources, it.is_asked_for) == (2, applied, False)


@pytest.mark.parametrize(
    "probes, is_started, is_ready",
    [
        ({}, True, True),
        ({"readiness_probe": ASK}, True, False),
        ({"startup_probe": ASK}, False, False),
        ({"liveness_probe": ASK}, True, True),
        ({"startup_probe": ASK, "readiness_probe": ASK}, False, False),
    ],
)
def test_a_container_without_a_probe_is_started_and_ready_when_it_runs(probes, is_started, is_ready):
    probed = container(name="a")._replace(**probes)
    it = changes.started(PodState(), probed, 1.0).container("a")
    assert (it.is_started, it.is_ready) == (is_started, is_ready)


def test_a_container_whose_startup_probe_passed_is_ready_unless_it_has_a_readiness_probe():
    plain = container(name="a")._replace(startup_probe=ASK)
    state = changes.started_up(changes.started(PodState(), plain, 1.0), plain, 4.0)
    assert (state.container("a").is_started, state.container("a").is_ready) == (True, True)
    assert state.container("a").ready_changed_at == 4.0
    asked = plain._replace(readiness_probe=ASK)
    state = changes.started_up(changes.started(PodState(), asked, 1.0), asked, 4.0)
    assert (state.container("a").is_started, state.container("a").is_ready) == (True, False)


def test_a_result_that_comes_after_the_end_changes_nothing():
    simulated = SimulatedPod(BEST_EFFORT)
    simulated.step()
    simulated.end("a")
    assert changes.with_readiness(simulated.state, "a", is_ready=True, now=2.0) == simulated.state
    assert changes.started_up(simulated.state, simulated.container("a"), 2.0) == simulated.state
    assert stops.asked_to_stop(simulated.state, Stop("a", "", 1), 2.0) == simulated.state


def test_a_failed_start_ends_the_attempt_with_its_message():
    state = changes.asked_to_start(PodState(), "a")
    state = changes.start_failed(BEST_EFFORT, state, "a", "no such file: /bin/x", 5.0, LifecycleSettings())
    ended = state.container("a").ended
    assert ended is not None
    assert (ended.exit_code, ended.reason, ended.message) == (128, "StartError", "no such file: /bin/x")
    assert (state.container("a").attempt, state.is_alive) == (1, False)
    state = changes.asked_to_start(state, "a")
    state = changes.start_failed(BEST_EFFORT, state, "a", "", 6.0, LifecycleSettings())
    assert state.container("a").start_after == 16.0


@pytest.mark.parametrize(
    "facts, reason",
    [
        ({"exit_code": 0}, "Completed"),
        ({"exit_code": 2}, "Error"),
        ({"exit_code": 143, "signal": 15}, "Error"),
        ({"exit_code": 137, "signal": 9, "is_oom_killed": True}, "OOMKilled"),
        ({"exit_code": 137, "is_known": False}, "ContainerStatusUnknown"),
        ({"exit_code": 137, "is_known": False, "is_oom_killed": True}, "OOMKilled"),
        # A child was killed, and the container itself went on to its good end.
        ({"exit_code": 0, "is_oom_killed": True}, "Completed"),
    ],
)
def test_the_reason_of_an_end(facts, reason):
    simulated = SimulatedPod(GUARANTEED)
    simulated.step()
    simulated.end("a", **facts)
    ended = simulated.state.container("a").ended
    assert ended is not None
    assert (ended.reason, ended.exit_code, ended.signal) == (
        reason,
        facts["exit_code"],
        facts.get("signal", 0),
    )
    assert (ended.started_at, ended.finished_at) == (1000.0, 1000.0)
    assert not simulated.state.container("a").is_alive


@pytest.mark.req("A17")
@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_an_oom_killed_best_effort_pod_is_evicted_at_once(policy):
    simulated = SimulatedPod(BEST_EFFORT._replace(spec=BEST_EFFORT.spec._replace(restart_policy=policy)))
    simulated.step()
    simulated.end("a", 137, is_oom_killed=True)
    verdict = simulated.state.verdict
    assert verdict is not None
    assert (verdict.phase, verdict.reason, verdict.at) == ("Failed", "Evicted", simulated.now)
    assert "Container a was OOM-killed" in verdict.message
    assert verdict.is_disruption  # it has no limit of its own: the node needed its memory
    assert [stop.container for stop in simulated.step().stop] == ["b"]
    assert simulated.look().start == ()


@pytest.mark.req("A17")
def test_an_oom_killed_burstable_container_is_tried_again_three_times():
    simulated = SimulatedPod(BURSTABLE)
    for kills in range(3):
        simulated.step(after_seconds=300)
        simulated.end("a", 137, is_oom_killed=True)
        assert simulated.state.verdict is None
        assert len(simulated.state.container("a").oom_kills) == kills + 1
    simulated.step(after_seconds=300)
    simulated.end("a", 137, is_oom_killed=True)
    assert simulated.state.verdict is not None
    assert (simulated.state.verdict.reason, simulated.state.verdict.phase) == ("Evicted", "Failed")
    assert "4 times" in simulated.state.verdict.message


@pytest.mark.req("A17")
def test_retries_are_counted_for_each_container():
    simulated = SimulatedPod(BURSTABLE)
    for _ in range(3):
        simulated.step(after_seconds=300)
        simulated.end("a", 137, is_oom_killed=True)
        simulated.end("b", 137, is_oom_killed=True)
    assert simulated.state.verdict is None


@pytest.mark.req("A17")
def test_ten_quiet_minutes_give_the_retries_back():
    simulated = SimulatedPod(BURSTABLE)
    for _ in range(12):
        simulated.step(after_seconds=400)
        simulated.end("a", 137, is_oom_killed=True, after_seconds=201)
        assert simulated.state.verdict is None
    assert len(simulated.state.container("a").oom_kills) == 1


@pytest.mark.req("A17")
def test_the_number_of_retries_is_a_setting():
    none = SimulatedPod(BURSTABLE, LifecycleSettings(oom_retries=0))
    none.step()
    none.end("a", 137, is_oom_killed=True)
    assert none.state.verdict is not None
    config = KubeletConfiguration(oom_retries=5, oom_retries_reset=Duration.parse("1m"))
    assert (settings_of(config).oom_retries, settings_of(config).oom_retries_reset_seconds) == (5, 60)


@pytest.mark.req("A17")
def test_a_burstable_pod_that_is_never_restarted_fails_by_its_policy_and_is_not_evicted():
    once = SimulatedPod(
        pod(container({"memory": "1Gi"}, name="a"), restart_policy="Never"), LifecycleSettings(oom_retries=0)
    )
    once.step()
    once.end("a", 137, is_oom_killed=True)
    assert once.step().verdict == TerminalStatus("Failed", at=once.now)


@pytest.mark.req("A17")
def test_a_guaranteed_pod_is_never_evicted_for_meeting_its_own_limit():
    simulated = SimulatedPod(GUARANTEED)
    for _ in range(9):
        simulated.step(after_seconds=300)
        simulated.end("a", 137, is_oom_killed=True)
    assert simulated.state.verdict is None


@pytest.mark.req("A17")
def test_kubelet_has_no_such_rule():
    for spec in (BEST_EFFORT, BURSTABLE):
        simulated = SimulatedPod(spec, LifecycleSettings(profile=Profile.KUBERNETES))
        for _ in range(9):
            simulated.step(after_seconds=300)
            simulated.end("a", 137, is_oom_killed=True)
        assert simulated.state.verdict is None
        assert simulated.step(after_seconds=300).start == ("a",)


def test_a_pod_that_is_being_deleted_is_not_evicted():
    simulated = SimulatedPod(BEST_EFFORT)
    simulated.step()
    simulated.state = stops.deleted(simulated.pod, simulated.state, simulated.now)
    simulated.end("a", 137, is_oom_killed=True)
    assert simulated.state.verdict is None


def test_the_longest_wait_for_a_restart_is_kubelets_setting():
    file = read_config("crashLoopBackOff: {maxContainerRestartPeriod: 15s}", "node.yaml")
    assert not [*validate_config(file.config)]
    settings = settings_of(file.config)
    assert (settings.first_backoff_seconds, settings.greatest_backoff_seconds) == (10, 15)
    short = KubeletConfiguration(crash_loop_back_off=CrashLoopBackOffConfig(Duration.parse("2s")))
    assert settings_of(short).first_backoff_seconds == 2
    assert settings_of(KubeletConfiguration()).greatest_backoff_seconds == 300


@pytest.mark.parametrize(
    "period, is_valid", [("1s", True), ("300s", True), ("999ms", False), ("301s", False)]
)
def test_that_setting_is_from_one_second_to_five_minutes(period, is_valid):
    config = KubeletConfiguration(crash_loop_back_off=CrashLoopBackOffConfig(Duration.parse(period)))
    problems = [*validate_config(config)]
    assert [problem.field for problem in problems] == (
        [] if is_valid else ["crashLoopBackOff.maxContainerRestartPeriod"]
    )
