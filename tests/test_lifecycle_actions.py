"""What is started and stopped in a pod, and when it is over."""

import pytest

from evenkeel.api.container import ExecAction, Probe
from evenkeel.policy.lifecycle import changes
from evenkeel.policy.lifecycle.actions import Stop
from evenkeel.policy.lifecycle.pod_state import AS_RESTART, TerminalStatus
from tests.lives import ACCEPTED_AT, LivedPod
from tests.strategies import container, pod, sidecar

ASK = Probe(exec=ExecAction(("true",)))


def of(*names, **more):
    return pod(*(container(name=name) for name in names), **more)


def init(*names):
    return tuple(sidecar(name=name) if name.startswith("side") else container(name=name) for name in names)


def test_all_containers_start_at_once_in_their_order():
    assert LivedPod(of("b", "a")).look().start == ("b", "a")


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
def test_the_restart_policy_says_whether_a_container_is_started_again(policy, exit_code, is_restarted):
    lived = LivedPod(of("a", restart_policy=policy))
    lived.step()
    lived.end("a", exit_code)
    assert lived.look().start == (("a",) if is_restarted else ())
    assert lived.look().is_over is not is_restarted


@pytest.mark.parametrize("codes, phase", [((0, 0), "Succeeded"), ((0, 3), "Failed"), ((3, 0), "Failed")])
def test_a_pod_that_ran_to_its_end_succeeds_if_every_container_did(codes, phase):
    lived = LivedPod(of("a", "b", restart_policy="Never"))
    lived.step()
    lived.end("a", codes[0])
    assert lived.step().verdict is None
    lived.end("b", codes[1], after_seconds=5)
    todo = lived.step()
    assert todo.is_over
    assert todo.verdict == TerminalStatus(phase, at=lived.now)
    assert lived.phase == phase
    assert lived.step() == todo._replace(verdict=None)


def test_a_containers_own_restart_policy_goes_before_the_pods():
    own = container(name="own")._replace(restart_policy="OnFailure")
    lived = LivedPod(pod(own, restart_policy="Never"))
    lived.step()
    lived.end("own", 1)
    assert lived.step().start == ("own",)
    lived.end("own", 0)
    assert lived.step().is_over


def test_init_containers_run_one_after_the_other_and_before_the_rest():
    lived = LivedPod(of("main", init=init("one", "two")))
    assert (lived.look().start, lived.look().init_container) == (("one",), 0)
    lived.step()
    assert lived.look().start == ()
    lived.end("one")
    assert (lived.look().start, lived.look().init_container) == (("two",), 1)
    lived.step()
    lived.end("two")
    assert (lived.look().start, lived.look().init_container) == (("main",), None)
    lived.step()
    lived.end("main", 1)
    assert lived.look().start == ("main",)


@pytest.mark.req("D3")
def test_a_pod_that_begins_anew_does_so_with_its_init_containers_and_without_those_that_are_done():
    lived = LivedPod(of("done", "main", init=init("one", "side", "two"), restart_policy="OnFailure"))
    for name in ("one", "side", "two"):
        assert lived.step().start == (name,)
        if name != "side":
            lived.end(name)
    lived.step()
    lived.end("done")
    for name in ("main", "side"):
        stop = Stop(name, "the agent is shutting down", 0, AS_RESTART)
        lived.state = changes.asked_to_stop(lived.state, stop, lived.now)
        lived.end(name, 137)
    assert lived.look().start == ("side", "main")

    lived.state = changes.begun_anew(lived.state)
    assert (lived.phase, lived.look().init_container) == ("Pending", 0)
    assert set(lived.look().waiting) == {"one", "side", "two", "main"}
    for name in ("one", "side", "two"):
        assert lived.step().start == (name,)
        if name != "side":
            lived.end(name)
    assert lived.look().init_container is None
    assert lived.step().start == ("main",)
    assert lived.running == {"side", "main"}
    assert [lived.state.container(name).attempt for name in ("one", "two", "main", "done")] == [2, 2, 2, 1]
    assert lived.phase == "Running"


def test_a_start_that_was_asked_for_when_the_machine_went_down_is_asked_for_again():
    lived = LivedPod(of("main", init=init("one")))
    lived.state = changes.asked_to_start(lived.state, "one")
    lived.state = changes.begun_anew(lived.state)
    assert lived.step().start == ("one",)
    assert lived.state.container("one").attempt == 1


def test_the_moment_of_the_plan_passes_only_when_the_last_init_container_has_succeeded():
    lived = LivedPod(of("main", init=init("one")))
    lived.step()
    assert lived.look().init_container == 0
    lived.end("one", 1)
    assert lived.look().init_container == 0
    lived.step()
    lived.end("one", 0, after_seconds=60)
    assert lived.look().init_container is None
    assert not lived.state.container("main").attempt


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
def test_an_init_container_that_fails_is_tried_again(policy):
    lived = LivedPod(of("main", init=init("one"), restart_policy=policy))
    lived.step()
    lived.end("one", 1)
    assert lived.step().start == ("one",)
    lived.end("one", 1)
    assert lived.look().start == ()
    assert lived.step(after_seconds=10).start == ("one",)


def test_an_init_container_that_fails_where_nothing_is_tried_again_fails_the_pod():
    lived = LivedPod(of("main", init=init("side", "one"), restart_policy="Never"))
    lived.step()
    lived.step()
    lived.end("one", 1)
    todo = lived.step()
    assert ([stop.container for stop in todo.stop], todo.verdict) == (["side"], None)
    lived.end("side")
    assert lived.step().verdict == TerminalStatus("Failed", at=lived.now)


@pytest.mark.req("D3")
def test_a_sidecar_lets_the_next_one_start_once_it_has_started():
    slow = sidecar(name="side")._replace(startup_probe=ASK)
    lived = LivedPod(pod(container(name="main"), init=(slow,)))
    lived.step()
    assert (lived.look().start, lived.look().init_container) == ((), 0)
    lived.state = changes.started_up(lived.state, slow, lived.now)
    assert (lived.look().start, lived.look().init_container) == (("main",), None)


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_a_sidecar_is_started_again_whatever_the_pods_policy_is(policy):
    lived = LivedPod(of("main", init=init("side"), restart_policy=policy))
    lived.step()
    lived.step()
    lived.end("side", 0)
    assert lived.look().start == ("side",)
    assert lived.look().init_container is None


def test_a_sidecar_that_ends_while_init_containers_run_comes_back_beside_them():
    lived = LivedPod(of("main", init=init("side", "one")))
    lived.step()
    lived.step()
    lived.end("side", 1)
    assert (lived.look().start, lived.look().init_container) == (("side",), 1)


def test_sidecars_keep_no_pod_alive_and_end_in_reverse_order():
    lived = LivedPod(of("main", init=init("side1", "side2"), restart_policy="Never"))
    for _ in range(3):
        lived.step()
    lived.end("main")
    assert [stop.container for stop in lived.step().stop] == ["side2"]
    lived.end("side2", 143)
    assert [stop.container for stop in lived.step().stop] == ["side1"]
    lived.end("side1", 143)
    todo = lived.step()
    assert todo.is_over
    assert todo.verdict == TerminalStatus("Succeeded", at=lived.now)  # how sidecars end does not count


def test_a_sidecar_does_not_restart_while_the_pod_is_ending():
    lived = LivedPod(of("main", init=init("side1", "side2"), restart_policy="Never"))
    for _ in range(3):
        lived.step()
    lived.end("side1", 1)
    lived.end("main")
    assert lived.step().start == ()


def test_deletion_stops_containers_at_once_and_then_sidecars_with_what_is_left_of_the_grace():
    lived = LivedPod(of("a", "b", init=init("side1", "side2"), termination_grace_period_seconds=30))
    for _ in range(3):
        lived.step()
    lived.state = changes.deleted(lived.pod, lived.state, lived.now)
    todo = lived.step(after_seconds=1)
    assert todo.stop == (Stop("a", "Deleted", 29), Stop("b", "Deleted", 29))
    assert todo.wake_at == lived.now + 29
    lived.end("a")
    lived.end("b", after_seconds=9)
    assert lived.step().stop == (Stop("side2", "Deleted", 20),)
    lived.end("side2", after_seconds=20)
    assert lived.step().stop == (Stop("side1", "Deleted", 2),), "the least that one has whose turn comes late"
    lived.end("side1")
    assert lived.step().is_over


def test_sidecars_wait_for_nobody_once_the_grace_is_used_up():
    lived = LivedPod(of("a", init=init("side")))
    lived.step()
    lived.step()
    lived.state = changes.deleted(lived.pod, lived.state, lived.now, 5)
    assert [stop.container for stop in lived.step().stop] == ["a"]
    assert [stop.container for stop in lived.step(after_seconds=5).stop] == ["a", "side"]


def test_the_grace_that_is_left_counts_from_the_request_and_not_from_the_look():
    lived = LivedPod(of("a"))
    lived.step()
    lived.state = changes.deleted(lived.pod, lived.state, lived.now, 20)
    assert lived.step(after_seconds=5).stop[0].grace_seconds == 15
    assert lived.step(after_seconds=5).stop[0].grace_seconds == 10
    assert lived.step(after_seconds=50).stop[0].grace_seconds == 0


def test_a_second_deletion_can_only_shorten_the_grace():
    lived = LivedPod(of("a"))
    lived.step()
    lived.state = changes.deleted(lived.pod, lived.state, lived.now, 20)
    lived.step()
    lived.state = changes.deleted(lived.pod, lived.state, lived.now, 300)
    assert lived.look().stop[0].grace_seconds == 20
    lived.state = changes.deleted(lived.pod, lived.state, lived.now, 0)
    assert lived.look().stop[0].grace_seconds == 0


@pytest.mark.parametrize("exit_code, phase", [(0, "Succeeded"), (143, "Failed")])
def test_a_deleted_pod_is_over_when_nothing_runs_and_starts_nothing(exit_code, phase):
    lived = LivedPod(of("a"))
    lived.step()
    lived.state = changes.deleted(lived.pod, lived.state, lived.now)
    lived.end("a", exit_code)
    todo = lived.step()
    assert (todo.start, todo.is_over) == ((), True)
    assert lived.phase == phase


def test_a_pod_that_is_deleted_before_it_started_has_failed():
    lived = LivedPod(of("a"))
    lived.state = changes.deleted(lived.pod, lived.state, lived.now)
    assert lived.step().is_over
    assert lived.phase == "Failed"


def test_a_start_whose_outcome_is_not_known_is_neither_repeated_nor_over():
    lived = LivedPod(of("a", restart_policy="Never"))
    lived.state = changes.asked_to_start(lived.state, "a")
    assert lived.look().start == ()
    lived.state = changes.deleted(lived.pod, lived.state, lived.now, 0)
    assert not lived.look().is_over
    lived.state = changes.not_started(lived.state, "a")
    assert lived.look().is_over


@pytest.mark.req("A20")
def test_an_evicted_pod_is_stopped_whole_and_stays_so():
    lived = LivedPod(of("a", "b", init=init("side")))
    lived.step()
    lived.step()
    lived.state = changes.with_terminal_status(
        lived.state, TerminalStatus("Failed", "Evicted", "no memory", lived.now)
    )
    todo = lived.step()
    assert {stop.container: stop.grace_seconds for stop in todo.stop} == {"a": 0, "b": 0, "side": 0}
    assert {stop.reason for stop in todo.stop} == {"Evicted"}
    assert lived.phase == "Running", "it is Failed when nothing of it runs any more"
    for name in ("a", "b", "side"):
        lived.end(name, 137)
    assert lived.step(after_seconds=3600).start == ()
    assert lived.look().is_over
    assert (lived.phase, lived.status().reason, lived.status().message) == ("Failed", "Evicted", "no memory")


@pytest.mark.req("A20")
def test_a_soft_eviction_leaves_the_time_it_was_given():
    lived = LivedPod(of("a"))
    lived.step()
    lived.state = changes.with_terminal_status(
        lived.state, TerminalStatus("Failed", "Evicted", "", lived.now, 8)
    )
    assert lived.step(after_seconds=3).stop == (Stop("a", "Evicted", 5),)


def test_the_first_verdict_is_the_last():
    first = TerminalStatus("Failed", "Evicted")
    lived = LivedPod(of("a"))
    lived.state = changes.with_terminal_status(lived.state, first)
    assert changes.with_terminal_status(lived.state, TerminalStatus("Succeeded")).verdict == first


def test_a_pod_fails_at_its_deadline_with_the_grace_it_has():
    lived = LivedPod(of("a", active_deadline_seconds=60, termination_grace_period_seconds=7))
    assert lived.step().wake_at == ACCEPTED_AT + 60
    assert lived.step(after_seconds=59).verdict is None
    todo = lived.step(after_seconds=1)
    assert todo.verdict is not None
    assert (todo.verdict.phase, todo.verdict.reason) == ("Failed", "DeadlineExceeded")
    assert "60" in todo.verdict.message
    assert todo.stop == (Stop("a", "DeadlineExceeded", 7),)
    lived.end("a", 0)
    assert lived.step().is_over
    assert lived.phase == "Failed"


def test_the_deadline_counts_while_a_pod_starts_and_waits_too():
    lived = LivedPod(of("a", init=init("one"), active_deadline_seconds=60))
    lived.step()
    lived.end("one", 1)
    lived.step()
    lived.end("one", 1)
    lived.now = ACCEPTED_AT + 60
    todo = lived.step()
    assert todo.is_over
    assert todo.verdict is not None
    assert todo.verdict.reason == "DeadlineExceeded"
    assert lived.step().start == ()


def test_a_pod_that_is_done_has_no_deadline_any_more():
    lived = LivedPod(of("a", init=init("side"), restart_policy="Never", active_deadline_seconds=60))
    lived.step()
    lived.step()
    lived.end("a", 0, after_seconds=59)
    assert lived.step(after_seconds=5).verdict is None
    lived.end("side")
    lived.step()
    assert lived.phase == "Succeeded"


def test_a_container_that_crashes_waits_longer_each_time_and_says_so():
    lived = LivedPod(of("a"))
    waits = []
    for _ in range(8):
        assert lived.step().start == ("a",)
        lived.end("a", 1, after_seconds=1)
        todo = lived.look()
        waits.append(0 if todo.wake_at is None else todo.wake_at - lived.now)
        if todo.wake_at is not None:
            assert todo.waiting["a"].reason == "CrashLoopBackOff"
            assert todo.start == ()
            lived.now = todo.wake_at
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


def test_the_back_off_is_told_as_kubelet_tells_it():
    lived = LivedPod(of("a"))
    for _ in range(3):
        lived.step(after_seconds=10)
        lived.end("a", 1)
    message = lived.look().waiting["a"].message
    assert message == "back-off 20s restarting failed container=a pod=default/p"


def test_a_container_that_has_run_for_ten_minutes_begins_anew():
    lived = LivedPod(of("a"))
    for _ in range(3):
        lived.step(after_seconds=20)
        lived.end("a", 1)
    lived.step(after_seconds=40)
    lived.end("a", 1, after_seconds=601)
    assert lived.look().start == ("a",)
    lived.step()
    lived.end("a", 1)
    assert lived.look().wake_at == lived.now + 10


def test_containers_wait_for_the_pod_before_their_first_start():
    lived = LivedPod(of("a"))
    assert lived.look().waiting["a"].reason == "ContainerCreating"
    lived = LivedPod(of("a", init=init("one")))
    lived.step()
    assert {name: it.reason for name, it in lived.look().waiting.items()} == {"a": "PodInitializing"}


@pytest.mark.parametrize("policy, is_restarted", [("Always", True), ("OnFailure", True), ("Never", False)])
@pytest.mark.parametrize("exit_code", [0, 143])
def test_a_failed_probe_counts_as_a_failure_however_the_container_ends(policy, is_restarted, exit_code):
    probed = container(name="a")._replace(liveness_probe=ASK._replace(termination_grace_period_seconds=3))
    lived = LivedPod(pod(probed, restart_policy=policy))
    lived.step()
    stop = changes.probe_stop(lived.pod, lived.container("a"), "liveness", "HTTP status 500")
    lived.state = changes.asked_to_stop(lived.state, stop, lived.now)
    assert [(each.container, each.grace_seconds) for each in lived.look().stop] == [("a", 3)]
    lived.end("a", exit_code, after_seconds=1)
    assert lived.look().start == (("a",) if is_restarted else ())
    ended = lived.state.container("a").ended
    assert ended is not None
    assert ended.message == "liveness probe failed: HTTP status 500"


def test_a_wanted_restart_is_at_once_and_raises_no_back_off():
    lived = LivedPod(of("a", restart_policy="OnFailure"))
    for _ in range(4):
        assert lived.step().start == ("a",)
        lived.state = changes.asked_to_stop(lived.state, Stop("a", "resized", 5, AS_RESTART), lived.now)
        lived.end("a", 0)
    lived.step()
    lived.end("a", 1)
    assert lived.look().start == ("a",), "the first failure of its own is the first"


def test_a_deletion_cuts_short_the_grace_of_a_stop_that_is_under_way():
    lived = LivedPod(of("a"))
    lived.step()
    lived.state = changes.asked_to_stop(lived.state, Stop("a", "resized", 30), lived.now)
    lived.state = changes.deleted(lived.pod, lived.state, lived.now, 4)
    assert lived.step(after_seconds=1).stop[0].grace_seconds == 3
