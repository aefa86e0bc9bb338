"""Limited resources of the machine or of a user: a pod gets its part, and our processes work without them.

On the host nothing is used up: others work there."""

import os
import signal

import pytest

from tests.attacks.hostile import await_ready, run_to_the_end
from tests.kernel.agents import MakeUp, Up
from tests.kernel.conftest import MACHINE
from tests.kernel.sessions import done

pytestmark = pytest.mark.cgroup("v1", "v2")
OF_ITS_OWN = pytest.mark.skipif(MACHINE == "host", reason="it uses up what others on this machine need")

TERMINALS = 256  # of a container
TRIED = 320  # more than a container has, and far fewer than the machine
INSTANCES = 100  # of inotify: a user has 128
ALL = 10_000_000
STAY = ("/bin/sh", "-c", "echo done; exec sleep 1000")


@pytest.mark.processes_only("a container runtime mounts /dev/pts itself")
@pytest.mark.parametrize("spec", [{}, {"hostUsers": False}], ids=["root", "own users"])
def test_a_container_takes_no_more_than_its_part_of_the_terminals(agent: Up, spec: dict):
    taken, _ = run_to_the_end(agent, "takes", "hoard", "terminals", str(TRIED), **spec)
    assert taken == f"{TERMINALS} terminals"
    assert run_to_the_end(agent, "other", "hoard", "terminals", "2", image="host")[0] == "2 terminals"


@pytest.mark.processes_only("containerd 1.6 gives no user namespaces")
def test_pods_with_users_of_their_own_have_quotas_of_their_own(agent: Up):
    for name in ("one", "other"):
        wanted = ("hoard", "inotify", str(INSTANCES))
        assert run_to_the_end(agent, name, *wanted, hostUsers=False)[0] == f"{INSTANCES} inotify"


@OF_ITS_OWN
@pytest.mark.parametrize("kind", ["inotify", "epoll"])
def test_a_node_without_quotas_left_goes_on(up: MakeUp, kind: str):
    """A pod that runs as root has all of root's, and what is ours runs as root."""
    agent = up()
    agent.start(stop_pods=False)
    run_to_the_end(agent, "before", *STAY)
    taken = int(run_to_the_end(agent, "takes", "hoard", kind, str(ALL))[0].split()[0])
    assert taken < ALL
    answers(agent, "between")
    supervisor, watch = agent.supervisor_pid(), agent.watch_pid()
    agent.kill()
    for helper in (supervisor, watch):
        if helper:
            os.kill(helper, signal.SIGKILL)
    agent.start()
    answers(agent, "after")
    agent.client.delete("default", "takes", 0)
    agent.await_gone("takes")


def answers(agent: Up, name: str) -> None:
    """The commands of an operator still work."""
    assert done(agent, "exec", "before", "--", "echo", "heard").stdout == b"heard\n"
    assert done(agent, "logs", "before").stdout == b"done\n"
    run_to_the_end(agent, name, *STAY)
    await_ready(agent)
    agent.client.delete("default", name, 0)
    agent.await_gone(name)
