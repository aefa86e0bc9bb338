"""How the tests of attacks recognise a refused pod."""

import json
from typing import Any

import pytest

from tests.attacks.hostile import is_refused

WAITS = {"state": {"waiting": {"reason": "ContainerCreating"}}}
WAITS_WITH_REASON = {"state": {"waiting": {"reason": "ContainerCreating", "message": "no such volume"}}}
NOT_STARTED = {"state": {"terminated": {"reason": "StartError"}}}
BACK_OFF = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": NOT_STARTED["state"]}
ENDED = {"state": {"terminated": {"reason": "Error"}}}
RUNS: dict[str, Any] = {"state": {"running": {}}}


@pytest.mark.parametrize(
    ("phase", "containers", "refused"),
    [
        ("Pending", [], False),
        ("Pending", [WAITS], False),
        ("Pending", [WAITS_WITH_REASON], True),
        ("Running", [RUNS], False),
        ("Running", [BACK_OFF], True),
        ("Failed", [], True),
        ("Failed", [WAITS], True),
        ("Failed", [NOT_STARTED], True),
        ("Failed", [ENDED], False),
    ],
    ids=json.dumps,
)
def test_a_pod_is_refused_if_no_container_of_it_could_run(
    phase: str, containers: list[dict[str, Any]], refused: bool
):
    assert is_refused({"phase": phase, "containerStatuses": containers}) == refused
