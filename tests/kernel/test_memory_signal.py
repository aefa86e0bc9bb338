"""The memory signal against what the kernel really gives (E3): page cache is available, the rest is not."""

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.api.config import KubeletConfiguration, Profile, defaulted
from evenkeel.api.pod import Pod
from evenkeel.cgroup.drivers.base_driver import CgroupfsDriver
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.cgroup.tree import Version
from evenkeel.host.capacity import parse_meminfo
from evenkeel.host.checks import State
from evenkeel.host.doctor import diagnose
from evenkeel.host.files import read_text
from evenkeel.host.machine import inspect_machine
from evenkeel.host.memory_figures import cgroup_memory, node_memory
from evenkeel.pressure.memory.sampling import MemorySampler
from evenkeel.pressure.targets import PodTarget, WatchTargets
from tests.kernel.cgroups import Cgroup
from tests.kernel.conftest import MACHINE
from tests.kernel.processes import Program, Spawn, read_until
from tests.kernel.waiting import eventually

MIB = 1 << 20
LIMIT = 96 * MIB
PART = 32 * MIB
# The kernel charges in batches, keeps some pages of every process, and counts a moment later.
SLACK = 6 * MIB


class Signal:
    """The signal of one cgroup with a limit."""

    def __init__(self, cgroup: Cgroup, root: Cgroup, driver: CgroupfsDriver) -> None:
        cgroup.write("memory.max" if cgroup.has("memory.max") else "memory.limit_in_bytes", LIMIT)
        self._path = f"/{cgroup.paths()[0].relative_to(root.paths()[0].parent)}"
        self._driver = driver

    def available(self, profile: Profile = Profile.DOCUMENTS) -> int:
        available = cgroup_memory(self.statistics(), LIMIT, profile).available_bytes
        assert available is not None
        return available

    def statistics(self):
        return self._driver.statistics(self._path)

    def settles_at(self, expected: int, profile: Profile = Profile.DOCUMENTS) -> bool:
        return eventually(lambda: abs(self.available(profile) - expected) <= SLACK)


@pytest.fixture
def driver(cgroup_root: Cgroup) -> Iterator[CgroupfsDriver]:
    config = KubeletConfiguration(cgroup_root=f"/{cgroup_root.paths()[0].name}")
    with contextlib.closing(driver_for(detect(), config)) as made:
        yield made


@pytest.fixture
def place(cgroup_root: Cgroup) -> Cgroup:
    return cgroup_root.child("place")


@pytest.fixture
def level(place: Cgroup, cgroup_root: Cgroup, driver: CgroupfsDriver) -> Signal:
    return Signal(place, cgroup_root, driver)


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    path = Path(f"/dev/shm/evenkeel-{time.monotonic_ns()}")
    yield path
    path.unlink(missing_ok=True)


def cached(spawn: Spawn, path: Path, place: Cgroup) -> Program:
    """A program with a file of that size on disk, and nothing of it in memory."""
    program = spawn("cache", path, cgroup=place)
    program.ask(f"write {PART}")
    program.ask("drop")
    return program


@pytest.mark.req("E3")
@pytest.mark.cgroup("v1", "v2")
def test_file_pages_that_were_read_stay_available(place: Cgroup, level: Signal, spawn: Spawn, tmp_path: Path):
    program = cached(spawn, tmp_path / "file", place)
    level.settles_at(LIMIT)
    read_until(program, lambda: level.statistics().memory_usage_bytes >= PART)
    level.settles_at(LIMIT)
    for _ in range(3):
        program.ask("read")  # read again they count as in use to kubelet, and can still be dropped
    level.settles_at(LIMIT)
    # The machine may drop some meanwhile: see `read_until`.
    eventually(lambda: program.ask("read") and level.available(Profile.KUBERNETES) <= LIMIT - PART + SLACK)


@pytest.mark.req("E3")
@pytest.mark.cgroup("v1", "v2")
def test_memory_of_processes_is_not_available(level: Signal, place: Cgroup, spawn: Spawn):
    spawn("memory", cgroup=place).ask(f"allocate {PART}")
    level.settles_at(LIMIT - PART)
    level.settles_at(LIMIT - PART, Profile.KUBERNETES)


@pytest.mark.req("E3")
@pytest.mark.cgroup("v1", "v2")
def test_files_in_memory_are_not_available(level: Signal, place: Cgroup, spawn: Spawn, shared_memory: Path):
    """tmpfs, as memory-backed volumes are: in the page cache, and nowhere to be dropped to."""
    spawn("cache", shared_memory, cgroup=place).ask(f"write {PART}")
    level.settles_at(LIMIT - PART)


LOCK = """
import ctypes, mmap, sys
file = open(sys.argv[1], "r+b")
size = int(sys.argv[2])
view = mmap.mmap(file.fileno(), size)
address = ctypes.addressof(ctypes.c_char.from_buffer(view))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)) == 0
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.req("E3")
@pytest.mark.cgroup("v1", "v2")
def test_locked_file_pages_are_not_available(level: Signal, place: Cgroup, spawn: Spawn, tmp_path: Path):
    cached(spawn, tmp_path / "file", place)
    level.settles_at(LIMIT)
    before = level.available()
    locker = spawn(sys.executable, "-c", LOCK, tmp_path / "file", PART, cgroup=place)
    assert locker.answer() == "locked"
    eventually(lambda: level.available() <= before - PART + SLACK)


DIRTY = """
import sys
file = open(sys.argv[1], "wb", buffering=0)
block = bytes(1 << 20)
for _ in range(int(sys.argv[2]) >> 20):
    file.write(block)
print("written", flush=True)
sys.stdin.readline()
import os
os.fsync(file.fileno())
print("on disk", flush=True)
sys.stdin.read()
"""


@pytest.mark.req("E3")
@pytest.mark.cgroup("v1", "v2")
def test_file_pages_are_available_once_they_are_on_disk(
    level: Signal, place: Cgroup, spawn: Spawn, tmp_path: Path
):
    writer = spawn(sys.executable, "-c", DIRTY, tmp_path / "file", PART, cgroup=place)
    assert writer.answer() == "written"
    key = "file_dirty" if place.has("memory.current") else "dirty"
    # The kernel may begin to write at once: what it has written is available, what it has not is not. It goes on
    # between two looks, so the second is at what is unwritten still.
    available = level.available()
    unwritten = place.counters("memory.stat")[key]
    assert available <= LIMIT - unwritten + SLACK
    assert writer.ask("") == "on disk"
    eventually(lambda: place.counters("memory.stat")[key] < MIB)
    python_itself = level.statistics().memory_rss_bytes
    level.settles_at(LIMIT - python_itself)


@pytest.mark.req("E3")
@pytest.mark.cgroup("v1", "v2")
def test_what_is_available_can_be_had_and_more_ends_in_a_kill(
    level: Signal, place: Cgroup, spawn: Spawn, tmp_path: Path, shared_memory: Path
):
    """The signal is the kernel's own answer: with as much cache as fits, processes get what it says, and no more."""
    cached(spawn, tmp_path / "file", place).ask("read")
    spawn("cache", shared_memory, cgroup=place).ask(f"write {PART}")
    eater = spawn("memory", cgroup=place, oom_score_adj=1000)
    eater.ask("free")
    level.settles_at(LIMIT - PART)
    available = level.available()

    assert eater.ask(f"allocate {available - SLACK}") == f"allocated {available - SLACK}"
    eater.tell(f"allocate {2 * SLACK}")

    assert eater.wait() == -signal.SIGKILL


@pytest.mark.req("E3")
@pytest.mark.cgroup("v2")
def test_cache_that_memory_min_protects_cannot_be_had(
    level: Signal, place: Cgroup, cgroup_root: Cgroup, driver: CgroupfsDriver, spawn: Spawn, tmp_path: Path
):
    protected, other = place.child("protected"), place.child("other")
    place.write("memory.min", PART + SLACK)
    protected.write("memory.min", PART + SLACK)
    cached(spawn, tmp_path / "file", protected).ask("read")
    eater = spawn("memory", cgroup=other, oom_score_adj=1000)
    eater.ask("free")
    path = f"/{protected.paths()[0].relative_to(cgroup_root.paths()[0].parent)}"
    eventually(lambda: driver.statistics(path).memory_droppable_bytes >= PART - MIB)
    level.settles_at(LIMIT)  # all of it could be dropped, were it not protected
    available = _sampled_available(place, protected, min_bytes=PART + SLACK)
    assert available <= LIMIT - PART + SLACK

    assert eater.ask(f"allocate {available - SLACK}") == f"allocated {available - SLACK}"
    eater.tell(f"allocate {2 * SLACK}")

    assert eater.wait() == -signal.SIGKILL
    assert driver.statistics(path).memory_droppable_bytes >= PART - MIB


def _sampled_available(place: Cgroup, pod: Cgroup, min_bytes: int) -> int:
    """What the memory watch says is available in `place`, with one pod in it that memory.min protects."""
    root, directory = (str(one.file("memory.stat").parent) for one in (place, pod))
    target = PodTarget("u", Pod(), "/pod", directory, (), min_bytes)
    with contextlib.closing(MemorySampler(Profile.DOCUMENTS)) as sampler:
        sampler.follow(WatchTargets(Version.V2, "/", root, LIMIT, (target,)))
        sample, _ = sampler.snapshot(1.0, is_exact=True)
    assert sample.pods is not None
    assert sample.pods.available_bytes is not None
    return sample.pods.available_bytes


@pytest.mark.req("E3")
@pytest.mark.cgroup("v2")
@pytest.mark.skipif(MACHINE == "host", reason="others use the host's memory meanwhile")
def test_the_nodes_signal_follows_memory_of_processes_and_not_page_cache(
    cgroup_root: Cgroup, spawn: Spawn, tmp_path: Path
):
    def available() -> int:
        available = node_memory(parse_meminfo(read_text("/proc/meminfo"))).available_bytes
        assert available is not None
        return available

    # Pages that were freed wait on lists of their CPU, where the kernel counts them as neither free nor available: of
    # small amounts it can say little.
    much = 4 * PART
    program = cached(spawn, tmp_path / "file", cgroup_root)
    before = available()
    program.ask("read")
    with_cache = available()
    assert with_cache > before - PART / 2
    spawn("memory", cgroup=cgroup_root).ask(f"allocate {much}")
    assert available() < with_cache - much / 2


# The checks on the machine itself


@pytest.mark.req("C5")
@pytest.mark.cgroup("v1", "v2")
def test_the_doctor_sees_whether_this_kernel_can_protect_memory(cgroup_root: Cgroup):
    cgroup_root.child("place")
    config = defaulted(KubeletConfiguration(cgroup_root=f"/{cgroup_root.paths()[0].name}"))
    (check,) = [c for c in diagnose(inspect_machine(config), config).checks if c.name == "memory protection"]
    if cgroup_root.has("memory.min"):
        assert (check.state, check.seen) == (State.OK, "memory.min and memory.high")
    else:
        assert (check.state, check.seen) == (State.BROKEN, "cgroup v1 has no memory.min and no memory.high")


@pytest.mark.req("E7")
@pytest.mark.cgroup("v1", "v2")
def test_a_missing_reserved_cgroup_stops_the_agent_until_its_mend_is_typed(cgroup_root: Cgroup):
    import subprocess

    root = f"/{cgroup_root.paths()[0].name}"
    config = defaulted(
        KubeletConfiguration(
            cgroup_root=f"{root}/pods",
            kube_reserved={"memory": "1Mi"},
            kube_reserved_cgroup=f"{root}/daemons",
            enforce_node_allocatable=("pods", "kube-reserved"),
        )
    )

    def reserved():
        (check,) = [
            c for c in diagnose(inspect_machine(config), config).checks if c.name == "reserved cgroups"
        ]
        return check

    missing = reserved()
    assert missing.stops_agent
    assert missing.mends[0] == "--create-reserved-cgroups"
    subprocess.run(missing.mends[1], shell=True, check=True)
    assert reserved().state == State.OK
