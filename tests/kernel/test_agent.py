"""The agent with real processes on a real kernel: pods live, die and come back as their manifests say."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.kernel.agents import MIB, MakeUp, first_of, is_alive, pod, processes_of, up, with_host_path
from tests.kernel.waiting import eventually
from tests.machines.programs import programs

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("v1", "v2")

SLEEP = ["sleep", "1000"]


def test_pods_of_a_directory_run_and_follow_it(up: MakeUp):
    agent = up()
    agent.write("web.json", _text(pod("web", SLEEP)))
    agent.start()
    status = agent.await_phase("web", "Running")
    assert status["qosClass"] == "BestEffort"
    whole = agent.of_pod("web")
    (main,) = processes_of(agent.container("web"))
    agent.write("more.json", _text(pod("more", SLEEP)))
    agent.await_phase("more", "Running")
    (agent.manifests / "web.json").unlink()
    agent.await_gone("web")
    assert not is_alive(main)
    assert not whole.paths()[0].exists()
    assert agent.phase("more") == "Running"


@pytest.mark.req("A17")
def test_an_exit_is_reported_with_code_signal_and_reason(up: MakeUp):
    agent = up()
    agent.start()
    agent.apply(
        pod("good", ["true"], restartPolicy="Never"),
        pod("bad", ["sh", "-c", "exit 3"], restartPolicy="Never"),
        pod("shot", SLEEP, restartPolicy="Never"),
        pod("absent", ["no-such-program"], restartPolicy="Never"),
    )
    assert _ended(agent.await_phase("good", "Succeeded")) == (0, 0, "Completed")
    assert _ended(agent.await_phase("bad", "Failed")) == (3, 0, "Error")
    agent.await_phase("shot", "Running")
    (main,) = processes_of(agent.container("shot"))
    os.kill(main, signal.SIGKILL)
    assert _ended(agent.await_phase("shot", "Failed")) == (137, signal.SIGKILL, "Error")
    status = agent.await_phase("absent", "Failed")
    assert _ended(status) == (128, 0, "StartError")
    message = status["containerStatuses"][0]["state"]["terminated"]["message"]
    assert "no-such-program" in message


def test_pods_outlive_the_agent_and_are_taken_over(up: MakeUp):
    agent = up()
    agent.start()
    agent.apply(pod("stays", SLEEP))
    agent.await_phase("stays", "Running")
    (before,) = processes_of(agent.container("stays"))
    agent.kill()
    assert is_alive(before)
    agent.start()
    agent.await_phase("stays", "Running")
    assert processes_of(agent.container("stays")) == [before]
    assert agent.status("stays")["containerStatuses"][0].get("restartCount", 0) == 0


def test_an_exit_while_no_agent_was_there_is_known(up: MakeUp):
    agent = up()
    agent.start()
    agent.apply(
        pod("job", ["sh", "-c", "trap 'exit 42' TERM; while :; do sleep 0.05; done"], restartPolicy="Never")
    )
    agent.await_phase("job", "Running")
    cgroup = agent.container("job")
    eventually(lambda: len(processes_of(cgroup)) > 1)
    main = first_of(cgroup)
    agent.kill()
    os.kill(main, signal.SIGTERM)
    eventually(lambda: not is_alive(main))
    agent.start()
    assert _ended(agent.await_phase("job", "Failed"))[0] == 42


def test_a_container_that_ignores_the_request_to_end_is_killed_with_all_it_started(up: MakeUp):
    agent = up()
    agent.start()
    agent.apply(pod("deaf", ["sh", "-c", "trap '' TERM; sleep 1000 & while :; do sleep 1000; done"]))
    agent.await_phase("deaf", "Running")
    cgroup = agent.container("deaf")
    eventually(lambda: len(processes_of(cgroup)) >= 3)
    pids = processes_of(cgroup)
    agent.client.delete("default", "deaf")
    agent.await_gone("deaf")
    assert not [pid for pid in pids if is_alive(pid)]


def test_ctrl_c_leaves_pods_running_and_stop_pods_ends_them(up: MakeUp):
    agent = up()
    agent.start(stop_pods=False)
    agent.apply(pod("stays", SLEEP))
    agent.await_phase("stays", "Running")
    (main,) = processes_of(agent.container("stays"))
    assert agent.stop() == 0
    assert is_alive(main)
    agent.start()
    supervisor = agent.supervisor_pid()
    assert agent.stop() == 0
    assert not is_alive(main)
    eventually(lambda: supervisor is None or not is_alive(supervisor))
    assert not agent.cgroup().paths()[0].exists()
    assert str(agent.state) not in Path("/proc/self/mountinfo").read_text()


def test_a_pod_that_was_stopped_with_the_agent_makes_its_volumes_anew(up: MakeUp):
    """They are gone with the agent, so the init container runs again and fills them."""
    agent = up()
    agent.start()
    mounted = {"image": "host", "volumeMounts": [{"name": "page", "mountPath": "/srv"}]}
    fill = {"name": "fill", "command": ["sh", "-c", "echo here > /srv/page"], **mounted}
    web = pod("web", ["sh", "-c", "cat /srv/page; exec sleep 100000"], container=mounted)
    web["spec"] |= {"initContainers": [fill], "volumes": [{"name": "page", "emptyDir": {}}]}
    agent.write("web.json", json.dumps(web))
    agent.await_phase("web", "Running")
    assert agent.stop() == 0
    agent.start()
    agent.await_phase("web", "Running")
    (initial,) = agent.status("web")["initContainerStatuses"]
    assert (initial["restartCount"], initial["ready"]) == (1, True)
    eventually(lambda: agent.cli("logs", "web", "-c", "main") == "here\n")


@pytest.mark.emulated_containers
@pytest.mark.req("A19", "E5", "E6")
def test_an_oom_kill_takes_the_container_is_recorded_and_retried(up: MakeUp):
    # With cgroup v2 it would wait at its memory.high, below the limit, for most of a minute.
    agent = up("--memory-throttling-factor=1")
    agent.start()
    eater = f"sleep 0.3; exec {programs()}/grow anon {64 * MIB} 0"
    amounts = {"requests": {"memory": "8Mi"}, "limits": {"memory": "40Mi"}}
    agent.apply(pod("eater", ["sh", "-c", eater], container={"resources": amounts}))

    def killed() -> bool:
        statuses = agent.status("eater").get("containerStatuses", [{}])
        last = statuses[0].get("lastState", {}).get("terminated", {})
        return last.get("reason") == "OOMKilled"

    eventually(killed, within_seconds=120)

    def reported() -> list[dict]:
        events = agent.client.lines("/events", pod="default/eater")
        return [one for one in events if one["reason"] == "OOMKilling"]

    if os.access("/dev/kmsg", os.R_OK):
        # The kernel's log is heard beside the end of the container, and not always before it.
        assert eventually(reported)[0]["figures"]["pid"] > 0


def test_a_container_called_like_a_kernel_file_runs_beside_others_and_leaves_no_cgroup(up: MakeUp):
    agent = up()
    agent.start()
    tasks = {"name": "tasks", "image": "host", "command": SLEEP}
    agent.apply(pod("strange", SLEEP, containers=[tasks]), pod("other", SLEEP))
    agent.await_phase("strange", "Running")
    agent.await_phase("other", "Running")
    cgroup = agent.of_pod("strange")
    assert cgroup.processes()
    agent.client.delete("default", "strange")
    agent.await_gone("strange")
    assert not any(path.exists() for path in cgroup.paths())
    agent.apply(pod("later", SLEEP))
    agent.await_phase("later", "Running")


@pytest.mark.emulated_containers
@pytest.mark.req("A19")
def test_when_one_process_is_oom_killed_the_rest_of_its_container_is_killed_and_its_neighbour_is_not(
    up: MakeUp, tmp_path: Path
):
    agent = up("--memory-throttling-factor=1")
    agent.start()
    go = tmp_path / "go"
    command = _outlives_an_oom_kill(f"until [ -e {go} ]; do sleep 0.05; done")
    eater = pod("p", command, restartPolicy="Never", container={"resources": SMALL})
    eater["spec"]["containers"].append(
        {"name": "neighbour", "image": "host", "command": SLEEP, "resources": SMALL}
    )
    agent.apply(with_host_path(eater, tmp_path))
    agent.await_phase("p", "Running")  # both containers are there
    go.touch()

    def states(status: dict) -> dict:
        return {one["name"]: one["state"] for one in status.get("containerStatuses", ())}

    # The shell would have gone on: it ended because the agent, or the kernel, killed all of the container.
    status = agent.await_that("p", lambda status: "terminated" in states(status)["main"], within_seconds=120)
    ended = states(status)["main"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    assert "running" in states(status)["neighbour"]


@pytest.mark.emulated_containers
@pytest.mark.req("E5")
def test_a_container_can_choose_to_lose_only_the_process_that_is_oom_killed(up: MakeUp):
    agent = up("--memory-throttling-factor=1")
    agent.start()
    chooses = pod("p", _outlives_an_oom_kill(), container={"resources": SMALL})
    chooses["metadata"]["annotations"] = {"evenkeel.dev/oom-kill.main": "process"}
    agent.apply(chooses)
    agent.await_phase("p", "Running")

    eventually(lambda: "still here\n" in agent.cli("logs", "p"), within_seconds=120)
    (status,) = agent.status("p")["containerStatuses"]
    assert "running" in status["state"]
    assert status["restartCount"] == 0


SMALL = {"limits": {"cpu": "500m", "memory": "40Mi"}}


def _outlives_an_oom_kill(before: str = ":") -> list[str]:
    """A shell whose child is killed by the kernel, and which itself would live on. `before` is what it does first."""
    return ["sh", "-c", f"{before}; {programs()}/grow anon {64 * MIB} 0; echo still here; exec sleep 1000"]


def _text(plain: dict) -> str:
    return json.dumps(plain)


def _ended(status: dict) -> tuple[int, int, str]:
    state = status["containerStatuses"][0]["state"]["terminated"]
    return state.get("exitCode", 0), state.get("signal", 0), state["reason"]
