"""A container without a filter may make namespaces of its own for its first process. What enters the container by a
probe or `exec` gets no other user by it: it is the container's, not root of the machine without its capabilities."""

from pathlib import Path

import pytest

from tests.attacks.hostile import PATIENCE_SECONDS, await_said, hostile
from tests.kernel.agents import Up, processes_of
from tests.kernel.live_tree import content
from tests.kernel.sessions import begun
from tests.kernel.waiting import eventually

pytestmark = [
    pytest.mark.cgroup("v1", "v2"),
    pytest.mark.processes_only("a container runtime enters its containers itself"),
]

FLAGS = ("--allowed-host-access=hostPID",)
USER = 12345
SLEEPS = "100017"  # a number that no other command here has


def uid_of(pid: int) -> str:
    text = content(Path(f"/proc/{pid}/status")) or ""
    return text.partition("Uid:")[2].partition("\n")[0].strip()


def sleepers(agent: Up, name: str) -> list[int]:
    """The processes in the pod's cgroup that were started by what enters the container."""
    found = processes_of(agent.container(name))
    return [pid for pid in found if SLEEPS in (content(Path(f"/proc/{pid}/cmdline")) or "")]


@pytest.mark.parametrize("has_host_pid", [True, False], ids=["host-pid", "own-pid"])
def test_what_enters_a_user_namespace_that_the_container_made_is_not_root(agent: Up, has_host_pid: bool):
    context = {"runAsUser": USER, "runAsGroup": USER, "allowPrivilegeEscalation": False}
    container = {"securityContext": {**context, "seccompProfile": {"type": "Unconfined"}}}
    namespaces = ("--map-root-user", "--mount", "--ipc", "--uts", "--net", "--cgroup")
    words = ("unshare", *namespaces, "sh", "-c", "echo done; exec sleep 100000")
    agent.apply(
        hostile(agent, "nested", *words, image="host", container=container, hostPID=has_host_pid),
    )
    await_said(agent, "nested")
    with begun(agent, "exec", "nested", "--", "sleep", SLEEPS):
        entered = eventually(lambda: sleepers(agent, "nested"), within_seconds=PATIENCE_SECONDS)
        assert {uid_of(pid) for pid in entered} == {"\t".join([str(USER)] * 4)}
