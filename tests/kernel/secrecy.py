"""Where a value of a Secret must not be: files of the agent's, logs, arguments of processes, and what is shown to
whoever has not asked for the Secret itself."""

import base64
import os
from pathlib import Path

from tests.kernel.agents import Up


def assert_nowhere(agent: Up, value: str, *, pod: str, secret: str) -> None:
    """`pod` has the value from `secret`. The objects of the agent have it in base 64, for their owner alone."""
    word = value.encode()
    assert not [path for path in _files(agent.state) if word in path.read_bytes()]
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


def _files(directory: Path) -> list[Path]:
    """Every file on the disk below the directory, not those of filesystems in memory that are mounted there."""
    device = directory.stat().st_dev
    found = []
    for place, names, files in os.walk(directory):
        names[:] = [name for name in names if Path(place, name).lstat().st_dev == device]
        paths = (Path(place, name) for name in files)
        found += [path for path in paths if path.is_file() and not path.is_symlink()]
    assert found
    return found
