"""A name that a user may choose is never a name of the kernel's, and what fails at one pod fails at no other."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.attacks.hostile import PATIENCE_SECONDS, await_refused_or_running, not_ready
from tests.kernel.agents import MIB, MakeUp, Pid, Up, first_of, is_alive, pod
from tests.kernel.cgroups import Cgroup
from tests.kernel.processes import Spawn
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("v1", "v2")

SLEEP = ["sleep", "100000"]
AMOUNTS = {"resources": {"requests": {"memory": "8Mi", "cpu": "10m"}, "limits": {"memory": "16Mi"}}}


def kernel_files(cgroup: Cgroup) -> set[str]:
    """Names that a cgroup has of its own, and that a container may have: labels, without dots."""
    return {path.name for directory in cgroup.paths() for path in directory.iterdir() if path.is_file()} | {
        "tasks"
    }


def test_containers_named_like_kernel_files_run_and_leave_nothing(agent: Up):
    names = sorted(name for name in kernel_files(agent.root) if name.isalnum() and name.islower())
    assert "tasks" in names
    others = [{"name": name, "image": "host", "command": SLEEP} for name in names]
    agent.apply(pod("before", SLEEP), pod("strange", SLEEP, containers=others), pod("after", SLEEP))
    for name in ("before", "strange", "after"):
        agent.await_phase(name, "Running")
    cgroup = agent.of_pod("strange")
    pids = eventually(lambda: len(found := list(map(Pid.of, cgroup.processes()))) >= len(names) and found)
    agent.apply(pod("later", SLEEP))
    agent.await_phase("later", "Running")
    agent.client.delete("default", "strange")
    agent.await_gone("strange")
    assert not any(path.exists() for path in cgroup.paths())
    assert not any(map(is_alive, pids))


@pytest.mark.long
def test_init_containers_named_like_kernel_files_run(agent: Up):
    init = [{"name": "tasks", "image": "host", "command": ["true"]}]
    agent.apply(pod("init", SLEEP, initContainers=init), pod("other", SLEEP))
    agent.await_phase("other", "Running")
    assert not await_refused_or_running(agent, "init"), agent.details_of("init")


def test_a_pod_whose_cgroup_cannot_be_made_delays_no_other_pod(up: MakeUp, spawn: Spawn):
    agent = up()
    agent.start()
    agent.apply(pod("before", SLEEP))
    agent.await_phase("before", "Running")
    before = first_of(agent.container("before"))
    unlucky = pod("unlucky", SLEEP, uid="11111111-2222-4333-8444-555555555555", container=AMOUNTS)
    obstacle = agent.cgroup("burstable", f"pod{unlucky['metadata']['uid']}")
    with standing_in_the_way(agent, obstacle, spawn):
        agent.apply(unlucky)
        agent.apply(pod("after", SLEEP))
        agent.await_phase("after", "Running")
        eventually(lambda: problems(agent) or not_ready(agent))  # it is not silent
        assert first_of(agent.container("before")) == before
        agent.client.delete("default", "after")
        agent.await_gone("after")
    agent.await_phase("unlucky", "Running", within_seconds=PATIENCE_SECONDS)


@contextmanager
def standing_in_the_way(agent: Up, place: Cgroup, spawn: Spawn) -> Iterator[None]:
    """The pod's cgroup cannot be as it should. v2 lets no more be made there; in v1 more memory is used there than
    the pod may have in all."""
    above = agent.cgroup("burstable")
    if above.has("cgroup.max.descendants"):
        above.write("cgroup.max.descendants", 0)
        try:
            yield
        finally:
            above.write("cgroup.max.descendants", "max")
        return
    directory = place.directories["memory"]
    eater = spawn("memory")

    def is_inside() -> bool:
        """The agent removes the empty cgroup of a pod that it does not know, if it comes by just now."""
        directory.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            (directory / "cgroup.procs").write_text(str(eater.pid))
            return True
        return False

    eventually(is_inside)
    eater.ask(f"allocate {32 * MIB}")
    try:
        yield
    finally:
        eater.kill()


def problems(agent: Up) -> list[str]:
    return [one["message"] for one in agent.client.lines("/events") if one["type"] == "Warning"]
