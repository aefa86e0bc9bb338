"""The programs of the control plane are built once; where they cannot be, one sentence says why."""

from pathlib import Path

import pytest

from tests.cluster.binaries import CONTROL_PLANE, control_plane_programs, kubernetes_version
from tests.machines import Unavailable

# A toolchain that writes the names of what it is told to build, or has no registry.
GO = """#!/bin/sh
case "$1" in
  env) echo go1.99.1;;
  mod) if [ -e "{directory}/unreachable" ]; then echo 'go: a/module: no such host' >&2; exit 1; fi;;
  build) for last; do if [ "$before" = -o ]; then to=$last; fi; before=$last; done; echo "$last" >"$to";;
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


def test_without_its_registry_one_sentence_says_so_and_nothing_half_made_stays(
    toolchain: Path, tmp_path: Path
):
    (toolchain / "unreachable").touch()
    with pytest.raises(Unavailable, match=r"cannot be built, 'go mod' says: go: a/module: no such host"):
        control_plane_programs(cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("control-plane-*"))
