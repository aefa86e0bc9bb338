"""Kernel settings (A13) and swap (A18), on temporary directories."""

import pytest

from evenkeel.api.config import Profile
from evenkeel.errors import EvenkeelError
from evenkeel.host import kernel_settings as settings_module
from evenkeel.host.kernel_settings import (
    apply_kernel_settings,
    differences,
    kernel_settings,
    mend,
    parse_swaps,
    restore_kernel_settings,
    swap_devices,
    swap_mend,
)

SWAPS = """\
Filename				Type		Size		Used		Priority
/dev/sda2                               partition	2097148		1024		-2
/swap\\040file                           file		524284		0		-3
"""

WANTED = kernel_settings(Profile.DOCUMENTS)


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "sys/vm").mkdir(parents=True)
    (tmp_path / "sys/kernel/keys").mkdir(parents=True)
    put(tmp_path, "vm/overcommit_memory", 0)
    put(tmp_path, "vm/panic_on_oom", 0)
    return tmp_path


def put(proc, name, value):
    (proc / "sys" / name).write_text(f"{value}\n")


def got(proc, name):
    return int((proc / "sys" / name).read_text())


@pytest.mark.req("A13")
def test_memory_is_overcommitted_while_pods_run_and_as_before_after(proc):
    before = apply_kernel_settings(WANTED, protect=False, proc=str(proc))
    assert got(proc, "vm/overcommit_memory") == 1
    assert [(one.setting.name, one.seen) for one in before] == [("vm.overcommit_memory", 0)]
    assert apply_kernel_settings(WANTED, protect=False, proc=str(proc)) == ()
    restore_kernel_settings(before, str(proc))
    assert got(proc, "vm/overcommit_memory") == 0


def test_what_someone_else_has_changed_since_is_left_alone(proc):
    before = apply_kernel_settings(WANTED, protect=False, proc=str(proc))
    put(proc, "vm/overcommit_memory", 2)
    restore_kernel_settings(before, str(proc))
    assert got(proc, "vm/overcommit_memory") == 2


@pytest.mark.req("A13")
def test_where_the_operator_forbids_it_nothing_is_changed_and_the_mend_is_reported(proc):
    put(proc, "vm/panic_on_oom", 2)
    with pytest.raises(EvenkeelError) as refusal:
        apply_kernel_settings(WANTED, protect=True, proc=str(proc))
    assert str(refusal.value) == (
        "vm.overcommit_memory is 0 and must be 1, so that memory pressure ends in a kill of the right process, not in a"
        " failed malloc of the wrong one, vm.panic_on_oom is 2 and must be 0, so that an OOM kills a process and does"
        " not stop the machine, and --protect-kernel-defaults forbids changing that (run sysctl -w"
        " vm.overcommit_memory=1 vm.panic_on_oom=0, or leave out --protect-kernel-defaults)"
    )
    assert got(proc, "vm/overcommit_memory") == 0


def test_with_everything_right_protection_forbids_nothing(proc):
    put(proc, "vm/overcommit_memory", 1)
    assert apply_kernel_settings(WANTED, protect=True, proc=str(proc)) == ()


@pytest.mark.req("A13")
def test_a_kernel_that_refuses_is_named_with_the_mend(proc, monkeypatch):
    def refuse(*_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(settings_module, "_write", refuse)
    with pytest.raises(
        EvenkeelError, match=r"let us change that: read-only file system \(run sysctl -w vm.over"
    ):
        apply_kernel_settings(WANTED, protect=False, proc=str(proc))


def test_a_setting_that_is_not_there_is_said_to_be_so(proc):
    (proc / "sys/vm/panic_on_oom").unlink()
    put(proc, "vm/overcommit_memory", "many")
    wrong = differences(WANTED, str(proc))
    assert [one.seen for one in wrong] == [None, None]
    with pytest.raises(EvenkeelError, match=r"vm\.panic_on_oom is not there and must be 0"):
        apply_kernel_settings(WANTED, protect=True, proc=str(proc))
    with pytest.raises(EvenkeelError, match="no such file"):
        apply_kernel_settings(WANTED, protect=False, proc=str(proc))


def test_kubelets_settings_are_kept_in_its_profile():
    names = {setting.name: setting.value for setting in kernel_settings(Profile.KUBERNETES)}
    assert names == {
        "vm.overcommit_memory": 1,
        "vm.panic_on_oom": 0,
        "kernel.panic": 10,
        "kernel.panic_on_oops": 1,
        "kernel.keys.root_maxkeys": 1000000,
        "kernel.keys.root_maxbytes": 25000000,
    }
    assert [setting.name for setting in WANTED] == ["vm.overcommit_memory", "vm.panic_on_oom"]


def test_the_mend_is_one_command(proc):
    assert mend(differences(WANTED, str(proc))) == "sysctl -w vm.overcommit_memory=1"


# Swap


def test_swaps_are_devices_with_their_size():
    partition, file = parse_swaps(SWAPS)
    assert partition == ("/dev/sda2", "partition", 2097148 * 1024, 1 << 20)
    assert file.path == "/swap file"
    assert parse_swaps("Filename Type Size Used Priority\n") == ()
    assert parse_swaps("") == ()
    assert parse_swaps("x\nodd line\na b c d e\n") == ()


def test_a_kernel_without_swap_has_none(tmp_path):
    assert swap_devices(str(tmp_path)) == ()
    (tmp_path / "swaps").write_text(SWAPS)
    assert len(swap_devices(str(tmp_path))) == 2


def test_compressed_swap_is_ended_where_it_is_made():
    assert "zram-generator" in swap_mend(parse_swaps("h\n/dev/zram0 partition 1024 0 100\n"))
