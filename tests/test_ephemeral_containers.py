"""Ephemeral containers: added to a pod that runs, started once, and without a say in what becomes of the pod."""

import copy
from typing import Any

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.api.config import Profile
from evenkeel.api.container import EphemeralContainer, SecurityContext
from evenkeel.api.decode import Findings, decode
from evenkeel.api.encode import encode
from evenkeel.api.manifests import read_manifests
from evenkeel.api.pod import Pod
from evenkeel.cgroup.plan import present_containers
from evenkeel.kube.pod_object import NotHonoured, ended_status, read_pod, wanted_status
from evenkeel.policy.admission import NOT_HONOURED, Refusal
from evenkeel.policy.lifecycle import changes, stops
from evenkeel.policy.provision import PlannedPod
from evenkeel.policy.qos import QoSClass, pod_class
from evenkeel.runtime import security
from evenkeel.runtime.interface import Launch
from evenkeel.runtime.process.process_refusals import Powers, refusal
from evenkeel.runtime.start_errors import NoImage
from tests.models.agents import Place, drive, until
from tests.models.quiet_cluster import ADDRESSES, pod_sync
from tests.simulated_pod import SimulatedPod
from tests.strategies import container, node, planned, pod

DEBUGGER = EphemeralContainer(name="debugger", image="host", command=("sh",))
TRACING = {"capabilities": {"add": ["SYS_PTRACE"]}}
ALL = {"cpu": "1", "memory": "1Gi"}


def with_debugger(of: Pod, **more: Any) -> Pod:
    return of.with_ephemeral(DEBUGGER._replace(**more))


def simulated(*, target: str = "", **spec: Any) -> SimulatedPod:
    """A pod that runs, and then gets its debugger."""
    one = SimulatedPod(pod(container(name="main"), **spec))
    one.step()
    one.pod = with_debugger(one.pod, target_container_name=target)
    return one


# Decisions


def test_it_starts_beside_what_runs_and_is_never_started_again():
    one = simulated()
    assert one.step().start == ("debugger",)
    one.end("debugger", 1)
    assert one.step(1000.0).start == ()
    assert one.phase == "Running"
    (status,) = one.status().ephemeral_container_statuses
    assert status.state.terminated.exit_code == 1
    assert (status.ready, status.restart_count) == (False, 0)


def test_it_is_not_started_again_after_a_reboot_either():
    one = simulated()
    one.step()
    one.end("debugger", 137)
    one.end("main", 137)
    one.state = changes.begun_anew(one.state)
    assert one.step().start == ("main",)


def test_it_starts_where_init_containers_do_not_get_on():
    one = SimulatedPod(with_debugger(pod(container(name="main"), init=(container(name="first"),))))
    assert one.step().start == ("debugger", "first")
    assert one.phase == "Pending"


def test_one_whose_image_is_missing_is_tried_again():
    one = simulated()
    one.state = changes.asked_to_start(one.state, "debugger")
    one.state = changes.no_image(
        one.state, "debugger", "ErrImagePull", "no such image", one.now, one.settings
    )
    assert one.look().start == ()
    (status,) = one.status().ephemeral_container_statuses
    assert status.state.waiting.reason == "ErrImagePull"
    assert one.step(10.0).start == ("debugger",)


def test_one_with_a_target_waits_until_that_runs():
    one = simulated(target="main")
    one.end("main", 1)
    one.state = changes.asked_to_start(one.state, "main")
    assert one.look().start == ()
    one.state = changes.started(one.state, one.container("main"), one.now)
    assert one.look().start == ("debugger",)


def test_it_keeps_no_pod_from_ending_and_ends_with_it():
    one = simulated(restart_policy="Never")
    one.step()
    one.end("main")
    todo = one.step()
    assert [stop.container for stop in todo.stop] == ["debugger"]
    assert one.phase == "Running", "a pod is terminal when nothing of it runs"
    one.end("debugger", 143)
    assert one.step().is_over
    assert one.phase == "Succeeded"


def test_it_ends_with_a_deleted_pod():
    one = simulated()
    one.step()
    one.state = stops.deleted(one.pod, one.state, one.now)
    assert {stop.container for stop in one.step().stop} == {"main", "debugger"}


def test_a_pod_is_ready_whatever_becomes_of_it():
    one = simulated()
    ready = next(each for each in one.status().conditions if each.type == "Ready")
    assert ready.status == "True"
    one.step()
    one.end("debugger", 1)
    assert next(each for each in one.status().conditions if each.type == "Ready") == ready


def test_the_oom_kill_of_a_debugger_evicts_no_pod():
    one = simulated()
    one.step()
    one.end("debugger", 137, is_oom_killed=True)
    assert one.state.verdict is None
    assert one.state.container("debugger").ended.reason == "OOMKilled"


@pytest.mark.parametrize("profile", [Profile.DOCUMENTS, Profile.KUBERNETES])
def test_it_changes_neither_class_nor_limits_and_has_none_of_its_own(profile: Profile):
    guaranteed = pod(container(ALL, ALL, name="main"))
    view = node(profile=str(profile))
    before, after = planned(view, guaranteed), planned(view, with_debugger(guaranteed))
    assert pod_class(with_debugger(guaranteed), profile) == QoSClass.GUARANTEED
    (own,) = after.keys() - before.keys()
    assert own == "podp/debugger"
    assert after[own]["memory.max"] == "max"
    assert {path: after[path] for path in before} == before


def test_it_has_a_cgroup_while_the_pod_starts_too():
    starting = with_debugger(pod(container(name="main"), init=(container(name="first"),)))
    assert [one.name for one in present_containers(PlannedPod(starting, 0))] == ["first", "debugger"]


def test_it_has_no_cgroup_once_it_has_ended():
    one = with_debugger(pod(container(name="main")))
    assert [each.name for each in present_containers(PlannedPod(one, ended=("debugger",)))] == ["main"]


def test_it_is_kept_by_the_journal():
    one = with_debugger(pod(container(name="main")), target_container_name="main", tty=True)
    assert decode(Pod, encode(one), Findings()) == one


# What is written


def pod_json(*ephemeral: dict[str, Any], uid: str = "uid-web", **spec: Any) -> dict[str, Any]:
    main = {"name": "main", "image": "host", "command": ["x"]}
    return {
        "metadata": {"name": "web", "namespace": "default", "uid": uid, "generation": 1 + len(ephemeral)},
        "spec": {"containers": [main], "ephemeralContainers": list(ephemeral), **spec},
        "status": {"phase": "Pending"},
    }


def debugger(name: str = "debugger", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "host", "command": ["sh"], **more}


def read(value: dict[str, Any]) -> Pod:
    one = read_pod(value, Profile.DOCUMENTS, ())
    assert isinstance(one, Pod), one
    return one


def test_a_manifest_cannot_have_any():
    text = """{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {
        containers: [{name: c, image: host, command: [x]}], ephemeralContainers: [{name: d, image: host}]}}"""
    (problem,) = read_manifests(text, "f.yaml").problems
    assert problem.field == "spec.ephemeralContainers"
    assert "evenkeel exec" in problem.message
    assert len(read_manifests(text, "f.yaml", is_to_run=False).or_raise().pods) == 1


@pytest.mark.parametrize(
    "written, words",
    [
        (debugger("main"), "another container of this pod"),
        (debugger(targetContainerName="other"), "no container of this pod"),
        (debugger(ports=[{"containerPort": 80}]), "ports"),
        (debugger(livenessProbe={"exec": {"command": ["x"]}}), "livenessProbe"),
        (debugger(resources={"limits": {"memory": "1Gi"}}), "resources"),
        (debugger(lifecycle={"preStop": {"sleep": {"seconds": 1}}}), "lifecycle"),
        (debugger(volumeMounts=[{"name": "v", "mountPath": "/v", "subPath": "a"}]), "subPath"),
        (debugger("../x"), "name"),
    ],
)
def test_what_it_must_not_have_is_reported(written: dict[str, Any], words: str):
    value = pod_json(written, volumes=[{"name": "v", "emptyDir": {}}])
    refused = read_pod(value, Profile.DOCUMENTS, ())
    assert isinstance(refused, NotHonoured)
    assert "spec.ephemeralContainers[0]" in refused.message
    assert words in refused.message


@pytest.mark.parametrize("target", ["main", "sidecar"])
def test_its_target_is_any_other_container(target: str):
    sidecar = {"name": "sidecar", "image": "host", "command": ["sh"], "restartPolicy": "Always"}
    one = read(pod_json(debugger(targetContainerName=target), initContainers=[sidecar]))
    assert one.spec.process_target("debugger") == target


def test_it_has_the_defaults_of_a_container():
    (one,) = read(pod_json(debugger(image="registry.example/tools:1"))).spec.ephemeral_containers
    assert (one.image_pull_policy, one.termination_message_policy) == ("IfNotPresent", "File")


def test_only_root_enters_the_processes_of_another_container():
    one = read(pod_json(debugger(targetContainerName="main")))
    assert refusal(one, Powers(0, 0)) is None
    for powers in (Powers(1000, 1000), Powers(0, 0, enters_namespaces=False)):
        refused = refusal(one, powers)
        assert refused is not None
        assert "spec.ephemeralContainers[0].targetContainerName" in refused.message
    shared = one._replace(spec=one.spec._replace(share_process_namespace=True))
    assert shared.spec.process_target("debugger") == "", "it sees the others anyway"


def test_the_tracing_that_kubectl_asks_for_is_withheld_and_every_other_power_refused():
    def asking(*names: str) -> Pod:
        return read(pod_json(debugger(securityContext={"capabilities": {"add": list(names)}})))

    tracing = asking("SYS_PTRACE")
    assert not list(security.problems(tracing, security.Granted()))
    container = tracing.spec.ephemeral_containers[0].container
    assert security.withheld(tracing, container) == {"SYS_PTRACE"}
    assert security.privileges(tracing, container).capabilities == security.DEFAULT_CAPABILITIES
    (problem,) = security.problems(asking("SYS_PTRACE", "SYS_ADMIN"), security.Granted())
    assert not security.reaches_host(security.Granted(host_access=("privileged",), no_privileged="processes"))
    assert "SYS_ADMIN would reach" in problem
    own = {"capabilities": {"add": ["SYS_PTRACE"]}}
    regular = read(pod_json())
    main = regular.spec.containers[0]._replace(security_context=decode(SecurityContext, own, Findings()))
    regular = regular._replace(spec=regular.spec._replace(containers=(main,)))
    (problem,) = security.problems(regular, security.Granted())
    assert "SYS_PTRACE would reach" in problem


def test_nothing_is_withheld_where_the_operator_lets_pods_be_as_mighty_as_root():
    assert security.reaches_host(security.Granted(host_access=("privileged",)))
    one = read(pod_json(debugger(securityContext=TRACING)))
    container = one.spec.ephemeral_containers[0].container
    assert security.withheld(one, container, may_trace=True) == frozenset()
    assert "SYS_PTRACE" in security.privileges(one, container, may_trace=True).capabilities


def test_nothing_is_withheld_from_a_privileged_container_which_has_all_capabilities():
    asked = {"privileged": True, "capabilities": {"add": ["SYS_PTRACE"]}}
    pod = read(pod_json(debugger(securityContext=asked)))
    assert security.withheld(pod, pod.spec.ephemeral_containers[0].container) == frozenset()


def test_the_end_of_one_that_nobody_saw_is_reported():
    before = {"phase": "Running", "ephemeralContainerStatuses": [{"name": "d", "state": {"running": {}}}]}
    (status,) = ended_status(before)["ephemeralContainerStatuses"]
    assert status["state"]["terminated"]["reason"] == "ContainerStatusUnknown"


# The agent


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(str(tmp_path))


def shown(agent: Agent) -> Pod:
    one = agent.cluster_pods.shown("uid-web")
    assert one is not None
    return one


def is_pod_running(agent: Agent) -> bool:
    one = agent.cluster_pods.shown("uid-web")
    return one is not None and one.status.phase == "Running"


def states(agent: Agent) -> dict[str, Any]:
    return {one.name: one.state for one in shown(agent).status.ephemeral_container_statuses}


def is_running(agent: Agent, name: str) -> bool:
    state = states(agent).get(name)
    return state is not None and state.running is not None


async def run_with(agent: Agent, *ephemeral: dict[str, Any]) -> None:
    agent.cluster_pods.put(read(pod_json()))
    await until(lambda: is_pod_running(agent))
    agent.cluster_pods.put(read(pod_json(*ephemeral)))


def test_an_update_starts_it_beside_the_others_and_the_cluster_hears_of_it(place):
    async def scenario(agent: Agent) -> None:
        await run_with(agent, debugger())
        await until(lambda: is_running(agent, "debugger"))
        agent.cluster_pods.put(read(pod_json(debugger(), debugger("another"))))
        await until(lambda: is_running(agent, "another"))
        assert is_running(agent, "debugger")
        status = wanted_status(shown(agent), pod_json(), *ADDRESSES)
        names = [one["name"] for one in status["ephemeralContainerStatuses"]]
        assert names == ["another", "debugger"]
        assert status["observedGeneration"] == 3
        assert not any("memoryQosClass" in one for one in status["ephemeralContainerStatuses"])

    drive(place, scenario)
    assert [attempt.container for attempt in place.runtime.starts] == ["main", "debugger", "another"]


def test_its_cgroup_is_removed_with_its_end_and_stays_away_with_the_next_agent(place):
    def has_cgroup() -> bool:
        return any(path.endswith("/debugger") for path in place.kernel.cgroups)

    async def ends(agent: Agent) -> None:
        await run_with(agent, debugger())
        await until(lambda: is_running(agent, "debugger"))
        assert has_cgroup()
        place.runtime.end(place.runtime.starts[1], 1)
        await until(lambda: not has_cgroup())
        assert is_pod_running(agent)

    async def goes_on(agent: Agent) -> None:
        assert is_pod_running(agent)
        assert not has_cgroup()

    drive(place, ends)
    drive(place, goes_on)


@pytest.mark.parametrize("may_trace", [False, True])
def test_what_it_runs_without_is_recorded_once_however_often_it_is_tried(place, may_trace):
    tries: list[bool] = []

    def no_image(launch: Launch) -> None:
        if launch.container.name == "debugger":
            tries.append(launch.may_trace)
            if len(tries) < 3:
                raise NoImage("no such image", "ErrImagePull")

    place.runtime.may_trace = may_trace
    place.runtime.on_start = no_image

    async def scenario(agent: Agent) -> None:
        await run_with(agent, debugger(securityContext=TRACING))
        for count in (1, 2):
            await until(lambda count=count: len(tries) == count)
            await until(lambda: states(agent)["debugger"].waiting is not None)
            place.now += 60.0
            agent.cluster_pods.put(read(pod_json(debugger(securityContext=TRACING), debugger(f"d{count}"))))
        await until(lambda: is_running(agent, "debugger"))
        found = [one.times for one in agent.events("default/web") if one.reason == "NotGranted"]
        assert found == ([] if may_trace else [1])

    drive(place, scenario)
    assert tries == [may_trace] * 3


def test_it_runs_on_with_the_next_agent(place):
    async def starts(agent: Agent) -> None:
        await run_with(agent, debugger())
        await until(lambda: is_running(agent, "debugger"))

    async def runs_on(agent: Agent) -> None:
        assert is_running(agent, "debugger")
        agent.cluster_pods.put(read(pod_json(debugger())))
        await agent.pod_loop.stepped()
        assert is_running(agent, "debugger")

    drive(place, starts)
    drive(place, runs_on)
    assert len(place.runtime.starts) == 2


def test_none_is_taken_away_by_an_older_version_of_the_pod(place):
    async def scenario(agent: Agent) -> None:
        await run_with(agent, debugger())
        await until(lambda: is_running(agent, "debugger"))
        agent.cluster_pods.put(read(pod_json()))
        assert [one.name for one in shown(agent).spec.ephemeral_containers] == ["debugger"]

    drive(place, scenario)


def test_one_that_the_runtime_cannot_run_fails_alone(place):
    def refuses(pod: Pod) -> Refusal | None:
        return Refusal(NOT_HONOURED, "privileged") if pod.spec.ephemeral("bad") else None

    place.runtime.refusal = refuses  # type: ignore[method-assign]

    async def scenario(agent: Agent) -> None:
        await run_with(agent, debugger("bad"), debugger("good"))
        await until(lambda: is_running(agent, "good"))
        await until(lambda: states(agent)["bad"].terminated is not None)
        assert states(agent)["bad"].terminated.message == "privileged"
        assert shown(agent).status.phase == "Running"

    drive(place, scenario)
    assert [attempt.container for attempt in place.runtime.starts] == ["main", "good"]


def test_a_new_pod_that_has_one_already_is_not_refused_for_it(place):
    place.runtime.refusal = lambda pod: (  # type: ignore[method-assign]
        Refusal(NOT_HONOURED, "privileged") if pod.spec.ephemeral_containers else None
    )

    async def scenario(agent: Agent) -> None:
        agent.cluster_pods.put(read(copy.deepcopy(pod_json(debugger()))))
        await until(lambda: is_pod_running(agent))

    drive(place, scenario)


def test_a_change_that_cannot_be_honoured_is_reported_once_and_the_pod_runs_on(place):
    async def scenario(agent: Agent) -> None:
        said: list[str] = []
        sync = pod_sync(agent, said)
        sync.changed("ADDED", pod_json())
        await until(lambda: is_pod_running(agent))
        for label in ("one", "two"):
            changed = pod_json(debugger(volumeMounts=[{"name": "none", "mountPath": "/none"}]))
            changed["metadata"]["labels"] = {"changed": label}
            sync.changed("MODIFIED", changed)
        assert len(said) == 1
        assert "spec.ephemeralContainers[0].volumeMounts[0].name" in said[0]
        sync.changed("MODIFIED", pod_json(debugger()))
        await until(lambda: is_running(agent, "debugger"))

    drive(place, scenario)
