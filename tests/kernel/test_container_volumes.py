"""Volumes in memory: their size, the cgroup that is charged, and their removal, also of files that resist it."""

import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.api.container import Container
from evenkeel.api.pod import ObjectMeta, Pod, PodSecurityContext, PodSpec
from evenkeel.api.volume_types import EmptyDirVolumeSource, Volume
from evenkeel.quantity import Quantity
from evenkeel.runtime import syscalls, volumes
from evenkeel.runtime.paths import StatePaths, state_paths
from evenkeel.runtime.process.supervisor.rootfs import FilesystemSpec, Mount
from evenkeel.runtime.tree_removal import Resists, remove_tree
from evenkeel.runtime.volumes import VolumeRefused
from tests.kernel.cgroups import Cgroup
from tests.kernel.inside import Killed, inside, refused_with
from tests.kernel.waiting import eventually

MIB = 1 << 20
SIZE = 16 * MIB


def pod(uid: str, fs_group: int | None = None) -> Pod:
    source = EmptyDirVolumeSource(medium="Memory", size_limit=Quantity.parse("16Mi"))
    return Pod(
        metadata=ObjectMeta(name=uid, namespace="default", uid=uid),
        spec=PodSpec(
            containers=(Container(name="app", image="host"),),
            volumes=(Volume(name="cache", empty_dir=source),),
            security_context=PodSecurityContext(fs_group=fs_group),
        ),
    )


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[StatePaths]:
    found = state_paths(str(tmp_path / "state"))
    Path(found.root).mkdir()
    yield found
    for uid in volumes.pods(found):
        volumes.remove(uid, found)
    assert found.root not in Path("/proc/self/mountinfo").read_text()


def prepared(uid: str, paths: StatePaths, fs_group: int | None = None) -> FilesystemSpec:
    """The filesystem of a container of a pod with a volume of 16 MiB in memory at /mnt."""
    made = pod(uid, fs_group)
    volumes.prepare(made, paths, allocatable_memory_bytes=1 << 30)
    attempt = Path(paths.attempt(uid, "app", 1))
    attempt.mkdir(parents=True, exist_ok=True)
    source = volumes.source_path(made, made.spec.volumes[0], paths)
    return FilesystemSpec(paths.root, str(attempt), mounts=(Mount(source, "/mnt"),))


def fill(path: str, size_bytes: int) -> None:
    with Path(path).open("wb", buffering=0) as file:
        for _ in range(size_bytes // MIB):
            assert file.write(bytes(MIB)) == MIB


@pytest.mark.req("D9")
def test_a_volume_in_memory_is_shared_by_the_pods_containers_and_bounded(paths: StatePaths) -> None:
    spec = prepared("one", paths, fs_group=4711)
    inside(spec, lambda: fill("/mnt/file", 10 * MIB))

    def act() -> object:
        status = Path("/mnt").stat()
        disk = os.statvfs("/mnt")
        return [
            Path("/mnt/file").stat().st_size,
            oct(status.st_mode & 0o7777),
            status.st_gid,
            disk.f_blocks * disk.f_frsize,
            refused_with(lambda: fill("/mnt/more", 10 * MIB)),
        ]

    assert inside(spec, act) == [10 * MIB, "0o3777", 4711, SIZE, "ENOSPC"]
    source = paths.memory_volume("one", "cache")
    assert f"{source} " in Path("/proc/self/mountinfo").read_text()


@pytest.mark.req("D9")
def test_a_volume_in_memory_is_charged_to_the_container_that_writes_it(
    paths: StatePaths, cgroup_root: Cgroup
) -> None:
    spec = prepared("one", paths)
    writer, reader = cgroup_root.child("writer"), cgroup_root.child("reader")
    inside(spec, lambda: fill("/mnt/file", 8 * MIB), cgroup=writer)
    assert inside(spec, lambda: len(Path("/mnt/file").read_bytes()), cgroup=reader) == 8 * MIB
    # The writer has ended; what it wrote is still there, and still on its account.
    assert writer.counters("memory.stat")["shmem"] >= 8 * MIB
    assert reader.counters("memory.stat")["shmem"] < MIB
    volumes.remove("one", paths)
    # Who makes a mount namespace on this machine at this moment has a copy of the mount, and holds it until it ends.
    eventually(lambda: writer.counters("memory.stat")["shmem"] < MIB)


@pytest.mark.req("D9")
def test_a_volume_in_memory_counts_against_its_writers_limit(paths: StatePaths, cgroup_root: Cgroup) -> None:
    spec = prepared("one", paths)
    small = cgroup_root.child("small")
    if small.has("memory.max"):
        small.write("memory.max", 12 * MIB)
        if small.has("memory.swap.max"):
            small.write("memory.swap.max", 0)
    else:
        small.write("memory.limit_in_bytes", 12 * MIB)
    with pytest.raises(Killed):
        inside(spec, lambda: fill("/mnt/file", 16 * MIB), cgroup=small)
    assert Path(paths.memory_volume("one", "cache"), "file").stat().st_size < 12 * MIB


def test_preparing_again_keeps_what_is_in_memory(paths: StatePaths) -> None:
    inside(prepared("one", paths), lambda: fill("/mnt/file", MIB))
    assert inside(prepared("one", paths), lambda: Path("/mnt/file").stat().st_size) == MIB


def test_containers_of_other_pods_do_not_hold_a_volume_in_memory(paths: StatePaths) -> None:
    """A mount namespace is a copy of all mounts: what is left in it would keep the memory after the pod is gone."""
    prepared("one", paths)
    other = prepared("two", paths)
    volumes_of_test = {device_of(paths.memory_volume(uid, "cache")) for uid in ("one", "two")}
    seen = inside(other, lambda: Path("/proc/self/mountinfo").read_text())
    # Others on this machine have volumes in memory, too.
    tmpfs = [fields for fields in map(str.split, seen.splitlines()) if fields[2] in volumes_of_test]
    assert [fields[2:5] for fields in tmpfs] == [
        [device_of(paths.memory_volume("two", "cache")), "/", "/mnt"]
    ]


def device_of(path: str) -> str:
    """The device of the mount at this path, as in mountinfo."""
    device = Path(path).stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def test_removal_unmounts_and_the_last_one_leaves_nothing(paths: StatePaths) -> None:
    prepared("one", paths)
    prepared("two", paths)
    assert volumes.pods(paths) == {"one", "two"}
    volumes.remove("one", paths)
    mounts = Path("/proc/self/mountinfo").read_text()
    assert paths.pod_memory("one") not in mounts
    assert paths.pod_memory("two") in mounts
    volumes.remove("two", paths)
    volumes.remove("two", paths)
    assert paths.root not in Path("/proc/self/mountinfo").read_text()
    assert not Path(paths.memory).exists()


def test_a_volume_mounted_twice_is_unmounted_twice(paths: StatePaths) -> None:
    prepared("one", paths)
    syscalls.mount("tmpfs", paths.memory_volume("one", "cache"), "tmpfs")
    volumes.remove("one", paths)
    assert paths.root not in Path("/proc/self/mountinfo").read_text()


def test_removal_does_not_cross_into_mounts(paths: StatePaths, tmp_path: Path) -> None:
    """Not even into one of the same filesystem."""
    prepared("one", paths)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    within = Path(paths.pod("one"), "containers/a/b")
    within.mkdir(parents=True)
    syscalls.mount(str(precious), str(within), flags=syscalls.MS_BIND)
    try:
        with pytest.raises(VolumeRefused, match="something is mounted in it"):
            volumes.remove("one", paths)
    finally:
        syscalls.umount(str(within))
    assert (precious / "file").read_text() == "mine"
    volumes.remove("one", paths)
    assert not Path(paths.pod("one")).exists()


GET_FLAGS, SET_FLAGS = 0x8008_6601, 0x4008_6602
IMMUTABLE, APPEND_ONLY = 0x10, 0x20


def set_flag(path: Path, flag: int) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flags = struct.unpack("I4x", fcntl.ioctl(descriptor, GET_FLAGS, bytes(8)))[0]
        fcntl.ioctl(descriptor, SET_FLAGS, struct.pack("I4x", flags | flag))
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("flag", [IMMUTABLE, APPEND_ONLY])
def test_removal_takes_away_what_protects_files_and_directories(flag: int, tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    (top / "sub/file").write_text("")
    set_flag(top / "sub/file", flag)
    set_flag(top / "sub", flag)
    set_flag(top, flag)
    with pytest.raises(PermissionError):
        (top / "sub/file").unlink()
    try:
        remove_tree(str(top))
    except Resists as error:
        pytest.fail(str(error))
    assert not top.exists()
