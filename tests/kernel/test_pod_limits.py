"""The documents' promises about a pod's own limits: which pods have one, and how containers share it."""

import signal
import time
from pathlib import Path

import pytest

from evenkeel.policy.amounts import pod_own_bytes
from tests.kernel import planned
from tests.kernel.cgroups import Cgroup
from tests.kernel.planned import (
    LIMITED_SECONDS,
    MIB,
    MakeNode,
    SmallNode,
    cpu_quota,
    cpu_seconds,
    memory_bytes,
    memory_limit,
    oom_kills,
    pod,
    throttles,
)
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("v1", "v2")
make_node = planned.make_node
shared_directory = planned.shared_directory


def example(*, cpu: str, nginx_cpu_request: str, nginx_cpu: str) -> str:
    """The document's first example with a quarter of its memory, and names and images the right way round."""
    return pod(
        "nginx",
        spec=f"resources: {{limits: {{memory: 96M, cpu: {cpu}}}}}",
        proxy="{}",
        nginx=f"{{requests: {{memory: 32M, cpu: {nginx_cpu_request}}}, limits: {{memory: 64M, cpu: {nginx_cpu}}}}}",
    )


def limits(node: SmallNode, *names: str) -> dict[str, tuple[float | None, float | None]]:
    """MiB of memory and processors that the kernel limits each pod to."""
    found = {}
    for name in names:
        memory = memory_limit(node.pod(name))
        found[name] = (memory and memory / MIB, cpu_quota(node.pod(name)))
    return found


def with_room(limit_mib: int, containers: int) -> float:
    """A pod's limit where all of it is promised: there is room for the pod itself (A5)."""
    return limit_mib + pod_own_bytes(1 + containers, cpus=1) / MIB


def shared_memory_bytes(cgroup: Cgroup) -> int:
    return cgroup.counters("memory.stat")["shmem"]


@pytest.mark.req("D2", "D5")
def test_a_pod_is_limited_only_if_every_container_is_and_for_each_resource_by_itself(make_node: MakeNode):
    node = make_node(memory_mib=400)
    every = "requests: {memory: 8Mi}, limits: {memory: 32Mi, cpu: 100m}"
    node.apply(
        pod("promised", c="{limits: {memory: 32Mi, cpu: 100m}}"),
        pod("every", a=f"{{{every}}}", b=f"{{{every}}}"),
        pod("one", a=f"{{{every}}}", b="{requests: {memory: 8Mi}}"),
        pod("of-memory", a=f"{{{every}}}", b="{limits: {memory: 16Mi}}"),
        pod("of-cpu", a=f"{{{every}}}", b="{limits: {cpu: 150m}}"),
        pod("none", a="{}", b="{}"),
    )

    assert limits(node, "promised", "every", "one", "of-memory", "of-cpu", "none") == {
        "promised": (with_room(32, containers=1), 0.1),
        "every": (64, 0.2),
        "one": (None, None),
        "of-memory": (48, None),
        "of-cpu": (None, 0.25),
        "none": (None, None),
    }


@pytest.mark.req("D1", "D5", "D7")
def test_the_pods_own_limit_is_set_on_burstable_and_best_effort_pods_and_not_on_guaranteed_ones(
    make_node: MakeNode,
):
    node = make_node(memory_mib=400)
    own = "resources: {limits: {memory: 96Mi, cpu: 400m}}"
    node.apply(
        pod("burstable", spec=own, a="{requests: {memory: 16Mi}}", b="{limits: {memory: 64Mi, cpu: 200m}}"),
        pod("scavenger", spec=own, a="{}", b="{}"),
        pod(
            "promised",
            spec=own,
            a="{limits: {memory: 32Mi, cpu: 100m}}",
            b="{limits: {memory: 16Mi, cpu: 100m}}",
        ),
    )

    assert limits(node, "burstable", "scavenger", "promised") == {
        "burstable": (96, 0.4),
        "scavenger": (96, 0.4),
        "promised": (with_room(48, containers=2), 0.2),
    }
    assert memory_limit(node.container("burstable/a")) is None
    assert memory_limit(node.container("burstable/b")) == 64 * MIB


@pytest.mark.req("D1", "D5", "D7", "D8")
def test_containers_share_the_memory_of_their_pod(make_node: MakeNode):
    node = make_node()
    node.apply(example(cpu="2", nginx_cpu_request="0.5", nginx_cpu="1"))
    assert memory_limit(node.container("nginx/nginx")) == 64_000_000 // 4096 * 4096
    proxy, nginx = node.start("nginx/proxy", "memory"), node.start("nginx/nginx", "memory")
    # Of the pod's memory either may have more than would be its half.
    assert proxy.ask("allocate 60000000") == "allocated 60000000"
    assert nginx.ask("allocate 28000000") == "allocated 28000000"

    proxy.ask("free")
    # What one has given back, the other may have.
    assert nginx.ask("allocate 20000000") == "allocated 48000000"
    assert proxy.ask("allocate 36000000") == "allocated 36000000"

    proxy.tell("allocate 36000000")  # that is too much together, though the proxy has no limit of its own

    assert proxy.wait() == -signal.SIGKILL
    assert nginx.ask("touch") == "touched 48000000"


@pytest.mark.req("D7", "A5")
def test_a_best_effort_pod_is_killed_above_its_own_limit(make_node: MakeNode):
    node = make_node()
    node.apply(pod("p", spec="resources: {limits: {memory: 48Mi}}", a="{}", b="{}"), pod("other", c="{}"))
    programs = {name: node.start(name, "memory") for name in ("p/a", "p/b", "other/c")}
    programs["p/a"].ask(f"allocate {16 * MIB}")
    programs["other/c"].ask(f"allocate {64 * MIB}")

    programs["p/b"].tell(f"allocate {40 * MIB}")

    assert programs["p/b"].wait() == -signal.SIGKILL
    assert memory_bytes(node.pod("p")) <= 48 * MIB
    assert programs["p/a"].ask("touch") == f"touched {16 * MIB}"
    assert programs["other/c"].ask("touch") == f"touched {64 * MIB}"


@pytest.mark.req("D1", "D5", "D8", "A4")
def test_containers_share_the_processors_of_their_pod(make_node: MakeNode):
    node = make_node()
    node.apply(example(cpu="200m", nginx_cpu_request="50m", nginx_cpu="150m"))
    both = [node.pod("nginx"), node.container("nginx/nginx")]
    proxy, nginx = node.start("nginx/proxy", "spin"), node.start("nginx/nginx", "spin")
    proxy.answer()
    nginx.answer()
    eventually(lambda: throttles(both[0]) > 0)
    began, before = time.monotonic(), [cpu_seconds(cgroup) for cgroup in both]

    time.sleep(LIMITED_SECONDS)  # the measurement

    of_pod, of_nginx = (cpu_seconds(cgroup) - start for cgroup, start in zip(both, before, strict=True))
    passed = time.monotonic() - began
    assert of_pod <= 0.2 * passed * 1.05
    assert of_nginx <= 0.15 * passed * 1.05
    # What the one leaves is the other's, up to the limit of both: there it is stopped.
    nginx.kill()
    throttled = throttles(both[0])
    eventually(lambda: throttles(both[0]) > throttled + 1)


@pytest.mark.req("D3", "D5")
def test_the_pods_own_limit_is_set_when_the_init_containers_are_done(make_node: MakeNode):
    node = make_node()
    manifest = pod(
        "starting",
        spec="""\
resources: {limits: {memory: 48Mi}}
initContainers:
- {name: sidecar, image: host, restartPolicy: Always}
- {name: prepare, image: host}""",
        a="{}",
        b="{}",
    )
    node.apply(manifest, init="prepare")
    assert memory_limit(node.pod("starting")) is None
    sidecar, prepare = node.start("starting/sidecar", "memory"), node.start("starting/prepare", "memory")
    sidecar.ask(f"allocate {8 * MIB}")
    assert prepare.ask(f"allocate {64 * MIB}") == f"allocated {64 * MIB}"
    prepare.kill()
    was = node.container("starting/prepare")

    report = node.apply(manifest)

    assert memory_limit(node.pod("starting")) == 48 * MIB
    assert not any(path.exists() for path in was.paths())
    sidecars = node.planned("starting/sidecar").path
    assert not [step for step in report.done if step.path == sidecars]
    assert node.container("starting/sidecar").processes() == {sidecar.pid}
    assert sidecar.ask("touch") == f"touched {8 * MIB}"
    # From now on it holds.
    a, b = node.start("starting/a", "memory"), node.start("starting/b", "memory")
    a.ask(f"allocate {16 * MIB}")
    b.tell(f"allocate {40 * MIB}")
    assert b.wait() == -signal.SIGKILL
    assert a.ask("touch") == f"touched {16 * MIB}"


@pytest.mark.req("D1", "D5")
def test_changing_the_pods_own_limit_touches_nothing_else(make_node: MakeNode):
    node = make_node()

    def with_limit(memory: str) -> str:
        return pod(
            "p", spec=f"resources: {{limits: {{memory: {memory}}}}}", a="{}", b="{limits: {memory: 16Mi}}"
        )

    node.apply(with_limit("48Mi"))
    program = node.start("p/a", "memory")
    program.ask(f"allocate {32 * MIB}")

    report = node.apply(with_limit("64Mi"))

    changed = [(step.path.rpartition("/")[2][:3], step.setting and step.setting.file) for step in report.done]
    assert changed in ([("pod", "memory.limit_in_bytes")], [("pod", "memory.max")])
    assert program.ask(f"allocate {24 * MIB}") == f"allocated {56 * MIB}"
    assert oom_kills(node.container("p/a")) == 0


@pytest.mark.req("D9")
def test_files_in_memory_are_charged_to_the_container_that_first_touched_them(
    make_node: MakeNode, shared_directory: Path
):
    node = make_node()
    node.apply(pod("p", writer="{}", reader="{}"))
    writer, reader = node.container("p/writer"), node.container("p/reader")
    program = node.start("p/writer", "cache", shared_directory / "file")
    program.ask(f"write {24 * MIB}")
    assert node.start("p/reader", "cache", shared_directory / "file").ask("read") == f"read {24 * MIB}"

    eventually(lambda: shared_memory_bytes(writer) >= 24 * MIB)  # the kernel counts a moment later
    assert shared_memory_bytes(reader) < MIB
    assert memory_bytes(node.pod("p")) >= 24 * MIB
    # The charge stays where it is when the process that made it is gone.
    program.kill()
    assert shared_memory_bytes(writer) >= 24 * MIB


@pytest.mark.req("D9", "A5")
def test_files_in_memory_count_against_the_limit_of_the_container_that_first_touched_them(
    make_node: MakeNode, shared_directory: Path
):
    node = make_node()
    node.apply(pod("p", writer="{limits: {memory: 32Mi}}", reader="{limits: {memory: 8Mi}}"))
    writer, reader = (
        node.start(f"p/{name}", "cache", shared_directory / "file") for name in ("writer", "reader")
    )
    writer.ask(f"write {24 * MIB}")

    assert reader.ask("read") == f"read {24 * MIB}"  # three times what it may have
    assert oom_kills(node.container("p/reader")) == 0

    writer.tell(f"write {40 * MIB}")
    assert writer.wait() == -signal.SIGKILL
