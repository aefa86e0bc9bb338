"""A pod's limits are not the pod's to change, whatever it asks the kernel for."""

from pathlib import Path

import pytest

from tests.attacks.hostile import (
    IMAGES,
    PATIENCE_SECONDS,
    await_said,
    details_of,
    hostile,
    run_to_the_end,
    said,
)
from tests.kernel.agents import MIB, Up, first_of
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("v1", "v2")

LIMIT_MIB, WANTED_MIB = 64, 160
AMOUNTS = {
    "limits": {"memory": f"{LIMIT_MIB}Mi", "cpu": "500m"}, "requests": {"memory": f"{LIMIT_MIB}Mi", "cpu": "100m"}
}  # fmt: skip
# Of these the kernel refuses some to a container anyway. A filter refuses all of them, however they are called.
REFUSED = ("unshare-user", "unshare-cgroup", "unshare-mount", "clone-user", "clone3-user", "setns", "mount",
           "open_tree", "fsopen", "pivot_root", "keyctl", "keyctl-describe", "add_key", "request_key", "bpf",
           "perf_event_open", "open_by_handle_at", "userfaultfd", "io_uring_setup", "socket-alg", "socket-vsock",
           "lease")  # fmt: skip
# What the filters of container runtimes allow, in one version or another.
OF_RUNTIMES = ("io_uring_setup", "socket-alg", "socket-vsock", "lease")


@pytest.mark.parametrize("user", [{}, {"runAsUser": 65534}], ids=["root", "nobody"])
def test_a_pod_does_not_get_out_of_its_limits(agent: Up, user: dict):
    wanted = str(WANTED_MIB * MIB)
    for image in IMAGES:
        name = f"loosen-{image}"
        container = {"resources": AMOUNTS, "securityContext": user}
        agent.apply(
            hostile(agent, name, "loosen", wanted, image=image, container=container, restartPolicy="Never")
        )
        await_said(agent, name, "begins")
        eventually(
            lambda: agent.phase(name) == "Failed" or f"holds {wanted}" in said(agent, name),  # noqa: B023 called here
            within_seconds=PATIENCE_SECONDS,
            details=lambda: details_of(agent, name),  # noqa: B023 called here
        )
        lines = said(agent, name)
        assert [line for line in lines if line.startswith(("loosened", "holds"))] == []
        (main,) = agent.await_phase(name, "Failed")["containerStatuses"]
        assert main["state"]["terminated"]["reason"] == "OOMKilled", details_of(agent, name)


def test_what_a_container_has_no_business_with_is_refused_however_it_is_called(agent: Up):
    for image in IMAGES:
        name = f"calls-{image}"
        lines = [line.split() for line in run_to_the_end(agent, name, "calls", image=image)[:-1]]
        outcomes = {(call, way): outcome for call, way, outcome in lines}
        assert {call for call, _ in outcomes} == set(REFUSED)
        left_to_others = OF_RUNTIMES if agent.containerd is not None else ()
        allowed = [
            f"{call} ({way})"
            for (call, way), outcome in outcomes.items()
            if outcome == "allowed" and call not in left_to_others
        ]
        assert allowed == []
        status = Path(f"/proc/{first_of(agent.container(name))}/status").read_text()
        assert "Seccomp:\t2\n" in status
        if agent.containerd is None:  # what Kubernetes leaves to a container's manifest
            assert "NoNewPrivs:\t1\n" in status


@pytest.mark.processes_only("which namespaces containers have is their runtime's own")
def test_a_container_sees_its_own_cgroup_as_the_top(agent: Up):
    agent.apply(hostile(agent, "top", "cat", "/proc/self/cgroup", restartPolicy="Never"))
    agent.await_phase("top", "Succeeded")
    lines = said(agent, "top")
    assert lines
    assert [line for line in lines if agent.root.paths()[0].name in line] == []
