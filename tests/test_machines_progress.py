"""The output of `make kernel` while the machines work: reports of pytest, lines of progress, the table at the end."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.waiting import eventually
from tests.machines import PROJECT, host, reports
from tests.machines.parts import BY_NAME, PARTS, Part
from tests.machines.progress import (
    Lane,
    Progress,
    Result,
    closing,
    line,
    reason_in,
    table,
    whole_left_seconds,
)
from tests.machines.reports import FAILED, PASSED, SKIPPED, Began, Collected, Ended, Report, read
from tests.machines.run import run_part
from tests.machines.side_by_side import HOST_PLACES, run_side_by_side

V2 = Part("v2-agents", "v2", 60, usual_seconds=400, cpus=2)

TESTS = """\
import pytest

def test_good():
    print("all is well")

def test_bad():
    print("seed 17")
    assert 1 == 2

def test_not_here():
    pytest.skip("no reason")

@pytest.fixture
def untidy():
    yield
    raise ValueError("left behind")

def test_untidy(untidy):
    pass
"""


def progress(*reports: Report, expected: dict[str, float] | None = None, part: Part = V2) -> Progress:
    made = Progress(part, 40.0, 100.0, expected or {})
    for report in reports:
        made.note(report)
    return made


@pytest.mark.parametrize("options", [[], ["-q"], ["-v"]])
def test_pytest_reports_each_test_as_it_ends_with_what_it_printed_where_it_failed(
    tmp_path: Path, options: list[str]
):
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(tmp_path)]
    command += ["-p", "no:cacheprovider", "-p", "tests.machines.reports", *options, str(tmp_path)]
    output = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False).stdout
    reports = [report for said in output.splitlines() if (report := read(said))]
    assert reports[0] == Collected(4)
    ended = {report.test: report for report in reports if isinstance(report, Ended)}
    assert {test: report.outcome for test, report in ended.items()} == {
        "test_some.py::test_good": PASSED,
        "test_some.py::test_bad": FAILED,
        "test_some.py::test_not_here": SKIPPED,
        "test_some.py::test_untidy": FAILED,
    }
    assert "assert 1 == 2" in ended["test_some.py::test_bad"].text
    assert "seed 17" in ended["test_some.py::test_bad"].text
    assert "left behind" in ended["test_some.py::test_untidy"].text
    assert ended["test_some.py::test_good"].text == ""


def test_a_module_that_cannot_be_collected_is_reported_as_a_failure(tmp_path: Path):
    (tmp_path / "test_some.py").write_text("import no_such_module\n")
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(tmp_path)]
    command += ["-p", "no:cacheprovider", "-p", "tests.machines.reports", str(tmp_path)]
    output = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False).stdout
    (failed,) = [report for said in output.splitlines() if isinstance(report := read(said), Ended)]
    assert (failed.test, failed.outcome) == ("test_some.py", FAILED)
    assert "no_such_module" in failed.text


def test_a_report_is_found_behind_the_dots_of_pytest():
    report = Ended("test_x.py::test_y[a b]", FAILED, 1.5, "two\nlines …")
    assert read(f"..{reports.line(report)}") == report


def test_a_line_for_people_is_no_report():
    assert read("tests/kernel/test_x.py ...F") is None


def test_a_part_says_how_many_tests_of_how_many_are_done_and_how_many_failed():
    some = progress(Collected(40), Ended("a", PASSED, 1), Ended("b", FAILED, 1), Began("c"))
    assert some.state == "v2-agents 2 of 40, 1 failed"


def test_a_part_without_tests_yet_is_getting_ready():
    assert progress().state == "v2-agents is getting ready"


def test_the_start_and_the_end_of_a_part_are_said_by_the_clock_of_the_run():
    some = progress(Collected(2), Ended("a", PASSED, 1), Ended("b", FAILED, 1))
    assert some.started() == "  1:00  v2-agents  starts"
    assert some.ended(165.0) == "  2:05  v2-agents  1 passed, 1 failed in 1:05"


def test_one_line_says_of_all_parts_how_far_they_are_and_what_comes_then():
    running = [progress(Collected(40), Ended("a", PASSED, 1)), progress(part=BY_NAME["systemd"])]
    said = line(420.0, 800.0, running, [BY_NAME["v1"], BY_NAME["host-alone"]])
    assert said == (
        "  7:00  about 13 min left: v2-agents 1 of 40; systemd is getting ready; then v1, host-alone"
    )


def test_the_time_left_is_by_what_the_part_usually_takes_where_nothing_is_known_of_its_tests():
    assert progress().left_seconds(105.0) == 400
    assert progress(Collected(4), Ended("a", PASSED, 60)).left_seconds(200.0) == 300


def test_the_time_left_is_by_what_the_tests_took_the_last_time():
    expected = {"a": 50.0, "b": 5.0, "c": 5.0}
    some = progress(Collected(3), Ended("a", PASSED, 100), expected=expected)
    assert some.left_seconds(200.0) == 20


@pytest.mark.parametrize(
    ("host", "guests", "alone", "whole"),
    [
        (([], []), ([70.0, 20.0], []), [], 70),
        (([], []), ([70.0, 20.0], [40.0]), [5.0, 6.0], 70 + 11),  # the place of the second is free first
        (([], []), ([70.0, 20.0], [40.0, 30.0]), [], 90),
        (([], []), ([50.0], [10.0]), [], 50),  # a place is free already
        (([80.0, 10.0], []), ([70.0, 20.0], [40.0]), [5.0], 85),  # those of the host have places of their own
        (([80.0, 10.0, 9.0], [75.0]), ([70.0], []), [5.0], 89),
        (([9.0], []), ([], []), [5.0], 14),
    ],
)
def test_the_whole_takes_until_the_last_of_those_beside_each_other_and_then_those_alone(
    host: tuple[list[float], list[float]],
    guests: tuple[list[float], list[float]],
    alone: list[float],
    whole: float,
):
    assert whole_left_seconds([Lane(*host, 3), Lane(*guests, 2)], alone) == whole


def test_every_kernel_test_of_the_host_is_in_one_of_its_parts():
    parts = [
        part.tests
        for part in PARTS
        if part.machine == "host" and part.needs_kernel and not part.needs_control_plane
    ]
    (rest,) = [tests for tests in parts if "tests/kernel" in tests]
    assert ("tests/attacks",) in parts
    named = [file for tests in parts if tests not in (rest, ("tests/attacks",)) for file in tests]
    assert sorted(f"--ignore={file}" for file in named) == sorted(
        word for word in rest if word.startswith("--")
    )
    assert [file for file in named if not (PROJECT / file).exists()] == []


def test_every_test_with_an_agent_is_on_one_of_the_kernels_with_cgroup_v2():
    """`-m` divides them: what a kernel in user mode lacks is in the emulated one."""
    chosen = [
        (test, part.tests[-1])
        for part in PARTS
        if "-m" in part.tests and part.tests[-1].startswith("agent")
        for test in part.tests[: part.tests.index("-m")]
    ]
    whole, other = "agent and whole_kernel", "agent and not whole_kernel"
    assert sorted(chosen) == [
        (place, choice) for place in ("tests/attacks", "tests/kernel") for choice in (other, whole)
    ]


def test_every_test_without_an_agent_is_on_one_of_the_kernels_with_cgroup_v2():
    """Those that share a processor are alone on theirs."""
    emulated, rest, alone = (BY_NAME[name].tests for name in ("v2-others", "user-mode-others", "v2-alone"))
    files = [word for word in rest if word.startswith("tests/")]
    assert rest == (*files, "-m", "not agent")
    assert emulated[:3] == ("tests/kernel", "-m", "not agent")
    left_out = [word.removeprefix("--ignore=") for word in emulated[3:]]
    assert sorted(left_out) == sorted([*files, "tests/kernel/test_cpu_promises.py"])
    assert "tests/kernel/test_cpu_promises.py" in alone
    assert [file for file in left_out if not (PROJECT / file).exists()] == []


def test_the_tests_of_the_cluster_are_in_one_part_and_the_long_ones_in_another():
    whole, long = BY_NAME["cluster"], BY_NAME["cluster-long"]
    files = [file for file in long.tests if file.startswith("tests/")]
    assert whole in PARTS
    assert long not in PARTS
    assert whole.tests == ("tests/cluster", *(f"--ignore={file}" for file in files))
    assert [file for file in files if not (PROJECT / file).exists()] == []


def test_a_failure_is_shown_with_the_command_that_repeats_just_that_test():
    report = Ended("tests/kernel/test_x.py::test_y[cri]", FAILED, 2.0, "assert 1 == 2")
    assert progress(report).failure(report, 130.0, ".venv/bin/python").splitlines() == [
        "  1:30  v2-agents  FAILED tests/kernel/test_x.py::test_y[cri]",
        "    assert 1 == 2",
        "  again: .venv/bin/python -m tests.machines test v2 --cpus 2 -- 'tests/kernel/test_x.py::test_y[cri]'",
    ]


def test_of_a_long_failure_the_end_is_shown():
    report = Ended("t", FAILED, 2.0, "\n".join(f"line {number}" for number in range(100)))
    shown = progress(report).failure(report, 130.0, "python").splitlines()
    assert shown[1:3] == ["    (40 lines more in the log)", "    line 40"]


def test_what_a_part_needs_in_its_environment_is_in_the_command_too():
    command = progress(part=BY_NAME["v2-alone"]).repeat("t", "python")
    assert command == "EVENKEEL_LONG=1 python -m tests.machines test v2 --cpus 2 -- t"


def test_a_fuzzer_that_failed_is_repeated_without_a_machine():
    command = progress(part=BY_NAME["fuzz"]).repeat("tests/fuzz/test_x.py::test_y", "python")
    assert command == "EVENKEEL_FUZZ_SECONDS=60 python -m pytest tests/fuzz/test_x.py::test_y"


def test_each_fuzzer_is_in_one_part_and_runs_there_for_a_minute():
    rest, stories = BY_NAME["fuzz"], BY_NAME["fuzz-stories"]
    assert rest.tests == ("tests/fuzz", "--deselect", *stories.tests)
    file, _, test = stories.tests[0].partition("::")
    assert f"def {test}(" in (PROJECT / file).read_text()
    assert {part.variables["EVENKEEL_FUZZ_SECONDS"] for part in (rest, stories)} == {"60"}
    assert (rest.gives_way, stories.gives_way) == (True, False)


def test_a_part_that_gives_way_has_the_least_priority_and_a_place_of_its_own(
    tmp_path: Path,
):
    """Those of the host have all their places, and wait for it."""
    shown = "import os; from pathlib import Path; from tests.machines import host; host.give_way()\n"
    shown += (
        "print(os.nice(0), *(host.AUTOGROUP.read_text().split()[1:] if host.AUTOGROUP.exists() else ()))\n"
    )
    waits = f"import time\nwhile not os.path.exists({str(tmp_path / 'done')!r}): time.sleep(0.01)\n"
    scripts = {f"host{number}": f"import os\n{waits}" for number in range(HOST_PLACES)}
    parts, command = scripted(**scripts, rest=f"{shown}Path({str(tmp_path / 'done')!r}).touch()")
    parts = [part._replace(gives_way=part.name == "rest") for part in parts]
    assert run_side_by_side(parts, command, tmp_path) == 0
    assert (tmp_path / "rest.txt").read_text() in ("19 nice 19\n", "19\n")


def test_a_part_that_needs_no_kernel_runs_as_any_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "tests" / "fuzz").mkdir(parents=True)
    (tmp_path / "tests" / "fuzz" / "test_some.py").write_text(TESTS)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(host, "PROJECT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    given: list[str] = []
    monkeypatch.setattr(host, "give_way", lambda: given.append("way"))
    part = Part("fuzz", "host", 60, 1, ("tests/fuzz", "-c", os.devnull), gives_way=True)
    assert run_part(part, reports=True) == 1
    assert given == ["way"]
    found = [report for said in capfd.readouterr().out.splitlines() if (report := read(said))]
    assert found[0] == Collected(4)


def test_the_table_has_a_row_for_each_part_and_a_last_line_as_pytest_has():
    good = Result(progress(Ended("a", PASSED, 1), Ended("b", SKIPPED, 1), part=BY_NAME["host"]), 61.0, 0, "")
    bad = Result(progress(Ended("a", PASSED, 1), Ended("b", FAILED, 1, "E   assert 1 == 2")), 754.0, 1, "")
    assert table([good, bad], 815.5).splitlines() == [
        "machine    passed  failed  skipped   time  verdict",
        "host            1       0        1   1:01  passed",
        "v2-agents       1       1        0  12:34  failed",
        "FAILED v2-agents b: assert 1 == 2",
        "2 passed, 1 failed, 1 skipped in 815.50s (0:13:35)",
    ]


def test_a_machine_that_ended_before_its_tests_is_named_in_the_last_line():
    dead = Result(progress(Ended("a", PASSED, 1), Began("b")), 10.0, 125, "ended within b")
    assert closing([dead], 10.0) == "1 passed, 1 machine ended early (v2-agents) in 10.00s (0:00:10)"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "    assert x\nE   assert 1 == 2\nE    +  where 1 = f()\n\ntest_x.py:3: AssertionError",
            "assert 1 == 2",
        ),
        ("ImportError: no module x\n\n", "ImportError: no module x"),
        ("", "no word of why"),
    ],
)
def test_the_reason_of_a_failure_is_its_first_marked_line_or_its_last(text: str, reason: str):
    assert reason_in(text) == reason


def test_the_last_words_of_a_machine_that_died_are_below_the_table():
    words = [f"line {number}" for number in range(30)]
    dead = Result(progress(Began("b")), 10.0, 125, "ended within b", words)
    shown = table([dead], 10.0).splitlines()
    assert shown[2:4] == ["ENDED v2-agents, its last words:", "    line 18"]
    assert shown[-2] == "    line 29"


def scripted(**scripts: str) -> tuple[list[Part], Callable[[Part], list[str]]]:
    """Parts that are small Python programs; `say(…)` writes reports."""
    said = "from tests.machines.reports import *\ndef say(*all):\n for one in all: print(line(one), flush=True)\n"
    parts = [Part(name, "host", 60, 60, is_alone=name.startswith("alone")) for name in scripts]
    return parts, lambda part: [sys.executable, "-c", f"{said}{scripts[part.name]}"]


def test_a_part_that_fails_hides_neither_the_others_nor_those_after_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    parts, command = scripted(
        bad="say(Collected(1), Began('t::bad'), Ended('t::bad', FAILED, 1.0, 'assert 0'))\nraise SystemExit(1)",
        good="say(Collected(1), Began('t::good'), Ended('t::good', PASSED, 1.0))",
        alone="say(Collected(1), Began('t::last'), Ended('t::last', PASSED, 1.0))",
    )
    assert run_side_by_side(parts, command, tmp_path) == 1
    shown = capfd.readouterr().out
    assert "bad        FAILED t::bad\n    assert 0\n  again: " in shown
    assert [row.split()[:4] for row in shown.splitlines()[-5:-2]] == [
        ["bad", "0", "1", "0"],
        ["good", "1", "0", "0"],
        ["alone", "1", "0", "0"],
    ]
    assert shown.splitlines()[-2] == "FAILED bad t::bad: assert 0"
    assert shown.splitlines()[-1].startswith("2 passed, 1 failed in ")


def test_all_parts_passed_is_status_0_and_their_output_is_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    parts, command = scripted(good="say(Collected(1), Ended('t', PASSED, 1.0))\nprint('booted')")
    assert run_side_by_side(parts, command, tmp_path) == 0
    assert (tmp_path / "good.txt").read_text() == "passed in 1.0 s: t\nbooted\n"
    assert capfd.readouterr().out.splitlines()[-1].startswith("1 passed in ")


def test_a_machine_that_dies_within_a_test_says_which_and_what_it_last_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    parts, command = scripted(
        v2="say(Collected(2), Began('t::one'))\nprint('kernel panic')\nraise SystemExit(125)"
    )
    assert run_side_by_side(parts, command, tmp_path) == 1
    shown = capfd.readouterr().out
    assert "    kernel panic\n" in shown
    assert "ended within t::one" in shown
    assert "1 machine ended early (v2)" in shown.splitlines()[-1]


def test_a_machine_that_cannot_be_had_is_in_the_table_with_its_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    parts, command = scripted(v2="print('kernel tests on v2: skipped, you are not root')")
    assert run_side_by_side(parts, command, tmp_path) == 0
    assert capfd.readouterr().out.splitlines()[-2].endswith("  kernel tests on v2: skipped, you are not root")


@pytest.mark.parametrize(("ci", "status"), [("", 0), ("true", 1)])
def test_a_part_that_lacks_what_is_built_for_it_is_left_out_and_the_others_run(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ci: str,
    status: int,
):
    monkeypatch.setenv("CI", ci)
    parts, command = scripted(alone="raise SystemExit(1)", good="say(Collected(1), Ended('t', PASSED, 1.0))")
    said = "kernel tests on alone: skipped, no registry"
    assert run_side_by_side(parts, command, tmp_path, {"alone": said}) == status
    shown = capfd.readouterr().out.splitlines()
    assert shown[0] == said
    assert [row.split()[:2] for row in shown[-3:-1]] == [["alone", "0"], ["good", "1"]]
    assert shown[-3].endswith(f"  {said}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_every_part_before_the_run_itself_ends(tmp_path: Path, number: signal.Signals):
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.machines.parts import Part; from tests.machines.side_by_side import run_side_by_side\n"
        "script = 'import os, sys, time; open(sys.argv[1], \"w\").write(str(os.getpid())); time.sleep(99)'\n"
        f"logs = Path({str(tmp_path)!r})\n"
        "parts = [Part(name, 'host', 60, 60) for name in ('one', 'two')]\n"
        "command = lambda part: [sys.executable, '-c', script, str(logs / f'{part.name}.pid')]\n"
        "sys.exit(run_side_by_side(parts, command, logs))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=PROJECT, stdout=subprocess.PIPE) as run:
        pids = [eventually(lambda file=file: written(tmp_path / file)) for file in ("one.pid", "two.pid")]
        run.send_signal(number)
        assert run.wait() == 128 + signal.SIGINT
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def written(path: Path) -> str:
    return path.read_text() if path.exists() else ""
