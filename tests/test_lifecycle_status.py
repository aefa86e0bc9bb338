"""What a pod's status says."""

import pytest

from evenkeel.api.config import Profile
from evenkeel.api.container import ExecAction, Probe
from evenkeel.api.encode import encode
from evenkeel.api.pod import PodCondition
from evenkeel.policy.lifecycle import changes
from evenkeel.policy.lifecycle.pod_state import PodState, TerminalStatus
from evenkeel.policy.lifecycle.pod_status import pod_status
from tests.lives import LivedPod
from tests.strategies import asks, container, pod, sidecar

ASK = Probe(exec=ExecAction(("true",)))
BOTH = {"cpu": "1", "memory": "1Gi"}


def conditions(lived):
    return {each.type: each.status for each in lived.status().conditions}


def condition(lived, kind):
    return next(each for each in lived.status().conditions if each.type == kind)


def test_a_pod_is_pending_until_each_of_its_containers_has_started_once():
    lived = LivedPod(pod(container(name="a"), container(name="b"), init=(container(name="one"),)))
    assert lived.phase == "Pending"
    lived.step()
    assert lived.phase == "Pending"
    lived.end("one", 1)
    assert lived.phase == "Pending"
    lived.step()
    lived.end("one", 0)
    assert lived.phase == "Pending"
    lived.state = changes.asked_to_start(lived.state, "a")
    lived.state = changes.started(lived.state, lived.container("a"), lived.now)
    assert lived.phase == "Pending"
    lived.step()
    assert lived.phase == "Running"


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
def test_a_pod_that_waits_to_restart_is_running(policy):
    lived = LivedPod(pod(container(name="a"), restart_policy=policy))
    lived.step()
    lived.end("a", 1)
    lived.step()
    lived.end("a", 1)
    assert lived.phase == "Running"
    status = lived.status().container_statuses[0]
    assert status.state.waiting.reason == "CrashLoopBackOff"
    assert (status.last_state.terminated.reason, status.last_state.terminated.exit_code) == ("Error", 1)
    assert (status.restart_count, status.ready, status.started) == (1, False, False)


def test_a_pod_with_one_container_left_is_running():
    lived = LivedPod(pod(container(name="a"), container(name="b"), restart_policy="Never"))
    lived.step()
    lived.end("a", 1)
    assert lived.phase == "Running"
    assert lived.status().container_statuses[0].state.terminated.exit_code == 1


def test_a_pod_whose_sidecars_still_end_is_running():
    lived = LivedPod(pod(container(name="a"), init=(sidecar(),), restart_policy="Never"))
    lived.step()
    lived.step()
    lived.end("a")
    lived.step()
    assert lived.phase == "Running"
    lived.end("side", 143)
    lived.step()
    assert lived.phase == "Succeeded"


def test_a_running_container_tells_since_when_and_what_was_before():
    lived = LivedPod(pod(container(name="a")))
    lived.step()
    lived.end("a", 9, after_seconds=5, signal=3, message="gone")
    lived.step(after_seconds=1)
    status = lived.status().container_statuses[0]
    assert status.state.running.started_at == "1970-01-01T00:16:46Z"
    before = status.last_state.terminated
    assert (before.exit_code, before.signal, before.reason, before.message) == (9, 3, "Error", "gone")
    assert (before.started_at, before.finished_at) == ("1970-01-01T00:16:40Z", "1970-01-01T00:16:45Z")
    assert (before.container_id, status.container_id) == ("process://p/a/1", "process://p/a/2")
    named_by_runtime = pod_status(lived.pod, lived.state, Profile.DOCUMENTS, runtime="").container_statuses[0]
    assert (named_by_runtime.last_state.terminated.container_id, named_by_runtime.container_id) == ("", "")
    assert (status.restart_count, status.ready, status.started) == (1, True, True)


def test_a_container_that_never_ran_has_no_id_and_waits():
    status = LivedPod(pod(container(name="a"))).status().container_statuses[0]
    assert (status.container_id, status.restart_count) == ("", 0)
    assert status.state.waiting.reason == "ContainerCreating"


def test_an_oom_kill_is_told_as_such():
    lived = LivedPod(pod(container({"memory": "1Gi"}, name="a"), restart_policy="Never"))
    lived.step()
    lived.end("a", 137, signal=9, is_oom_killed=True)
    lived.step()
    ended = lived.status().container_statuses[0].state.terminated
    assert (ended.reason, ended.exit_code, ended.signal) == ("OOMKilled", 137, 9)


@pytest.mark.req("A8")
def test_the_status_shows_the_pods_class_and_those_of_each_containers_resources():
    lived = LivedPod(pod(container({"cpu": "1", "memory": "1Gi"}, {"memory": "1Gi"}, name="a"), container()))
    status = lived.status()
    assert status.qos_class == "Burstable"
    assert [(each.memory_qos_class, each.cpu_qos_class) for each in status.container_statuses] == [
        ("Guaranteed", "Burstable"),
        ("BestEffort", "BestEffort"),
    ]


@pytest.mark.req("E17")
def test_the_status_shows_what_is_asked_for_and_what_is_in_the_kernel():
    lived = LivedPod(pod(container({"cpu": "1"}, {"cpu": "2"}, name="a")))
    applied = asks({"cpu": "500m"}, {"cpu": "1"})
    lived.state = changes.asked_to_start(lived.state, "a")
    lived.state = changes.started(lived.state, lived.container("a"), lived.now, resources=applied)
    status = lived.status().container_statuses[0]
    assert encode(status.allocated_resources) == {"cpu": "1"}
    assert encode(status.resources) == {"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}}


def test_the_conditions_of_a_pod_through_its_life():
    lived = LivedPod(pod(container(name="a"), init=(container(name="one"),), restart_policy="Never"))
    assert conditions(lived) == {
        "PodReadyToStartContainers": "False",
        "Initialized": "False",
        "Ready": "False",
        "ContainersReady": "False",
        "PodScheduled": "True",
    }
    assert "[one]" in condition(lived, "Initialized").message
    lived.step()
    assert conditions(lived)["PodReadyToStartContainers"] == "True"
    lived.end("one", after_seconds=3)
    lived.step(after_seconds=1)
    assert set(conditions(lived).values()) == {"True"}
    assert condition(lived, "Initialized").last_transition_time == "1970-01-01T00:16:43Z"
    assert condition(lived, "Ready").last_transition_time == "1970-01-01T00:16:44Z"
    lived.end("a", after_seconds=6)
    lived.step()
    assert (conditions(lived)["Ready"], condition(lived, "Ready").reason) == ("False", "PodCompleted")
    assert condition(lived, "Ready").last_transition_time == "1970-01-01T00:16:50Z"
    assert (conditions(lived)["Initialized"], condition(lived, "Initialized").reason) == (
        "True",
        "PodCompleted",
    )


def test_a_pod_is_ready_when_every_container_and_sidecar_is():
    asked = container(name="a")._replace(readiness_probe=ASK)
    lived = LivedPod(pod(asked, container(name="b"), init=(sidecar()._replace(readiness_probe=ASK),)))
    lived.step()
    lived.step()
    assert "[side a]" in condition(lived, "Ready").message
    lived.state = changes.with_readiness(lived.state, "a", is_ready=True, now=lived.now)
    assert "[side]" in condition(lived, "ContainersReady").message
    lived.state = changes.with_readiness(lived.state, "side", is_ready=True, now=lived.now)
    assert conditions(lived)["Ready"] == "True"
    lived.end("side", 1)
    assert conditions(lived)["Ready"] == "False"


def test_a_condition_that_stays_as_it_is_keeps_its_time():
    both = [container(name=name)._replace(readiness_probe=ASK) for name in "ab"]
    lived = LivedPod(pod(*both))
    lived.step()
    lived.pod = lived.pod._replace(status=lived.status())
    lived.state = changes.with_readiness(lived.state, "a", is_ready=True, now=lived.now + 5)
    lived.state = changes.with_readiness(lived.state, "a", is_ready=False, now=lived.now + 9)
    lived.state = changes.with_readiness(lived.state, "b", is_ready=True, now=lived.now + 10)
    assert condition(lived, "Ready").last_transition_time == "1970-01-01T00:16:40Z"


@pytest.mark.req("A6")
def test_a_refused_pod_is_failed_with_the_reason_and_has_no_containers():
    refused = PodState(
        verdict=TerminalStatus("Failed", "OutOfmemory", "memory: 3Gi requested, 1Gi free", 5.0)
    )
    status = pod_status(pod(container(name="a")), refused, Profile.DOCUMENTS)
    assert (status.phase, status.reason, status.container_statuses) == ("Failed", "OutOfmemory", ())
    assert status.message == "memory: 3Gi requested, 1Gi free"


@pytest.mark.req("A20")
def test_an_eviction_for_the_nodes_need_is_told_as_a_disruption():
    lived = LivedPod(pod(container(name="a")))
    lived.step()
    verdict = TerminalStatus("Failed", "Evicted", "no memory", lived.now, is_disruption=True)
    lived.state = changes.with_terminal_status(lived.state, verdict)
    lived.end("a", 137)
    assert (lived.phase, lived.status().reason) == ("Failed", "Evicted")
    found = condition(lived, "DisruptionTarget")
    assert (found.status, found.reason, found.message) == ("True", "TerminationByKubelet", "no memory")


@pytest.mark.req("E16")
def test_a_pod_that_has_come_back_is_no_target_any_more():
    lived = LivedPod(pod(container(name="a")))
    lived.step()
    verdict = TerminalStatus("Failed", "Evicted", "no memory", lived.now, is_disruption=True)
    evicted = lived.pod._replace(
        status=pod_status(lived.pod, changes.with_terminal_status(lived.state, verdict), Profile.DOCUMENTS)
    )
    assert "DisruptionTarget" in {one.type for one in evicted.status.conditions}
    back = pod_status(evicted, lived.state, Profile.DOCUMENTS)
    assert "DisruptionTarget" not in {one.type for one in back.conditions}
    others = PodCondition("DisruptionTarget", "True", "EvictionByEvictionAPI", "drained")
    drained = lived.pod._replace(status=lived.pod.status._replace(conditions=(others,)))
    assert others in pod_status(drained, lived.state, Profile.DOCUMENTS).conditions


def test_an_init_container_is_ready_when_it_has_done_its_work():
    lived = LivedPod(pod(container(name="a"), init=(container(name="one"), sidecar())))
    lived.step()
    assert lived.status().init_container_statuses[0].ready is False
    lived.end("one")
    lived.step()
    lived.step()
    assert [each.ready for each in lived.status().init_container_statuses] == [True, True]
    assert lived.status().init_container_statuses[0].state.terminated.reason == "Completed"
