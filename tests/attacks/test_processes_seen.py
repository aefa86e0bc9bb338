"""No process that a container can see holds anything of ours, at any instant: not a descriptor, not a directory, not a
program, not its memory. The processes of exec probes and hooks enter the container from outside, so they are looked at
as they come."""

from pathlib import Path
from typing import Any

import pytest

from tests.attacks.hostile import PATIENCE_SECONDS, await_said, hostile, outside, program, said
from tests.kernel.agents import Up, first_of
from tests.kernel.sessions import at_terminal, done
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("v1", "v2")
PROBES = 30
EXECS = 3


def probing() -> dict[str, Any]:
    """Probes and a hook, each of which leaves a mark in a volume that the host sees."""
    mark = ["sh", "-c", "echo >> /count/probes"]
    probe = {"exec": {"command": mark}, "periodSeconds": 1, "failureThreshold": 1000, "timeoutSeconds": 20}
    return {
        "livenessProbe": probe,
        "readinessProbe": probe,
        "startupProbe": probe,
        "lifecycle": {"postStart": {"exec": {"command": mark}}, "preStop": {"exec": {"command": mark}}},
        "volumeMounts": [{"name": "count", "mountPath": "/count"}],
    }


def test_what_enters_a_container_for_a_probe_or_a_hook_brings_nothing_of_the_host(agent: Up, tmp_path: Path):
    marker = outside(tmp_path / "outside")
    count = tmp_path / "count"
    count.mkdir()
    names = ["spy-0", "spy-1"]
    volumes = [{"name": "count", "hostPath": {"path": str(count)}}]
    for name in names:
        agent.apply(hostile(agent, name, "spy", str(marker), container=probing(), volumes=volumes))
    for name in names:
        await_said(agent, name, "looking")
        agent.await_phase(name, "Running")  # only after its hook

    def probed() -> bool:
        return (count / "probes").exists() and (count / "probes").stat().st_size >= PROBES

    eventually(probed, within_seconds=PATIENCE_SECONDS)
    for name in names:
        assert agent.phase(name) == "Running"
        assert said(agent, name) == ["looking"]


@pytest.mark.processes_only("what enters there is runc's")
def test_what_enters_a_container_for_exec_brings_nothing_of_the_host(agent: Up, tmp_path: Path):
    marker = outside(tmp_path / "outside")
    agent.apply(hostile(agent, "spy", "spy", str(marker)))
    await_said(agent, "spy", "looking")
    for _ in range(EXECS):
        assert done(agent, "exec", "-i", "spy", "--", "sh", "-c", "cat", said=b"x").stdout == b"x"
        with at_terminal(agent, "exec", "-it", "spy", "--", "sh", "-c", "echo shown") as terminal:
            terminal.await_shown("shown")
            assert terminal.exit_code() == 0
    assert said(agent, "spy") == ["looking"]


def test_a_program_of_the_host_is_not_to_be_had_by_executing_what_enters(agent: Up):
    """The command, or a script's interpreter, is /proc/self/exe: a process that executes it would run our program, and
    could then change it through its own /proc (CVE-2019-5736). `exe` is put where the host's program has its loader."""
    prepare = (
        f"mkdir -p /lib64; cp {program('exe')} /lib64/ld-linux-x86-64.so.2; "
        "printf '#!/proc/self/exe\\n' > /tmp/script; chmod +x /tmp/script; "
        "echo ready; while :; do sleep 1; done"
    )
    commands = {"link": ["/proc/self/exe"], "script": ["/tmp/script"]}
    for name, command in commands.items():
        probe = {
            "exec": {"command": command}, "initialDelaySeconds": 1, "periodSeconds": 1, "failureThreshold": 1000
        }  # fmt: skip
        agent.apply(hostile(agent, name, "sh", "-c", prepare, container={"livenessProbe": probe}))
    for name in commands:
        await_said(agent, name, "ready")
        before = failed_probes(agent, name)
        eventually(lambda: failed_probes(agent, name) > before, within_seconds=PATIENCE_SECONDS)  # noqa: B023 called here
        wrote = Path(f"/proc/{first_of(agent.container(name))}/root/tmp/exe")
        # What was executed is gone, or it says that it could not be changed.
        assert not wrote.exists() or "may-write" not in wrote.read_text()


def failed_probes(agent: Up, name: str) -> int:
    reported = [one for one in agent.client.lines("/events") if one.get("pod") == f"default/{name}"]
    return sum(one["times"] for one in reported if one["reason"] == "Unhealthy")
