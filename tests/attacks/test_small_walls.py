"""Smaller walls: keys, OOM scores, cgroups left, the agent's own files removed under it."""

import shutil
from pathlib import Path

import pytest

from tests.attacks.hostile import IMAGES, PATIENCE_SECONDS, details_of, hostile, not_ready, said
from tests.kernel.agents import READY_SECONDS, MakeUp, Up, first_of, is_alive, pod
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("v1", "v2")

SLEEP = ["sleep", "100000"]


def events(agent: Up, *words: str) -> list[str]:
    reported = [f"{one['reason']} {one['message']}" for one in agent.client.lines("/events")]
    return [line for line in reported if all(word in line for word in words)]


def test_a_container_has_none_of_the_hosts_keys(agent: Up):
    for image in IMAGES:
        agent.apply(hostile(agent, f"keys-{image}", "cat", "/proc/keys", image=image, restartPolicy="Never"))
    for image in IMAGES:
        agent.await_that(f"keys-{image}", lambda status: status.get("phase") in ("Succeeded", "Failed"))
        assert [line for line in said(agent, f"keys-{image}") if "_ses" in line or "_uid" in line] == []


def test_a_pod_that_lowers_its_oom_score_is_put_right(agent: Up):
    """It may lower it to what it was set to last by one with more power; a child of another that was never raised."""
    script = "echo 0 > /proc/self/oom_score_adj; echo lowered; while :; do sleep 1; done"
    agent.apply(hostile(agent, "lowers", "sh", "-c", script))
    eventually(
        lambda: "lowered" in said(agent, "lowers"),
        within_seconds=READY_SECONDS,
        details=lambda: details_of(agent, "lowers"),
    )
    pid = first_of(agent.container("lowers"))
    eventually(lambda: score(pid) == 1000, within_seconds=READY_SECONDS)


def score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@pytest.mark.long
def test_an_oom_score_that_others_lowered_is_put_right(agent: Up):
    agent.apply(pod("lowered", SLEEP))
    agent.await_phase("lowered", "Running")
    pid = first_of(agent.container("lowered"))
    planned = score(pid)
    Path(f"/proc/{pid}/oom_score_adj").write_text("0")
    assert planned != 0
    eventually(lambda: score(pid) == planned, within_seconds=READY_SECONDS)


def test_a_process_that_was_moved_out_of_its_pods_cgroup_is_noticed(agent: Up):
    agent.apply(pod("moved", SLEEP))
    agent.await_phase("moved", "Running")
    pid = first_of(agent.container("moved"))
    directories = agent.root.directories
    elsewhere = directories.get("memory", agent.root.paths()[0]) / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "cgroup.procs").write_text(str(pid))
    eventually(lambda: events(agent, "ProcessMoved", str(pid)), within_seconds=READY_SECONDS)
    agent.client.delete("default", "moved")
    agent.await_gone("moved")
    assert not is_alive(pid)


@pytest.mark.long
@pytest.mark.processes_only("about files, not about what runs")
def test_the_agents_socket_comes_back_when_it_is_removed(up: MakeUp):
    agent = up()
    agent.start()
    socket = agent.state / "agent.sock"
    for _ in range(3):
        before = socket.stat().st_ino
        socket.unlink()
        eventually(lambda: socket.exists() and socket.stat().st_ino != before)  # noqa: B023 called here
        agent.client.get("/pods")
        assert socket.stat().st_mode & 0o777 == 0o600
    socket.rename(agent.state / "elsewhere.sock")
    eventually(socket.exists)
    agent.client.get("/pods")
    (agent.state / "elsewhere.sock").unlink(missing_ok=True)


@pytest.mark.long
@pytest.mark.processes_only("about files, not about what runs")
def test_a_state_directory_that_is_removed_is_reported_at_once(up: MakeUp):
    """It is moved away and put back, so that the test ends as any other."""
    agent = up()
    agent.start(stop_pods=False)
    agent.apply(pod("stays", SLEEP))
    agent.await_phase("stays", "Running")
    pid = first_of(agent.container("stays"))
    moved = agent.state.with_name("moved")
    agent.state.rename(moved)
    try:
        eventually(lambda: "state directory" in agent.log.read_text(), within_seconds=PATIENCE_SECONDS)
        assert is_alive(pid)
        agent.state.mkdir()
        (agent.state / "agent.sock").symlink_to(moved / "agent.sock")
        eventually(lambda: not_ready(agent), within_seconds=PATIENCE_SECONDS)
    finally:
        shutil.rmtree(agent.state, ignore_errors=True)
        moved.rename(agent.state)
    agent.kill()
    agent.start()
    agent.await_phase("stays", "Running")
    assert first_of(agent.container("stays")) == pid
