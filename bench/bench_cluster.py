"""A node of a cluster beside one with the real kubelet: the same control plane, containerd, pods and minutes.

Both nodes run at once, so that other load of the machine affects both. A start is timed from the API server's answer to
a bound pod until the first instruction of its container. Then both nodes are filled and left idle: a cluster pays the
cost of an idle node all day. Requests are counted by the API server itself, in its audit log."""

import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.cluster.api_reader import ApiReader
from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import node, pod_network
from tests.kernel.cgroup_roots import bounded_root
from tests.machines import Unavailable
from tests.machines.container_images import Entry, archive
from tests.machines.containerd import Containerd
from tests.machines.packages import IMAGES, PROGRAMS, require

from bench.bench_agent import eventually, said_time
from bench.bench_cri import IMAGE, PROGRAM
from bench.figure import Figure, against, failed, ratio_at_most
from bench.kubelet_node import kubelet_node
from bench.processes import cpu_seconds, together_mib
from bench.reference import compiled
from evenkeel.named_tuples import NamedTuple

PODS = int(os.environ.get("EVENKEEL_BENCH_PODS", "110"))
STARTS = 12
PAUSE_SECONDS = 1.0  # between starts, so that one does not meet the end of another
SETTLED_SECONDS = 60.0
IDLE_SECONDS = 180.0
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:nodes"]}, {"level": "None"}],
}
# kubelet's own defaults: without thresholds a node of the tests would have no memory watch, and cost less.
KUBELET_THRESHOLDS = (
    "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,"
    "imagefs.available<15%,imagefs.inodesFree<5%"
)
SPACE = "bench"
PODS_PATH = f"/api/v1/namespaces/{SPACE}/pods"


class Contender(NamedTuple):
    """A node, and the processes that are its agent's."""

    name: str
    pids: Callable[[], list[int]]
    containerd: Containerd


def figures() -> Iterator[Figure]:
    try:
        require((*PROGRAMS, *IMAGES))
        with ExitStack() as opened:
            yield from _compared(opened)
    except Unavailable as reason:
        yield failed("a node of a cluster beside kubelet", str(reason), None)


def _compared(opened: ExitStack) -> Iterator[Figure]:
    directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="evenkeel-bench-")))
    times = directory / "times"
    times.mkdir()
    audit, policy = directory / "audit.log", directory / "policy.json"
    policy.write_text(json.dumps(AUDIT_POLICY))
    flags = (f"--audit-log-path={audit}", f"--audit-policy-file={policy}")
    _say("a control plane and two nodes are started")
    plane = opened.enter_context(ControlPlane(directory / "plane", more_api_server_flags=flags))
    plane.make_namespace(SPACE)
    ours, theirs = _ours(opened, plane, directory), _theirs(opened, plane, directory)
    _import_program(directory, ours.containerd, theirs.containerd)
    _say(f"{STARTS} pods are started on each, one after the other")
    yield from _starts(plane.reader, times, ours, theirs)
    _say(f"each gets {PODS} pods")
    for number in range(PODS - STARTS):
        for one in (ours, theirs):
            plane.reader.make(PODS_PATH, _pod(f"{one.name}-{number}", one, times))
    for one in (ours, theirs):
        eventually(lambda: len(list(times.glob(f"{one.name}-*"))) == PODS, pause=1.0)  # noqa: B023 asked at once
        _say(f"{one.name} runs all of its pods")
    _say(f"nothing is done for {SETTLED_SECONDS:g} s, so that both are at rest")
    time.sleep(SETTLED_SECONDS)
    _say(f"what they use is counted for {IDLE_SECONDS:g} s")
    yield from _idle(audit, ours, theirs)


def _say(progress: str) -> None:
    """It takes about seven minutes."""
    print(f"  {time.strftime('%H:%M:%S')} {progress}", file=sys.stderr, flush=True)


def _ours(opened: ExitStack, plane: ControlPlane, directory: Path) -> Contender:
    one = opened.enter_context(
        node(
            plane,
            "evenkeel",
            directory / "evenkeel",
            "--max-pods=200",
            f"--eviction-hard={KUBELET_THRESHOLDS}",
            size="8Gi,2cpu",
            with_containerd=True,
            has_pod_network=True,
        )
    )
    one.start()
    assert one.agent.containerd is not None

    def pids() -> list[int]:
        beside = (one.agent.supervisor_pid(), one.agent.watch_pid(), one.agent.guard_pid())
        return [one.agent.pid, *filter(None, beside)]

    return Contender(one.name, pids, one.agent.containerd)


def _theirs(opened: ExitStack, plane: ControlPlane, directory: Path) -> Contender:
    place = plane.place("kubelet")
    root = opened.enter_context(bounded_root(f"evenkeelbench{secrets.token_hex(3)}", is_slice=False))
    one = opened.enter_context(kubelet_node(plane, place, directory / "kubelet", root, pod_network(place)))
    return Contender(one.name, lambda: [one.kubelet.pid], one.containerd)


def _import_program(directory: Path, *runtimes: Containerd) -> None:
    program = compiled("start_reference", directory, "-static")
    image = directory / "image.tar"
    image.write_bytes(archive(IMAGE, [Entry(PROGRAM.removeprefix("/"), program.read_bytes())], [PROGRAM]))
    for containerd in runtimes:
        containerd.import_images({IMAGE: image})


def _pod(name: str, one: Contender, times: Path) -> dict[str, Any]:
    """It writes the time of its first instruction, and then does nothing."""
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": [PROGRAM, "first", str(times / name), "stay"],
        "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}},
        "volumeMounts": [{"name": "times", "mountPath": str(times)}],
    }
    spec = {
        "nodeName": one.name,
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "times", "hostPath": {"path": str(times)}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _starts(reader: ApiReader, times: Path, ours: Contender, theirs: Contender) -> Iterator[Figure]:
    seconds: dict[str, list[float]] = {ours.name: [], theirs.name: []}
    for number in range(STARTS):
        for one in (ours, theirs):
            name = f"{one.name}-start-{number}"
            reader.make(PODS_PATH, _pod(name, one, times))
            at = time.time()
            seconds[one.name].append(said_time(times / name) - at)
            time.sleep(PAUSE_SECONDS)
    ms = {name: [1000 * each for each in values] for name, values in seconds.items()}
    title = "a pod from its binding to its first instruction, beside kubelet"
    yield against(title, ms[ours.name], ms[theirs.name], "ms", ratio_at_most(1.0))


class Cost(NamedTuple):
    """The cost of a node: processor seconds of its agent and of its containerd, and requests."""

    cpu_seconds: float
    containerd_seconds: float
    requests: int

    def since(self, start: "Cost") -> "Cost":
        return Cost(
            self.cpu_seconds - start.cpu_seconds,
            self.containerd_seconds - start.containerd_seconds,
            self.requests - start.requests,
        )


def _used(one: Contender, audit: Path) -> Cost:
    requests = audit.read_text().count(f'"username":"system:node:{one.name}"')
    return Cost(sum(map(cpu_seconds, one.pids())), cpu_seconds(one.containerd.pid), requests)


def _idle(audit: Path, *contenders: Contender) -> Iterator[Figure]:
    began = [_used(one, audit) for one in contenders]
    since = time.monotonic()
    time.sleep(IDLE_SECONDS)
    lasted = time.monotonic() - since
    used = [_used(one, audit).since(start) for one, start in zip(contenders, began, strict=True)]
    ours, theirs = used
    with_pods = f"a node with {PODS} pods that do nothing"

    def share(cost: float) -> list[float]:
        return [100 * cost / lasted]

    title = f"processor time of {with_pods}, beside kubelet"
    yield against(title, share(ours.cpu_seconds), share(theirs.cpu_seconds), "%", ratio_at_most(1 / 3))
    title = f"processor time of the containerd of {with_pods}, beside that of kubelet"
    yield against(title, share(ours.containerd_seconds), share(theirs.containerd_seconds), "%", None)
    memory = [together_mib(one.pids()) for one in contenders]
    title = f"memory of {with_pods}, beside kubelet"
    yield against(title, memory[:1], memory[1:], "MiB", ratio_at_most(1 / 3))
    minutes = lasted / 60
    title = f"requests of {with_pods}, beside kubelet"
    yield against(title, [ours.requests / minutes], [theirs.requests / minutes], "/min", ratio_at_most(1.0))
