"""A pod that the operator lets see all processes (hostPID) sees those of other pods as they are made. Their memory is a
copy of the supervisor's until they execute their program, so no process may inspect it."""

import pytest

from tests.attacks.hostile import await_said, hostile, said
from tests.kernel.agents import Up
from tests.kernel.sessions import done

pytestmark = [
    pytest.mark.cgroup("v1", "v2"),
    pytest.mark.processes_only("what makes containers there is runc's"),
]

FLAGS = ("--allowed-host-access=hostPID",)
STARTS = 10
EXECS = 20


def test_no_process_inspects_a_process_that_is_not_a_container_yet(agent: Up):
    supervisor = agent.supervisor_pid()
    assert supervisor is not None
    agent.apply(hostile(agent, "peeks", "peek", str(supervisor), hostPID=True))
    await_said(agent, "peeks", "looking")
    for number in range(STARTS):
        agent.apply(hostile(agent, f"starts-{number}", "sleep", "100000"))
    for number in range(STARTS):
        agent.await_phase(f"starts-{number}", "Running")
    for _ in range(EXECS):
        assert done(agent, "exec", "starts-0", "--", "sh", "-c", "echo said").stdout == b"said\n"
    agent.await_phase("peeks", "Running")
    assert said(agent, "peeks") == ["looking"]
