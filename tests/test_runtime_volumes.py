"""Volumes: what is refused, how large they may be, what is made on disk and how it is removed again."""

import fcntl
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from evenkeel.api.claims import claim_volume
from evenkeel.api.container import Container, SecurityContext, VolumeMount
from evenkeel.api.pod import HostAlias, ObjectMeta, Pod, PodSecurityContext, PodSpec
from evenkeel.api.resources import ResourceRequirements
from evenkeel.api.volume_types import (
    EmptyDirVolumeSource,
    EphemeralVolumeSource,
    HostPathVolumeSource,
    Volume,
)
from evenkeel.errors import EvenkeelError
from evenkeel.policy.eviction.usage import local_volumes
from evenkeel.quantity import Quantity
from evenkeel.runtime import volumes
from evenkeel.runtime.memory_mounts import empty_memory
from evenkeel.runtime.paths import StatePaths, make_directory
from evenkeel.runtime.process.launch import Surroundings, filesystem_spec
from evenkeel.runtime.process.supervisor.rootfs import Mount
from evenkeel.runtime.tree_removal import remove_tree
from evenkeel.runtime.volumes import memory_volume_bytes, prepare, problems

UID = "0c9c9b6e-4f4a-4d8e-9d43-0f7f2b6c1a11"
MI = 1 << 20


def pod(
    *sources: Volume, mounts: tuple[VolumeMount, ...] = (), fs_group: int | None = None, memory: str = ""
) -> Pod:
    mounts = mounts or tuple(VolumeMount(volume.name, f"/{volume.name}") for volume in sources)
    limits = ResourceRequirements(limits={"memory": Quantity.parse(memory)} if memory else {})
    container = Container(name="app", image="host", command=("true",), volume_mounts=mounts, resources=limits)
    return Pod(
        metadata=ObjectMeta(name="web", namespace="default", uid=UID),
        spec=PodSpec(
            containers=(container,),
            volumes=sources,
            security_context=PodSecurityContext(fs_group=fs_group) if fs_group is not None else None,
        ),
    )


def empty_dir(name: str = "v", medium: str = "", size: str = "") -> Volume:
    limit = Quantity.parse(size) if size else None
    return Volume(name=name, empty_dir=EmptyDirVolumeSource(medium=medium, size_limit=limit))


def host_path(path: str | Path, kind: str | None = None) -> Volume:
    return Volume(name="v", host_path=HostPathVolumeSource(path=str(path), type=kind))


@pytest.fixture
def paths(tmp_path: Path) -> StatePaths:
    (tmp_path / "state").mkdir()
    return StatePaths(str(tmp_path / "state"))


@pytest.mark.parametrize(
    "volume, is_root, said",
    [
        (Volume(name="v"), True, "only emptyDir, hostPath, configMap"),
        (empty_dir(medium="HugePages"), True, "emptyDir.medium HugePages is not supported"),
        (empty_dir(medium="Memory"), False, "needs root"),
        (host_path("/dev/kvm", "CharDevice"), True, "no devices of the host"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_a_sentence(volume: Volume, is_root: bool, said: str) -> None:
    (problem,) = problems(pod(volume), is_root=is_root)
    assert said in problem


@pytest.mark.parametrize("volume", [empty_dir(), empty_dir(medium="Memory"), host_path("/srv")])
def test_what_can_be_honoured_is_not_refused(volume: Volume) -> None:
    assert not list(problems(pod(volume)))


def test_a_volume_that_nobody_mounts_is_not_refused() -> None:
    mounted = VolumeMount("other", "/x")
    assert not list(problems(pod(Volume(name="v"), empty_dir("other"), mounts=(mounted,))))


@pytest.mark.req("D9")
@pytest.mark.parametrize(
    "own, limit, allocatable, expected",
    [
        ("", "", 100 * MI, 100 * MI),
        ("10Mi", "", 100 * MI, 10 * MI),
        ("", "50Mi", 100 * MI, 50 * MI),
        ("80Mi", "50Mi", 100 * MI, 50 * MI),
        ("10Mi", "50Mi", 100 * MI, 10 * MI),
        ("200Mi", "", 100 * MI, 100 * MI),
        ("0", "", 0, 0),
    ],
)
def test_a_volume_in_memory_is_as_large_as_the_least_of_its_limits(
    own: str, limit: str, allocatable: int, expected: int
) -> None:
    volume = empty_dir(medium="Memory", size=own)
    assert memory_volume_bytes(pod(volume, memory=limit), volume, allocatable) == expected


@pytest.mark.parametrize("volume", [empty_dir(), Volume("v", ephemeral=EphemeralVolumeSource())])
def test_an_empty_dir_is_open_to_every_user_of_the_pod(paths: StatePaths, volume: Volume) -> None:
    assert not [*problems(pod(volume))]
    prepare(pod(volume), paths, allocatable_memory_bytes=0)
    assert local_volumes(pod(volume)) == {"v"}, "it counts as disk of the pod"
    status = Path(paths.volume(UID, "v")).stat()
    assert stat.S_IMODE(status.st_mode) == 0o777
    assert stat.S_IMODE(Path(paths.pod(UID)).stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories away")
def test_an_empty_dir_belongs_to_the_pods_group(paths: StatePaths) -> None:
    prepare(pod(empty_dir(), fs_group=4711), paths, allocatable_memory_bytes=0)
    status = Path(paths.volume(UID, "v")).stat()
    assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o2777, 4711)


def test_preparing_again_leaves_what_is_in_a_volume(paths: StatePaths) -> None:
    prepare(pod(empty_dir()), paths, allocatable_memory_bytes=0)
    kept = Path(paths.volume(UID, "v"), "kept")
    kept.write_text("text")
    prepare(pod(empty_dir()), paths, allocatable_memory_bytes=0)
    assert kept.read_text() == "text"


def test_a_uid_that_leads_elsewhere_prepares_nothing(paths: StatePaths, tmp_path: Path) -> None:
    bad = pod(empty_dir())._replace(metadata=ObjectMeta(name="web", uid="../../evil"))
    with pytest.raises(Exception, match="cannot name a directory"):
        prepare(bad, paths, allocatable_memory_bytes=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]


def test_removal_leaves_only_the_logs_and_then_nothing(paths: StatePaths) -> None:
    prepare(pod(empty_dir()), paths, allocatable_memory_bytes=0)
    Path(paths.volume(UID, "v"), "file").write_text("text")
    Path(paths.container_logs("default", "web", UID, "app")).mkdir(parents=True)
    assert volumes.pods(paths) == {UID}
    volumes.remove(UID, paths)
    assert not Path(paths.pod(UID)).exists()
    assert volumes.pods(paths) == {UID}
    volumes.remove_logs(UID, paths)
    assert volumes.pods(paths) == frozenset()
    volumes.remove(UID, paths)
    volumes.remove_logs(UID, paths)


def test_a_directory_that_another_start_makes_in_the_same_moment_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, mkdir = tmp_path / "pod" / "main", os.mkdir

    def made_by_two(path: str, mode: int) -> None:
        mkdir(path, mode)
        if path == str(wanted.parent):
            mkdir(wanted, mode)

    monkeypatch.setattr(os, "mkdir", made_by_two)
    make_directory(str(wanted))
    assert wanted.is_dir()


def test_what_is_in_memory_is_removed_and_where_it_was_is_left(paths: StatePaths) -> None:
    volume = Path(paths.memory_volume(UID, "v"))
    (volume / "deep" / "deeper").mkdir(parents=True)
    (volume / "deep" / "deeper" / "file").write_text("text")
    (volume / "link").symlink_to("/")
    other = Path(paths.memory_volume("another", "v"))
    other.mkdir(parents=True)
    (other / "file").touch()
    empty_memory(UID, paths)
    assert list(volume.iterdir()) == []
    assert (other / "file").exists()
    empty_memory("unheard-of", paths)


def test_a_mount_of_a_container_becomes_a_mount_of_its_filesystem(paths: StatePaths) -> None:
    mount = VolumeMount("v", "data//x/", "sub", read_only=True)
    held = pod(empty_dir(), mounts=(mount,))
    container = held.spec.containers[0]._replace(
        security_context=SecurityContext(read_only_root_filesystem=True)
    )
    spec = filesystem_spec(
        held, container, 2, paths, image_directory="/img", around=Surroundings(hidden=("/mnt/state",))
    )
    assert spec.mounts == (Mount(paths.volume(UID, "v"), "/data/x", "sub", is_read_only=True),)
    assert spec.attempt_directory == paths.attempt(UID, "app", 2)
    assert (spec.image, spec.is_read_only, spec.hidden) == ("/img", True, ("/mnt/state",))
    assert spec.termination_message_path == "/dev/termination-log"


def test_removal_follows_no_symlink(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    (inside / "dangling").symlink_to("nowhere")
    remove_tree(str(inside))
    assert not inside.exists()
    assert (outside / "precious").read_text() == "mine"


def test_a_symlink_in_the_place_of_a_directory_is_removed_itself(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "link").symlink_to("outside")
    remove_tree(str(tmp_path / "link"))
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "outside").is_dir()


def test_removal_stands_any_depth_and_any_name(tmp_path: Path) -> None:
    top = tmp_path / "deep"
    top.mkdir()
    descriptor = os.open(top, os.O_RDONLY)
    for _ in range(1500):  # deeper than paths can be, and than recursion goes
        os.mkdir("d" * 20, dir_fd=descriptor)
        os.close(os.open("f\n\udcff", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
        inner = os.open("d" * 20, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    os.mkfifo(top / "fifo")
    remove_tree(str(top))
    assert not top.exists()


def test_removal_gets_into_directories_that_are_closed(tmp_path: Path) -> None:
    closed = tmp_path / "top/closed"
    closed.mkdir(parents=True)
    (closed / "file").write_text("")
    closed.chmod(0)
    remove_tree(str(tmp_path / "top"))
    assert not (tmp_path / "top").exists()


def test_what_others_remove_meanwhile_does_not_end_a_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt is forgotten while its pod is removed."""
    for name in ("one", "two"):
        (tmp_path / "pod" / name).mkdir(parents=True)
        (tmp_path / "pod" / name / "launch").write_text("")
    unlink = os.unlink

    def was_faster(name: str, **where: int) -> None:
        unlink(name, **where)
        raise FileNotFoundError(name)

    monkeypatch.setattr(os, "unlink", was_faster)
    remove_tree(str(tmp_path / "pod"))
    assert not (tmp_path / "pod").exists()


# The hosts file of a running pod


def hosts_of(tmp_path: Path) -> Path:
    (tmp_path / "hosts").write_text("127.0.0.1\tlocalhost\n")
    return tmp_path / "hosts"


def with_alias() -> Pod:
    one = pod()
    return one._replace(spec=one.spec._replace(host_aliases=(HostAlias("192.0.2.1", ("db",)),)))


def test_the_hosts_file_is_written_in_place_because_containers_have_it_mounted(tmp_path):
    hosts = hosts_of(tmp_path)
    before = hosts.stat().st_ino
    volumes.rewrite_hosts(with_alias(), [str(tmp_path), str(tmp_path / "has-none")])
    assert hosts.read_text().endswith("192.0.2.1\tdb\n")
    assert hosts.stat().st_ino == before


def test_a_hosts_file_that_its_pod_made_huge_is_not_read_and_is_cut(tmp_path):
    hosts = hosts_of(tmp_path)
    os.truncate(hosts, 1 << 40)
    volumes.rewrite_hosts(with_alias(), [str(tmp_path)])
    assert hosts.stat().st_size < MI


def test_a_pod_that_holds_a_lease_on_its_hosts_file_does_not_keep_the_agent_waiting(tmp_path):
    hosts = hosts_of(tmp_path)
    held = os.open(hosts, os.O_RDWR)
    try:
        fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGURG)  # which is ignored: the holder does not answer
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(volumes.VolumeRefused, match="cannot be written"):
            volumes.rewrite_hosts(with_alias(), [str(tmp_path)])
    finally:
        os.close(held)


def test_a_hosts_file_that_is_a_symlink_leads_nowhere(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("the host's")
    (tmp_path / "attempt").mkdir()
    (tmp_path / "attempt" / "hosts").symlink_to(outside)
    with pytest.raises(volumes.VolumeRefused):
        volumes.rewrite_hosts(with_alias(), [str(tmp_path / "attempt")])
    assert outside.read_text() == "the host's"


# Claims


def claimed(name: str = "data", namespace: str = "default", **options: Any) -> Pod:
    one = pod(claim_volume("data", name), **options)
    return one._replace(metadata=one.metadata._replace(namespace=namespace))


def test_a_claim_is_a_directory_that_outlives_the_pod_and_goes_with_the_claim(tmp_path):
    paths = StatePaths(str(tmp_path))
    prepare(claimed(), paths, allocatable_memory_bytes=MI)
    directory = tmp_path / "claims" / "default_data"
    (directory / "kept").write_text("x")
    volumes.remove(UID, paths)
    prepare(claimed(), paths, allocatable_memory_bytes=MI)
    assert (directory / "kept").read_text() == "x"
    assert stat.S_IMODE((tmp_path / "claims").stat().st_mode) == 0o700
    volumes.remove_claim("default", "data", paths)
    assert not [*(tmp_path / "claims").iterdir()]
    volumes.remove_claim("default", "data", paths)


@pytest.mark.parametrize(
    "namespace, name",
    [("default", "../../etc"), ("..", "data"), ("a/b", "data"), ("a_b", "c"), ("", ".gone-1")],
)
def test_a_claim_never_leads_out_of_its_directory_whatever_its_name(tmp_path, namespace, name):
    paths = StatePaths(str(tmp_path / "state"))
    with pytest.raises(EvenkeelError, match="cannot name a directory"):
        prepare(claimed(name, namespace), paths, allocatable_memory_bytes=MI)
    with pytest.raises(EvenkeelError, match="cannot name a directory"):
        volumes.remove_claim(namespace, name, paths)


def test_what_a_pod_left_in_a_claim_leads_its_removal_nowhere(tmp_path):
    paths = StatePaths(str(tmp_path / "state"))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("the host's")
    prepare(claimed(), paths, allocatable_memory_bytes=MI)
    (tmp_path / "state" / "claims" / "default_data" / "out").symlink_to(tmp_path / "outside")
    volumes.remove_claim("default", "data", paths)
    assert (tmp_path / "outside" / "file").read_text() == "the host's"
