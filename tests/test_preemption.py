"""Which pods end for a critical pod, and that it gets their room."""

from typing import Any

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.api.config import Profile
from evenkeel.api.container import ContainerPort
from evenkeel.api.pod import Pod
from evenkeel.kube.pod_object import read_pod
from evenkeel.policy.admission import requested
from evenkeel.policy.preemption import Candidate, may_preempt, pods_to_preempt, shortage
from evenkeel.quantity import Quantity
from tests.models.agents import Place, drive, pods_of, until
from tests.strategies import amounts, container, pod

CRITICAL = 2_000_000_000
PROFILES = [Profile.DOCUMENTS, Profile.KUBERNETES]


def guaranteed(name: str, cpu: str, memory: str, **more: Any) -> Pod:
    both = {"cpu": cpu, "memory": memory}
    return pod(container(both, both), name=name, priority=more.pop("priority", 0), **more)


def burstable(name: str, cpu: str, memory: str) -> Pod:
    return pod(container({"cpu": cpu, "memory": memory}), name=name, priority=0)


def best_effort(name: str) -> Pod:
    return pod(container(), name=name, priority=0)


def chosen(missing: dict[str, str], *pods: Pod, critical: Pod | None = None) -> list[str] | None:
    """The names of the pods that end; the same in both profiles."""
    preemptor = critical or guaranteed("critical", "1", "1Gi", priority=CRITICAL)
    answers = []
    for profile in PROFILES:
        candidates = [Candidate(one, requested(one, profile)) for one in pods]
        found = pods_to_preempt(preemptor, candidates, amounts(missing), profile)
        answers.append(None if found is None else [one.metadata.name for one in found])
    assert answers[0] == answers[1]
    return answers[0]


def test_the_shortage_is_what_is_missing_of_each_resource():
    used, has = (
        amounts({"cpu": "3", "memory": "3Gi", "pods": "5"}),
        amounts({"cpu": "4", "memory": "4Gi", "pods": "5"}),
    )
    asked = amounts({"cpu": "1", "memory": "2Gi", "pods": "1"})
    assert shortage(asked, used, has) == {"memory": Quantity("1Gi"), "pods": Quantity("1")}
    assert shortage({}, used, has) == {}


def test_nothing_missing_ends_nobody():
    assert chosen({}, burstable("a", "1", "1Gi")) == []


def test_lower_classes_end_before_higher_ones():
    pods = (guaranteed("g", "1", "1Gi"), burstable("b", "1", "1Gi"), best_effort("e"))
    assert chosen({"memory": "1Gi"}, *pods) == ["b"]
    assert chosen({"pods": "1"}, *pods) == ["e"]
    assert chosen({"memory": "2Gi"}, *pods) == ["b", "g"]
    assert chosen({"pods": "3"}, *pods) == ["e", "b", "g"]


def test_a_guaranteed_pod_that_has_to_end_spares_others():
    """The one that is needed in any case has enough, so no pod of a lower class ends beside it."""
    pods = (guaranteed("g", "1", "4Gi"), burstable("b", "1", "1Gi"))
    assert chosen({"memory": "4Gi"}, *pods) == ["g"]


def test_as_few_pods_end_as_possible_and_of_these_the_smallest():
    pods = (
        burstable("small", "100m", "100Mi"),
        burstable("enough", "100m", "500Mi"),
        burstable("large", "100m", "2Gi"),
    )
    assert chosen({"memory": "400Mi"}, *pods) == ["enough"]
    assert chosen({"memory": "600Mi"}, *pods) == ["large"]
    assert chosen({"memory": "2200Mi"}, *pods) == ["large", "enough"]


def test_every_resource_counts_the_same_whatever_its_amounts():
    """Each has a half of what is missing: the one that has some of both comes closest."""
    pods = (
        burstable("memory", "1m", "1Gi"),
        burstable("cpu", "1", "1Mi"),
        burstable("both", "800m", "820Mi"),
    )
    found = chosen({"memory": "1Gi", "cpu": "1"}, *pods)
    assert found is not None
    assert found[0] == "both"


def test_nobody_ends_if_all_together_would_not_be_enough():
    assert chosen({"memory": "2Gi"}, burstable("a", "1", "1Gi"), best_effort("b")) is None


@pytest.mark.parametrize("profile", PROFILES)
def test_only_a_critical_pod_preempts_and_only_those_below_it(profile: Profile):
    ordinary, other = guaranteed("a", "1", "1Gi", priority=1000), guaranteed("b", "1", "1Gi")
    critical = guaranteed("c", "1", "1Gi", priority=CRITICAL)
    more = guaranteed("d", "1", "1Gi", priority=CRITICAL + 1000)
    assert not may_preempt(ordinary, other, profile), "the scheduler sees to other priorities"
    assert may_preempt(critical, ordinary, profile)
    assert may_preempt(more, critical, profile)
    assert not may_preempt(critical, critical, profile)
    assert not may_preempt(critical, more, profile)


def test_a_static_pod_is_critical_for_kubernetes():
    static = pod(container(), name="s", priority=0, annotations={"kubernetes.io/config.source": "file"})
    other = best_effort("e")
    assert may_preempt(static, other, Profile.KUBERNETES)
    assert not may_preempt(static, other, Profile.DOCUMENTS)
    assert not may_preempt(guaranteed("c", "1", "1Gi", priority=CRITICAL - 1), static, Profile.KUBERNETES)


# The agent


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(str(tmp_path))


def of_cluster(name: str, memory: str, priority: int = 0, **spec: Any) -> Pod:
    amounts_of = {"requests": {"memory": memory}, "limits": {"memory": memory}}
    main = {"name": "main", "image": "host", "command": ["x"], "resources": amounts_of}
    value = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [main], "priority": priority, **spec},
    }
    found = read_pod(value, Profile.DOCUMENTS, ())
    assert isinstance(found, Pod), found
    return found


def state(agent: Agent, name: str) -> tuple[str, str]:
    """Phase and reason."""
    shown = agent.cluster_pods.shown(f"uid-{name}")
    return (shown.status.phase, shown.status.reason) if shown is not None else ("", "")


OF_MACHINE = """
{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{priorityClassName: "{priority}",
  containers: [{{name: main, image: host, command: [x], resources: {{requests: {{memory: {memory}}}}}}}]}}}}
"""


async def applied(agent: Agent, name: str, memory: str, priority: str = "") -> None:
    """A pod of this machine."""
    await agent.apply(pods_of(OF_MACHINE.format(name=name, memory=memory, priority=priority)))


def phase(agent: Agent, name: str) -> str:
    shown = agent.pod(f"default/{name}")
    return shown.status.phase if shown is not None else ""


def most(agent: Agent, part: float) -> str:
    return str(int(agent.node().status.allocatable["memory"].value * part))


def test_a_critical_pod_waits_for_the_end_of_the_pods_whose_room_it_gets(place):
    async def scenario(agent: Agent) -> None:
        for name, part in (("large", 0.6), ("small", 0.3)):
            agent.cluster_pods.put(of_cluster(name, most(agent, part)))
            await until(lambda name=name: state(agent, name)[0] == "Running")
        agent.cluster_pods.put(of_cluster("critical", most(agent, 0.5), CRITICAL))
        await until(lambda: state(agent, "critical")[0] == "Running")
        assert state(agent, "large") == ("Failed", "Preempting")
        assert state(agent, "small") == ("Running", "")
        shown = agent.cluster_pods.shown("uid-large")
        assert shown is not None
        assert shown.status.message == "Preempted in order to admit critical pod default/critical"
        (condition,) = [one for one in shown.status.conditions if one.type == "DisruptionTarget"]
        assert (condition.status, condition.reason) == ("True", "TerminationByKubelet")

    drive(place, scenario)


def test_its_room_is_given_to_no_other_pod_meanwhile(place):
    async def scenario(agent: Agent) -> None:
        agent.cluster_pods.put(of_cluster("victim", most(agent, 0.9)))
        await until(lambda: state(agent, "victim")[0] == "Running")
        place.runtime.ignores_term = True  # it runs until it is ended below
        agent.cluster_pods.put(of_cluster("critical", most(agent, 0.5), CRITICAL))
        await until(lambda: bool(place.runtime.stopped))
        agent.cluster_pods.put(of_cluster("late", most(agent, 0.6)))
        await until(lambda: state(agent, "late") == ("Failed", "OutOfmemory"))
        assert state(agent, "critical") == ("Pending", "")
        (attempt,) = place.runtime.starts
        assert place.runtime.stopped == [(attempt, 30.0)], "it has its own grace period"
        place.runtime.end(attempt, 143, 15)
        await until(lambda: state(agent, "critical")[0] == "Running")
        assert state(agent, "victim") == ("Failed", "Preempting")

    drive(place, scenario)


def test_a_resize_does_not_take_its_room_but_a_pod_may_shrink(place):
    def pending(agent: Agent) -> list[str]:
        shown = agent.cluster_pods.shown("uid-small")
        assert shown is not None
        return [one.reason for one in shown.status.conditions if one.type == "PodResizePending"]

    def memory(agent: Agent) -> str:
        shown = agent.cluster_pods.shown("uid-small")
        assert shown is not None
        return str(shown.spec.containers[0].resources.requests["memory"].value)

    async def begins(agent: Agent) -> None:
        for name, part in (("victim", 0.6), ("small", 0.3)):
            agent.cluster_pods.put(of_cluster(name, most(agent, part)))
            await until(lambda name=name: state(agent, name)[0] == "Running")
        place.runtime.ignores_term = True
        agent.cluster_pods.put(of_cluster("critical", most(agent, 0.6), CRITICAL))
        await until(lambda: bool(place.runtime.stopped))
        agent.cluster_pods.put(of_cluster("small", most(agent, 0.2)))
        await until(lambda: memory(agent) == most(agent, 0.2))
        agent.cluster_pods.put(of_cluster("small", most(agent, 0.5)))
        await until(lambda: pending(agent) == ["Deferred"])

    async def goes_on(agent: Agent) -> None:
        place.runtime.end(place.runtime.starts[0], 143, 15)
        await until(lambda: state(agent, "critical")[0] == "Running")
        assert state(agent, "small")[0] == "Running"
        assert pending(agent) == ["Deferred"]
        assert memory(agent) == most(agent, 0.2)
        agent.cluster_pods.end("uid-critical", 0)
        await until(lambda: memory(agent) == most(agent, 0.5))

    drive(place, begins)
    drive(place, goes_on)


def test_a_resize_gets_the_room_that_a_refused_critical_pod_does_not_get(place):
    async def scenario(agent: Agent) -> None:
        agent.cluster_pods.put(of_cluster("first", most(agent, 0.3), CRITICAL))
        await until(lambda: state(agent, "first")[0] == "Running")
        agent.cluster_pods.put(of_cluster("second", most(agent, 0.8), CRITICAL))
        agent.cluster_pods.put(of_cluster("first", most(agent, 0.9), CRITICAL))  # before the second is judged
        await until(lambda: state(agent, "second") == ("Failed", "OutOfmemory"))
        await until(lambda: any(one.reason == "Resized" for one in agent.events("default/first")))

    drive(place, scenario)


def test_what_a_critical_pod_waits_for_is_recorded_once(place):
    async def scenario(agent: Agent) -> None:
        agent.cluster_pods.put(of_cluster("victim", most(agent, 0.9)))
        await until(lambda: state(agent, "victim")[0] == "Running")
        place.runtime.ignores_term = True
        agent.cluster_pods.put(of_cluster("critical", most(agent, 0.5), CRITICAL))
        await until(lambda: bool(place.runtime.stopped))
        agent.cluster_pods.put(of_cluster("late", most(agent, 0.6)))  # the waiting pods are judged again
        await until(lambda: state(agent, "late") == ("Failed", "OutOfmemory"))
        (event,) = [one for one in agent.events("default/critical") if one.reason == "WaitingForRoom"]
        assert event.times == 1
        assert event.message.startswith("waits for the end of pod default/victim: requests ")

    drive(place, scenario)


def test_a_refused_critical_pod_that_gets_room_at_last_is_no_longer_failed(place):
    """Then its room is kept for it, as for one that was never refused."""

    async def scenario(agent: Agent) -> None:
        await applied(agent, "first", most(agent, 0.6), "system-node-critical")
        await until(lambda: phase(agent, "first") == "Running")
        await applied(agent, "second", most(agent, 0.6), "system-node-critical")
        await until(lambda: phase(agent, "second") == "Failed")
        place.runtime.ignores_term = True
        await agent.delete("default/first")
        await applied(agent, "other", most(agent, 0.1))  # the waiting pods are judged again
        await until(lambda: phase(agent, "second") == "Pending")
        place.runtime.end(place.runtime.starts[0], 143, 15)
        await until(lambda: phase(agent, "second") == "Running")

    drive(place, scenario)


def test_the_next_agent_waits_on_and_ends_no_other_pod(place):
    async def begins(agent: Agent) -> None:
        for name, part in (("victim", 0.6), ("other", 0.3)):
            agent.cluster_pods.put(of_cluster(name, most(agent, part)))
            await until(lambda name=name: state(agent, name)[0] == "Running")
        place.runtime.ignores_term = True
        agent.cluster_pods.put(of_cluster("critical", most(agent, 0.5), CRITICAL))
        await until(lambda: bool(place.runtime.stopped))

    async def goes_on(agent: Agent) -> None:
        await until(lambda: len(place.runtime.stopped) == 2)
        assert state(agent, "critical")[0] == "Pending"
        place.runtime.end(place.runtime.starts[0], 143, 15)
        await until(lambda: state(agent, "critical")[0] == "Running")
        assert state(agent, "other")[0] == "Running"

    drive(place, begins)
    drive(place, goes_on)


def test_a_critical_pod_for_which_no_set_of_pods_has_enough_is_refused_and_ends_nobody(place):
    async def scenario(agent: Agent) -> None:
        agent.cluster_pods.put(of_cluster("first", most(agent, 0.6), CRITICAL))
        agent.cluster_pods.put(of_cluster("other", most(agent, 0.3)))
        await until(lambda: state(agent, "other")[0] == "Running")
        agent.cluster_pods.put(of_cluster("second", most(agent, 0.5), CRITICAL))
        await until(lambda: state(agent, "second") == ("Failed", "OutOfmemory"))
        assert state(agent, "first")[0] == state(agent, "other")[0] == "Running"

    drive(place, scenario)


def test_no_pod_ends_for_a_critical_pod_that_the_runtime_refuses(place):
    async def scenario(agent: Agent) -> None:
        agent.cluster_pods.put(of_cluster("other", most(agent, 0.9)))
        await until(lambda: state(agent, "other")[0] == "Running")
        critical = of_cluster("critical", most(agent, 0.5), CRITICAL)
        main = critical.spec.containers[0]._replace(image="elsewhere")
        agent.cluster_pods.put(critical._replace(spec=critical.spec._replace(containers=(main,))))
        await until(lambda: state(agent, "critical") == ("Failed", "NotHonoured"))
        assert state(agent, "other")[0] == "Running"
        assert place.runtime.stopped == []

    drive(place, scenario)


def test_two_critical_pods_take_no_more_than_they_need(place):
    async def scenario(agent: Agent) -> None:
        for name in ("a", "b", "c"):
            agent.cluster_pods.put(of_cluster(name, most(agent, 0.3)))
            await until(lambda name=name: state(agent, name)[0] == "Running")
        agent.cluster_pods.put(of_cluster("first", most(agent, 0.3), CRITICAL))
        agent.cluster_pods.put(of_cluster("second", most(agent, 0.3), CRITICAL))
        await until(lambda: {state(agent, one)[0] for one in ("first", "second")} == {"Running"})
        assert sorted(state(agent, one)[0] for one in ("a", "b", "c")) == ["Failed", "Failed", "Running"]

    drive(place, scenario)


def test_a_taken_port_is_no_want_of_room(place):
    def with_port(name: str, priority: int) -> Pod:
        one = of_cluster(name, "1Mi", priority, hostNetwork=True)
        main = one.spec.containers[0]._replace(ports=(ContainerPort(8080, host_port=8080),))
        return one._replace(spec=one.spec._replace(containers=(main,)))

    async def scenario(agent: Agent) -> None:
        agent.cluster_pods.put(with_port("first", 0))
        await until(lambda: state(agent, "first")[0] == "Running")
        agent.cluster_pods.put(with_port("critical", CRITICAL))
        await until(lambda: state(agent, "critical") == ("Failed", "NodePorts"))
        assert state(agent, "first")[0] == "Running"

    drive(place, scenario)


def test_a_pod_of_this_machine_gives_way_and_comes_back_when_there_is_room(place):
    async def scenario(agent: Agent) -> None:
        await applied(agent, "batch", most(agent, 0.9))
        await until(lambda: phase(agent, "batch") == "Running")
        await applied(agent, "critical", most(agent, 0.5), "system-node-critical")
        await until(lambda: phase(agent, "critical") == "Running")
        assert phase(agent, "batch") == "Failed"
        await agent.delete("default/critical")
        place.now += 11.0  # its back-off
        agent.watches.conditions.set("clock", ["PIDPressure"])
        agent.watches.conditions.set("clock", [])
        await until(lambda: phase(agent, "batch") == "Running")
        said = {event.reason: event.message for event in agent.events("default/batch")}
        assert "the pod comes back when there is room for it, and not before 10 s" in said["BackOff"]
        assert said["Returning"] == "its back-off is over: the pod starts anew after one eviction"

    drive(place, scenario)
