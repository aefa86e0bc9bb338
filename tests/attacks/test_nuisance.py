"""Pods that do allowed things in excess: they harm only themselves, and no other pod.

And a working directory that is chosen to lead out (CVE-2024-21626)."""

from pathlib import Path
from typing import Any

import pytest

from tests.attacks.hostile import PATIENCE_SECONDS, await_ready, details_of, hostile, is_refused, said
from tests.kernel.agents import MIB, Up, is_alive, pod, processes_of, with_host_path
from tests.kernel.live_tree import status
from tests.kernel.waiting import eventually

pytestmark = [pytest.mark.cgroup("v1", "v2"), pytest.mark.long]

LOG_MIB, LOG_FILES = 1, 2
FLAGS = (f"--container-log-max-size={LOG_MIB}Mi", f"--container-log-max-files={LOG_FILES}")
SLEEP = ["sleep", "100000"]
SAID_MIB = 100  # by a probe within its second


def probe(*command: str) -> dict[str, Any]:
    said = {
        "exec": {"command": list(command)},
        "periodSeconds": 1,
        "timeoutSeconds": 1,
        "failureThreshold": 1000,
    }
    return {"readinessProbe": said}


def failed_probes(agent: Up, name: str) -> int:
    reported = [one for one in agent.client.lines("/events") if one.get("pod") == f"default/{name}"]
    return sum(one["times"] for one in reported if one["reason"] == "Unhealthy")


def test_pods_that_log_fork_and_probe_without_end_delay_no_other_pod(agent: Up):
    forks = "(setsid sleep 100000 &); sleep 100000"  # what the probe leaves behind is the container's own
    # A container runtime writes what it is given, until the log is rotated: that is its own to bear.
    names = ["endless", "forks", *(["floods"] if agent.containerd is None else [])]
    if "floods" in names:
        agent.apply(pod("floods", ["yes", "x" * 200]))
    agent.apply(
        pod("endless", SLEEP, container=probe("yes")),
        pod("forks", SLEEP, container=probe("sh", "-c", forks)),
    )
    for name in names:
        agent.await_phase(name, "Running")
    eventually(
        lambda: all(failed_probes(agent, name) >= 2 for name in ("endless", "forks")),
        within_seconds=PATIENCE_SECONDS,
    )
    agent.apply(pod("calm", SLEEP))
    agent.await_phase("calm", "Running")
    await_ready(agent)
    logs = [status(path) for path in (agent.state / "logs").glob("default_floods_*/*/*")]
    assert sum(log.st_size for log in logs if log) <= (LOG_FILES + 1) * LOG_MIB * MIB
    left = [pid for name in names for pid in processes_of(agent.container(name))]
    for name in (*names, "calm"):
        agent.client.delete("default", name, 0)
    for name in (*names, "calm"):
        agent.await_gone(name)
    assert left
    assert not any(map(is_alive, left))


@pytest.mark.processes_only("a container runtime reads the output of commands itself")
def test_a_command_that_writes_more_than_is_kept_waits_and_costs_no_cpu(agent: Up, tmp_path: Path):
    """The reader would need as much CPU as the command, at the expense of all pods."""
    command = f"echo > /count/begun; head -c {SAID_MIB * MIB} /dev/zero; echo > /count/said-all"
    talks = hostile(agent, "talks", *SLEEP, container=probe("sh", "-c", command))
    agent.apply(with_host_path(talks, tmp_path, at="/count"))
    # One that was overdue before it began says nothing.
    eventually(
        lambda: failed_probes(agent, "talks") >= 3 and (tmp_path / "begun").exists(),
        within_seconds=PATIENCE_SECONDS,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["begun"]


def test_a_working_directory_among_our_descriptors_leads_nowhere(agent: Up):
    places = [f"/proc/self/fd/{number}" for number in range(3, 13)] + ["/proc/1/cwd", "/proc/self/root"]
    script = "stat -c 'top %d:%i' ../../../../../../../..; stat -c 'own %d:%i' /; exec sleep 100000"
    names = {f"leads-{number}": place for number, place in enumerate(places)}
    for name, place in names.items():
        agent.apply(
            hostile(agent, name, "sh", "-c", script, container={"workingDir": place}, restartPolicy="Never")
        )
    status = Path("/").stat()
    for name, place in names.items():
        eventually(
            lambda: is_refused(agent.status(name)) or len(said(agent, name)) >= 2,  # noqa: B023 called here
            within_seconds=PATIENCE_SECONDS,
            details=lambda: details_of(agent, name),  # noqa: B023 called here
        )
        lines = dict(line.split() for line in said(agent, name))
        assert lines.get("top") != f"{status.st_dev}:{status.st_ino}", place
        assert lines.get("top") == lines.get("own"), place
