"""Fuzzers: where they begin, and what is said of one that failed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machines import PROJECT

FUZZER = """\
from tests.fuzz.conftest import pytest_runtest_makereport
from tests.fuzz.mutation import seeds

def test_fails():
    for seed in seeds():
        if seed == 9:
            raise ValueError("a reader that raised says nothing of a seed")
"""


@pytest.mark.parametrize(("seed", "seconds"), [("7", "60"), ("9", "0")])
def test_a_fuzzer_that_fails_names_its_seed_and_is_repeated_with_it(tmp_path: Path, seed: str, seconds: str):
    test = tmp_path / "test_some.py"
    test.write_text(FUZZER.partition("\n")[2])
    (tmp_path / "conftest.py").write_text(FUZZER.partition("\n")[0] + "\n")
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(tmp_path)]
    variables = {"EVENKEEL_SEED": seed, "EVENKEEL_FUZZ_SECONDS": seconds, "PYTHONPATH": str(PROJECT)}
    run = subprocess.run(
        [*command, "-p", "no:cacheprovider", str(test)],
        cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 1, run.stdout
    assert "seed 9; EVENKEEL_SEED=9 EVENKEEL_FUZZ_SECONDS=0 repeats it" in run.stdout


def test_a_fuzzer_that_may_not_take_long_tries_one_input(tmp_path: Path):
    run = subprocess.run(
        [sys.executable, "-c", "from tests.fuzz.mutation import seeds; print(*seeds())"],
        cwd=PROJECT,
        env={**os.environ, "EVENKEEL_SEED": "5", "EVENKEEL_FUZZ_SECONDS": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "5\n"
