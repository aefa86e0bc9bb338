"""The agent's protection: it runs with its supervisor in a cgroup of its own, which is removed with the pods, and it
feeds systemd's watchdog."""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evenkeel.pressure.memory.cgroup_writes import AGENT
from tests.arenas import arenas_of_threads
from tests.kernel.agents import MakeUp, Up, is_alive, pod, processes_of, up
from tests.kernel.cgroups import Cgroup
from tests.kernel.live_tree import processes_in
from tests.kernel.waiting import eventually

__all__ = ["up"]

pytestmark = pytest.mark.cgroup("v1", "v2")


def own(agent: Up) -> Cgroup:
    return Cgroup({key: path / AGENT for key, path in agent.root.directories.items()})


def members(place: Cgroup) -> list[list[int]]:
    """The processes of the cgroup, by hierarchy."""
    return [processes_in(path) for path in place.paths() if path.exists()]


@pytest.mark.processes_only("containers need no supervisor")
def test_the_agent_and_the_supervisor_are_beside_the_pods_and_leave_nothing(up: MakeUp):
    agent = up()
    agent.start()
    agent.apply(pod("stays", ["sleep", "1000"]))
    agent.await_phase("stays", "Running")
    main = agent.container("stays")
    there = [
        path for path in own(agent).paths() if path.exists()
    ]  # v1: not for controllers that are not needed
    assert there
    for path in there:
        inside = set(processes_in(path))
        assert agent.pid in inside
        assert len(inside) > 1  # the supervisor
        assert not inside & set(processes_of(main))
    (container,) = processes_of(main)
    supervisors = set(processes_of(own(agent))) - {agent.pid}

    agent.kill()
    assert is_alive(container)
    agent.start()
    agent.await_phase("stays", "Running")
    assert agent.pid in processes_of(own(agent))
    assert supervisors & set(processes_of(own(agent)))
    reasons = [one["reason"] for one in agent.client.lines("/events", most="1000")]
    assert "DriftRepaired" not in reasons

    assert agent.stop() == 0
    agent.start()
    assert agent.stop() == 0
    assert not [path for path in (*own(agent).paths(), *agent.cgroup().paths()) if path.exists()]
    eventually(lambda: not any(map(is_alive, supervisors)))


def test_threads_of_the_agent_have_no_arenas_of_their_own(up: MakeUp):
    agent = up()
    agent.start()
    agent.apply(pod("stays", ["sleep", "1000"]))
    agent.await_phase("stays", "Running")
    assert arenas_of_threads(Path(f"/proc/{agent.pid}/maps").read_text()) == 0


@pytest.mark.cgroup("host")
@pytest.mark.processes_only("nothing runs")
def test_watch_and_guard_are_beside_the_agent_with_its_score_are_replaced_and_end_with_the_pods(up: MakeUp):
    agent = up("--eviction-hard=memory.available<8Mi")
    agent.start()
    guard = eventually(agent.guard_pid)
    watch = agent.watch_pid()
    assert watch is not None
    assert all(guard in inside for inside in members(own(agent)))
    assert any(watch in inside for inside in members(own(agent)))
    scores = {Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in (agent.pid, watch, guard)}
    assert len(scores) == 1
    os.kill(guard, signal.SIGKILL)
    after = eventually(lambda: agent.guard_pid(killed=guard))
    assert any(after in inside for inside in members(own(agent)))

    os.kill(watch, signal.SIGKILL)
    other = eventually(lambda: agent.watch_pid(other_than=watch))
    eventually(lambda: not is_alive(after))  # with its watch
    last = eventually(agent.guard_pid)
    assert agent.stop() == 0
    assert not is_alive(other)
    assert not is_alive(last)
    assert not [path for path in own(agent).paths() if path.exists()]


@pytest.mark.cgroup("host")
def test_an_agent_that_is_refused_leaves_no_cgroup(cgroup_root: Cgroup, tmp_path: Path):
    name = f"/{cgroup_root.paths()[0].name}/new/newer"
    command = [sys.executable, "-m", "evenkeel", "up", "--state-dir", str(tmp_path), "--cgroup-root", name]
    done = subprocess.run(
        [*command, "--runtime-endpoint", f"unix://{tmp_path}/nobody.sock"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "nobody.sock" in done.stderr
    assert not [path for path in cgroup_root.paths() if (path / "new").exists()]


@pytest.mark.processes_only("nothing runs")
@pytest.mark.req("E11")
def test_its_weight_is_ten_times_that_of_others(up: MakeUp):
    agent = up()
    agent.start()
    mine = own(agent)
    assert mine.read("cpu.weight" if mine.has("cpu.weight") else "cpu.shares") in ("1000", "10240")


@pytest.mark.processes_only("nothing runs")
def test_systemd_hears_when_it_is_ready_that_it_turns_and_that_it_ends(
    up: MakeUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))
        monkeypatch.setenv("WATCHDOG_USEC", "300000")
        agent = up()
        agent.start()
        heard = [systemd.recv(100) for _ in range(3)]
        assert heard == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        with ThreadPoolExecutor(1) as meanwhile:  # few words wait unheard: systemd listens all the time
            stopped = meanwhile.submit(agent.stop)
            while (last := systemd.recv(100)) == b"WATCHDOG=1":
                pass
            assert stopped.result() == 0
        assert last == b"STOPPING=1"
        monkeypatch.delenv("NOTIFY_SOCKET")
