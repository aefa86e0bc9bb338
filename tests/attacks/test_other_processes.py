"""A pod reaches no process of the machine or of another pod, though it knows its number and runs as the same user."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.hostile import IMAGES, hostile, run_to_the_end
from tests.kernel.agents import Up, first_of, is_alive
from tests.kernel.live_tree import raw_content
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("v1", "v2")

FLAGS = ("--allowed-host-access=hostPID",)
NOBODY = 65534
SLEEP = ["sleep", "100000"]


@contextmanager
def of_the_host(uid: int) -> Iterator[int]:
    """A process of the machine with this user."""
    with subprocess.Popen(SLEEP, user=uid, group=uid, extra_groups=[]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def traits(pid: int) -> tuple[object, ...]:
    """What a stranger could have changed, and whether it is traced."""
    limits = Path(f"/proc/{pid}/limits").read_text()
    (tracer,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "TracerPid" in line]
    affinity, scheduler = os.sched_getaffinity(pid), os.sched_getscheduler(pid)
    return limits, os.getpriority(os.PRIO_PROCESS, pid), affinity, scheduler, tracer


def outcomes(lines: list[str]) -> dict[str, set[str]]:
    """The kernel's answers for all processes, by system call."""
    found: dict[str, set[str]] = {}
    for line in lines[:-1]:
        call, _, outcome = line.split()
        found.setdefault(call, set()).add(outcome)
    return found


def neighbour(agent: Up, user: dict[str, Any]) -> int:
    """The first process of a pod that sleeps. What makes a container has other limits, and may not be traced, until it
    executes the container's program."""
    agent.apply(hostile(agent, "neighbour", *SLEEP, container=user))
    agent.await_phase("neighbour", "Running")
    pid = first_of(agent.container("neighbour"))
    eventually(lambda: (raw_content(Path(f"/proc/{pid}/cmdline")) or b"").startswith(b"sleep\0"))
    return pid


@pytest.mark.parametrize("uid", [0, NOBODY], ids=["root", "nobody"])
def test_processes_of_the_same_user_elsewhere_are_out_of_reach(agent: Up, uid: int):
    user = {"securityContext": {"runAsUser": uid, "runAsGroup": uid}}
    other = neighbour(agent, user)
    with of_the_host(uid) as own:
        ours = [agent.pid, agent.supervisor_pid(), agent.watch_pid(), agent.guard_pid()]
        victims = [pid for pid in (own, other, *ours) if pid]
        before = [traits(pid) for pid in victims]
        for image in IMAGES:
            words = map(str, victims)
            lines = run_to_the_end(agent, f"meddles-{image}", "meddle", *words, image=image, container=user)
            assert len(lines) == 15 * len(victims) + 1
            assert [line for line in lines if line.endswith(" allowed")] == []
        assert all(map(is_alive, victims))
        assert [traits(pid) for pid in victims] == before


def test_without_the_wall_they_would_be_within_reach(agent: Up):
    """A pod that the operator lets see all processes reaches those of its user: so the program above does try."""
    user = {"securityContext": {"runAsUser": NOBODY, "runAsGroup": NOBODY}}
    pids = str(neighbour(agent, user)), str(agent.pid)
    lines = run_to_the_end(agent, "sees", "meddle", *pids, container=user, hostPID=True)
    of_neighbour, of_agent = (
        outcomes([line for line in lines if line.split()[1:2] in ([pid], [])]) for pid in pids
    )
    for call in ("kill", "pidfd_open", "setpriority", "prlimit", "sched_setaffinity", "ptrace", "status"):
        assert of_neighbour[call] == {"allowed"}, call
    # The agent is another user's.
    assert {call for call, answers in of_agent.items() if answers == {"allowed"}} <= {"pidfd_open", "status"}
