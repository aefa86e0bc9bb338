"""Which containers of a pod are started and stopped, and when the pod is over."""

import pytest

from evenkeel.api.container import (
    ContainerRestartRule,
    ContainerRestartRuleOnExitCodes,
    ExecAction,
    Probe,
)
from evenkeel.policy.lifecycle import changes, stops
from evenkeel.policy.lifecycle.actions import Stop
from evenkeel.policy.lifecycle.pod_state import AS_RESTART, TerminalStatus
from tests.simulated_pod import ACCEPTED_AT, SimulatedPod
from tests.strategies import container, pod, sidecar

ASK = Probe(exec=ExecAction(("true",)))


def of(*names, **more):
    return pod(*(container(name=name) for name in names), **more)


def init(*names):
    return tuple(sidecar(name=name) if name.startswith("side") else container(name=name) for name in names)


def test_all_containers_start_at_once_in_their_order():
    assert SimulatedPod(of("b", "a")).look().start == ("b", "a")


@pytest.mark.parametrize(
    "policy, exit_code, is_restarted",
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("Never", 0, False),
        ("Never", 1, False),
    ],
)
def test_the_restart_policy_decides_whether_a_container_is_started_again(policy, exit_code, is_restarted):
    simulated = SimulatedPod(of("a", restart_policy=policy))
    simulated.step()
    simulated.end("a", exit_code)
    assert simulated.look().start == (("a",) if is_restarted else ())
    assert simulated.look().is_over is not is_restarted


@pytest.mark.parametrize("codes, phase", [((0, 0), "Succeeded"), ((0, 3), "Failed"), ((3, 0), "Failed")])
def test_a_pod_that_ran_to_its_end_succeeds_if_every_container_did(codes, phase):
    simulated = SimulatedPod(of("a", "b", restart_policy="Never"))
    simulated.step()
    simulated.end("a", codes[0])
    assert simulated.step().verdict is None
    simulated.end("b", codes[1], after_seconds=5)
    todo = simulated.step()
    assert todo.is_over
    assert todo.verdict == TerminalStatus(phase, at=simulated.now)
    assert simulated.phase == phase
    assert simulated.step() == todo._replace(verdict=None)


def test_a_containers_own_restart_policy_overrides_the_pods():
    own = container(name="own")._replace(restart_policy="OnFailure")
    simulated = SimulatedPod(pod(own, restart_policy="Never"))
    simulated.step()
    simulated.end("own", 1)
    assert simulated.step().start == ("own",)
    simulated.end("own", 0)
    assert simulated.step().is_over


@pytest.mark.parametrize(
    "operator, exit_code, is_restarted",
    [("In", 42, True), ("In", 1, False), ("NotIn", 42, False), ("NotIn", 1, True), ("NotIn", 0, True)],
)
def test_a_restart_rule_comes_before_the_restart_policy(operator, exit_code, is_restarted):
    rule = ContainerRestartRule("Restart", ContainerRestartRuleOnExitCodes(operator, (42, 43)))
    own = container(name="own")._replace(restart_policy="Never", restart_policy_rules=(rule,))
    simulated = SimulatedPod(pod(own))
    simulated.step()
    simulated.end("own", exit_code)
    assert simulated.look().start == (("own",) if is_restarted else ())


def test_a_restart_rule_may_restart_all_containers_whatever_their_policies_are():
    codes = ContainerRestartRuleOnExitCodes("In", (42,))
    trigger = container(name="trigger")._replace(
        restart_policy="Never", restart_policy_rules=(ContainerRestartRule("RestartAllContainers", codes),)
    )
    made = pod(
        trigger, *of("other", "done").spec.containers, init=init("one", "side"), restart_policy="Never"
    )
    simulated = SimulatedPod(made)

    def condition():
        found = {one.type: one for one in simulated.status().conditions}
        return found["AllContainersRestarting"].status, found["AllContainersRestarting"].reason

    def run_init():
        assert simulated.step().start == ("one",)
        simulated.end("one")
        assert simulated.step().start == ("side",)
        assert simulated.step().start == ("trigger", "other", "done")

    run_init()
    simulated.end("done")
    assert condition() == ("False", "")
    simulated.end("trigger", 42)
    stop = simulated.step().stop
    assert [(one.container, one.grace_seconds, one.stopped_as) for one in stop] == [
        ("side", 2.0, AS_RESTART),
        ("other", 2.0, AS_RESTART),
    ]
    assert simulated.phase == "Running"
    assert condition() == ("True", "RestartAllContainersStarted")
    assert [one.grace_seconds for one in simulated.step(after_seconds=1).stop] == [1.0, 1.0]
    simulated.end("other", 137)
    assert [one.container for one in simulated.step().stop] == ["side"]
    simulated.end("side", 143)
    run_init()
    assert condition() == ("False", "")
    assert simulated.phase == "Running"
    assert [one.restart_count for one in simulated.status().container_statuses] == [1, 1, 1]
    # The next time, the one that asked waits for its back-off.
    simulated.end("trigger", 42)
    simulated.step()
    for name in ("other", "done", "side"):
        simulated.end(name, 137)
    assert simulated.step().start == ("one",)
    simulated.end("one")
    assert simulated.step().start == ("side",)
    assert simulated.step().start == ("other", "done")
    assert {name: one.reason for name, one in simulated.look().waiting.items()} == {
        "trigger": "CrashLoopBackOff"
    }
    assert simulated.step(after_seconds=10).start == ("trigger",)
    # Another exit code has no rule, and the policy is Never.
    for name in ("trigger", "other", "done"):
        simulated.end(name, 1)
    simulated.step()
    simulated.end("side", 143)
    assert simulated.step().is_over
    assert simulated.phase == "Failed"


def test_a_sidecar_restarts_all_containers_though_none_of_them_would_start_again():
    codes = ContainerRestartRuleOnExitCodes("In", (42,))
    trigger = sidecar(name="side")._replace(
        restart_policy_rules=(ContainerRestartRule("RestartAllContainers", codes),)
    )
    simulated = SimulatedPod(pod(container(name="a"), init=(trigger,), restart_policy="Never"))
    simulated.step()
    assert simulated.step().start == ("a",)
    simulated.end("side", 42)
    assert [one.container for one in simulated.step().stop] == ["a"]
    simulated.end("a", 137)
    assert simulated.phase == "Running"
    assert simulated.look().verdict is None
    assert simulated.step().start == ("side",)
    assert simulated.step().start == ("a",)


def test_a_pod_that_is_deleted_does_not_restart_all_containers():
    codes = ContainerRestartRuleOnExitCodes("NotIn", (0,))
    trigger = container(name="a")._replace(
        restart_policy="Never", restart_policy_rules=(ContainerRestartRule("RestartAllContainers", codes),)
    )
    simulated = SimulatedPod(pod(trigger, container(name="b")))
    simulated.step()
    simulated.state = stops.deleted(simulated.pod, simulated.state, simulated.now)
    simulated.end("a", 1)
    assert [one.reason for one in simulated.step().stop] == ["Deleted"]
    simulated.end("b", 143)
    assert simulated.step().is_over


def test_init_containers_run_one_after_the_other_and_before_the_rest():
    simulated = SimulatedPod(of("main", init=init("one", "two")))
    assert (simulated.look().start, simulated.look().init_container) == (("one",), 0)
    simulated.step()
    assert simulated.look().start == ()
    simulated.end("one")
    assert (simulated.look().start, simulated.look().init_container) == (("two",), 1)
    simulated.step()
    simulated.end("two")
    assert (simulated.look().start, simulated.look().init_container) == (("main",), None)
    simulated.step()
    simulated.end("main", 1)
    assert simulated.look().start == ("main",)


@pytest.mark.req("D3")
def test_a_pod_that_begins_anew_does_so_with_its_init_containers_and_without_those_that_are_done():
    simulated = SimulatedPod(of("done", "main", init=init("one", "side", "two"), restart_policy="OnFailure"))
    for name in ("one", "side", "two"):
        assert simulated.step().start == (name,)
        if name != "side":
            simulated.end(name)
    simulated.step()
    simulated.end("done")
    for name in ("main", "side"):
        stop = Stop(name, "the agent is shutting down", 0, AS_RESTART)
        simulated.state = stops.asked_to_stop(simulated.state, stop, simulated.now)
        simulated.end(name, 137)
    assert simulated.look().start == ("side", "main")

    simulated.state = changes.begun_anew(simulated.state)
    assert (simulated.phase, simulated.look().init_container) == ("Pending", 0)
    assert set(simulated.look().waiting) == {"one", "side", "two", "main"}
    for name in ("one", "side", "two"):
        assert simulated.step().start == (name,)
        if name != "side":
            simulated.end(name)
    assert simulated.look().init_container is None
    assert simulated.step().start == ("main",)
    assert simulated.running == {"side", "main"}
    assert [simulated.state.container(name).attempt for name in ("one", "two", "main", "done")] == [
        2,
        2,
        2,
        1,
    ]
    assert simulated.phase == "Running"


def test_a_start_that_was_asked_for_when_the_machine_went_down_is_asked_for_again():
    simulated = SimulatedPod(of("main", init=init("one")))
    simulated.state = changes.asked_to_start(simulated.state, "one")
    simulated.state = changes.begun_anew(simulated.state)
    assert simulated.step().start == ("one",)
    assert simulated.state.container("one").attempt == 1


def test_the_moment_of_the_plan_passes_only_when_the_last_init_container_has_succeeded():
    simulated = SimulatedPod(of("main", init=init("one")))
    simulated.step()
    assert simulated.look().init_container == 0
    simulated.end("one", 1)
    assert simulated.look().init_container == 0
    simulated.step()
    simulated.end("one", 0, after_seconds=60)
    assert simulated.look().init_container is None
    assert not simulated.state.container("main").attempt


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
def test_an_init_container_that_fails_is_tried_again(policy):
    simulated = SimulatedPod(of("main", init=init("one"), restart_policy=policy))
    simulated.step()
    simulated.end("one", 1)
    assert simulated.step().start == ("one",)
    simulated.end("one", 1)
    assert simulated.look().start == ()
    assert simulated.step(after_seconds=10).start == ("one",)


def test_an_init_container_that_fails_where_nothing_is_tried_again_fails_the_pod():
    simulated = SimulatedPod(of("main", init=init("side", "one"), restart_policy="Never"))
    simulated.step()
    simulated.step()
    simulated.end("one", 1)
    todo = simulated.step()
    assert ([stop.container for stop in todo.stop], todo.verdict) == (["side"], None)
    simulated.end("side")
    assert simulated.step().verdict == TerminalStatus("Failed", at=simulated.now)


@pytest.mark.req("D3")
def test_a_sidecar_lets_the_next_one_start_once_it_has_started():
    slow = sidecar(name="side")._replace(startup_probe=ASK)
    simulated = SimulatedPod(pod(container(name="main"), init=(slow,)))
    simulated.step()
    assert (simulated.look().start, simulated.look().init_container) == ((), 0)
    simulated.state = changes.started_up(simulated.state, slow, simulated.now)
    assert (simulated.look().start, simulated.look().init_container) == (("main",), None)


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_a_sidecar_is_started_again_whatever_the_pods_policy_is(policy):
    simulated = SimulatedPod(of("main", init=init("side"), restart_policy=policy))
    simulated.step()
    simulated.step()
    simulated.end("side", 0)
    assert simulated.look().start == ("side",)
    assert simulated.look().init_container is None


def test_a_sidecar_that_ends_while_init_containers_run_comes_back_beside_them():
    simulated = SimulatedPod(of("main", init=init("side", "one")))
    simulated.step()
    simulated.step()
    simulated.end("side", 1)
    assert (simulated.look().start, simulated.look().init_container) == (("side",), 1)


def test_sidecars_keep_no_pod_alive_and_end_in_reverse_order():
    simulated = SimulatedPod(of("main", init=init("side1", "side2"), restart_policy="Never"))
    for _ in range(3):
        simulated.step()
    simulated.end("main")
    assert [stop.container for stop in simulated.step().stop] == ["side2"]
    simulated.end("side2", 143)
    assert [stop.container for stop in simulated.step().stop] == ["side1"]
    simulated.end("side1", 143)
    todo = simulated.step()
    assert todo.is_over
    assert todo.verdict == TerminalStatus("Succeeded", at=simulated.now)  # how sidecars end does not count


def test_a_sidecar_does_not_restart_while_the_pod_is_ending():
    simulated = SimulatedPod(of("main", init=init("side1", "side2"), restart_policy="Never"))
    for _ in range(3):
        simulated.step()
    simulated.end("side1", 1)
    simulated.end("main")
    assert simulated.step().start == ()


def test_deletion_stops_containers_at_once_and_then_sidecars_with_the_rest_of_the_grace_period():
    simulated = SimulatedPod(of("a", "b", init=init("side1", "side2"), termination_grace_period_seconds=30))
    for _ in range(3):
        simulated.step()
    simulated.state = stops.deleted(simulated.pod, simulated.state, simulated.now)
    todo = simulated.step(after_seconds=1)
    assert todo.stop == (Stop("a", "Deleted", 29), Stop("b", "Deleted", 29))
    assert todo.wake_at == simulated.now + 29
    simulated.end("a")
    simulated.end("b", after_seconds=9)
    assert simulated.step().stop == (Stop("side2", "Deleted", 20),)
    simulated.end("side2", after_seconds=20)
    assert simulated.step().stop == (Stop("side1", "Deleted", 2),), (
        "the least that one has whose turn comes late"
    )
    simulated.end("side1")
    assert simulated.step().is_over


def test_sidecars_are_stopped_at_once_when_the_grace_period_is_used_up():
    simulated = SimulatedPod(of("a", init=init("side")))
    simulated.step()
    simulated.step()
    simulated.state = stops.deleted(simulated.pod, simulated.state, simulated.now, 5)
    assert [stop.container for stop in simulated.step().stop] == ["a"]
    assert [stop.container for stop in simulated.step(after_seconds=5).stop] == ["a", "side"]


def test_the_grace_period_begins_at_the_request_and_not_at_the_decision():
    simulated = SimulatedPod(of("a"))
    simulated.step()
    simulated.state = stops.deleted(simulated.pod, simulated.state, simulated.now, 20)
    assert simulated.step(after_seconds=5).stop[0].grace_seconds == 15
    assert simulated.step(after_seconds=5).stop[0].grace_seconds == 10
    assert simulated.step(after_seconds=50).stop[0].grace_seconds == 0


def test_a_second_deletion_can_only_shorten_the_grace():
    simulated = SimulatedPod(of("a"))
    simulated.step()
    simulated.state = stops.deleted(simulated.pod, simulated.state, simulated.now, 20)
    simulated.step()
    simulated.state = stops.deleted(simulated.pod, simulated.state, simulated.now, 300)
    assert simulated.look().stop[0].grace_seconds == 20
    simulated.state = stops.deleted(simulated.pod, simulated.state, simulated.now, 0)
    assert simulated.look().stop[0].grace_seconds == 0


@pytest.mark.parametrize("exit_code, phase", [(0, "Succeeded"), (143, "Failed")])
def test_a_deleted_pod_is_over_when_nothing_runs_and_starts_nothing(exit_code, phase):
    simulated = SimulatedPod(of("a"))
    simulated.step()
    simulated.state = stops.deleted(simulated.pod, simulated.state, simulated.now)
    simulated.end("a", exit_code)
    todo = simulated.step()
    assert (todo.start, todo.is_over) == ((), True)
    assert simulated.phase == phase


def test_a_pod_that_is_deleted_before_it_started_has_failed():
    simulated = SimulatedPod(of("a"))
    simulated.state = stops.deleted(simulated.pod, simulated.state, simulated.now)
    assert simulated.step().is_over
    assert simulated.phase == "Failed"


def test_a_start_whose_outcome_is_not_known_is_neither_repeated_nor_over():
    simulated = SimulatedPod(of("a", restart_policy="Never"))
    simulated.state = changes.asked_to_start(simulated.state, "a")
    assert simulated.look().start == ()
    simulated.state = stops.deleted(simulated.pod, simulated.state, simulated.now, 0)
    assert not simulated.look().is_over
    simulated.state = changes.not_started(simulated.state, "a")
    assert simulated.look().is_over


@pytest.mark.req("A20")
def test_an_evicted_pod_is_stopped_whole_and_stays_so():
    simulated = SimulatedPod(of("a", "b", init=init("side")))
    simulated.step()
    simulated.step()
    simulated.state = changes.with_terminal_status(
        simulated.state, TerminalStatus("Failed", "Evicted", "no memory", simulated.now)
    )
    todo = simulated.step()
    assert {stop.container: stop.grace_seconds for stop in todo.stop} == {"a": 0, "b": 0, "side": 0}
    assert {stop.reason for stop in todo.stop} == {"Evicted"}
    assert simulated.phase == "Running", "it is Failed when nothing of it runs any more"
    for name in ("a", "b", "side"):
        simulated.end(name, 137)
    assert simulated.step(after_seconds=3600).start == ()
    assert simulated.look().is_over
    assert (simulated.phase, simulated.status().reason, simulated.status().message) == (
        "Failed",
        "Evicted",
        "no memory",
    )


@pytest.mark.req("A20")
def test_a_soft_eviction_leaves_the_time_it_was_given():
    simulated = SimulatedPod(of("a"))
    simulated.step()
    simulated.state = changes.with_terminal_status(
        simulated.state, TerminalStatus("Failed", "Evicted", "", simulated.now, 8)
    )
    assert simulated.step(after_seconds=3).stop == (Stop("a", "Evicted", 5),)


def test_the_first_verdict_is_the_last():
    first = TerminalStatus("Failed", "Evicted")
    simulated = SimulatedPod(of("a"))
    simulated.state = changes.with_terminal_status(simulated.state, first)
    assert changes.with_terminal_status(simulated.state, TerminalStatus("Succeeded")).verdict == first


def test_a_pod_fails_at_its_deadline_with_the_grace_it_has():
    simulated = SimulatedPod(of("a", active_deadline_seconds=60, termination_grace_period_seconds=7))
    assert simulated.step().wake_at == ACCEPTED_AT + 60
    assert simulated.step(after_seconds=59).verdict is None
    todo = simulated.step(after_seconds=1)
    assert todo.verdict is not None
    assert (todo.verdict.phase, todo.verdict.reason) == ("Failed", "DeadlineExceeded")
    assert "60" in todo.verdict.message
    assert todo.stop == (Stop("a", "DeadlineExceeded", 7),)
    simulated.end("a", 0)
    assert simulated.step().is_over
    assert simulated.phase == "Failed"


def test_the_deadline_counts_while_a_pod_starts_and_waits_too():
    simulated = SimulatedPod(of("a", init=init("one"), active_deadline_seconds=60))
    simulated.step()
    simulated.end("one", 1)
    simulated.step()
    simulated.end("one", 1)
    simulated.now = ACCEPTED_AT + 60
    todo = simulated.step()
    assert todo.is_over
    assert todo.verdict is not None
    assert todo.verdict.reason == "DeadlineExceeded"
    assert simulated.step().start == ()


def test_a_pod_that_is_done_has_no_deadline_any_more():
    simulated = SimulatedPod(of("a", init=init("side"), restart_policy="Never", active_deadline_seconds=60))
    simulated.step()
    simulated.step()
    simulated.end("a", 0, after_seconds=59)
    assert simulated.step(after_seconds=5).verdict is None
    simulated.end("side")
    simulated.step()
    assert simulated.phase == "Succeeded"


def test_a_container_that_crashes_waits_longer_each_time_and_its_status_says_so():
    simulated = SimulatedPod(of("a"))
    waits = []
    for _ in range(8):
        assert simulated.step().start == ("a",)
        simulated.end("a", 1, after_seconds=1)
        todo = simulated.look()
        waits.append(0 if todo.wake_at is None else todo.wake_at - simulated.now)
        if todo.wake_at is not None:
            assert todo.waiting["a"].reason == "CrashLoopBackOff"
            assert todo.start == ()
            simulated.now = todo.wake_at
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


def test_the_back_off_is_written_as_kubelet_writes_it():
    simulated = SimulatedPod(of("a"))
    for _ in range(3):
        simulated.step(after_seconds=10)
        simulated.end("a", 1)
    message = simulated.look().waiting["a"].message
    assert message == "back-off 20s restarting failed container=a pod=default/p"


def test_a_container_that_has_run_for_ten_minutes_begins_anew():
    simulated = SimulatedPod(of("a"))
    for _ in range(3):
        simulated.step(after_seconds=20)
        simulated.end("a", 1)
    simulated.step(after_seconds=40)
    simulated.end("a", 1, after_seconds=601)
    assert simulated.look().start == ("a",)
    simulated.step()
    simulated.end("a", 1)
    assert simulated.look().wake_at == simulated.now + 10


def test_containers_wait_for_the_pod_before_their_first_start():
    simulated = SimulatedPod(of("a"))
    assert simulated.look().waiting["a"].reason == "ContainerCreating"
    simulated = SimulatedPod(of("a", init=init("one")))
    simulated.step()
    assert {name: it.reason for name, it in simulated.look().waiting.items()} == {"a": "PodInitializing"}


@pytest.mark.parametrize("policy, is_restarted", [("Always", True), ("OnFailure", True), ("Never", False)])
@pytest.mark.parametrize("exit_code", [0, 143])
def test_a_failed_probe_counts_as_a_failure_however_the_container_ends(policy, is_restarted, exit_code):
    probed = container(name="a")._replace(liveness_probe=ASK._replace(termination_grace_period_seconds=3))
    simulated = SimulatedPod(pod(probed, restart_policy=policy))
    simulated.step()
    stop = stops.probe_stop(simulated.pod, simulated.container("a"), "liveness", "HTTP status 500")
    simulated.state = stops.asked_to_stop(simulated.state, stop, simulated.now)
    assert [(each.container, each.grace_seconds) for each in simulated.look().stop] == [("a", 3)]
    simulated.end("a", exit_code, after_seconds=1)
    assert simulated.look().start == (("a",) if is_restarted else ())
    ended = simulated.state.container("a").ended
    assert ended is not None
    assert ended.message == "liveness probe failed: HTTP status 500"


def test_a_wanted_restart_is_at_once_and_raises_no_back_off():
    simulated = SimulatedPod(of("a", restart_policy="OnFailure"))
    for _ in range(4):
        assert simulated.step().start == ("a",)
        simulated.state = stops.asked_to_stop(
            simulated.state, Stop("a", "resized", 5, AS_RESTART), simulated.now
        )
        simulated.end("a", 0)
    simulated.step()
    simulated.end("a", 1)
    assert simulated.look().start == ("a",), "the first failure of its own is the first"


def test_a_deletion_shortens_the_grace_period_of_a_stop_under_way():
    simulated = SimulatedPod(of("a"))
    simulated.step()
    simulated.state = stops.asked_to_stop(simulated.state, Stop("a", "resized", 30), simulated.now)
    simulated.state = stops.deleted(simulated.pod, simulated.state, simulated.now, 4)
    assert simulated.step(after_seconds=1).stop[0].grace_seconds == 3
