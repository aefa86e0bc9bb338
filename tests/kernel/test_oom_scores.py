"""OOM scores of processes we did not start (A12, A14); kernel settings and swap (A13, A18)."""

import contextlib
import ctypes
import mmap
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.api.config import KubeletConfiguration, Profile, defaulted
from evenkeel.cgroup.drivers.base_driver import CgroupfsDriver
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.errors import EvenkeelError
from evenkeel.host.capacity import machine_capacity
from evenkeel.host.checks import State
from evenkeel.host.doctor import diagnose
from evenkeel.host.kernel_settings import (
    apply_kernel_settings,
    kernel_settings,
    restore_kernel_settings,
    swap_devices,
)
from evenkeel.host.machine import inspect_machine, parse_capabilities
from evenkeel.host.oom_scores import frozen, protect_daemons, read_score, runtime_process, set_oom_scores
from tests.kernel.cgroups import Cgroup
from tests.kernel.conftest import MACHINE
from tests.kernel.processes import Spawn
from tests.kernel.waiting import eventually

MIB = 1 << 20
ROOTS_OWN = "CAP_SYS_RESOURCE" in parse_capabilities(Path("/proc/self/status").read_text()).effective

not_on_the_host = pytest.mark.skipif(MACHINE == "host", reason="it would change a setting of the whole host")


@pytest.fixture
def driver(cgroup_root: Cgroup) -> Iterator[CgroupfsDriver]:
    config = KubeletConfiguration(cgroup_root=f"/{cgroup_root.paths()[0].name}")
    with contextlib.closing(driver_for(detect(), config)) as made:
        yield made


def scores(pids) -> set[int]:
    """The scores of the processes that still run."""
    return {score for pid in pids if (score := read_score(pid)) is not None}


# Positive scores need no privilege; negative ones are shown where the machine has it.
SCORES = [
    pytest.param(700, marks=pytest.mark.cgroup("v1", "v2")),
    pytest.param(-999, marks=pytest.mark.cgroup("v2")),
]


@pytest.mark.req("A14")
@pytest.mark.parametrize("score", SCORES)
def test_every_process_below_a_cgroup_gets_the_score(
    cgroup_root: Cgroup, spawn: Spawn, driver: CgroupfsDriver, score: int
):
    pod = cgroup_root.child("pod")
    first, second = pod.child("first"), pod.child("second")
    assert spawn("family", "tree", 2, 3, cgroup=first).answer() == "ready 12"
    assert spawn("family", "zombies", 5, cgroup=second).answer() == "ready 5"

    done = set_oom_scores(lambda: driver.processes(pod.path_in_hierarchy(cgroup_root)), score)

    assert done.is_stable
    assert done.refused == ()
    assert len(first.processes()) == 13
    assert scores(first.processes() | second.processes()) == {score}
    again = set_oom_scores(lambda: driver.processes(pod.path_in_hierarchy(cgroup_root)), score)
    assert again.changed == 0


@pytest.mark.req("A14")
@pytest.mark.parametrize("score", SCORES)
def test_processes_that_fork_all_the_time_do_not_escape_their_score(
    cgroup_root: Cgroup, spawn: Spawn, driver: CgroupfsDriver, score: int
):
    place = cgroup_root.child("place")
    spawn("family", "respawn", 8, cgroup=place).answer()

    path = place.path_in_hierarchy(cgroup_root)
    done = set_oom_scores(lambda: driver.processes(path), score, standstill=lambda: frozen(driver, path))

    assert done.is_stable
    for _ in range(20):  # the present processes are descendants of the first ones
        seen = scores(place.processes())
        assert seen == {score}


@pytest.mark.req("A12")
@pytest.mark.cgroup("v1", "v2")
def test_daemons_get_their_score_or_it_is_said_why_not(
    cgroup_root: Cgroup, spawn: Spawn, tmp_path: Path, driver: CgroupfsDriver
):
    reserved = cgroup_root.child("reserved")
    spawn("family", "tree", 1, 3, cgroup=reserved).answer()
    agent = spawn("memory", oom_score_adj=300)
    agent.ask("free")
    endpoint = tmp_path / "runtime.sock"
    runtime = spawn(
        "/usr/bin/env", "python3", "-c",
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen();"
        " print('listening', flush=True); sys.stdin.read()",
        endpoint,
    )  # fmt: skip
    assert runtime.answer() == "listening"
    assert runtime_process(f"unix://{endpoint}") == runtime.pid

    daemons = {agent.pid, runtime.pid}
    done = protect_daemons(daemons, lambda: driver.processes(reserved.path_in_hierarchy(cgroup_root)), -999)

    everyone = daemons | reserved.processes()
    if ROOTS_OWN:
        assert scores(everyone) == {-999}
        assert done.message == ""
    else:
        assert scores(everyone) == {0}  # as low as it goes
        assert {one.pid for one in done.refused} == everyone
        assert "CAP_SYS_RESOURCE" in done.message


@pytest.mark.req("A12")
@pytest.mark.cgroup("v2")
def test_the_oom_killer_spares_a_daemon_and_takes_best_effort_work(cgroup_root: Cgroup, spawn: Spawn):
    place = cgroup_root.child("place")
    place.write("memory.max", 64 * MIB)
    daemon = spawn("memory", cgroup=place)
    # Several, as in test_oom_promises.holding: the kernel stops waiting for a killed process before all of its memory
    # is free.
    best_effort = [spawn("memory", cgroup=place, oom_score_adj=1000) for _ in range(4)]
    for program in best_effort:
        program.ask(f"allocate {8 * MIB}")
    protect_daemons({daemon.pid}, lambda: (), -999)

    assert daemon.ask(f"allocate {48 * MIB}") == f"allocated {48 * MIB}"

    eventually(lambda: not all(program.is_alive() for program in best_effort))
    assert daemon.ask("touch") == f"touched {48 * MIB}"


# Settings of the whole machine: in a virtual machine only


@not_on_the_host
@pytest.mark.cgroup("v2")
@pytest.mark.req("A13")
def test_overcommitting_lets_memory_be_promised_that_is_not_there():
    much = 8 * machine_capacity().memory_bytes
    settings = kernel_settings(Profile.DOCUMENTS)
    file = Path("/proc/sys/vm/overcommit_memory")
    file.write_text("0")
    with pytest.raises(OSError, match="Cannot allocate memory"):
        mmap.mmap(-1, much)
    with pytest.raises(EvenkeelError, match=r"sysctl -w vm\.overcommit_memory=1"):
        apply_kernel_settings(settings, protect=True)
    assert file.read_text() == "0\n"

    before = apply_kernel_settings(settings, protect=False)
    try:
        assert file.read_text() == "1\n"
        mmap.mmap(-1, much).close()
        assert apply_kernel_settings(settings, protect=True) == ()
    finally:
        restore_kernel_settings(before)
    assert file.read_text() == "0\n"


@not_on_the_host
@pytest.mark.req("A13")
@pytest.mark.cgroup("v1", "v2")
def test_where_settings_are_protected_nothing_is_changed():
    file = Path("/proc/sys/vm/overcommit_memory")
    before = file.read_text()
    if before == "1\n":
        assert apply_kernel_settings(kernel_settings(Profile.DOCUMENTS), protect=True) == ()
    else:
        with pytest.raises(EvenkeelError, match="forbids changing that"):
            apply_kernel_settings(kernel_settings(Profile.DOCUMENTS), protect=True)
    assert file.read_text() == before


@contextlib.contextmanager
def swap_on(path: Path, size: int) -> Iterator[None]:
    """Swap on a file, made here: the format is a page with a few numbers and a signature."""
    page = mmap.PAGESIZE
    header = bytearray(page)
    struct.pack_into("<II", header, 1024, 1, size // page - 1)
    header[-10:] = b"SWAPSPACE2"
    with path.open("wb") as file:
        file.write(header)
        for _ in range(size // page - 1):  # no holes
            file.write(bytes(page))
        os.fsync(file.fileno())
    path.chmod(0o600)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.swapon(str(path).encode(), 0) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        assert libc.swapoff(str(path).encode()) == 0


@not_on_the_host
@pytest.mark.cgroup("v2")
@pytest.mark.req("A18")
def test_with_swap_on_the_agent_does_not_start_and_told_to_it_keeps_swap_from_guarantees(
    cgroup_root: Cgroup, spawn: Spawn, tmp_path: Path
):
    guaranteed, best_effort = cgroup_root.child("guaranteed"), cgroup_root.child("besteffort")
    guaranteed.write("memory.swap.max", 0)
    config = defaulted(KubeletConfiguration())
    for cgroup in (guaranteed, best_effort):
        spawn("memory", cgroup=cgroup).ask(f"allocate {16 * MIB}")
    assert swap_devices() == ()
    with swap_on(tmp_path / "swap", 32 * MIB):
        (device,) = swap_devices()
        assert (device.path, device.kind) == (str(tmp_path / "swap"), "file")
        stopping = [
            check.name for check in diagnose(inspect_machine(config), config).checks if check.stops_agent
        ]
        assert stopping == ["swap"]
        allowed = config._replace(fail_swap_on=False)
        assert not [
            c
            for c in diagnose(inspect_machine(allowed), allowed).checks
            if c.name == "swap" and c.state != State.OK
        ]

        for cgroup in (guaranteed, best_effort):
            with contextlib.suppress(OSError):
                cgroup.write("memory.reclaim", 8 * MIB)
        assert int(best_effort.read("memory.swap.current")) > 0
        assert int(guaranteed.read("memory.swap.current")) == 0


@pytest.mark.cgroup("v1", "v2")
def test_a_socket_that_nobody_serves_has_no_process(tmp_path: Path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        assert runtime_process(str(tmp_path / "s")) is None
