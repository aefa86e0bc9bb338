"""hostPath volumes: what is made, what is refused, and symlinks that a pod could have made."""

import asyncio
import threading
from pathlib import Path

import pytest

from evenkeel.api.container import Container, VolumeMount
from evenkeel.api.pod import ObjectMeta, Pod, PodSpec
from evenkeel.api.volume_types import HostPathVolumeSource, Volume
from evenkeel.runtime import host_paths
from evenkeel.runtime.host_paths import HostPaths, HostPlace, open_place
from evenkeel.runtime.memory_mounts import VolumeRefused


def pod(path: str | Path, kind: str | None = None, *, uid: str = "u-1", read_only: bool = False) -> Pod:
    mounts = (VolumeMount("v", "/v", read_only=read_only),)
    container = Container(name="app", image="host", command=("true",), volume_mounts=mounts)
    volume = Volume(name="v", host_path=HostPathVolumeSource(path=str(path), type=kind))
    return Pod(
        metadata=ObjectMeta(name="web", namespace="default", uid=uid),
        spec=PodSpec(containers=(container,), volumes=(volume,)),
    )


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    (tmp_path / "state").mkdir()
    return HostPaths(str(tmp_path / "state"))


@pytest.fixture
def shared(tmp_path: Path, paths: HostPaths) -> Path:
    """A directory that another pod may write to."""
    (tmp_path / "shared").mkdir()
    paths.prepare(pod(tmp_path / "shared", uid="other"))
    return tmp_path / "shared"


@pytest.mark.parametrize("kind", [None, "", "DirectoryOrCreate"])
def test_a_missing_directory_of_the_host_is_made_where_its_type_allows(
    kind: str | None, paths: HostPaths, tmp_path: Path
) -> None:
    paths.prepare(pod(tmp_path / "a/b", kind))
    assert (tmp_path / "a/b").is_dir()
    assert paths.places("u-1") == {"v": HostPlace(str(tmp_path / "a/b"))}


def test_a_missing_file_of_the_host_is_made_where_its_type_says_so(paths: HostPaths, tmp_path: Path) -> None:
    paths.prepare(pod(tmp_path / "f", "FileOrCreate"))
    assert (tmp_path / "f").read_bytes() == b""


@pytest.mark.parametrize("kind", ["Directory", "File", "Socket"])
def test_a_missing_path_of_the_host_is_refused_where_its_type_wants_it(
    kind: str, paths: HostPaths, tmp_path: Path
) -> None:
    with pytest.raises(VolumeRefused, match=r'volume "v": hostPath .* is not there'):
        paths.prepare(pod(tmp_path / "missing", kind))
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    "kind, said",
    [("Directory", "no directory"), ("DirectoryOrCreate", "no directory"), ("Socket", "no socket")],
)
def test_a_file_is_not_what_other_types_want(kind: str, said: str, paths: HostPaths, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(VolumeRefused, match=said):
        paths.prepare(pod(tmp_path / "f", kind))


@pytest.mark.parametrize("kind", ["File", "FileOrCreate"])
def test_a_directory_is_no_file(kind: str, paths: HostPaths, tmp_path: Path) -> None:
    with pytest.raises(VolumeRefused, match="no file"):
        paths.prepare(pod(tmp_path, kind))


@pytest.mark.parametrize("way", ["state", "state/pods", "state/new/directory", "link", "link/pods"])
def test_the_state_directory_is_no_volume_whatever_way_leads_there(
    way: str, paths: HostPaths, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("state")
    with pytest.raises(VolumeRefused, match="the agent's state directory"):
        paths.prepare(pod(tmp_path / way))
    assert not (tmp_path / "state/new").exists()


def test_a_symlink_is_followed_where_no_pod_could_have_made_it(paths: HostPaths, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "way").symlink_to("real")
    paths.prepare(pod(tmp_path / "way/sub"))
    assert paths.places("u-1") == {"v": HostPlace(str(tmp_path / "real/sub"))}


@pytest.mark.parametrize("leads_to", ["{}/outside", "../outside", "/", "deep/../../outside"])
@pytest.mark.parametrize("below", ["link", "link/sub"])
def test_a_symlink_that_a_pod_could_have_made_leads_nowhere_else(
    leads_to: str, below: str, shared: Path, paths: HostPaths, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (shared / "deep").mkdir()
    (shared / "link").symlink_to(leads_to.format(tmp_path))
    for kind in ("", "DirectoryOrCreate", "FileOrCreate"):
        with pytest.raises(VolumeRefused, match="leads out of"):
            paths.prepare(pod(shared / below, kind))
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_symlink_within_the_directory_that_pods_write_to_is_followed(
    shared: Path, paths: HostPaths
) -> None:
    (shared / "releases/5").mkdir(parents=True)
    (shared / "current").symlink_to("releases/5")
    paths.prepare(pod(shared / "current/data"))
    assert (shared / "releases/5/data").is_dir()
    assert paths.places("u-1") == {"v": HostPlace(str(shared), "current/data")}


def test_the_directory_that_pods_write_to_is_found_whatever_way_leads_there(
    shared: Path, paths: HostPaths, tmp_path: Path
) -> None:
    (tmp_path / "alias").symlink_to("shared")
    (shared / "link").symlink_to("/")
    with pytest.raises(VolumeRefused, match="leads out of"):
        paths.prepare(pod(tmp_path / "alias/link"))


def test_a_symlink_that_is_put_there_after_the_check_leads_nowhere_else(
    shared: Path, paths: HostPaths
) -> None:
    paths.prepare(pod(shared / "sub"))
    (shared / "sub").rmdir()
    (shared / "sub").symlink_to("/")
    with pytest.raises(OSError, match="cross-device"):
        open_place(paths.places("u-1")["v"])


def test_what_a_pod_writes_to_that_runs_already_is_known_at_once(paths: HostPaths, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/link").symlink_to("/")
    paths.take_note([pod(tmp_path / "shared", uid="runs")])
    with pytest.raises(VolumeRefused, match="leads out of"):
        paths.prepare(pod(tmp_path / "shared/link"))


def test_a_pod_that_only_reads_or_is_gone_has_no_say(paths: HostPaths, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    for name in ("read", "gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "link").symlink_to("../outside")
    paths.take_note([pod(tmp_path / "read", uid="reads", read_only=True), pod(tmp_path / "gone", uid="gone")])
    paths.forget("gone")
    for name in ("read", "gone"):
        paths.prepare(pod(tmp_path / name / "link"))
        assert paths.places("u-1") == {"v": HostPlace(str(tmp_path / "outside"))}


def test_the_wait_for_a_filesystem_that_does_not_answer_is_bounded(
    paths: HostPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_paths, "HUNG_SECONDS", 0.05)
    answers = threading.Event()
    prepare = paths.prepare

    def hangs(one: Pod) -> None:
        answers.wait(30)
        prepare(one)

    async def story() -> None:
        monkeypatch.setattr(paths, "prepare", hangs)
        hung = pod(tmp_path / "hung")
        before = set(threading.enumerate())  # those of a test before may be there still
        for _ in range(2):
            with pytest.raises(VolumeRefused, match="does not answer"):
                await paths.prepared(hung)
        begun = set(threading.enumerate()) - before
        assert [thread.name for thread in begun] == ["host-paths"]
        answers.set()
        monkeypatch.setattr(host_paths, "HUNG_SECONDS", 30)
        await paths.prepared(hung)
        assert paths.places("u-1") == {"v": HostPlace(str(tmp_path / "hung"))}

    asyncio.run(story())
