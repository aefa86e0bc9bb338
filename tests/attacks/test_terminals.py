"""Text that a container chooses reaches an operator's terminal without its control characters."""

import pytest

from tests.attacks.hostile import PATIENCE_SECONDS, hostile
from tests.kernel.agents import Up
from tests.kernel.sessions import done
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("v1", "v2")

# A title, a cleared screen, another line, text from right to left, and C1 controls as one byte and as two.
HOSTILE = r"\033]0;owned\007\033[2J\rfine\342\200\256\302\233\233 owned"
COMMANDS = (
    ("describe", "pod", "speaks"),
    ("describe", "node"),
    ("get", "pods"),
    ("get", "pods", "-o", "wide"),
    ("get", "pod", "speaks", "-o", "json"),
    ("get", "pod", "speaks", "-o", "yaml"),
    ("get", "events"),
    ("why", "speaks"),
    ("events",),
    ("top", "--once"),
    ("images",),
)


def test_no_command_prints_control_characters_of_a_container(agent: Up):
    script = f"printf '{HOSTILE}' > /dev/termination-log; printf '{HOSTILE}'; sleep 2; exit 3"
    probe = {"exec": {"command": ["/bin/sh", "-c", f"printf '{HOSTILE}'; exit 1"]}, "periodSeconds": 1}
    hook = {"postStart": {"exec": {"command": ["/bin/sh", "-c", f"printf '{HOSTILE}' >&2; sleep 1; exit 1"]}}}
    container = {"readinessProbe": probe, "terminationMessagePolicy": "FallbackToLogsOnError"}
    agent.apply(hostile(agent, "speaks", "/bin/sh", "-c", script, container=container))
    agent.apply(hostile(agent, "hooks", "/bin/sh", "-c", "sleep 1000", container={"lifecycle": hook}))

    def is_told() -> bool:
        (status,) = agent.status("speaks").get("containerStatuses") or [{}]
        reported = str(status.get("lastState")) + str(status.get("state"))
        events = [one["message"] for one in agent.client.lines("/events")]
        return "owned" in reported and sum("owned" in message for message in events) >= 2

    eventually(is_told, within_seconds=PATIENCE_SECONDS, details=lambda: agent.details_of("speaks"))
    shown = {command: done(agent, *command) for command in COMMANDS}
    texts = {command: (one.stdout + one.stderr).decode() for command, one in shown.items()}
    assert [command for command, text in texts.items() if "owned" in text]
    bad = {
        " ".join(command): [line for line in text.split("\n") if not line.isprintable()][:3]
        for command, text in texts.items()
    }
    assert {command: lines for command, lines in bad.items() if lines} == {}
    log = agent.log.read_text()
    assert [line for line in log.split("\n") if not line.isprintable()][:3] == []
