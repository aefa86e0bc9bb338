"""The agent with systemd's slices and scopes: the same life as with plain cgroups."""

import subprocess

import pytest

from tests.kernel.agents import MakeUp, is_alive, pod, up
from tests.kernel.live_tree import cgroups_below, processes_in
from tests.kernel.waiting import eventually

__all__ = ["up"]
pytestmark = [
    pytest.mark.cgroup("systemd"),
    pytest.mark.processes_only("about scopes of our own making; a runtime makes those of containers"),
]


@pytest.mark.req("A24")
def test_pods_live_in_scopes_are_restarted_in_them_and_outlive_the_agent(up: MakeUp):
    agent = up("--cgroup-driver", "systemd")
    agent.start()
    agent.apply(pod("stays", ["sleep", "1000"]), pod("again", ["sh", "-c", "sleep 0.2; exit 1"]))
    agent.await_phase("stays", "Running")
    (scope,) = eventually(lambda: cgroups_below(agent.root.paths()[0], "evenkeel-*-main.scope")[:1])
    assert scope.parent.name.endswith(".slice")

    def restarted() -> bool:
        statuses = agent.status("again").get("containerStatuses", [{}])
        return statuses[0].get("restartCount", 0) >= 1

    eventually(restarted, within_seconds=120)
    uid = agent.pod("stays")["metadata"]["uid"].replace("-", "_")
    (mine,) = cgroups_below(agent.root.paths()[0], f"evenkeel-{uid}-main.scope")
    (main,) = eventually(lambda: processes_in(mine))
    agent.kill()
    assert is_alive(main)
    agent.start()
    agent.await_phase("stays", "Running")
    assert processes_in(mine) == [main]
    agent.client.delete("default", "stays", 0)
    agent.await_gone("stays")
    assert not is_alive(main)


@pytest.mark.req("A17", "A19")
def test_an_oom_kill_is_known_though_the_scope_is_gone_with_it(up: MakeUp):
    agent = up("--cgroup-driver", "systemd")
    agent.start()
    eater = ["sh", "-c", "tail /dev/zero"]
    amounts = {"requests": {"memory": "8Mi"}, "limits": {"memory": "24Mi"}}
    agent.apply(pod("eater", eater, restartPolicy="Never", container={"resources": amounts}))
    status = agent.await_phase("eater", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"


def test_a_shutdown_of_the_machine_waits_for_the_agent(up: MakeUp):
    """logind itself would end the machine: tests/test_shutdown_lock.py has what follows."""
    agent = up("--shutdown-grace-period=4s")
    agent.start()
    listed = [
        "busctl", "call", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager",
        "ListInhibitors",
    ]  # fmt: skip

    def has_lock() -> bool:
        said = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        return '"shutdown" "evenkeel"' in said and '"delay"' in said

    assert has_lock(), agent.log.read_text()
    agent.kill()
    eventually(lambda: not has_lock())
