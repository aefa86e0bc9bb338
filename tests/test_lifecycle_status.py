"""The status of a pod."""

import pytest

from evenkeel.api.config import Profile
from evenkeel.api.container import ExecAction, Probe
from evenkeel.api.encode import encode
from evenkeel.api.pod import PodCondition
from evenkeel.policy.lifecycle import changes
from evenkeel.policy.lifecycle.actions import actions
from evenkeel.policy.lifecycle.pod_state import LifecycleSettings, PodState, TerminalStatus
from evenkeel.policy.lifecycle.pod_status import pod_status
from tests.simulated_pod import SimulatedPod
from tests.strategies import asks, container, pod, sidecar

ASK = Probe(exec=ExecAction(("true",)))
BOTH = {"cpu": "1", "memory": "1Gi"}


def conditions(simulated):
    return {each.type: each.status for each in simulated.status().conditions}


def condition(simulated, kind):
    return next(each for each in simulated.status().conditions if each.type == kind)


def test_a_pod_is_pending_until_each_of_its_containers_has_started_once():
    simulated = SimulatedPod(pod(container(name="a"), container(name="b"), init=(container(name="one"),)))
    assert simulated.phase == "Pending"
    simulated.step()
    assert simulated.phase == "Pending"
    simulated.end("one", 1)
    assert simulated.phase == "Pending"
    simulated.step()
    simulated.end("one", 0)
    assert simulated.phase == "Pending"
    simulated.state = changes.asked_to_start(simulated.state, "a")
    simulated.state = changes.started(simulated.state, simulated.container("a"), simulated.now)
    assert simulated.phase == "Pending"
    simulated.step()
    assert simulated.phase == "Running"


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
def test_a_pod_that_waits_to_restart_is_running(policy):
    simulated = SimulatedPod(pod(container(name="a"), restart_policy=policy))
    simulated.step()
    simulated.end("a", 1)
    simulated.step()
    simulated.end("a", 1)
    assert simulated.phase == "Running"
    status = simulated.status().container_statuses[0]
    assert status.state.waiting.reason == "CrashLoopBackOff"
    assert (status.last_state.terminated.reason, status.last_state.terminated.exit_code) == ("Error", 1)
    assert (status.restart_count, status.ready, status.started) == (1, False, False)


def test_a_pod_with_one_container_left_is_running():
    simulated = SimulatedPod(pod(container(name="a"), container(name="b"), restart_policy="Never"))
    simulated.step()
    simulated.end("a", 1)
    assert simulated.phase == "Running"
    assert simulated.status().container_statuses[0].state.terminated.exit_code == 1


def test_a_pod_whose_sidecars_still_end_is_running():
    simulated = SimulatedPod(pod(container(name="a"), init=(sidecar(),), restart_policy="Never"))
    simulated.step()
    simulated.step()
    simulated.end("a")
    simulated.step()
    assert simulated.phase == "Running"
    simulated.end("side", 143)
    simulated.step()
    assert simulated.phase == "Succeeded"


def test_the_status_of_a_container_that_has_ended_again_has_its_end_before_that():
    simulated = SimulatedPod(pod(container(name="a"), restart_policy="OnFailure"))
    simulated.step()
    simulated.end("a", 9)
    assert simulated.status().container_statuses[0].last_state is None
    simulated.step(after_seconds=1)
    simulated.end("a", 0)
    (status,) = simulated.status().container_statuses
    now, before = status.state.terminated, status.last_state.terminated
    assert [(one.exit_code, one.container_id) for one in (now, before)] == [
        (0, "process://p/a/2"),
        (9, "process://p/a/1"),
    ]


def test_the_status_of_a_running_container_has_its_start_and_its_last_end():
    simulated = SimulatedPod(pod(container(name="a")))
    simulated.step()
    simulated.end("a", 9, after_seconds=5, signal=3, message="gone")
    simulated.step(after_seconds=1)
    status = simulated.status().container_statuses[0]
    assert status.state.running.started_at == "1970-01-01T00:16:46Z"
    before = status.last_state.terminated
    assert (before.exit_code, before.signal, before.reason, before.message) == (9, 3, "Error", "gone")
    assert (before.started_at, before.finished_at) == ("1970-01-01T00:16:40Z", "1970-01-01T00:16:45Z")
    assert (before.container_id, status.container_id) == ("process://p/a/1", "process://p/a/2")
    named_by_runtime = pod_status(
        simulated.pod, simulated.state, Profile.DOCUMENTS, runtime=""
    ).container_statuses[0]
    assert (named_by_runtime.last_state.terminated.container_id, named_by_runtime.container_id) == ("", "")
    assert (status.restart_count, status.ready, status.started) == (1, True, True)


@pytest.mark.parametrize("id_", ["", "containerd://first"])
def test_a_start_counts_as_a_restart_when_it_is_done_and_not_when_it_is_asked_for(id_):
    """It may have to wait for its image, and the count would go back."""
    simulated = SimulatedPod(pod(container(name="a")))
    counted: list[tuple[int, str, str]] = []
    settings = LifecycleSettings()

    def look() -> None:
        waiting = actions(simulated.pod, simulated.state, simulated.now, settings).waiting
        runtime = "" if id_ else "process"
        (status,) = pod_status(
            simulated.pod, simulated.state, Profile.DOCUMENTS, waiting, runtime
        ).container_statuses
        before = status.last_state
        assert before is not None
        counted.append((status.restart_count, status.container_id, before.terminated.container_id))

    simulated.state = changes.asked_to_start(simulated.state, "a")
    simulated.state = changes.started(simulated.state, simulated.container("a"), simulated.now, id_=id_)
    simulated.end("a", 1)
    for _ in range(2):
        simulated.state = changes.asked_to_start(simulated.state, "a")
        look()
        simulated.state = changes.no_image(
            simulated.state, "a", "ErrImagePull", "no route", simulated.now, settings
        )
        look()
    first, second = (id_, "containerd://second") if id_ else ("process://p/a/1", "process://p/a/2")
    assert counted == [(0, first, first)] * 4
    simulated.state = changes.asked_to_start(simulated.state, "a")
    second_id = second if id_ else ""
    simulated.state = changes.started(simulated.state, simulated.container("a"), simulated.now, id_=second_id)
    look()
    assert counted[-1] == (1, second, first)


def test_a_container_that_never_ran_has_no_id_and_waits():
    status = SimulatedPod(pod(container(name="a"))).status().container_statuses[0]
    assert (status.container_id, status.restart_count) == ("", 0)
    assert status.state.waiting.reason == "ContainerCreating"


def test_an_oom_kill_is_reported_as_oomkilled():
    simulated = SimulatedPod(pod(container({"memory": "1Gi"}, name="a"), restart_policy="Never"))
    simulated.step()
    simulated.end("a", 137, signal=9, is_oom_killed=True)
    simulated.step()
    ended = simulated.status().container_statuses[0].state.terminated
    assert (ended.reason, ended.exit_code, ended.signal) == ("OOMKilled", 137, 9)


@pytest.mark.req("A8")
def test_the_status_shows_the_pods_class_and_those_of_each_containers_resources():
    simulated = SimulatedPod(
        pod(container({"cpu": "1", "memory": "1Gi"}, {"memory": "1Gi"}, name="a"), container())
    )
    status = simulated.status()
    assert status.qos_class == "Burstable"
    assert [(each.memory_qos_class, each.cpu_qos_class) for each in status.container_statuses] == [
        ("Guaranteed", "Burstable"),
        ("BestEffort", "BestEffort"),
    ]


@pytest.mark.req("E17")
def test_the_status_shows_the_desired_resources_and_those_in_the_kernel():
    simulated = SimulatedPod(pod(container({"cpu": "1"}, {"cpu": "2"}, name="a")))
    applied = asks({"cpu": "500m"}, {"cpu": "1"})
    simulated.state = changes.asked_to_start(simulated.state, "a")
    simulated.state = changes.started(
        simulated.state, simulated.container("a"), simulated.now, resources=applied
    )
    status = simulated.status().container_statuses[0]
    assert encode(status.allocated_resources) == {"cpu": "1"}
    assert encode(status.resources) == {"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}}


def test_the_conditions_of_a_pod_from_start_to_end():
    simulated = SimulatedPod(pod(container(name="a"), init=(container(name="one"),), restart_policy="Never"))
    assert conditions(simulated) == {
        "PodReadyToStartContainers": "False",
        "Initialized": "False",
        "Ready": "False",
        "ContainersReady": "False",
        "PodScheduled": "True",
    }
    assert "[one]" in condition(simulated, "Initialized").message
    simulated.step()
    assert conditions(simulated)["PodReadyToStartContainers"] == "True"
    simulated.end("one", after_seconds=3)
    simulated.step(after_seconds=1)
    assert set(conditions(simulated).values()) == {"True"}
    assert condition(simulated, "Initialized").last_transition_time == "1970-01-01T00:16:43Z"
    assert condition(simulated, "Ready").last_transition_time == "1970-01-01T00:16:44Z"
    simulated.end("a", after_seconds=6)
    simulated.step()
    assert (conditions(simulated)["Ready"], condition(simulated, "Ready").reason) == ("False", "PodCompleted")
    assert condition(simulated, "Ready").last_transition_time == "1970-01-01T00:16:50Z"
    assert (conditions(simulated)["Initialized"], condition(simulated, "Initialized").reason) == (
        "True",
        "PodCompleted",
    )


def test_a_pod_is_ready_when_every_container_and_sidecar_is():
    asked = container(name="a")._replace(readiness_probe=ASK)
    simulated = SimulatedPod(pod(asked, container(name="b"), init=(sidecar()._replace(readiness_probe=ASK),)))
    simulated.step()
    simulated.step()
    assert "[side a]" in condition(simulated, "Ready").message
    simulated.state = changes.with_readiness(simulated.state, "a", is_ready=True, now=simulated.now)
    assert "[side]" in condition(simulated, "ContainersReady").message
    simulated.state = changes.with_readiness(simulated.state, "side", is_ready=True, now=simulated.now)
    assert conditions(simulated)["Ready"] == "True"
    simulated.end("side", 1)
    assert conditions(simulated)["Ready"] == "False"


def test_a_condition_that_stays_as_it_is_keeps_its_time():
    both = [container(name=name)._replace(readiness_probe=ASK) for name in "ab"]
    simulated = SimulatedPod(pod(*both))
    simulated.step()
    simulated.pod = simulated.pod._replace(status=simulated.status())
    simulated.state = changes.with_readiness(simulated.state, "a", is_ready=True, now=simulated.now + 5)
    simulated.state = changes.with_readiness(simulated.state, "a", is_ready=False, now=simulated.now + 9)
    simulated.state = changes.with_readiness(simulated.state, "b", is_ready=True, now=simulated.now + 10)
    assert condition(simulated, "Ready").last_transition_time == "1970-01-01T00:16:40Z"


@pytest.mark.req("A6")
def test_a_refused_pod_is_failed_with_the_reason_and_has_no_containers():
    refused = PodState(
        verdict=TerminalStatus("Failed", "OutOfmemory", "memory: 3Gi requested, 1Gi free", 5.0)
    )
    status = pod_status(pod(container(name="a")), refused, Profile.DOCUMENTS)
    assert (status.phase, status.reason, status.container_statuses) == ("Failed", "OutOfmemory", ())
    assert status.message == "memory: 3Gi requested, 1Gi free"


@pytest.mark.req("A20")
def test_an_eviction_for_the_nodes_need_is_reported_as_a_disruption():
    simulated = SimulatedPod(pod(container(name="a")))
    simulated.step()
    verdict = TerminalStatus("Failed", "Evicted", "no memory", simulated.now, is_disruption=True)
    simulated.state = changes.with_terminal_status(simulated.state, verdict)
    simulated.end("a", 137)
    assert (simulated.phase, simulated.status().reason) == ("Failed", "Evicted")
    found = condition(simulated, "DisruptionTarget")
    assert (found.status, found.reason, found.message) == ("True", "TerminationByKubelet", "no memory")


@pytest.mark.req("E16")
def test_a_pod_that_has_come_back_is_no_target_any_more():
    simulated = SimulatedPod(pod(container(name="a")))
    simulated.step()
    verdict = TerminalStatus("Failed", "Evicted", "no memory", simulated.now, is_disruption=True)
    evicted = simulated.pod._replace(
        status=pod_status(
            simulated.pod, changes.with_terminal_status(simulated.state, verdict), Profile.DOCUMENTS
        )
    )
    assert "DisruptionTarget" in {one.type for one in evicted.status.conditions}
    back = pod_status(evicted, simulated.state, Profile.DOCUMENTS)
    assert "DisruptionTarget" not in {one.type for one in back.conditions}
    others = PodCondition("DisruptionTarget", "True", "EvictionByEvictionAPI", "drained")
    drained = simulated.pod._replace(status=simulated.pod.status._replace(conditions=(others,)))
    assert others in pod_status(drained, simulated.state, Profile.DOCUMENTS).conditions


def test_an_init_container_is_ready_when_it_has_done_its_work():
    simulated = SimulatedPod(pod(container(name="a"), init=(container(name="one"), sidecar())))
    simulated.step()
    assert simulated.status().init_container_statuses[0].ready is False
    simulated.end("one")
    simulated.step()
    simulated.step()
    assert [each.ready for each in simulated.status().init_container_statuses] == [True, True]
    assert simulated.status().init_container_statuses[0].state.terminated.reason == "Completed"
