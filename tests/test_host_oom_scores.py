"""OOM scores of processes we did not start. /proc is a temporary directory; the kernel's refusals are played."""

import contextlib
import errno
import itertools
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.errors import EvenkeelError
from evenkeel.host import oom_scores
from evenkeel.host.oom_scores import frozen, protect_daemons, read_score, runtime_process, set_oom_scores
from tests.models.kernel import Kernel


class Processes:
    """Processes of a temporary /proc, which fork and end as a test wants."""

    def __init__(self, proc):
        self.proc = proc

    def start(self, pid, score=0):
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "oom_score_adj").write_text(f"{score}\n")

    def end(self, pid):
        (self.proc / str(pid) / "oom_score_adj").unlink()
        (self.proc / str(pid)).rmdir()

    def list(self):
        return sorted(int(entry.name) for entry in self.proc.iterdir())

    def score(self, pid):
        return read_score(pid, str(self.proc))

    def set(self, score, listing=None, **how):
        return set_oom_scores(listing or self.list, score, proc=str(self.proc), **how)


@pytest.fixture
def processes(tmp_path):
    return Processes(tmp_path)


@pytest.fixture
def refusing(monkeypatch):
    """The kernel refuses to go below a score, or everything for a process."""
    plain = oom_scores.write_score
    refusals: dict[int, Any] = {}

    def write(pid, score, proc):
        lowest, code = refusals.get(pid, (-1000, 0))
        if score < lowest:
            return OSError(code, os.strerror(code))
        return plain(pid, score, proc)

    monkeypatch.setattr(oom_scores, "write_score", write)
    return refusals


@pytest.mark.req("A14")
def test_every_process_gets_the_score(processes):
    for pid in (10, 11, 12):
        processes.start(pid)
    processes.start(13, 500)
    assert processes.set(500) == (500, 4, 3, (), True)
    assert [processes.score(pid) for pid in processes.list()] == [500] * 4
    assert processes.set(500).changed == 0


@pytest.mark.req("A14")
def test_processes_that_fork_meanwhile_are_caught(processes):
    """Each time round one more process is there that was forked from one with the old score."""
    processes.start(1)
    forks = iter(range(2, 8))

    def listing():
        found = processes.list()
        if (pid := next(forks, None)) is not None:
            processes.start(pid)
        return found

    done = processes.set(777, listing)
    assert done.is_stable
    assert {processes.score(pid) for pid in processes.list()} == {777}
    assert done.changed == 7


@pytest.mark.req("A14")
def test_a_process_that_takes_the_number_of_one_that_ended_is_set_too(processes):
    processes.start(1)
    rounds = iter(("", "again"))

    def listing():
        if next(rounds, "") == "again":
            processes.end(1)
            processes.start(1, 0)
        return processes.list()

    processes.set(300, listing)
    assert processes.score(1) == 300


def test_going_round_comes_to_an_end(processes):
    def listing():
        pids = processes.list()
        processes.start(len(pids) + 1)
        return [*pids, len(pids) + 1]

    done = processes.set(5, listing)
    assert not done.is_stable
    assert (
        done.message == "not every process has oom_score_adj 5: new ones appear faster than they can be set"
    )


def test_processes_that_end_meanwhile_do_not_matter(processes, monkeypatch):
    processes.start(1)
    processes.start(2)
    plain = oom_scores.write_score

    def write(pid, score, proc):
        if pid == 1:
            processes.end(1)
        return plain(pid, score, proc)

    monkeypatch.setattr(oom_scores, "write_score", write)
    done = processes.set(9, lambda: [1, 2])
    assert (done.refused, done.is_stable, done.message) == ((), True, "")
    assert processes.score(2) == 9


@pytest.mark.req("A14")
def test_processes_that_are_gone_before_they_are_seen_must_stand_still(processes):
    """Each names a child that has the old score before it ends; none lives long enough to be seen."""
    numbers = itertools.count(10)
    moving = [True]

    @contextlib.contextmanager
    def standstill():
        moving[0] = False
        processes.start(5)
        yield
        moving[0] = True

    def listing():
        return [next(numbers)] if moving[0] else processes.list()

    restless = processes.set(44, listing)
    assert not restless.is_stable
    done = processes.set(44, listing, standstill=standstill)
    assert done.is_stable
    assert (processes.score(5), moving[0]) == (44, True)


def test_a_cgroup_that_does_not_freeze_is_said_not_to_be_stable(processes):
    numbers = itertools.count(10)

    @contextlib.contextmanager
    def standstill():
        raise EvenkeelError("it did not freeze")
        yield

    assert not processes.set(44, lambda: [next(numbers)], standstill=standstill).is_stable


def test_a_container_is_thawed_whatever_happens():
    calls = []

    class Recording(Kernel):
        def freeze(self, path, *, frozen):
            calls.append((path, frozen))

    with pytest.raises(KeyError), frozen(Recording(), "/a"):
        raise KeyError
    assert calls == [("/a", True), ("/a", False)]


@pytest.mark.req("A12")
def test_where_a_negative_score_is_refused_it_is_reported_and_the_rest_is_done(processes, refusing):
    processes.start(1, 200)
    processes.start(2, 0)
    processes.start(3, -999)
    refusing[1] = refusing[2] = (0, errno.EACCES)
    done = processes.set(-999)
    assert [processes.score(pid) for pid in (1, 2, 3)] == [0, 0, -999]  # as low as it was let
    assert [(one.pid, one.kept) for one in done.refused] == [(1, 0), (2, 0)]
    assert done.message == (
        "process 1 and 1 more could not be given oom_score_adj -999 and has 0: the kernel takes scores below 0 only"
        " from a process with CAP_SYS_RESOURCE; give it to the agent, or the OOM killer may choose this process before"
        " a pod"
    )


def test_another_refusal_has_the_kernels_own_reason(processes, refusing):
    processes.start(1, 3)
    refusing[1] = (1001, errno.EPERM)
    done = processes.set(4)
    assert done.message == ("process 1 could not be given oom_score_adj 4 and has 3: operation not permitted")


@pytest.mark.req("A12")
def test_daemons_are_the_agent_the_runtime_and_what_is_in_the_reserved_cgroups(processes):
    for pid in (1, 20, 30, 40, 50):
        processes.start(pid)
    done = protect_daemons((20, 30), lambda: [1, 40], -999, str(processes.proc))
    assert [processes.score(pid) for pid in (20, 30, 40)] == [-999] * 3
    assert processes.score(1) == 0  # init is the kernel's own business
    assert processes.score(50) == 0
    assert done.processes == 3


@given(
    st.lists(st.tuples(st.integers(2, 9), st.integers(-1000, 1000)), unique_by=lambda one: one[0]),
    st.integers(-1000, 1000),
)
def test_setting_twice_changes_nothing_the_second_time(tmp_path_factory, scores, score):
    processes = Processes(tmp_path_factory.mktemp("proc"))
    for pid, has in scores:
        processes.start(pid, has)
    assert processes.set(score).changed == sum(has != score for _, has in scores)
    assert processes.set(score).changed == 0


SERVES = """
import socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.bind(sys.argv[1])
    server.listen()
    print("listens", flush=True)
    sys.stdin.read()
"""


@pytest.mark.req("A12")
def test_the_runtime_is_the_process_that_serves_its_socket(tmp_path):
    path = str(tmp_path / "runtime.sock")
    # In another process: where this one is the first of its PID namespace, it is taken for the machine's init.
    command = [sys.executable, "-c", SERVES, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout.readline() == b"listens\n"
        assert runtime_process(f"unix://{path}") == server.pid
        assert runtime_process(path) == server.pid
    assert runtime_process(path) is None
    assert runtime_process("/no/where.sock") is None
    assert runtime_process("/" + "x" * 200) is None
    assert runtime_process("a\0b") is None


def test_what_is_no_score_is_none(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "oom_score_adj").write_text("what\n")
    assert read_score(1, str(tmp_path)) is None
