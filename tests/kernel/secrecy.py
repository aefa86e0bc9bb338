"""Checks that a value of a Secret is in no file of the agent, no log, no arguments of a process, and no answer to a
client that has not asked for the Secret itself."""

import base64
from pathlib import Path

from tests.kernel.agents import Up
from tests.kernel.live_tree import files_below, raw_content


def assert_nowhere(agent: Up, value: str, *, pod: str, secret: str) -> None:
    """`pod` has the value from `secret`. The objects of the agent have it in base 64, for their owner alone."""
    word = value.encode()
    files = files_below(agent.state, of_one_device=True)  # not in memory, where Secrets belong
    assert files
    assert not [path for path in files if word in (raw_content(path) or b"")]
    assert word not in agent.log.read_bytes()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert word not in path.read_bytes(), path
        except (FileNotFoundError, ProcessLookupError):
            continue
    for command in (
        ("describe", "pod", pod),
        ("describe", "secret", secret),
        ("get", "secrets"),
        ("get", "pod", pod, "-o", "yaml"),
        ("events", "-o", "json"),
        ("why", pod),
    ):
        shown = agent.cli(*command)
        assert value not in shown, command
        assert base64.b64encode(word).decode() not in shown, command
    assert value not in str(agent.client.get("/view"))
