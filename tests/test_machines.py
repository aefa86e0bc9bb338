"""How the machines of the kernel tests are made, as far as it can be tested without one."""

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.cgroups import UNIFIED, hierarchies
from tests.kernel.waiting import eventually
from tests.machines import PROJECT, Unavailable, environment, host, packages
from tests.machines.__main__ import main
from tests.machines.cache import made_once
from tests.machines.initrd import GUEST
from tests.machines.kernel import BROKEN, PACKAGE, load_order, newest_sound
from tests.machines.virtual_machine import SCRATCH

MODULES_DEP = """\
kernel/fs/fuse/fuse.ko:
kernel/fs/fuse/virtiofs.ko: kernel/fs/fuse/fuse.ko kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio.ko: kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio_ring.ko:
kernel/drivers/char/hw_random/virtio-rng.ko.xz: kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
"""


def test_a_module_is_loaded_after_those_it_needs_and_once():
    assert load_order(MODULES_DEP, "kernel/fs/ext4/ext4.ko\n", ["virtiofs", "virtio_rng", "ext4"]) == [
        "kernel/drivers/virtio/virtio_ring.ko",
        "kernel/drivers/virtio/virtio.ko",
        "kernel/fs/fuse/fuse.ko",
        "kernel/fs/fuse/virtiofs.ko",
        "kernel/drivers/char/hw_random/virtio-rng.ko.xz",
    ]


def test_a_module_that_the_kernel_does_not_have_is_named():
    with pytest.raises(Unavailable, match="squashfs"):
        load_order(MODULES_DEP, "", ["squashfs"])


def offered(*rows: tuple[str, str]) -> str:
    return "".join(f" {name} | {version} | some source\n" for name, version in rows)


def test_the_newest_kernel_is_the_one_that_the_release_names():
    assert newest_sound(offered((PACKAGE, "6.1.176-1"), (PACKAGE, "6.1.200-1"))) == PACKAGE
    assert newest_sound("") == PACKAGE  # apt will say why it is not there


def test_before_a_broken_kernel_the_newest_older_one_of_its_series_is_taken():
    (broken,) = BROKEN
    assert broken == "6.1.192-1"
    numbered = (
        ("linux-image-6.1.0-55-cloud-amd64", broken),
        ("linux-image-6.1.0-9-cloud-amd64", "6.1.99-1"),
        ("linux-image-6.1.0-54-cloud-amd64", "6.1.190-1"),
        ("linux-image-6.12.9+deb12-cloud-amd64", "6.12.9-1"),
        ("linux-image-5.10.0-9-cloud-amd64", "5.10.300-1"),
    )
    assert newest_sound(offered((PACKAGE, broken), (PACKAGE, "6.1.176-1"), *numbered)) == numbered[2][0]
    with pytest.raises(Unavailable, match=f"{broken} is known to be broken"):
        newest_sound(offered((PACKAGE, broken), numbered[0], numbered[3]))


def test_a_thing_is_made_once_for_the_same_inputs(tmp_path: Path):
    makes: list[Any] = []
    for inputs in (["a", "b"], ["a", "b"], ["ab"]):
        made_once("thing", inputs, makes.append, cache=tmp_path)
    assert len(makes) == 2


def test_a_thing_whose_name_begins_alike_is_left_to_those_who_make_it(tmp_path: Path):
    def make(directory: Path) -> None:
        made_once("thing", ["b"], lambda path: None, cache=tmp_path)
        (directory / "whole").touch()

    assert (made_once("thing-other", ["a"], make, cache=tmp_path) / "whole").exists()


def test_a_half_made_thing_is_made_again(tmp_path: Path):
    def fail(directory: Path) -> None:
        (directory / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_once("thing", ["a"], fail, cache=tmp_path)
    directory = made_once("thing", ["a"], lambda path: (path / "whole").touch(), cache=tmp_path)
    assert [path.name for path in directory.iterdir() if path.name[0] != "."] == ["whole"]


def test_what_a_killed_maker_left_is_removed(tmp_path: Path):
    (tmp_path / "thing-0123456789ab").mkdir()
    directory = made_once("thing", ["a"], lambda path: None, cache=tmp_path)
    assert list(tmp_path.glob("thing-*")) == [directory]


def test_two_makers_at_once_make_one_thing(tmp_path: Path):
    program = (
        "from pathlib import Path; from tests.machines.cache import made_once\n"
        "print('begins', flush=True)\n"
        "def make(path):\n"
        "    print('makes', flush=True)\n"
        "    input()\n"
        f"made_once('thing', ['a'], make, cache=Path({str(tmp_path)!r}))\n"
    )

    def maker() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=PROJECT, text=True, stdin=pipe, stdout=pipe)

    with maker() as first:
        assert first.stdout.readline() + first.stdout.readline() == "begins\nmakes\n"
        with maker() as second:
            assert second.stdout.readline() == "begins\n"
            first.communicate("done\n")
            assert second.communicate("done\n")[0] == ""


def test_controllers_of_cgroup_v1_are_found_apart_and_together_beside_the_unified_hierarchy():
    mountinfo = """\
30 24 0:26 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/systemd rw shared:11 - cgroup cgroup rw,xattr,name=systemd
35 30 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:15 - cgroup cgroup rw,cpu,cpuacct
36 30 0:32 / /sys/fs/cgroup/memory rw shared:16 - cgroup cgroup rw,memory
37 30 0:32 /other /elsewhere rw shared:16 - cgroup cgroup rw,memory
"""
    top = Path("/sys/fs/cgroup")
    assert hierarchies(mountinfo) == {
        UNIFIED: top / "unified",
        "cpu": top / "cpu,cpuacct",
        "cpuacct": top / "cpu,cpuacct",
        "memory": top / "memory",
    }


def test_waiting_ends_with_the_first_true_answer():
    answers = iter([0, 0, 7])
    assert eventually(lambda: next(answers)) == 7


def test_waiting_in_vain_tells_the_last_answer():
    with pytest.raises(AssertionError, match=r"the last answer was \[\]"):
        eventually(list, within_seconds=0)


@pytest.mark.parametrize(("ci", "status"), [("", 0), ("true", 1)])
def test_a_machine_that_cannot_be_had_is_skipped_with_its_reason_and_fails_only_in_ci(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ci: str, status: int
):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["test", "v2"]) == status
    assert capsys.readouterr().err == "kernel tests on v2: skipped, you are not root: run it with sudo\n"


def test_missing_packages_are_named_to_one_who_may_not_install_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match=r"apt-get install no-such-package|dpkg is not here"):
        packages.require(["no-such-package"])


def test_the_lists_of_packages_are_waited_for_while_another_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As apt says it, whose lock is not to be had twice."""
    program = tmp_path / "apt-get"
    program.write_text(
        f"#!/bin/sh\ncd {tmp_path}\n[ -e held ] || exit 0\nrm held\n"
        "echo 'E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)' >&2\n"
        "echo 'E: Unable to lock directory /var/lib/apt/lists/' >&2\nexit 100\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for seconds in (60.0, -1.0):
        (tmp_path / "held").touch()
        monkeypatch.setattr(packages, "LISTS_SECONDS", seconds)
        with pytest.raises(Unavailable, match="Unable to lock") if seconds < 0 else nullcontext():
            packages.apt_get("update")
    assert not (tmp_path / "held").exists()


def test_a_package_that_cannot_be_unpacked_is_a_reason_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fetch_half(*_: str, directory: Path) -> None:
        (directory / "some.deb").write_text("not all of it")

    monkeypatch.setattr(packages, "apt_get", fetch_half)
    with pytest.raises(Unavailable, match=r"'dpkg-deb --extract .*' failed: .+|dpkg-deb is not here"):
        packages.unpacked("some", cache=tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_the_host_runs_a_command_from_the_project_and_returns_its_status():
    assert host.run(["sh", "-c", "test -d tests/machines && exit 42"], {}, time_limit_seconds=60) == 42


def test_a_command_on_the_host_ends_with_its_time_limit(capsys: pytest.CaptureFixture[str]):
    assert host.run(["sleep", "1000"], {}, time_limit_seconds=0.1) == 124
    assert "the time limit of 0.1 s is over" in capsys.readouterr().err


def test_the_project_is_compiled_though_python_is_to_write_no_bytecode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "some.py").write_text("")
    monkeypatch.setattr(environment, "PROJECT", tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment.compile_project(sys.executable)
    assert len(list(tmp_path.rglob("some.*.pyc"))) == 1


@pytest.mark.parametrize("hidden", ["/tmp", "/var/tmp", "/run"])
def test_a_project_that_pods_do_not_see_is_refused_with_a_sentence(hidden: str):
    with pytest.raises(Unavailable, match=f"{hidden}/clone/.cache is below {hidden}, and pods have"):
        host.require_seen_by_pods(Path(hidden, "clone", ".cache"))
    host.require_seen_by_pods(Path("/root/clone/.cache"))


def test_the_guest_makes_the_scratch_directory_that_jobs_use():
    assert f"/new{SCRATCH}\n" in (GUEST / "init").read_text()


def test_every_kernel_test_can_be_collected():
    """They run minutes later, on other machines; that a name has moved under them is seen here."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command += ["tests/kernel", "tests/attacks"]
    run = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:]
