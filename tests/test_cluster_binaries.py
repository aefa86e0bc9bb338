"""The programs of the control plane are built once; where they cannot be, one sentence says why."""

import os
import re
from pathlib import Path

import pytest

from tests.cluster import binaries
from tests.cluster.binaries import CONTROL_PLANE, control_plane_programs, kubernetes_version
from tests.machines import Unavailable, run
from tests.machines.parts import PARTS

# A toolchain that writes the names of the programs that it should build, or has no registry.
GO = """#!/bin/sh
case "$1" in
  env) echo go1.99.1;;
  mod) if [ -e "{directory}/unreachable" ]; then echo 'go: a/module: no such host' >&2; exit 1; fi;;
  build) while [ -e "{directory}/slow" ]; do sleep 0.01; done
    for last; do if [ "$before" = -o ]; then to=$last; fi; before=$last; done; echo "$last" >"$to";;
esac
"""


@pytest.fixture
def toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "toolchain"
    directory.mkdir()
    go = directory / "go"
    go.write_text(GO.format(directory=directory))
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    return directory


def test_every_program_is_built_once_and_found_again(
    toolchain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    built = control_plane_programs(cache=tmp_path / "cache")
    assert {path.name for path in built.iterdir() if not path.name.startswith(".")} == set(CONTROL_PLANE)
    assert (built / "kubectl").read_text() == "k8s.io/kubernetes/cmd/kubectl\n"
    said = capsys.readouterr().err
    assert f"{kubernetes_version()}, once" in said
    assert "5 of 5: kubectl" in said

    assert control_plane_programs(cache=tmp_path / "cache") == built
    assert capsys.readouterr().err == ""


def test_a_build_that_takes_long_says_that_it_goes_on(
    toolchain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (toolchain / "slow").touch()
    said: list[str] = []

    def note(line: str, **_: object) -> None:
        said.append(line)
        if "so far" in line:
            (toolchain / "slow").unlink(missing_ok=True)

    monkeypatch.setattr(binaries, "SAID_EVERY_SECONDS", 0.05)
    monkeypatch.setattr("builtins.print", note)
    control_plane_programs(cache=tmp_path / "cache")
    assert any(re.fullmatch(r"  1 of 5: etcd, \d+ s so far", line) for line in said)
    assert re.fullmatch(r"  5 of 5: kubectl in \d+ s", said[-1])


@pytest.mark.parametrize(("ci", "status"), [("", 0), ("true", 1)])
def test_without_them_the_part_of_the_cluster_is_missing_and_no_other(
    toolchain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ci: str, status: int
):
    (toolchain / "unreachable").touch()
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(run, "control_plane_programs", lambda: control_plane_programs(cache=tmp_path))
    (name,) = found = run.missing(PARTS)
    assert name == "cluster"
    assert found[name].startswith("kernel tests on cluster: skipped, the control plane cannot be built")
    assert run.skipped_status() == status
    assert run.missing([part for part in PARTS if part.name != name]) == {}


def test_without_its_registry_one_sentence_says_so_and_nothing_half_made_stays(
    toolchain: Path, tmp_path: Path
):
    (toolchain / "unreachable").touch()
    with pytest.raises(Unavailable, match=r"cannot be built, 'go mod' says: go: a/module: no such host"):
        control_plane_programs(cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("control-plane-*"))
