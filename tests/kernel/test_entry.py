"""A child of the supervisor is in its cgroup, in every hierarchy, before it does anything else."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evenkeel.cgroup.tree import Version
from evenkeel.errors import EvenkeelError
from evenkeel.runtime import syscalls
from evenkeel.runtime.process.launch import entrances
from evenkeel.runtime.process.supervisor import cgroup_entry
from tests.kernel.cgroups import UNIFIED, Cgroup


def files_of(cgroup: Cgroup) -> tuple[str, ...]:
    version = Version.V1 if "memory" in cgroup.directories else Version.V2
    directories = {key or "unified": str(path) for key, path in cgroup.directories.items()}
    return entrances(directories, version)


@contextmanager
def child(files: tuple[str, ...], namespaces: int = 0) -> Iterator[tuple[int, tuple[str, ...]]]:
    """One that has entered, and does nothing more; with the files it had to enter by."""
    has_entered, entered = os.pipe()
    pid, left = cgroup_entry.clone_into(files, namespaces)
    if pid == 0:
        try:
            cgroup_entry.enter(left, "/own")
            os.write(entered, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(entered)
    try:
        assert os.read(has_entered, 1)
        yield pid, left
    finally:
        os.close(has_entered)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.req("A17")
@pytest.mark.parametrize("namespaces", [0, syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS])
def test_a_child_is_born_in_its_cgroup_or_moves_itself_alone(cgroup_root: Cgroup, namespaces: int) -> None:
    cgroup = cgroup_root.child("own")
    path = cgroup.path_in_hierarchy(cgroup_root)
    with child(files_of(cgroup), namespaces) as (pid, left):
        assert all(pid in _pids(one) for one in cgroup.paths())
        places = {line.split(":", 2)[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()}
        assert path in places
        assert {Path(file).name for file in left} <= {"tasks"}
        assert (left == ()) == (set(cgroup.directories) == {UNIFIED})


def test_a_cgroup_with_as_many_processes_as_it_may_have_is_entered_all_the_same(cgroup_root: Cgroup) -> None:
    """The limit applies to new processes only, not to processes that are moved there."""
    cgroup = cgroup_root.child("full")
    with child(files_of(cgroup)) as (first, _):
        cgroup.write("pids.max", 1)
        with child(files_of(cgroup)) as (second, _):
            assert {first, second} <= cgroup.processes()
        cgroup.write("pids.max", "max")


def test_a_cgroup_that_is_gone_is_named(cgroup_root: Cgroup) -> None:
    cgroup = cgroup_root.child("gone")
    files = files_of(cgroup)
    cgroup.remove()
    refused = _refusal(lambda left: cgroup_entry.enter(left, "/own"), files)
    assert "cannot enter its cgroup /own" in refused
    assert "no such file or directory" in refused


def _pids(directory: Path) -> set[int]:
    return {int(pid) for pid in (directory / "cgroup.procs").read_text().split()}


def _refusal(act: Callable[[tuple[str, ...]], None], files: tuple[str, ...]) -> str:
    """The error that a child gets if it cannot enter."""
    said, event_recorder = os.pipe()
    pid, left = cgroup_entry.clone_into(files)
    if pid == 0:
        try:
            act(left)
        except EvenkeelError as error:
            os.write(event_recorder, error.message.encode())
        finally:
            os._exit(0)
    os.close(event_recorder)
    os.waitpid(pid, 0)
    with os.fdopen(said, encoding="utf-8") as file:
        return file.read()
