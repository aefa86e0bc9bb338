"""The guard, with files in a directory in place of cgroups. On real kernels: tests/kernel/test_relief.py."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from evenkeel.cgroup.drivers.processes import is_dead
from evenkeel.pressure.guard import NAME, Held, free_line, hear, hold_line, let_go
from evenkeel.pressure.guard_client import GuardClient
from evenkeel.pressure.memory.freezer import Freezer
from tests.models.agents import until
from tests.models.kernel import CountingKernel


def frozen(directory: Path, *names: str) -> list[Path]:
    files = [directory / name for name in names]
    for file in files:
        file.write_text("1")
    return files


def said(files: list[Path]) -> list[str]:
    return [file.read_text() for file in files]


def not_noted(text: str) -> None:
    raise AssertionError(text)


def test_what_comes_in_pieces_is_taken_up_when_it_is_whole():
    held: Held = {}
    words = hold_line("/a", "0") + hold_line("/b", "THAWED") + free_line("/a") + hold_line("/c", "max")
    for size in (1, 7, len(words)):
        rest = b""
        held.clear()
        for place in range(0, len(words), size):
            rest = hear(rest + words[place : place + size], held)
        assert held == {b"/b": b"THAWED", b"/c": b"max"}
        assert rest == b""
    assert hear(free_line("/b")[:-1], held) == free_line("/b")[:-1]
    assert b"/b" in held
    hear(free_line("/unknown"), held)
    assert len(held) == 2


@pytest.mark.parametrize("file", ["/a\n+/etc/passwd", "/a\0b", "/" + "a" * 4096])
def test_a_name_that_would_be_read_as_another_is_not_told(file):
    assert hold_line(file, "0") == b""
    assert free_line(file) == b""


def test_only_files_that_are_there_are_written_and_no_link_is_followed(tmp_path):
    (held, other) = frozen(tmp_path, "held", "other")
    link, gone = tmp_path / "link", tmp_path / "gone"
    link.symlink_to(other)
    let_go({os.fsencode(one): b"0" for one in (gone, link, tmp_path, held)})
    assert said([held, other]) == ["0", "1"]
    assert not gone.exists()


def test_at_the_end_whoever_is_held_is_let_go_and_whoever_was_freed_is_left_alone(tmp_path):
    files = frozen(tmp_path, "held", "freed", "again")

    async def story() -> None:
        guard = GuardClient(not_noted)
        guard.start()
        pid = guard.pid
        assert pid is not None
        for file in files:
            guard.hold({str(file): "0"})
        for file in files[1:]:
            guard.free([str(file)])
        guard.hold({str(files[2]): "0"})
        guard.hold({str(tmp_path / "gone"): "0"})
        assert said(files) == ["1", "1", "1"]
        guard.close()
        assert guard.pid is None
        assert is_dead(pid)
        guard.free([str(files[0])])  # too late, and nothing comes of it

    asyncio.run(story())
    assert said(files) == ["0", "1", "0"]


def test_of_many_that_are_told_at_once_none_is_lost(tmp_path):
    files = frozen(tmp_path, *(f"{number}{'x' * 100}" for number in range(200)))

    async def story() -> None:
        guard = GuardClient(not_noted)
        guard.start()
        guard.hold({str(file): "0" for file in files})
        guard.free(map(str, files[:100]))
        guard.close()

    asyncio.run(story())
    assert said(files) == ["1"] * 100 + ["0"] * 100


AGENT = """
import asyncio, subprocess, sys
from evenkeel.pressure.guard_client import GuardClient

async def live():
    guard = GuardClient(print)
    guard.start()
    child = subprocess.Popen(["sleep", "1000"], close_fds=False, stdout=subprocess.DEVNULL)
    guard.hold({sys.argv[1]: "0"})
    print(guard.pid, child.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(live())
"""


def test_when_the_agent_is_killed_its_guard_lets_go_and_ends_whoever_else_lives_on(tmp_path):
    (file,) = frozen(tmp_path, "held")
    command = [sys.executable, "-c", AGENT, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        pid, child = map(int, agent.stdout.readline().split())
        ends = os.pidfd_open(pid)
        try:
            assert os.getsid(pid) == pid  # a Ctrl-C at the agent's terminal is not for it
            assert said([file]) == ["1"]
            agent.kill()
            poll = select.poll()
            poll.register(ends, select.POLLIN)
            assert poll.poll(30_000)
            assert said([file]) == ["0"]
            assert not is_dead(child)
        finally:
            os.close(ends)
            os.kill(child, signal.SIGKILL)
            agent.kill()


def test_a_guard_that_is_killed_is_followed_by_one_that_knows_who_is_held(tmp_path):
    files = frozen(tmp_path, "held", "freed", "later")
    notes: list[str] = []

    async def story() -> None:
        guard = GuardClient(notes.append)
        guard.start()
        first = guard.pid
        assert first is not None
        for file in files[:2]:
            guard.hold({str(file): "0"})
        os.kill(first, signal.SIGKILL)
        guard.free([str(files[1])])
        await until(lambda: guard.pid not in (None, first))
        assert said(files) == ["1", "1", "1"]
        guard.hold({str(files[2]): "0"})
        # The next one has to wait for its turn: nothing is started again and again.
        second = guard.pid
        assert second is not None
        os.kill(second, signal.SIGKILL)
        await until(lambda: guard.pid is None)
        await until(lambda: guard.pid not in (None, second))
        guard.close()

    asyncio.run(story())
    assert said(files) == ["0", "1", "0"]
    assert set(notes) == {"the guard ended before the agent did: another one is started"}


def test_it_is_named_and_does_not_end_before_the_agent_when_others_are_asked_to(tmp_path):
    (file,) = frozen(tmp_path, "held")

    async def story() -> None:
        guard = GuardClient(not_noted)
        guard.start()
        pid = guard.pid
        assert pid is not None
        await until(
            lambda: Path(f"/proc/{pid}/comm").read_text().strip() == NAME
        )  # signals are seen to before
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
        guard.hold({str(file): "0"})
        guard.close()

    asyncio.run(story())
    assert said([file]) == ["0"]


def test_nobody_waits_for_a_guard_that_does_not_listen(tmp_path):
    (file,) = frozen(tmp_path, "held")
    notes: list[str] = []

    async def story() -> None:
        guard = GuardClient(notes.append)
        guard.start()
        pid = guard.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        guard.hold({str(file): "0"})
        for number in range(5_000):
            guard.hold({f"{tmp_path}/none{number}": "0"})
        assert len(notes) == 1
        assert "does not come to its turn" in notes[0]
        os.kill(pid, signal.SIGCONT)
        guard.close()

    asyncio.run(story())
    assert said([file]) == ["0"]


class Ordered(CountingKernel):
    """What the kernel and the guard are told, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, str]] = []

    def send_freeze(self, path: str, *, frozen: bool) -> None:
        self.done.append(("freeze" if frozen else "thaw", path))

    def hold(self, lets_go: Mapping[str, str]) -> None:
        self.done += [(f"hold {value}", file) for file, value in lets_go.items()]

    def free(self, files: Iterable[str]) -> None:
        self.done += [("free", file) for file in files]


def test_the_guard_knows_before_a_pod_is_frozen_and_until_it_is_thawed():
    kernel = Ordered()
    freezer = Freezer(kernel)
    freezer.freeze(kernel, ["/a", "/b"], 0.0)
    freezer.thaw_one(kernel, "/a")
    freezer.thaw_all(kernel, 0.5)
    assert kernel.done == [
        ("hold 0", "/a/cgroup.freeze"),
        ("hold 0", "/b/cgroup.freeze"),
        ("freeze", "/a"),
        ("freeze", "/b"),
        ("thaw", "/a"),
        ("free", "/a/cgroup.freeze"),
        ("thaw", "/b"),
        ("free", "/b/cgroup.freeze"),
    ]
