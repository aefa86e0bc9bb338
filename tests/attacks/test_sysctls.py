"""Kernel settings of a pod reach its own namespaces, and never the host's."""

from pathlib import Path

import pytest

from evenkeel.errors import InvalidInput
from tests.attacks.hostile import await_refused, await_said, hostile
from tests.kernel.agents import Up
from tests.kernel.waiting import PATIENCE_SECONDS

FORCED = Path("/proc/sys/kernel/shm_rmid_forced")
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")

pytestmark = pytest.mark.cgroup("host")


def sysctls(**settings: str) -> dict[str, object]:
    return {"sysctls": [{"name": name.replace("__", "."), "value": text} for name, text in settings.items()]}


@pytest.mark.processes_only("with the runtime's network the refusals are the runtime's")
def test_a_pods_sysctls_are_its_own_and_others_are_refused(agent: Up) -> None:
    before = FORCED.read_text(), PORTS.read_text()
    wanted = str(1 - int(before[0]))
    show = ["/bin/sh", "-c", f"cat {FORCED}; echo done"]
    agent.apply(hostile(agent, "own", *show, securityContext=sysctls(kernel__shm_rmid_forced=wanted)))
    assert await_said(agent, "own")[0] == wanted
    ports = ["/bin/sh", "-c", f"cat {PORTS}; echo done"]
    agent.apply(
        hostile(
            agent,
            "network",
            *ports,
            hostNetwork=False,
            securityContext=sysctls(net__ipv4__ip_local_port_range="40000 50000"),
        )
    )
    assert await_said(agent, "network")[0].split() == ["40000", "50000"]
    # The values are those that the host has: they would change nothing if the wall were broken.
    overcommit = OVERCOMMIT.read_text().strip()
    for name, settings in (
        ("host-network", {"net__ipv4__ip_local_port_range": " ".join(before[1].split())}),
        ("unsafe", {"vm__overcommit_memory": overcommit}),
    ):
        agent.apply(hostile(agent, name, *show, securityContext=sysctls(**settings)))
        await_refused(agent, name, within_seconds=PATIENCE_SECONDS)
    out = sysctls(**{"kernel/../vm/overcommit_memory": overcommit})
    with pytest.raises(InvalidInput, match="must be a name such as"):
        agent.apply(hostile(agent, "out", *show, securityContext=out))
    assert (FORCED.read_text(), PORTS.read_text()) == before
