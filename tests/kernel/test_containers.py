"""Containers of a real runtime: what the plan says reaches the kernel through it, and is taken back in place; and when
it is gone, hangs or has forgotten everything, the agent goes on with what it can do, and starts nothing twice."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.manifests import read_manifests
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.reconcile import survey
from evenkeel.policy.node_view import node_view, parse_node
from evenkeel.policy.provision import PlannedPod
from tests.kernel.agents import (
    MIB,
    READY_SECONDS,
    MakeUp,
    Up,
    is_alive,
    pod,
    processes_of,
    up,
    with_host_path,
)
from tests.kernel.cgroups import Cgroup
from tests.kernel.evictions import FLAGS, condition, grow, when_told
from tests.kernel.planned import memory_bytes
from tests.kernel.waiting import eventually
from tests.machines.container_images import TEST
from tests.machines.containerd import Containerd
from tests.machines.programs import programs

__all__ = ["up"]

pytestmark = [pytest.mark.cgroup("v1", "v2"), pytest.mark.parametrize("up", ["cri"], indirect=True)]

NODE = "384Mi,2cpu"
PAGE = 4096
SLEEP = ["sleep", "100000"]


def burstable(name: str) -> dict[str, Any]:
    amounts = {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}
    made = pod(name, SLEEP, container={"resources": amounts})
    made["spec"]["overhead"] = {"cpu": "50m", "memory": "16Mi"}
    return made


def guaranteed(name: str) -> dict[str, Any]:
    return pod(name, SLEEP, container={"resources": {"limits": {"cpu": "100m", "memory": "16Mi"}}})


def sandbox(agent: Up, name: str) -> Cgroup:
    """The cgroup of the pod's infrastructure."""
    place = dict(agent.placed(name) or ())[""]
    return Cgroup({key: path / place for key, path in agent.of_pod(name).directories.items()})


def not_as_planned(agent: Up, *names: str) -> tuple[object, ...]:
    """What would have to be written for the kernel to be as the plan of these pods."""
    root = f"/{agent.root.paths()[0].name}"
    config = KubeletConfiguration(cgroup_root=root, eviction_hard={})
    planned_pods = []
    for name in names:
        (one,) = read_manifests(json.dumps({**agent.pod(name), "status": {}}), "agent").or_raise().pods
        planned_pods.append(PlannedPod(one, placed=agent.placed(name)))
    driver = driver_for(detect(), config)
    try:
        tree = plan(node_view(parse_node(NODE), config), planned_pods, driver.version, driver.naming)
        return survey(driver, tree).steps
    finally:
        driver.close()


def score(cgroup: Cgroup) -> int:
    (main,) = processes_of(cgroup)
    return int(Path(f"/proc/{main}/oom_score_adj").read_text())


def asked_for(agent: Up, name: str) -> dict[str, Any]:
    """The resources in the specification that the runtime has of the container."""
    assert agent.containerd is not None
    information = json.loads(
        agent.containerd.ctr("containers", "info", agent.container(name).paths()[0].name)
    )
    return dict(information["Spec"]["linux"]["resources"])


@pytest.mark.emulated_containers
@pytest.mark.req("C1", "C2", "C3", "C6", "C7", "A24", "D4", "D6")
def test_the_kernel_has_what_the_plan_says_through_the_runtime_and_loses_it_in_place(up: MakeUp):
    agent = up(node=NODE)
    agent.start(stop_pods=False)
    agent.apply(burstable("one"), guaranteed("two"), pod("three", SLEEP))
    for name in ("one", "two", "three"):
        agent.await_phase(name, "Running")
    eventually(lambda: not not_as_planned(agent, "one", "two", "three"))
    main, infrastructure = agent.container("one"), sandbox(agent, "one")
    before = processes_of(main)
    is_v2 = main.has("memory.min")
    if is_v2:
        high = 64 * MIB * 8 // 10 // PAGE * PAGE
        wanted = {
            "memory.min": str(32 * MIB),
            "memory.high": str(high),
            "memory.max": str(64 * MIB),
            "memory.oom.group": "1",
            "cpu.max": "20000 100000",
        }
        assert (
            asked_for(agent, "one")["unified"].items()
            >= {
                "memory.min": str(32 * MIB),
                "memory.high": str(high),
                "memory.oom.group": "1",
            }.items()
        )
        assert infrastructure.read("memory.min") == str(16 * MIB)
        assert infrastructure.read("memory.max") == "max"
        assert (score(infrastructure), score(agent.container("two"))) == (-999, -999)
    else:
        wanted = {
            "memory.soft_limit_in_bytes": str(32 * MIB),
            "memory.limit_in_bytes": str(64 * MIB),
            "cpu.shares": "102",
            "cpu.cfs_quota_us": "20000",
        }
        assert int(infrastructure.read("memory.limit_in_bytes")) > 1 << 60
    assert {file: main.read(file) for file in wanted} == wanted
    assert asked_for(agent, "one")["memory"]["limit"] == 64 * MIB
    assert score(main) == 1000 - 1000 * 32 // 384
    assert score(agent.container("three")) == 1000

    gates = ["--feature-gates=MemoryQoS=false", "--cpu-cfs-quota=false"]
    off = {"memory.min": "0", "memory.high": "max", "cpu.max": "max 100000", "cpu.cfs_quota_us": "-1"}
    expected = {**wanted, **{file: value for file, value in off.items() if file in wanted}}
    agent.stop()
    agent.start(*gates, stop_pods=False)
    eventually(lambda: {file: main.read(file) for file in wanted} == expected)
    if is_v2:
        eventually(lambda: asked_for(agent, "one")["unified"].get("memory.min") == "0")
    agent.stop()
    agent.start()
    eventually(lambda: {file: main.read(file) for file in wanted} == wanted)
    assert processes_of(main) == before
    eventually(lambda: not not_as_planned(agent, "one", "two", "three"))  # the runtime gets it meanwhile


def only_once(name: str, directory: Path) -> dict[str, Any]:
    """A pod that leaves a file if it runs twice at the same time."""
    held = [str(programs() / "hold"), str(directory / f"{name}.lock"), str(directory / f"{name}.double")]
    return with_host_path(pod(name, [*held, *SLEEP]), directory)


TROUBLES = {
    "killed": (Containerd.kill, Containerd.start),
    "upgraded": (Containerd.stop, Containerd.start),  # with the same version: no other is at hand
    "hung": (Containerd.pause, Containerd.resume),
}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.req("A15", "A24")
def test_evictions_go_on_and_nothing_starts_twice_while_the_runtime_is(
    up: MakeUp, trouble: str, tmp_path: Path
):
    agent = up(*FLAGS)
    containerd = agent.containerd
    assert containerd is not None
    agent.start()
    agent.apply(
        only_once("stays", tmp_path),
        grow("within", "anon", 64, request_mib=96),
        when_told(grow("runaway", "anon", 1024, restartPolicy="Never"), tmp_path),
    )
    for name in ("stays", "within", "runaway"):
        agent.await_phase(name, "Running")
    before = processes_of(agent.container("stays"))
    runaway = agent.container("runaway")
    leave, come_back = TROUBLES[trouble]
    leave(containerd)
    try:
        eventually(lambda: condition(agent, "RuntimeReady") == "False", within_seconds=READY_SECONDS)
        agent.apply(only_once("late", tmp_path))
        (tmp_path / "go").touch()
        eventually(lambda: not processes_of(runaway), within_seconds=READY_SECONDS)
        assert agent.phase("within") == agent.phase("stays") == "Running"
        assert agent.phase("late") == "Pending"
    finally:
        come_back(containerd)
    agent.await_evicted("runaway")
    agent.await_phase("late", "Running")
    eventually(lambda: condition(agent, "RuntimeReady") == "True", within_seconds=READY_SECONDS)
    assert processes_of(agent.container("stays")) == before
    for name in ("stays", "within", "late"):
        assert agent.restarts(name) == 0
    assert not list(tmp_path.glob("*.double"))


@pytest.mark.req("A15", "E2")
def test_memory_in_volumes_of_an_evicted_pod_is_back_before_the_runtime_has_removed_it(
    up: MakeUp, tmp_path: Path
):
    agent = up(*FLAGS)
    containerd = agent.containerd
    assert containerd is not None
    agent.start()
    runaway = when_told(grow("runaway", "file", 1024, restartPolicy="Never"), tmp_path)
    first = runaway["spec"]["containers"][0]
    first["command"][-1] += " /volume/data"
    first["volumeMounts"].append({"name": "memory", "mountPath": "/volume"})
    runaway["spec"]["volumes"].append({"name": "memory", "emptyDir": {"medium": "Memory"}})
    agent.apply(grow("within", "anon", 64, request_mib=96), runaway)
    for name in ("within", "runaway"):
        agent.await_phase(name, "Running")
    container = agent.container("runaway")
    containerd.pause()
    try:
        (tmp_path / "go").touch()
        eventually(lambda: not processes_of(container), within_seconds=READY_SECONDS)
        eventually(lambda: memory_bytes(agent.cgroup()) < 96 * MIB, within_seconds=READY_SECONDS)
        assert agent.phase("within") == "Running"
    finally:
        containerd.resume()
    agent.await_evicted("runaway")


@pytest.mark.req("A24")
def test_starts_that_a_slow_runtime_has_begun_are_waited_for_and_not_done_again(up: MakeUp, tmp_path: Path):
    """The runtime is stopped for longer than most calls may take, when it has made some of the sandboxes and
    containers."""
    agent = up()
    containerd = agent.containerd
    assert containerd is not None
    agent.start()
    names = [f"slow{number}" for number in range(4)]
    agent.apply(*(only_once(name, tmp_path) for name in names))
    eventually(lambda: len(list(containerd.tasks())) >= 3)
    containerd.pause()
    try:
        eventually(lambda: condition(agent, "RuntimeReady") == "False", within_seconds=READY_SECONDS)
    finally:
        containerd.resume()
    for name in names:
        agent.await_phase(name, "Running")
        assert agent.restarts(name) == 0
        (process,) = processes_of(agent.container(name))
        assert is_alive(process)
    # One container a pod, and its sandbox.
    assert len(containerd.containers(io__evenkeel__state=os.path.realpath(agent.state))) == 2 * len(names)
    assert not list(tmp_path.glob("*.double"))


def test_a_container_waits_for_its_image_and_runs_when_it_is_there(up: MakeUp):
    agent = up()
    containerd = agent.containerd
    assert containerd is not None
    agent.start()
    late = "localhost/evenkeel-late:1"
    agent.apply(pod("early", SLEEP, container={"image": late, "imagePullPolicy": "Never"}))
    eventually(lambda: waiting_for(agent, "early") == "ErrImageNeverPull")
    assert (agent.phase("early"), agent.restarts("early")) == ("Pending", 0)
    containerd.ctr("images", "tag", TEST, late)
    try:
        agent.await_phase("early", "Running")
        assert agent.restarts("early") == 0
        agent.client.delete("default", "early", 0)
        agent.await_gone("early")
    finally:
        containerd.ctr("images", "remove", late)


def waiting_for(agent: Up, name: str) -> str:
    for status in agent.status(name).get("containerStatuses", ()):
        return str(status["state"].get("waiting", {}).get("reason", ""))
    return ""


LINES = 20_000
LOG_FILE_BYTES = 256 << 10


def test_a_long_log_is_rotated_and_read_across_its_files(up: MakeUp, tmp_path: Path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "containerLogMaxSize: 256Ki\ncontainerLogMaxFiles: 5\n"
    )
    agent = up("--config", str(config))
    agent.start()
    count = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); done"
    more = f"until [ -e {tmp_path}/more ]; do sleep 0.05; done; echo more; exec sleep 100000"
    agent.apply(with_host_path(pod("talker", ["sh", "-c", f"{count}; {more}"]), tmp_path))
    agent.await_phase("talker", "Running")
    last = f"line {LINES - 1}\n"
    eventually(lambda: agent.cli("logs", "talker", "--tail=1") == last, within_seconds=READY_SECONDS)
    logs = agent.state / "logs"

    def is_rotated() -> bool:
        """Whether the log is rotated and will not be rotated again: slow output may cause two rotations."""
        with suppress(FileNotFoundError):  # just now
            sizes = [path.stat().st_size for path in logs.rglob("*.log")]
            return bool(sizes) and sizes[0] < LOG_FILE_BYTES and any(logs.rglob("*.log.*"))
        return False

    eventually(is_rotated, within_seconds=READY_SECONDS)
    (tmp_path / "more").touch()
    eventually(lambda: agent.cli("logs", "talker", "--tail=1") == "more\n", within_seconds=READY_SECONDS)
    (now,) = logs.rglob("*.log")
    assert "more" in now.read_text()  # the runtime has opened the new one
    assert agent.cli("logs", "talker").splitlines() == [
        *(f"line {number}" for number in range(LINES)),
        "more",
    ]


@pytest.fixture
def forgetful(containerd: Containerd) -> Iterator[Containerd]:
    with Containerd() as one:
        yield one


@pytest.mark.req("A24")
def test_what_the_runtime_has_forgotten_is_ended_before_it_is_started_again(
    forgetful: Containerd, up: MakeUp, tmp_path: Path
):
    agent = up(containerd=forgetful)
    agent.start()
    agent.apply(only_once("stays", tmp_path))
    agent.await_phase("stays", "Running")
    before = processes_of(agent.container("stays"))
    forgetful.forget()
    # The pod is Running before its next container is, too.
    agent.await_that("stays", has_restarted_once, within_seconds=READY_SECONDS)
    assert not [pid for pid in before if is_alive(pid)]
    assert not list(tmp_path.glob("*.double"))
    agent.client.delete("default", "stays", 0)
    agent.await_gone("stays")


def has_restarted_once(status: dict[str, Any]) -> bool:
    (main,) = status["containerStatuses"]
    return main["restartCount"] == 1 and "running" in main["state"]
