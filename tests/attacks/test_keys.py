"""The kernel's keys: a container has none of the machine's, nor of another container, though it has no filter and runs
as the same user. With the filter it cannot ask for keys at all (test_limits)."""

import pytest

from tests.attacks.hostile import IMAGES, run_to_the_end
from tests.kernel.agents import Up

pytestmark = pytest.mark.cgroup("v1", "v2")

# Root without a filter is refused (processes), or has to be allowed (containerd).
UNCONFINED = {
    "securityContext": {
        "runAsUser": 65534,
        "runAsGroup": 65534,
        "allowPrivilegeEscalation": False,
        "seccompProfile": {"type": "Unconfined"},
        "capabilities": {"drop": ["ALL"]},
    }
}


def test_no_container_gets_at_the_keys_of_another_one_of_the_same_user(agent: Up):
    (_, key, keyring), _ = map(str.split, run_to_the_end(agent, "puts", "keys", "put", container=UNCONFINED))
    assert int(key) > 0
    for image in IMAGES:
        name = f"takes-{image}"
        command = ("keys", "take", key, keyring)
        session, *ways, _ = run_to_the_end(agent, name, *command, image=image, container=UNCONFINED)
        _, own, count = session.split()
        assert own != keyring
        assert count == "0"
        outcomes = dict(way.split() for way in ways)
        assert [way for way, outcome in outcomes.items() if outcome == "allowed"] == []
        assert len(outcomes) == 10
