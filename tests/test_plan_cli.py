"""`evenkeel plan` on a directory in place of the cgroup filesystem; on real ones: tests/kernel/test_reconcile.py."""

import json
import re
from pathlib import Path

import pytest

from evenkeel.cgroup.drivers.detect import CgroupMachine
from evenkeel.cgroup.drivers.mounts import Mounts
from evenkeel.cgroup.tree import Version
from evenkeel.cli.main import main
from tests.fake_front import FakeFront, served
from tests.models.manifests import SMALL_POD


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cgroup"
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpu memory pids\n")
    (root / "cgroup.procs").write_text("")
    machine = CgroupMachine(Version.V2, Mounts({}, str(root)), ("cpu", "memory", "pids"))
    monkeypatch.setattr("evenkeel.cli.plan.detect", lambda: machine)
    return root


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(SMALL_POD)
    return ["plan", "-f", str(manifest), "--node", "8Gi,2cpu"]


def test_the_plan_is_shown_with_rules_and_reasons_and_nothing_is_done(
    mount: Path, command: list[str], capsys: pytest.CaptureFixture[str]
):
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("+ /evenkeel/kubepods/burstable/podweb/c")
    limit = next(line for line in lines[at + 1 :] if "memory.max" in line)
    assert limit.split() == ["memory.max", "67108864", "C3", "limit", "64Mi"]
    assert re.fullmatch(r"7 cgroups to create, \d+ files to write; --apply changes it", lines[-1])
    assert sorted(path.name for path in mount.iterdir()) == ["cgroup.controllers", "cgroup.procs"]


def test_what_changes_is_shown_as_old_and_new_and_what_goes_as_gone(
    mount: Path, command: list[str], capsys: pytest.CaptureFixture[str]
):
    container = mount / "evenkeel/kubepods/burstable/podweb/c"
    container.mkdir(parents=True)
    (container / "memory.max").write_text("4096\n")
    (mount / "evenkeel/kubepods/podold").mkdir()

    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "- /evenkeel/kubepods/podold\n" in shown
    assert re.search(r"\n    memory.max +4096 → 67108864 +C3 +limit 64Mi\n", shown)
    assert "1 cgroup to remove" in shown

    assert main([*command, "-o", "json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert steps[0] == {"action": "remove", "path": "/evenkeel/kubepods/podold"}
    assert {
        "action": "write",
        "path": "/evenkeel/kubepods/burstable/podweb/c",
        "file": "memory.max",
        "before": "4096",
        "after": "67108864",
        "rule": "C3",
        "reason": "limit 64Mi",
    } in steps


@pytest.mark.req("E9")
def test_what_is_hands_off_is_not_in_the_plan(
    mount: Path, command: list[str], capsys: pytest.CaptureFixture[str]
):
    (mount / "evenkeel/kubepods/podold").mkdir(parents=True)
    assert main([*command, "--hands-off", "/evenkeel/kubepods"]) == 0
    assert "podold" not in capsys.readouterr().out


def test_what_cannot_be_applied_is_reported_and_the_exit_code_is_1(
    mount: Path, command: list[str], capsys: pytest.CaptureFixture[str]
):
    assert main([*command, "--apply"]) == 1
    shown = capsys.readouterr().out
    assert "failed cgroup /evenkeel has no cpu.weight: " in shown
    assert "left out" in shown
    assert (mount / "evenkeel/kubepods/burstable/podweb/c").is_dir(), "what can be done is done"


def test_pods_of_an_agent_that_runs_are_left_alone(
    mount: Path, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    running = mount / "evenkeel/kubepods/podother"
    running.mkdir(parents=True)
    with served(FakeFront(), tmp_path):
        assert main([*command, "--apply", "--state-dir", str(tmp_path)]) == 1
        said = capsys.readouterr()
        assert "an agent manages the cgroups below /evenkeel, and this would remove" in said.err
        assert running.is_dir()
        assert not (mount / "evenkeel/kubepods/burstable").exists(), "nothing is half done"
        main([*command, "--apply", "--state-dir", str(tmp_path), "--cgroup-root", "/other"])
        assert (mount / "other/kubepods/burstable/podweb/c").is_dir(), "nobody else looks after that one"
    main([*command, "--apply", "--state-dir", str(tmp_path)])
    assert (mount / "evenkeel/kubepods/burstable/podweb/c").is_dir(), "nor after this one now"


def test_a_controller_that_is_missing_is_reported_before_anything_is_done(
    mount: Path, command: list[str], capsys: pytest.CaptureFixture[str]
):
    (mount / "cgroup.controllers").write_text("cpu pids\n")
    assert main(command) == 1
    assert (
        "has no controller memory (if cgroup v1 has it, boot with cgroup_no_v1=memory"
        in capsys.readouterr().out
    )


def test_a_pod_that_does_not_fit_is_refused_and_the_others_are_planned(
    mount: Path, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    big = tmp_path / "big.yaml"
    big.write_text(SMALL_POD.replace("web", "big").replace("cpu: 100m", "cpu: 64"))
    assert main([*command, "-f", str(big)]) == 1
    said = capsys.readouterr()
    assert "refused default/big: OutOfcpu" in said.err
    assert "podweb" in said.out
    assert "podbig" not in said.out


def test_a_machine_without_cgroups_is_one_sentence(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from evenkeel.cgroup.drivers import detect

    (tmp_path / "mountinfo").write_text("")
    monkeypatch.setattr("evenkeel.cli.plan.detect", lambda: detect.detect(str(tmp_path / "mountinfo")))
    assert main(command) == 1
    assert capsys.readouterr().err.startswith("evenkeel: no cgroup filesystem is mounted (mount -t cgroup2")
