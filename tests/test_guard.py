"""The guard, with files in a directory in place of cgroups. On real kernels: tests/kernel/test_mitigation.py."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

import evenkeel
from evenkeel.cgroup.drivers.processes import is_dead
from evenkeel.pressure.memory.cgroup_writes import FreezeFile
from evenkeel.pressure.memory.freezer import Freezer
from evenkeel.pressure.memory.kernel_triggers import KernelTriggers
from evenkeel.pressure.watch.guard import NAME, Held, free_line, hear, hold_line, let_go
from evenkeel.pressure.watch.guard_client import GuardClient


def frozen(directory: Path, *names: str) -> list[Path]:
    files = [directory / name for name in names]
    for file in files:
        file.write_text("1")
    return files


def said(files: list[Path]) -> list[str]:
    return [file.read_text() for file in files]


def not_noted(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture
def triggers() -> Iterator[KernelTriggers]:
    made = KernelTriggers()
    yield made
    made.close()


def until(triggers: KernelTriggers, guard: GuardClient, condition: Callable[[], bool]) -> None:
    """Takes the turns of the watch until the condition holds."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        triggers.wait(0.01)
        guard.start_if_due(time.monotonic())


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
def test_a_name_that_would_be_read_as_another_is_not_sent(file):
    assert hold_line(file, "0") == b""
    assert free_line(file) == b""


def test_only_files_that_are_there_are_written_and_no_link_is_followed(tmp_path):
    (held, other) = frozen(tmp_path, "held", "other")
    link, gone = tmp_path / "link", tmp_path / "gone"
    link.symlink_to(other)
    let_go({os.fsencode(one): b"0" for one in (gone, link, tmp_path, held)})
    assert said([held, other]) == ["0", "1"]
    assert not gone.exists()


def test_at_the_end_held_pods_are_released_and_freed_ones_are_left_alone(tmp_path, triggers):
    files = frozen(tmp_path, "held", "freed", "again")
    guard = GuardClient(triggers, not_noted)
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
    assert said(files) == ["0", "1", "0"]


def test_of_many_files_that_are_sent_at_once_none_is_lost(tmp_path, triggers):
    files = frozen(tmp_path, *(f"{number}{'x' * 100}" for number in range(200)))
    guard = GuardClient(triggers, not_noted)
    guard.start()
    guard.hold({str(file): "0" for file in files})
    guard.free(map(str, files[:100]))
    guard.close()
    assert said(files) == ["1"] * 100 + ["0"] * 100


WATCH = """
import subprocess, sys, time
from evenkeel.pressure.memory.kernel_triggers import KernelTriggers
from evenkeel.pressure.watch.guard_client import GuardClient

guard = GuardClient(KernelTriggers(), print)
guard.start()
child = subprocess.Popen(["sleep", "1000"], close_fds=False, stdout=subprocess.DEVNULL)
guard.hold({sys.argv[1]: "0"})
print(guard.pid, child.pid, flush=True)
time.sleep(1000)
"""


def test_when_the_watch_is_killed_its_guard_releases_pods_and_ends_whatever_other_process_lives_on(tmp_path):
    (file,) = frozen(tmp_path, "held")
    command = [sys.executable, "-c", WATCH, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        pid, child = map(int, watch.stdout.readline().split())
        ends = os.pidfd_open(pid)
        try:
            assert os.getsid(pid) == pid  # a Ctrl-C at a terminal is not for it
            assert said([file]) == ["1"]
            watch.kill()
            poll = select.poll()
            poll.register(ends, select.POLLIN)
            assert poll.poll(30_000)
            assert said([file]) == ["0"]
            assert not is_dead(child)
        finally:
            os.close(ends)
            os.kill(child, signal.SIGKILL)
            watch.kill()


def test_a_guard_that_is_killed_is_followed_by_one_that_knows_the_held_pods(tmp_path, triggers):
    files = frozen(tmp_path, "held", "freed", "later")
    notes: list[str] = []
    guard = GuardClient(triggers, notes.append)
    guard.start()
    first = guard.pid
    assert first is not None
    for file in files[:2]:
        guard.hold({str(file): "0"})
    os.kill(first, signal.SIGKILL)
    guard.free([str(files[1])])
    until(triggers, guard, lambda: guard.pid not in (None, first))
    assert said(files) == ["1", "1", "1"]
    guard.hold({str(files[2]): "0"})
    # The next one has to wait for its turn: nothing is started again and again.
    second, killed_at = guard.pid, time.monotonic()
    assert second is not None
    os.kill(second, signal.SIGKILL)
    assert triggers.wait(30.0)
    assert guard.pid is None
    guard.start_if_due(killed_at + 0.99)
    assert guard.pid is None
    guard.start_if_due(time.monotonic() + 1.0)
    assert guard.pid not in (None, second)
    guard.close()
    assert said(files) == ["0", "1", "0"]
    assert set(notes) == {"the guard ended before the watch over memory did: another one is started"}


def test_it_is_named_and_does_not_end_before_the_watch_when_others_are_asked_to(tmp_path, triggers):
    (file,) = frozen(tmp_path, "held")
    guard = GuardClient(triggers, not_noted)
    guard.start()
    pid = guard.pid
    assert pid is not None
    # signals are seen to before
    until(triggers, guard, lambda: Path(f"/proc/{pid}/comm").read_text().strip() == NAME)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    guard.hold({str(file): "0"})
    guard.close()
    assert said([file]) == ["0"]


def test_the_watch_does_not_wait_for_a_guard_that_does_not_listen(tmp_path, triggers):
    (file,) = frozen(tmp_path, "held")
    notes: list[str] = []
    guard = GuardClient(triggers, notes.append)
    guard.start()
    pid = guard.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    wait_until_stopped(pid)
    guard.hold({str(file): "0"})
    for number in range(5_000):
        guard.hold({f"{tmp_path}/none{number}": "0"})
    assert len(notes) == 1
    assert "does not come to its turn" in notes[0]
    os.kill(pid, signal.SIGCONT)
    guard.close()
    assert said([file]) == ["0"]


def test_a_guard_gets_the_files_that_it_missed_when_it_listens_again_and_each_miss_is_noted(
    tmp_path, triggers
):
    late, freed, again = frozen(tmp_path, "late", "freed", "again")
    others = [f"{tmp_path}/none{number}" for number in range(5_000)]
    notes: list[str] = []
    guard = GuardClient(triggers, notes.append)
    guard.start()
    pid = guard.pid
    assert pid is not None
    guard.hold({str(freed): "0"})
    for round_ in (1, 2):
        os.kill(pid, signal.SIGSTOP)
        wait_until_stopped(pid)
        for other in others:
            guard.hold({other: str(round_)})
        guard.hold({str(again): "2", str(late): "0"})
        guard.free([str(freed), str(again)])
        guard.hold({str(again): "0"})
        assert len(notes) == round_
        os.kill(pid, signal.SIGCONT)
        until(triggers, guard, lambda: not guard.has_missed)
    guard.close()
    assert said([late, freed, again]) == ["0", "1", "0"]


def wait_until_stopped(pid: int) -> None:
    """The signal stops a process a moment after it was sent, if it runs on another processor."""
    os.waitid(os.P_PID, pid, os.WSTOPPED)


class Ordered:
    """The messages to the guard, each with the content of the files at that moment."""

    def __init__(self, *files: Path) -> None:
        self.files = files
        self.done: list[tuple[str, list[str]]] = []

    def hold(self, lets_go: Mapping[str, str]) -> None:
        words = ", ".join(f"{Path(file).name} {value}" for file, value in lets_go.items())
        self.done.append((f"hold {words}", said(list(self.files))))

    def free(self, files: Iterable[str]) -> None:
        self.done.append((f"free {', '.join(Path(file).name for file in files)}", said(list(self.files))))


def test_the_guard_knows_before_a_pod_is_frozen_and_until_it_is_thawed(tmp_path):
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_text("0")
    guard = Ordered(*files)
    freezer = Freezer(guard)
    freezer.freeze({file.name: FreezeFile(str(file), b"1", b"0") for file in files}, 0.0)
    assert said(files) == ["1", "1"]
    freezer.thaw_one("a")
    freezer.thaw_all(0.5)
    assert guard.done == [
        ("hold a 0, b 0", ["0", "0"]),
        ("free a", ["0", "1"]),
        ("free b", ["0", "0"]),
    ]


def test_the_guard_loads_nothing_that_it_does_not_need():
    unwanted = {"collections", "enum", "functools", "re", "signal", "typing"}
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import evenkeel.pressure.watch.guard;"
        f" print(*{unwanted}.intersection(sys.modules))"
    )
    package = str(Path(evenkeel.__file__).parent.parent)
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, package], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == []
