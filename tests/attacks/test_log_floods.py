"""Containers that write more than a disk can take: their cost is bounded, and the logs of others go on meanwhile."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.attacks.hostile import PATIENCE_SECONDS, await_ready, await_said, hostile
from tests.kernel.agents import MIB, Up, is_alive, processes_of
from tests.kernel.live_tree import raw_content, status
from tests.kernel.sessions import done
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("v1", "v2")
OF_PROCESSES = pytest.mark.processes_only("a container runtime writes its containers' logs itself")

LOG_MIB, LOG_FILES = 1, 2
FLAGS = (f"--container-log-max-size={LOG_MIB}Mi", f"--container-log-max-files={LOG_FILES}")
WAYS = ("line", "empty", "mixed")
# What the supervisor may need for so many containers that speak at once: chunks, and the entries they become.
ROOM_BYTES = 16 * MIB
ENTRY = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) [FP] ")


def logs(agent: Up, way: str) -> list[Path]:
    return sorted((agent.state / "logs").glob(f"default_floods-{way}_*/*/*"))


def resident_bytes(pid: int | None) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) << 10


def is_rotated(agent: Up, way: str) -> bool:
    return len(logs(agent, way)) >= LOG_FILES


def size_of_logs(agent: Up, way: str) -> int:
    """A file that is removed meanwhile, by the next rotation, is not there."""
    return sum(one.st_size for one in map(status, logs(agent, way)) if one)


@OF_PROCESSES
def test_floods_are_bounded_and_logs_of_other_containers_go_on(agent: Up):
    agent.apply(hostile(agent, "calm", "sh", "-c", "echo begins; while :; do sleep 1; done"))
    await_said(agent, "calm", "begins")
    before = resident_bytes(agent.supervisor_pid())
    for way in WAYS:
        agent.apply(hostile(agent, f"floods-{way}", "flood", way))
    for way in WAYS:
        agent.await_phase(f"floods-{way}", "Running")
        eventually(lambda: is_rotated(agent, way), within_seconds=PATIENCE_SECONDS)  # noqa: B023 called here
    assert done(agent, "exec", "calm", "--", "echo", "heard").stdout == b"heard\n"
    agent.apply(hostile(agent, "late", "sh", "-c", "echo done; while :; do sleep 1; done"))
    await_said(agent, "late")
    await_ready(agent)
    assert resident_bytes(agent.supervisor_pid()) - before < ROOM_BYTES
    for way in WAYS:
        assert size_of_logs(agent, way) <= (LOG_FILES + 1) * LOG_MIB * MIB, way
    left = [pid for way in WAYS for pid in processes_of(agent.container(f"floods-{way}"))]
    for pid in left:
        os.kill(pid, signal.SIGSTOP)  # a log that grows is read as far as it has grown meanwhile
    for way in WAYS:
        shown = done(agent, "logs", f"floods-{way}", "--tail", "3")
        assert shown.returncode == 0, way
        assert len(shown.stdout) <= (LOG_FILES + 1) * LOG_MIB * MIB, way
    for way in WAYS:
        agent.client.delete("default", f"floods-{way}", 0)
    for way in WAYS:
        agent.await_gone(f"floods-{way}")
    assert left
    assert not any(map(is_alive, left))


@OF_PROCESSES
def test_no_container_writes_entries_of_its_log_itself(agent: Up):
    """A line that looks like an entry is the text of one."""
    agent.apply(hostile(agent, "floods-mixed", "flood", "mixed"))

    def whole() -> bytes | None:
        """A log that was rotated. The next rotation removes it; then another one is there."""
        rotated = [path for path in logs(agent, "mixed") if path.name != "1.log"]
        return next(filter(None, map(raw_content, rotated)), None)

    lines = eventually(whole, within_seconds=PATIENCE_SECONDS).split(b"\n")[:-1]
    assert any(line.endswith(b" F 2026-01-02T03:04:05.678901234Z stdout F forged") for line in lines)
    assert [line[:80] for line in lines if not ENTRY.match(line)] == []
    assert [line for line in lines if line.startswith(b"2026-01-02T03:04:05.678901234Z")] == []


def test_the_logs_of_a_flood_are_bounded_with_either_runtime(agent: Up):
    """A container runtime lets no container wait, so a log may be much larger than it may be when it is rotated."""
    slowly = {"resources": {"limits": {"cpu": "100m"}}}
    agent.apply(hostile(agent, "floods-line", "flood", "line", container=slowly))
    eventually(lambda: is_rotated(agent, "line"), within_seconds=PATIENCE_SECONDS)
    for pid in processes_of(agent.container("floods-line")):
        os.kill(pid, signal.SIGSTOP)

    # The last log is rotated too, if it is too large.
    eventually(
        lambda: size_of_logs(agent, "line") <= (LOG_FILES + 1) * LOG_MIB * MIB,
        within_seconds=PATIENCE_SECONDS,
        details=lambda: f"they have {size_of_logs(agent, 'line')} bytes",
    )
    await_ready(agent)
