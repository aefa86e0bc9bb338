"""Pods between the API server's JSON and the agent, and the agent's pods of a cluster."""

import copy
from typing import Any

import pytest

from evenkeel.agent.agent import Agent
from evenkeel.api.config import Profile
from evenkeel.api.data_objects import CONFIG_MAP, DataKey, DataObject
from evenkeel.api.manifests import read_manifests
from evenkeel.api.pod import (
    ContainerState,
    ContainerStateTerminated,
    ContainerStatus,
    ObjectMeta,
    Pod,
    PodStatus,
)
from evenkeel.errors import EvenkeelError, InvalidInput
from evenkeel.journal.records import CLUSTER
from evenkeel.kube.node_object import NodeIdentity, has_conditions, node_info, node_status, with_times
from evenkeel.kube.node_object import status_patch as node_patch
from evenkeel.kube.pod_object import (
    NotHonoured,
    ended_status,
    not_honoured_status,
    read_pod,
    status_patch,
    wanted_status,
)
from evenkeel.kube.watched_objects import Services
from evenkeel.policy.lifecycle.pod_state import LifecycleSettings
from evenkeel.runtime.environment import declared
from evenkeel.runtime.interface import Image, Launch, Readiness
from evenkeel.runtime.start_errors import StartFailed
from tests.models.agents import Place, drive, until
from tests.simulated_pod import SimulatedPod
from tests.strategies import container
from tests.strategies import pod as made

ADDRESSES = ("10.0.0.5", "192.168.0.9")


def pod_json(name: str = "web", uid: str = "", **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "host", "command": ["x"], **spec.pop("container", {})}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": uid or f"uid-{name}", "generation": 1},
        "spec": {"nodeName": "node1", "containers": [container], **spec},
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }


def read(value: dict[str, Any]) -> Pod:
    pod = read_pod(value, Profile.DOCUMENTS, ())
    assert isinstance(pod, Pod), pod
    return pod


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(str(tmp_path))


# The API server's JSON


def test_what_this_node_cannot_give_is_reported_of_a_pod():
    pod = read_pod(
        pod_json(volumes=[{"name": "x", "nfs": {"server": "a", "path": "/b"}}]), Profile.DOCUMENTS, ()
    )
    assert isinstance(pod, NotHonoured)
    assert "spec.volumes[0].nfs" in pod.message


@pytest.mark.parametrize("name", ["windows", "Linux"])
def test_a_pod_for_another_system_is_rejected_as_by_kubelet(name: str):
    value = pod_json(os={"name": name})
    refused = read_pod(value, Profile.DOCUMENTS, ())
    assert isinstance(refused, NotHonoured)
    assert refused.reason == "PodOSNotSupported"
    assert not_honoured_status(value, refused) == {
        "phase": "Failed",
        "reason": "PodOSNotSupported",
        "message": "Pod was rejected: Failed to admit pod as the OS field doesn't match node OS",
        "observedGeneration": 1,
    }


def test_a_pod_that_only_this_node_cannot_run_stays_pending():
    value = pod_json()
    status = not_honoured_status(value, NotHonoured("spec.volumes[0].nfs: is not supported here"))
    assert (status["phase"], status["reason"]) == ("Pending", "NotHonoured")
    assert status["message"] == "spec.volumes[0].nfs: is not supported here"


@pytest.mark.parametrize("spec", [{"os": {"name": "linux"}}, {"os": {}}, {}])
def test_a_pod_for_linux_or_for_any_system_is_taken(spec: dict[str, Any]):
    windows = {"windowsOptions": {"runAsUserName": "ContainerUser"}}
    assert read(pod_json(securityContext=windows, container={"securityContext": windows}, **spec))


@pytest.mark.parametrize(
    "name, source",
    [
        ("persistentVolumeClaim", {"claimName": "data"}),
        (
            "ephemeral",
            {
                "volumeClaimTemplate": {
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
                }
            },
        ),
    ],
)
def test_a_claim_of_a_cluster_is_not_a_directory_of_this_machine(name: str, source: dict[str, Any]):
    pod = read_pod(pod_json(volumes=[{"name": "x", name: source}]), Profile.DOCUMENTS, ())
    assert isinstance(pod, NotHonoured)
    assert f"spec.volumes[0].{name}" in pod.message


def test_a_name_that_would_leave_its_directory_is_not_taken_from_the_api_server_either():
    assert isinstance(read_pod(pod_json(uid="../../etc"), Profile.DOCUMENTS, ()), NotHonoured)


def test_a_token_of_a_service_account_is_for_pods_of_a_cluster_only():
    volume = """
        {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {
          containers: [{name: c, image: host, command: [x]}],
          volumes: [{name: t, projected: {sources: [{serviceAccountToken: {path: token}}]}}]}}"""
    with pytest.raises(InvalidInput, match=r"sources\[0\].serviceAccountToken: is not supported here"):
        read_manifests(volume, "test").or_raise()
    sources = [{"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}]
    pod = read(pod_json(volumes=[{"name": "t", "projected": {"sources": sources}}]))
    assert pod.spec.volumes[0].has_secrets


def test_variables_of_services_come_before_the_containers_own():
    services = Services()
    kubernetes = {"clusterIP": "10.1.0.1", "ports": [{"name": "https", "port": 443}]}
    services.listed(
        [
            {"metadata": {"namespace": "default", "name": "kubernetes"}, "spec": kubernetes},
            {
                "metadata": {"namespace": "shop", "name": "my-db"},
                "spec": {"clusterIP": "10.1.0.9", "ports": [{"port": 5432, "protocol": "TCP"}]},
            },
            {
                "metadata": {"namespace": "shop", "name": "headless"},
                "spec": {"clusterIP": "None", "ports": [{}]},
            },
        ]
    )
    found = {one.name: one.value for one in services.env("shop", with_links=True)}
    assert found["KUBERNETES_SERVICE_HOST"] == "10.1.0.1"
    assert found["KUBERNETES_SERVICE_PORT_HTTPS"] == "443"
    assert found["MY_DB_PORT"] == found["MY_DB_PORT_5432_TCP"] == "tcp://10.1.0.9:5432"
    assert not any("HEADLESS" in name for name in found)
    assert all(one.name.startswith("KUBERNETES_") for one in services.env("shop", with_links=False))
    own = pod_json(container={"env": [{"name": "MY_DB_PORT", "value": "mine"}]})
    pod = read_pod(own, Profile.DOCUMENTS, services.env("shop", with_links=True))
    assert isinstance(pod, Pod)
    assert declared(pod, pod.spec.containers[0])["MY_DB_PORT"] == "mine"


def test_a_patch_has_only_what_differs_and_the_uid():
    wanted = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "hostIP": "10.0.0.5"}
    other = {"type": "example.com/ok", "status": "True"}
    before = {
        "phase": "Running",
        "qosClass": "BestEffort",
        "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}, other],
    }
    assert status_patch("u", wanted, before) == {
        "metadata": {"uid": "u"},
        "status": {
            "hostIP": "10.0.0.5",
            "conditions": [{"type": "Ready", "status": "True", "reason": None}],
        },
    }


def test_what_the_api_server_adds_of_empty_fields_is_no_difference():
    ours: dict[str, Any] = {
        "containerStatuses": [{"name": "c", "ready": True, "restartCount": 0}],
        "phase": "Running",
    }
    theirs = copy.deepcopy(ours)
    theirs["containerStatuses"][0] |= {"lastState": {}, "imageID": ""}
    theirs["conditions"] = [{"type": "PodScheduled", "status": "True", "lastProbeTime": None}]
    assert status_patch("u", ours, theirs) is None


@pytest.mark.parametrize("amounts", [{"memory": "16Mi"}, {}], ids=["some", "none"])
def test_the_amounts_of_the_pod_as_a_whole_are_reported_once(amounts):
    """As a kubelet since 1.36, also of a pod without any."""
    simulated = SimulatedPod(made(container(amounts, amounts)), LifecycleSettings(profile=Profile.KUBERNETES))
    simulated.step()
    shown = simulated.pod._replace(status=simulated.status())
    wanted = wanted_status(shown, {"metadata": {}, "spec": {}}, "10.0.0.5", "127.0.0.1")
    assert wanted["resources"] == ({"requests": amounts, "limits": amounts} if amounts else {})
    assert wanted.get("allocatedResources") == (amounts or None)
    patch = status_patch("u", wanted, {})
    assert patch is not None
    assert patch["status"]["resources"] == wanted["resources"]
    assert status_patch("u", wanted, copy.deepcopy(patch["status"])) is None


def test_a_condition_of_a_resize_is_taken_away_when_it_is_over():
    before = {"conditions": [{"type": "PodResizePending", "status": "True"}]}
    patch = status_patch("u", {}, before)
    assert patch is not None
    assert patch["status"]["conditions"] == [{"$patch": "delete", "type": "PodResizePending"}]


def test_a_pod_of_which_nothing_is_left_has_failed_with_containers_of_unknown_end():
    status = ended_status(
        {
            "phase": "Running",
            "containerStatuses": [{"name": "c", "state": {"running": {}}, "ready": True}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
    )
    assert status["phase"] == "Failed"
    assert status["containerStatuses"][0]["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
    assert status["conditions"][0]["status"] == "False"


def test_a_condition_of_the_node_keeps_the_time_of_its_transition(place):
    async def scenario(agent: Agent) -> None:
        identity = NodeIdentity("node1", "node1", "10.0.0.5", 0, {})
        status = node_status(identity, {}, agent.node(), (), agent.runtime, "")
        first = with_times(status, {}, 1000.0)
        assert node_patch(with_times(status, first, 2000.0), first) == {
            "status": {
                "conditions": [
                    {**one, "lastHeartbeatTime": "1970-01-01T00:33:20Z"} for one in first["conditions"]
                ]
            }
        }
        assert [one["type"] for one in first["conditions"]][-1] == "Ready"
        assert has_conditions(first, status)
        unknown = {"conditions": [{**one, "status": "Unknown"} for one in first["conditions"]]}
        assert not has_conditions(unknown, status)  # a controller has not heard of the node
        away = node_status(identity, {}, agent.node(), (), agent.runtime, "the runtime is away")
        down = with_times(away, first, 2000.0)
        assert down["conditions"][-1]["reason"] == "KubeletNotReady"
        assert down["conditions"][-1]["lastTransitionTime"] == "1970-01-01T00:33:20Z"

    drive(place, scenario)


def test_a_node_says_of_itself_only_what_is_true(place):
    async def scenario(agent: Agent) -> None:
        plain = NodeIdentity("node1", "node1", "10.0.0.5", 0, {}, swap_bytes=1 << 30)
        info = node_info(plain)
        assert info["swap"] == {"capacity": 1 << 30}
        assert info["containerRuntimeVersion"].startswith("evenkeel://")
        assert all(info[name] for name in ("machineID", "bootID", "kernelVersion", "osImage", "architecture"))
        status = node_status(plain, info, agent.node(), (), agent.runtime, "")
        assert status["features"] == {"supplementalGroupsPolicy": True}

        containers = plain._replace(has_container_runtime=True)
        runtime = Readiness(is_ready=True, message="", version="containerd://1.7.0")
        of_containers = node_status(containers, info, agent.node(), (), runtime, "")
        assert of_containers["nodeInfo"]["containerRuntimeVersion"] == "containerd://1.7.0"
        assert "features" not in of_containers
        # A kubelet was here before.
        claims = {
            "features": {"supplementalGroupsPolicy": True},
            "declaredFeatures": ["X"],
            "runtimeHandlers": [{}],
        }
        patch = node_patch(with_times(of_containers, claims, 0.0), claims)["status"]
        declared = [
            "InPlacePodLevelResourcesVerticalScaling",
            "InPlacePodVerticalScalingInitContainers",
            "RestartAllContainersOnContainerExits",
        ]
        assert {name: patch[name] for name in claims} == {
            **dict.fromkeys(claims),
            "declaredFeatures": declared,
        }

    drive(place, scenario)


def test_a_node_names_its_largest_images_with_digests_first(place):
    async def scenario(agent: Agent) -> None:
        images = [
            Image(f"i{number}", (f"a:{number}", f"a@sha256:{number}"), number, False) for number in range(60)
        ]
        status = node_status(
            NodeIdentity("node1", "node1", "10.0.0.5", 0, {}), {}, agent.node(), images, agent.runtime, ""
        )
        assert [one["sizeBytes"] for one in status["images"]] == list(range(59, 9, -1))
        assert status["images"][0]["names"] == ["a@sha256:59", "a:59"]

    drive(place, scenario)


def test_the_generation_that_was_seen_is_never_lowered():
    pod = read(pod_json())
    older = pod._replace(metadata=pod.metadata._replace(generation=3))
    seen = pod_json() | {"status": {"observedGeneration": 5}}
    assert wanted_status(older, seen, *ADDRESSES)["observedGeneration"] == 5
    assert wanted_status(older, pod_json(), *ADDRESSES)["observedGeneration"] == 3


def test_the_messages_of_ended_containers_are_bounded_together():
    pod = read(pod_json())
    many = tuple(pod.spec.containers[0]._replace(name=f"c{number}") for number in range(4))
    ended = ContainerState(terminated=ContainerStateTerminated(message="é" * 2048))
    statuses = tuple(ContainerStatus(name=one.name, state=ended, last_state=ended) for one in many)
    pod = pod._replace(
        spec=pod.spec._replace(containers=many), status=PodStatus("Failed", container_statuses=statuses)
    )
    for one in wanted_status(pod, pod_json(), *ADDRESSES)["containerStatuses"]:
        for state in ("state", "lastState"):
            assert len(one[state]["terminated"]["message"].encode()) == (12 << 10) // 4


# The agent


def phase(agent: Agent, uid: str) -> str:
    pod = agent.cluster_pods.shown(uid)
    return pod.status.phase if pod is not None else ""


def waits(agent: Agent, uid: str) -> str:
    """The reason why its container waits."""
    pod = agent.cluster_pods.shown(uid)
    state = (
        pod.status.container_statuses[0].state if pod is not None and pod.status.container_statuses else None
    )
    return state.waiting.reason if state is not None and state.waiting is not None else ""


def test_a_pod_of_a_cluster_runs_and_is_reported_with_its_generation(place):
    async def scenario(agent: Agent) -> None:
        value = pod_json()
        agent.cluster_pods.put(read(value))
        await until(lambda: phase(agent, "uid-web") == "Running")
        shown = agent.cluster_pods.shown("uid-web")
        assert shown is not None
        status = wanted_status(shown, value, *ADDRESSES)
        assert status["observedGeneration"] == 1
        assert status["hostIP"] == ADDRESSES[0]
        assert "qosClass" not in status
        assert "memoryQosClass" not in status["containerStatuses"][0]

    drive(place, scenario)


def test_it_runs_on_with_the_next_agent_that_knows_no_cluster(place):
    async def runs(agent: Agent) -> None:
        agent.cluster_pods.put(read(pod_json()))
        await until(lambda: phase(agent, "uid-web") == "Running")

    async def still_runs(agent: Agent) -> None:
        assert phase(agent, "uid-web") == "Running"
        assert await agent.delete("default/web")

    drive(place, runs)
    drive(place, still_runs)
    assert len(place.runtime.starts) == 1


def test_a_refused_pod_is_not_tried_again(place):
    async def scenario(agent: Agent) -> None:
        agent.cluster_pods.put(read(pod_json("first", container={"resources": {"requests": {"cpu": "3"}}})))
        agent.cluster_pods.put(read(pod_json("second", container={"resources": {"requests": {"cpu": "3"}}})))
        await until(lambda: phase(agent, "uid-second") == "Failed")
        shown = agent.cluster_pods.shown("uid-second")
        assert shown is not None
        status = wanted_status(shown, pod_json("second"), *ADDRESSES)
        assert status["reason"] == "OutOfcpu"
        assert status["message"].startswith("Pod was rejected: ")
        agent.cluster_pods.end("uid-first", 1.0)
        await until(lambda: agent.cluster_pods.get("uid-first") is None)
        agent.steps.room_appeared()
        await agent.pod_loop.stepped()
        assert phase(agent, "uid-second") == "Failed"

    drive(place, scenario)


def test_an_evicted_pod_does_not_come_back(place):
    async def scenario(agent: Agent) -> None:
        agent.cluster_pods.put(read(pod_json()))
        await until(lambda: phase(agent, "uid-web") == "Running")
        agent.watches.memory.recorder.evict("uid-web", "for the test", place.now)
        await until(lambda: phase(agent, "uid-web") == "Failed")
        record = agent.cluster_pods.get("uid-web")
        assert record is not None
        assert record.is_replaced_by_owner

    drive(place, scenario)


def test_a_pod_of_the_same_name_waits_until_the_old_one_is_gone(place):
    async def scenario(agent: Agent) -> None:
        agent.cluster_pods.put(read(pod_json(uid="old")))
        await until(lambda: phase(agent, "old") == "Running")
        agent.cluster_pods.end("old", 1.0)
        agent.cluster_pods.put(read(pod_json(uid="new")))
        await until(lambda: phase(agent, "new") == "Running")
        assert agent.cluster_pods.get("old") is None
        assert [attempt.uid for attempt in place.runtime.starts] == ["old", "new"]

    drive(place, scenario)


def test_amounts_change_in_place_and_another_image_restarts_its_container(place):
    async def scenario(agent: Agent) -> None:
        value = pod_json(container={"resources": {"requests": {"cpu": "1"}}})
        agent.cluster_pods.put(read(value))
        await until(lambda: phase(agent, "uid-web") == "Running")
        value["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
        value["metadata"]["generation"] = 2
        agent.cluster_pods.put(read(value))
        record = agent.cluster_pods.get("uid-web")
        assert record is not None
        assert str(record.pod.spec.containers[0].resources.requests["cpu"]) == "2"
        assert record.pod.metadata.generation == 2
        assert not place.runtime.stopped
        value["spec"]["containers"][0]["image"] = "other"
        agent.cluster_pods.put(read(value))
        await until(lambda: len(place.runtime.starts) == 2)

    drive(place, scenario)


@pytest.mark.parametrize("fails", [False, True])
def test_an_image_that_changes_while_the_container_is_being_started_is_started_at_once(place, fails: bool):
    images: list[str] = []
    value = pod_json()

    async def scenario(agent: Agent) -> None:
        def starts(launch: Launch) -> None:
            images.append(launch.container.image)
            if len(images) == 1:
                value["spec"]["containers"][0]["image"] = "other"
                agent.cluster_pods.put(read(value))
                if fails:
                    raise StartFailed("the former image is broken")

        place.runtime.on_start = starts
        agent.cluster_pods.put(read(value))
        await until(lambda: len(images) == 2)
        assert images == ["host", "other"]
        await until(lambda: phase(agent, "uid-web") == "Running")
        shown = agent.cluster_pods.shown("uid-web")
        assert shown is not None
        assert shown.status.container_statuses[0].restart_count == (0 if fails else 1)

    drive(place, scenario)


def test_a_resize_without_room_waits_and_its_generation_is_seen(place):
    async def scenario(agent: Agent) -> None:
        value = pod_json(container={"resources": {"requests": {"cpu": "1"}}})
        agent.cluster_pods.put(read(value))
        await until(lambda: phase(agent, "uid-web") == "Running")
        value["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "90"}}
        value["metadata"]["generation"] = 2
        agent.cluster_pods.put(read(value))
        await agent.pod_loop.stepped()
        shown = agent.cluster_pods.shown("uid-web")
        assert shown is not None
        status = wanted_status(shown, value, *ADDRESSES)
        assert [one["reason"] for one in status["conditions"] if one["type"] == "PodResizePending"] == [
            "Infeasible"
        ]
        assert status["observedGeneration"] == 2

    drive(place, scenario)


def test_pods_of_a_cluster_get_no_object_of_this_machine_and_others_none_of_the_cluster(place):
    reference = {"envFrom": [{"configMapRef": {"name": "app"}}]}
    text = (
        "{apiVersion: v1, kind: Pod, metadata: {name: local}, spec: {containers: ["
        "{name: main, image: host, command: [x], envFrom: [{configMapRef: {name: app}}]}]}}\n---\n"
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: app}, data: {WHOSE: machine}}"
    )
    seen: dict[str, str] = {}

    def note(launch: Launch) -> None:
        seen[launch.pod.metadata.name] = declared(launch.pod, launch.container, launch.data)["WHOSE"]

    place.runtime.on_start = note

    async def scenario(agent: Agent) -> None:
        reading = read_manifests(text, "test").or_raise()
        await agent.apply(reading.pods, objects=reading.objects)
        agent.cluster_pods.put(read(pod_json(container=reference)))
        await until(lambda: "local" in seen and waits(agent, "uid-web") == "CreateContainerConfigError")
        key = DataKey(CONFIG_MAP, "default", "app")
        metadata = ObjectMeta(name="app", namespace="default")
        agent.data.cluster_has(key, DataObject(CONFIG_MAP, metadata, {"WHOSE": b"cluster"}))
        await until(lambda: "web" in seen)
        assert seen == {"local": "machine", "web": "cluster"}

    drive(place, scenario)


def test_a_pod_of_the_cluster_is_not_deleted_or_changed_at_the_socket(place):
    async def scenario(agent: Agent) -> None:
        agent.cluster_pods.join()
        agent.cluster_pods.put(read(pod_json()))
        await until(lambda: phase(agent, "uid-web") == "Running")
        with pytest.raises(EvenkeelError, match="belongs to the cluster"):
            await agent.delete("default/web")
        with pytest.raises(EvenkeelError, match="belongs to the cluster"):
            await agent.apply([read(pod_json())])
        record = agent.cluster_pods.get("uid-web")
        assert record is not None
        assert record.source == CLUSTER

    drive(place, scenario)


def test_without_a_cluster_its_room_is_not_imported():
    import subprocess
    import sys

    code = (
        "import sys, evenkeel.cli.up, evenkeel.agent.startup; print([m for m in sys.modules if 'kube.' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
