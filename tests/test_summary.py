"""Kubernetes' Summary API, and the answers that Kubernetes' own client reads."""

import asyncio
import json

import pytest

from evenkeel.api.config import KubeletConfiguration, MemorySwapConfiguration
from evenkeel.api.scalars import Amount
from evenkeel.policy.eviction.snapshot import FilesystemFigures
from evenkeel.server.summary import summary
from tests.fake_front import FakeFront, running, served
from tests.models.agents import pods_of
from tests.models.http_client import Http, ask
from tests.models.manifests import PODS
from tests.models.node_snapshots import GIB, MIB, SnapshotMaker


def summary_of(manifests=PODS, maker=None, **options):
    maker = maker or SnapshotMaker()
    pods = tuple(running(pod) for pod in pods_of(manifests))
    maker.node_snapshot(pods)
    return json.loads(asyncio.run(summary(maker.node_snapshot(pods), **options)))


@pytest.mark.req("B11")
def test_the_node_is_answered_as_in_kubelet():
    node = summary_of()["node"]
    assert node["memory"]["availableBytes"] == 20 * GIB
    assert node["memory"]["workingSetBytes"] == 11 * GIB
    assert node["memory"]["rssBytes"] == 9 * GIB
    assert node["cpu"]["usageCoreNanoSeconds"] == 10_000_000_000
    assert node["cpu"]["usageNanoCores"] == 2_000_000_000
    assert node["cpu"]["time"].endswith("Z")
    assert node["fs"]["usedBytes"] == 40 * GIB
    assert node["fs"]["inodesUsed"] == 100
    for place in ("imageFs", "containerFs"):
        assert node["runtime"][place]["capacityBytes"] == 100 * GIB
        assert node["runtime"][place]["usedBytes"] == 7 * GIB
        assert node["runtime"][place]["inodesUsed"] == 70
    assert node["rlimit"] == {"time": node["cpu"]["time"], "maxpid": 32768, "curproc": 300}
    assert node["network"]["name"] == "eth0"
    assert node["network"]["interfaces"][0]["txBytes"] == 2000
    assert node["memory"]["psi"]["some"]["total"] == 500_000  # microseconds, as kubelet hands them on
    assert node["swap"]["swapUsageBytes"] == 0


@pytest.mark.req("B11")
def test_daemons_and_all_pods_together_are_system_containers():
    node = summary_of()["node"]
    system = {one["name"]: one for one in node["systemContainers"]}
    assert {"pods", "kubelet", "misc"} <= system.keys()
    assert system["kubelet"]["memory"]["workingSetBytes"] == 30 * MIB
    pods = system["pods"]["memory"]
    assert pods["availableBytes"] == 32 * GIB - 100 * MIB


@pytest.mark.req("B11")
def test_system_containers_add_up_to_the_node():
    node = summary_of()["node"]
    parts = [one for one in node["systemContainers"] if one["name"] in ("pods", "kubelet", "runtime", "misc")]
    assert len(parts) == 4
    for kind, names in (
        ("memory", ("usageBytes", "workingSetBytes", "rssBytes")),
        ("cpu", ("usageCoreNanoSeconds", "usageNanoCores")),
    ):
        for name in names:
            assert sum(one[kind][name] for one in parts) == node[kind][name], name


@pytest.mark.req("B11")
def test_a_pod_has_its_containers_and_its_disk():
    pod = next(one for one in summary_of()["pods"] if one["podRef"]["name"] == "web")
    assert pod["podRef"]["namespace"] == "default"
    container = pod["containers"][0]
    assert container["name"] == "app"
    assert container["startTime"] == "2026-11-16T00:00:00Z"
    assert container["memory"]["availableBytes"] == 28 * MIB  # of its limit
    assert container["rootfs"]["usedBytes"] == 4096
    assert container["logs"]["inodesUsed"] == 1
    assert container["cpu"]["usageNanoCores"] == 250_000_000
    assert pod["ephemeral-storage"]["usedBytes"] == 4096 + 8192
    assert pod["ephemeral-storage"]["inodesUsed"] == 2 + 1
    assert pod["process_stats"]["process_count"] == 3


@pytest.mark.req("B11")
def test_layers_on_a_filesystem_of_their_own_have_figures_apart_from_images():
    maker = SnapshotMaker()
    pods = tuple(running(pod) for pod in pods_of(PODS))
    node_snapshot = maker.node_snapshot(pods)
    signals = node_snapshot.sweep.node
    elsewhere = FilesystemFigures(Amount(GIB), Amount(2 * GIB), Amount(9), Amount(10))
    signals = signals._replace(
        imagefs=elsewhere, containerfs=signals.nodefs, dedicated_imagefs=True, separate_containerfs=True
    )
    node_snapshot = node_snapshot._replace(sweep=node_snapshot.sweep._replace(node=signals))
    runtime = json.loads(asyncio.run(summary(node_snapshot)))["node"]["runtime"]
    assert (runtime["imageFs"]["capacityBytes"], runtime["imageFs"]["usedBytes"]) == (2 * GIB, 7 * GIB)
    assert runtime["containerFs"]["capacityBytes"] == 100 * GIB
    assert (runtime["containerFs"]["usedBytes"], runtime["containerFs"]["inodesUsed"]) == (2 * 4096, 2 * 2)


SHARED = """\
apiVersion: v1
kind: Pod
metadata: {name: shared}
spec:
  resources: {limits: {memory: 256Mi, cpu: "1"}}
  containers:
  - {name: a, image: host, resources: {requests: {memory: 32Mi}}}
  - {name: b, image: host, resources: {requests: {memory: 32Mi}, limits: {memory: 128Mi}}}
"""


@pytest.mark.req("B11", "D2")
@pytest.mark.parametrize("profile", ["documents", "kubernetes"])
def test_a_container_without_a_limit_of_its_own_has_what_is_left_of_the_pods(profile):
    (pod,) = summary_of(SHARED, SnapshotMaker(KubeletConfiguration(profile=profile)))["pods"]
    left = {one["name"]: one["memory"]["availableBytes"] for one in pod["containers"]}
    assert left == {"a": 156 * MIB, "b": 28 * MIB}


@pytest.mark.req("B11")
def test_a_container_with_a_swap_limit_has_its_available_swap():
    behaviour = MemorySwapConfiguration("LimitedSwap")
    config = KubeletConfiguration(profile="kubernetes", memory_swap=behaviour)
    maker = SnapshotMaker(config, swap_bytes=64 * GIB)
    pods = {one["podRef"]["name"]: one for one in summary_of(maker=maker)["pods"]}
    # The part of the swap that its request is of the memory, less what it has there.
    (web,), (batch,) = pods["web"]["containers"], pods["batch"]["containers"]
    assert web["swap"]["swapAvailableBytes"] == 2 * 64 * MIB - web["swap"]["swapUsageBytes"]
    assert batch["swap"]["swapAvailableBytes"] == 0
    assert "swapAvailableBytes" not in pods["web"]["swap"]  # nothing bounds the pod's


def test_without_a_limit_nothing_is_said_to_be_available():
    pod = next(one for one in summary_of()["pods"] if one["podRef"]["name"] == "batch")
    assert "availableBytes" not in pod["containers"][0]["memory"]
    assert "availableBytes" not in pod["memory"]


def test_only_cpu_and_memory_is_only_that():
    short = summary_of(only_cpu_and_memory=True)
    assert not {"fs", "network", "rlimit", "runtime", "io"} & short["node"].keys()
    pod = short["pods"][0]
    assert pod.keys() == {"podRef", "startTime", "containers", "cpu", "memory", "swap"}
    assert pod["containers"][0].keys() == {"name", "startTime", "cpu", "memory", "swap"}


def test_another_value_of_a_boolean_parameter_is_refused(tmp_path):
    with served(FakeFront(), tmp_path) as agent:
        assert ask(agent, "GET", "/stats/summary?only_cpu_and_memory=true")[0] == 200
        status, error = ask(agent, "GET", "/stats/summary?only_cpu_and_memory=perhaps")
        assert status == 400
        assert "true or false" in error["message"]


def test_the_agent_is_ready_unless_it_says_why_not(tmp_path):
    front = FakeFront()
    with served(front, tmp_path) as agent:
        assert ask(agent, "GET", "/readyz") == (200, b"ok")
        front.trouble = "the journal cannot be written: the disk is full"
        status, error = ask(agent, "GET", "/readyz")
        assert (status, error["message"]) == (500, front.trouble)


@pytest.mark.req("E17")
def test_a_pod_is_explained_with_every_setting(tmp_path):
    front = FakeFront()
    with served(front, tmp_path) as agent:
        for pod in pods_of(PODS):
            agent.call(front.put, running(pod))
        status, summary_of = ask(agent, "GET", "/explain/default/web")
        assert status == 200
        kinds = {one["kind"]: one for one in summary_of["cgroups"]}
        assert kinds.keys() >= {"pod", "container"}
        files = {one["file"]: one for one in kinds["container"]["settings"]}
        assert files["memory.max"]["applied"] == files["memory.max"]["asked"] == str(128 * MIB)
        assert files["oom_score_adj"]["reason"]
        assert ask(agent, "GET", "/explain/default/nobody")[0] == 404


def test_events_are_sent_as_server_sent_events_on_request(tmp_path):
    front = FakeFront()
    with served(front, tmp_path) as agent:
        for reason in ("Started", "Killing", "Evicted"):
            agent.call(front.tell, reason, pod="default/web")
        with Http(agent) as http:
            http.send(
                "GET /events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nLast-Event-ID: 2\r\n\r\n"
            )
            status, headers = http.head()
            assert (status, headers["content-type"]) == (200, "text/event-stream")
            assert http.chunk().startswith(b"id: 3\nevent: happening\ndata: {")
            agent.call(front.tell, "Returning", pod="default/web")
            assert b'"reason":"Returning"' in http.chunk()


@pytest.mark.req("B2")
def test_kubernetes_own_client_reads_pods_and_node(tmp_path):
    from kubernetes.client import ApiClient  # it takes a second to import

    def read(value, kind):
        return ApiClient().deserialize(json.dumps(value), kind, "application/json")

    front = FakeFront()
    with served(front, tmp_path) as agent:
        for pod in pods_of(PODS):
            agent.call(front.put, running(pod))
        listed = read(ask(agent, "GET", "/pods")[1], "V1PodList")
        node = read(ask(agent, "GET", "/node")[1], "V1Node")
    assert [pod.metadata.name for pod in listed.items] == ["web", "batch"]
    pod = listed.items[0]
    assert pod.status.phase == "Running"
    assert pod.status.container_statuses[0].state.running.started_at.year == 2026
    assert pod.spec.containers[0].resources.requests == {"memory": "64Mi", "cpu": "100m"}
    assert node.status.allocatable["memory"] == "30Gi"
    assert {one.type for one in node.status.conditions} == {"Ready", "MemoryPressure"}
