"""`make stress`: rounds of the same tests, half of them beside load, and what is said and kept of them."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.waiting import eventually
from tests.machines import PROJECT
from tests.machines.__main__ import main
from tests.machines.reports import FAILED, PASSED, Began, Ended, Report, RoundBegan, RoundEnded, line, read
from tests.machines.rounds import busy_loops
from tests.machines.stress import Round, Watched, table

SEEDED = """\
import os

def test_only_even_seeds_are_good():
    assert int(os.environ["EVENKEEL_SEED"]) % 2 == 0
"""


def watched(tmp_path: Path, *said: Report | str) -> tuple[Watched, str]:
    shown = io.StringIO()
    made = Watched(3, tmp_path / "kept", shown)
    made.read(f"{one if isinstance(one, str) else line(one)}\n" for one in said)
    made.end()
    return made, shown.getvalue()


def test_rounds_take_one_seed_after_another_and_run_beside_load_where_it_is_odd(tmp_path: Path):
    (tmp_path / "test_some.py").write_text(SEEDED)
    pytest_arguments = ["-p", "tests.machines.reports", "-c", os.devnull, "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "tests.machines.rounds", "3", "10", *pytest_arguments, str(tmp_path)]
    run = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    reports = [report for said in run.stdout.splitlines() if (report := read(said))]
    assert [report for report in reports if isinstance(report, RoundBegan)] == [
        RoundBegan(1, 10, False),
        RoundBegan(2, 11, True),
        RoundBegan(3, 12, False),
    ]
    assert [report.outcome for report in reports if isinstance(report, Ended)] == [PASSED, FAILED, PASSED]
    assert [report.status for report in reports if isinstance(report, RoundEnded)] == [0, 1, 0]
    assert run.returncode == 1


def test_tests_that_are_not_there_are_not_tried_again(tmp_path: Path):
    command = [
        sys.executable,
        "-m",
        "tests.machines.rounds",
        "3",
        "10",
        "-c",
        os.devnull,
        str(tmp_path / "no.py"),
    ]
    run = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    reports = [report for said in run.stdout.splitlines() if (report := read(said))]
    assert [report.status for report in reports if isinstance(report, RoundEnded)] == [4]
    assert run.returncode == 1


def test_busy_loops_keep_the_processors_busy_and_are_gone_afterwards():
    with busy_loops(2) as pids:
        assert len(pids) == 2
        eventually(lambda: all(used_ticks(pid) > 0 for pid in pids))
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def used_ticks(pid: int) -> int:
    """Processor time in user mode, as proc_pid_stat(5) counts it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def test_a_round_that_failed_is_kept_with_all_it_said_and_one_that_passed_is_not(tmp_path: Path):
    rounds, shown = watched(
        tmp_path,
        "v2: booted",
        RoundBegan(1, 10, False),
        "dots",
        Began("t"),
        Ended("t", PASSED, 1.0),
        RoundEnded(0, 5.0),
        RoundBegan(2, 11, True),
        "storm 11: three pods",
        Began("t"),
        Ended("t", FAILED, 1.0, "assert 0"),
        RoundEnded(1, 7.0),
    )
    log = tmp_path / "kept" / "round-2-seed-11.txt"
    assert rounds.rounds == [Round(10, False, (), None), Round(11, True, ("t",), log)]
    assert log.read_text() == "storm 11: three pods\nfailed: t\nassert 0\n"
    assert [path.name for path in log.parent.iterdir()] == [log.name]
    assert shown.splitlines() == [
        "v2: booted",
        "round 1 of 3, seed 10, alone: 1 passed in 5 s",
        f"round 2 of 3, seed 11, beside load: 0 passed, 1 failed in 7 s, log {os.path.relpath(log, PROJECT)}",
    ]


def test_a_machine_that_ends_within_a_test_has_failed_in_it(tmp_path: Path):
    rounds, shown = watched(tmp_path, RoundBegan(1, 10, False), Ended("a", PASSED, 1.0), Began("b"), "Oops")
    (one,) = rounds.rounds
    assert one.failed == ("b",)
    assert one.log is not None
    assert one.log.read_text() == "passed: a\nOops\n"
    assert "and ended before its tests did" in shown


def test_tests_that_do_not_fit_the_machine_are_said_to(tmp_path: Path):
    _, shown = watched(tmp_path, RoundBegan(1, 10, False), RoundEnded(5, 1.0))
    assert "no test fits this machine (name another with MACHINE=…)" in shown


def test_the_table_says_how_often_each_test_failed_alone_and_beside_load_and_with_which_seeds(tmp_path: Path):
    log = PROJECT / ".cache" / "stress" / "v2-1" / "round"
    rounds = [
        Round(10, False, (), None),
        Round(11, True, ("a", "b"), log),
        Round(12, False, ("b",), log),
        Round(13, True, ("b",), log),
    ]
    assert table(rounds).splitlines() == [
        "failed  alone   beside load  seeds",
        "a       0 of 2  1 of 2       11",
        "b       1 of 2  2 of 2       11 12 13",
        "the logs of the rounds that failed are in .cache/stress/v2-1",
        "1 rounds passed, 3 failed",
    ]


def test_rounds_without_a_failure_make_no_table():
    assert table([Round(10, False, (), None)]) == "1 rounds passed, 0 failed"


def test_no_tests_to_repeat_is_reported_with_how_it_is_written(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["stress", "host"])
    assert "python -m tests.machines stress MACHINE -- PYTEST-ARGUMENTS" in capsys.readouterr().err


def test_a_round_that_is_interrupted_does_not_count_and_ends_with_what_it_started(tmp_path: Path):
    """In place of a machine a program that says it has begun a round."""
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tests.machines import stress\n"
        "from tests.machines.run import Request\n"
        f"stress.KEPT = Path({str(tmp_path)!r})\n"
        "stress.command_of = lambda *_: [sys.executable, '-c', sys.argv[1]]\n"
        "sys.exit(stress.run_stress(Request('host', 'host', 60), ['x'], rounds=2, seed=1))\n"
    )
    machine = (
        "import os, time\n"
        "from tests.machines.reports import RoundBegan, line\n"
        "print(f'pid {os.getpid()}', flush=True)\n"
        "print(line(RoundBegan(1, 1, True)), flush=True)\n"
        "time.sleep(99)\n"
    )
    command = [sys.executable, "-c", program, machine]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        pid = run.stdout.readline().split()[1]
        run.send_signal(signal.SIGINT)
        said = run.stdout.read()
    assert said.splitlines()[-1] == "0 rounds passed, 0 failed"
    assert run.returncode != 0
    assert not Path(f"/proc/{pid}").exists()
    assert list(tmp_path.iterdir()) == []
