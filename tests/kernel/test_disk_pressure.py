"""A disk that fills up, on a small filesystem: what is collected, which pod is evicted, which pods stay (B12)."""

import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.agents import MIB, READY_SECONDS, MakeUp, Up, pod, up
from tests.kernel.evictions import condition, reasons
from tests.kernel.small_disk import on, small, victims
from tests.kernel.waiting import eventually
from tests.machines.packages import require
from tests.needing import needing

__all__ = ["small", "up"]

pytestmark = pytest.mark.long

HARD = "--eviction-hard=nodefs.available<24Mi,nodefs.inodesFree<20%"
FLAGS = (HARD, "--eviction-pressure-transition-period=1s")
SLEEP = ["sleep", "1000"]


def writer(name: str, script: str, *, volume: dict | None = None, **spec: Any) -> dict:
    """A pod whose one container runs a shell in its emptyDir."""
    container = {
        "command": ["sh", "-c", f"cd /scratch && {script}"],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        **spec.pop("container", {}),
    }
    volumes = [{"name": "scratch", "emptyDir": volume or {}}]
    return pod(name, container.pop("command"), container=container, volumes=volumes, **spec)


FILL_AND_STAY = "dd if=/dev/zero of=fill bs=64k 2>/dev/null; exec sleep 1000"
INODES = "i=0; while true; do true > $i || sleep 1; i=$((i+1)); done"


def await_written(agent: Up, name: str, size_bytes: int, file: str = "some") -> Path:
    """Waits until the pod has written its file. A pod that uses nothing is not considered for eviction."""
    agent.await_phase(name, "Running")
    path = agent.state / "pods" / agent.pod(name)["metadata"]["uid"] / "volumes" / "scratch" / file
    eventually(lambda: path.exists() and path.stat().st_size >= size_bytes, within_seconds=READY_SECONDS)
    return path


@pytest.mark.req("B12", "B16", "E14")
def test_the_pod_that_fills_the_disk_is_evicted_and_no_other(small: Path, up: MakeUp):
    agent = on(up(*FLAGS), small)
    agent.start()
    agent.apply(
        writer("quiet", "echo data > kept; exec sleep 1000"),
        writer("modest", "dd if=/dev/zero of=some bs=1M count=4 2>/dev/null; exec sleep 1000"),
        pod("talker", ["sh", "-c", "seq 1000; exec sleep 1000"]),
    )
    agent.await_phase("talker", "Running")
    await_written(agent, "modest", 4 * MIB)
    kept = await_written(agent, "quiet", 1, "kept")
    agent.apply(writer("filler", FILL_AND_STAY, restartPolicy="Never"))
    status = agent.await_evicted("filler")
    assert "nodefs.available is " in status["message"]
    assert "volume scratch" in status["message"]  # usage by part
    assert "default/modest" in status["message"]  # the other pods that were considered
    eventually(lambda: "NodeHasDiskPressure" in reasons(agent))  # it is recorded after the pod was killed
    eventually(lambda: condition(agent, "DiskPressure") == "False", within_seconds=READY_SECONDS)
    assert reasons(agent).count("NodeHasDiskPressure") == 1
    for name in ("quiet", "modest", "talker"):
        assert agent.phase(name) == "Running"
        assert agent.restarts(name) == 0
    assert kept.read_text() == "data\n"
    assert eventually(lambda: victims(agent)) == ["default/filler"]
    why = agent.cli("why", "filler")
    assert "Considered, but not evicted:" in why
    assert "default/quiet (BestEffort, priority 0)" in why
    assert "each made again with the same result" in agent.cli("replay")
    assert "default/modest" in agent.cli("evict", "--dry-run", "--signal", "nodefs.available")
    agent.kill()
    assert agent.cli("why", "filler") == why  # of the journal alone


@pytest.mark.req("B12", "B16")
def test_the_pod_that_uses_up_the_inodes_is_evicted_and_no_other(small: Path, up: MakeUp):
    agent = on(up(*FLAGS), small)
    agent.start()
    agent.apply(writer("quiet", "echo data > kept; exec sleep 1000"), pod("idle", SLEEP))
    agent.await_phase("quiet", "Running")
    agent.await_phase("idle", "Running")
    agent.apply(writer("maker", INODES, restartPolicy="Never"))
    status = agent.await_evicted("maker")
    assert "nodefs.inodesFree is " in status["message"]
    eventually(lambda: condition(agent, "DiskPressure") == "False", within_seconds=READY_SECONDS)
    assert agent.phase("quiet") == agent.phase("idle") == "Running"
    assert eventually(lambda: victims(agent)) == ["default/maker"]


@pytest.mark.req("B12")
def test_a_removed_file_that_is_still_open_counts_for_the_pod_that_holds_it(small: Path, up: MakeUp):
    agent = on(up(*FLAGS), small)
    agent.start()
    agent.apply(writer("modest", "dd if=/dev/zero of=some bs=1M count=8 2>/dev/null; exec sleep 1000"))
    await_written(agent, "modest", 8 * MIB)
    hidden = "exec 3> fill; rm fill; dd if=/dev/zero bs=64k >&3 2>/dev/null; exec sleep 1000"
    agent.apply(writer("hider", hidden, restartPolicy="Never"))
    agent.await_evicted("hider")
    eventually(lambda: condition(agent, "DiskPressure") == "False", within_seconds=READY_SECONDS)
    assert agent.phase("modest") == "Running"
    assert eventually(lambda: victims(agent)) == ["default/hider"]


@pytest.mark.req("B12")
def test_limits_on_storage_are_held_by_eviction(small: Path, up: MakeUp):
    agent = on(up("--eviction-hard=", "--eviction-pressure-transition-period=1s"), small)
    agent.start()
    some = "dd if=/dev/zero of=some bs=1M count=12 2>/dev/null; exec sleep 1000"
    limit = {"resources": {"limits": {"ephemeral-storage": "8Mi"}}}
    roomy = {"resources": {"limits": {"ephemeral-storage": "40Mi"}}}
    agent.apply(
        writer("sized", some, volume={"sizeLimit": "8Mi"}, restartPolicy="Never"),
        writer("limited", some, container=limit, restartPolicy="Never"),
        writer("within", some, volume={"sizeLimit": "16Mi"}, container=roomy),
        writer("in-memory", some, volume={"medium": "Memory"}, container=limit),
        writer("unlimited", some),
    )
    sized = agent.await_evicted("sized")
    assert "emptyDir volume scratch of 8Mi" in sized["message"]
    limited = agent.await_evicted("limited")
    assert "all containers together of 8Mi" in limited["message"]
    for name in ("within", "in-memory", "unlimited"):
        agent.await_phase(name, "Running")
    eventually(lambda: len(victims(agent)) >= 2)
    assert sorted(victims(agent)) == ["default/limited", "default/sized"]
    agent.client.delete("default", "in-memory")
    agent.await_gone("in-memory")


@pytest.mark.req("B12")
def test_logs_count_and_remains_of_dead_pods_are_collected_before_a_pod_is_evicted(small: Path, up: MakeUp):
    agent = on(up(*FLAGS, "--container-log-max-size=32Mi"), small)
    agent.start()
    talk = f"yes {'x' * 200} | head -c 24000000"
    agent.apply(pod("idle", SLEEP), pod("talked", ["sh", "-c", talk], restartPolicy="Never"))
    agent.await_phase("idle", "Running")
    agent.await_phase("talked", "Succeeded")
    uid = agent.pod("talked")["metadata"]["uid"]
    log = agent.state / "logs" / f"default_talked_{uid}"
    assert sum(file.stat().st_size for file in log.rglob("*") if file.is_file()) > 20 * MIB
    count = shutil.disk_usage(small).free // MIB - 16  # below the threshold, and above it without that log
    agent.apply(writer("grows", f"dd if=/dev/zero of=some bs=1M count={count} 2>/dev/null; exec sleep 1000"))
    eventually(lambda: "Collected" in reasons(agent), within_seconds=READY_SECONDS)
    assert not log.exists()
    eventually(lambda: condition(agent, "DiskPressure") == "False", within_seconds=READY_SECONDS)
    assert agent.phase("grows") == agent.phase("idle") == "Running"
    assert victims(agent) == []


@pytest.mark.processes_only("archives as images; containers' images are their runtime's")
# An archive is unpacked only where there is much room.
@pytest.mark.parametrize("small", [320], indirect=True)
@pytest.mark.req("B12")
def test_images_that_nothing_runs_from_are_collected_and_those_in_use_are_not(
    small: Path, up: MakeUp, tmp_path: Path
):
    with needing():
        require(["busybox-static"])
    busybox = "/bin/busybox"
    agent = on(up(*FLAGS), small)
    agent.start()
    used, unused = (archive(tmp_path / name, busybox, 4) for name in ("used.tar", "unused.tar"))
    command = {"command": ["/bin/busybox", "sleep", "1000"]}
    agent.apply(pod("runs", command["command"], container={"image": used}))
    agent.apply(pod("ran", ["/bin/busybox", "true"], container={"image": unused}, restartPolicy="Never"))
    agent.await_phase("runs", "Running")
    agent.await_phase("ran", "Succeeded")
    images = agent.state / "images"
    assert len(list(images.iterdir())) == 2
    fill = "dd if=/dev/zero of=/fill bs=64k; exec /bin/busybox sleep 1000"
    agent.apply(
        pod("filler", ["/bin/busybox", "sh", "-c", fill], container={"image": used}, restartPolicy="Never")
    )
    status = agent.await_evicted("filler")
    assert "main rootfs" in status["message"]
    assert len(list(images.iterdir())) == 1
    assert agent.phase("runs") == "Running"
    assert eventually(lambda: victims(agent)) == ["default/filler"]


@pytest.mark.req("B12")
def test_requests_for_storage_are_kept_to_at_admission(small: Path, up: MakeUp):
    agent = on(up(), small)
    agent.start()
    asking = {"resources": {"requests": {"ephemeral-storage": "60Mi"}}}
    agent.apply(pod("first", SLEEP, container=asking), pod("second", SLEEP, container=asking))
    agent.await_phase("first", "Running")
    status = agent.await_phase("second", "Failed")
    assert "ephemeral-storage" in status["message"]


def archive(path: Path, busybox: str, mib: int) -> str:
    """A root filesystem with busybox, and some ballast that makes it another than the next."""
    ballast = path.with_suffix(".ballast")
    ballast.write_bytes(path.name.encode() * (mib * MIB // len(path.name)))
    with tarfile.open(path, "w") as tar:
        tar.add(busybox, "bin/busybox")
        tar.add(ballast, "ballast")
    return str(path)
