"""A pod that asks for fewer rights than the default gets fewer, or is refused with a sentence."""

from pathlib import Path
from typing import Any

import pytest

from evenkeel.cli.client import AgentRefused
from evenkeel.errors import InvalidInput
from tests.attacks.hostile import IMAGES, await_refused_or_running, hostile, run_to_the_end
from tests.kernel.agents import Up, first_of

pytestmark = pytest.mark.cgroup("v1", "v2")


def is_taken(agent: Up, one: dict[str, Any]) -> bool:
    """Whether the pod runs; if not, it was refused."""
    name = one["metadata"]["name"]
    try:
        agent.apply(one)
    except (AgentRefused, InvalidInput):
        return False
    return not await_refused_or_running(agent, name)


def status_of(agent: Up, name: str) -> dict[str, str]:
    text = Path(f"/proc/{first_of(agent.container(name))}/status").read_text()
    fields = (line.partition(":") for line in text.splitlines())
    return {field: value.strip() for field, _, value in fields}


def capability_sets(agent: Up, name: str) -> set[int]:
    status = status_of(agent, name)
    return {int(status[field], 16) for field in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")}


def test_a_container_does_not_have_the_capabilities_that_it_drops(agent: Up):
    some = {"CHOWN": 0, "DAC_OVERRIDE": 1, "SETUID": 7, "NET_BIND_SERVICE": 10}

    def taken(name: str, image: str = "image", **capabilities: list[str]) -> bool:
        security = {"securityContext": {"capabilities": capabilities}}
        return is_taken(agent, hostile(agent, name, "sleep", "1000", image=image, container=security))

    for image in IMAGES:
        for word in ("ALL", "all", "CAP_ALL"):
            name = f"{image}-{word.lower().replace('_', '-')}-{len(word)}-{word.isupper():d}"
            assert not taken(name, image, drop=[word]) or capability_sets(agent, name) == {0}
    if taken("some", drop=[*some]):
        (bounding,) = {int(status_of(agent, "some")["CapBnd"], 16)}
        assert [name for name, number in some.items() if bounding >> number & 1] == []
    if taken("prefixed", drop=["CAP_CHOWN"]):
        assert not int(status_of(agent, "prefixed")["CapBnd"], 16) & 1
    if taken("one", drop=["ALL"], add=["NET_BIND_SERVICE"]):
        assert int(status_of(agent, "one")["CapBnd"], 16) == 1 << 10


def test_a_container_that_asks_for_a_filter_has_one(agent: Up):
    default = {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}
    absent = {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "none.json"}}}
    for name, options in (("container", {"container": default}), ("pod", default)):
        if is_taken(agent, hostile(agent, name, "sleep", "1000", **options)):
            assert status_of(agent, name)["Seccomp"] == "2"
    for name, options in (("no-container", {"container": absent}), ("no-pod", absent)):
        assert not is_taken(agent, hostile(agent, name, "sleep", "1000", **options))


# What would make a pod weaker than it is here, and is not done here: it must not run as if it were.
NOT_HERE: dict[str, dict[str, Any]] = {
    "runtimeClassName": {"runtimeClassName": "gvisor"},
    "appArmorProfile": {
        "securityContext": {"appArmorProfile": {"type": "Localhost", "localhostProfile": "no"}}
    },
    "seLinuxOptions": {
        "securityContext": {"seLinuxOptions": {"type": "evenkeel_none_t", "level": "s0:c1,c2"}}
    },
}


@pytest.mark.processes_only("what a runtime for containers makes of them is its own")
def test_a_wall_that_cannot_be_had_is_refused(agent: Up):
    taken = [
        field
        for field, spec in NOT_HERE.items()
        if is_taken(agent, hostile(agent, field.lower(), "sleep", "1000", **spec))
    ]
    assert taken == []


def test_no_pod_reads_the_traffic_of_others_on_the_network(agent: Up):
    """The network is the host's: a raw socket there reads the cookies of the dashboard."""
    for image in IMAGES:
        lines = run_to_the_end(agent, f"sniff-{image}", "sniff", image=image)[:-1]
        assert len(lines) == 5
        assert [line for line in lines if line.endswith("allowed")] == []
