"""The files of volumes with data, and how they are written: whole versions only, and nothing else in the volume."""

import os
import stat
from pathlib import Path

import pytest

from evenkeel.api.container import Container, ObjectFieldSelector, ResourceFieldSelector
from evenkeel.api.data_objects import CONFIG_MAP, SECRET, DataObject, PodData
from evenkeel.api.pod import ObjectMeta, Pod, PodSpec
from evenkeel.api.resources import ResourceRequirements
from evenkeel.api.volume_types import (
    ConfigMapProjection,
    ConfigMapVolumeSource,
    DownwardAPIProjection,
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    KeyToPath,
    ProjectedVolumeSource,
    SecretProjection,
    SecretVolumeSource,
    Volume,
    VolumeProjection,
)
from evenkeel.quantity import Quantity
from evenkeel.runtime import volume_content
from evenkeel.runtime.start_errors import DataMissing
from evenkeel.runtime.sub_paths import SubPathRefused, open_sub_path
from evenkeel.runtime.volume_content import VolumeFile, files_refusal, missing_files, volume_files

DATA: PodData = {
    (CONFIG_MAP, "app"): DataObject(
        CONFIG_MAP, ObjectMeta("app"), {"a": b"1", "b": b"\xff"}, frozenset({"b"})
    ),
    (SECRET, "db"): DataObject(SECRET, ObjectMeta("db"), {"password": b"hunter2"}),
}
AMOUNTS = ResourceRequirements(limits={"memory": Quantity("64Mi")})


def pod(*volumes: Volume) -> Pod:
    labels = {"b": 'says "hi"\n', "a": "1"}
    container = Container("main", resources=AMOUNTS)
    return Pod(ObjectMeta("web", namespace="shop", labels=labels), PodSpec((container,), volumes=volumes))


def content(volume: Volume, data: PodData = DATA) -> dict[str, tuple[bytes, int]]:
    return {file.path: (file.content, file.mode) for file in volume_files(pod(volume), volume, data)}


def test_without_items_each_key_is_a_file():
    volume = Volume("v", config_map=ConfigMapVolumeSource("app"))
    assert content(volume) == {"a": (b"1", 0o644), "b": (b"\xff", 0o644)}


def test_items_choose_keys_paths_and_modes():
    items = (KeyToPath("password", "deep/er/pass", 0o400),)
    assert content(Volume("v", secret=SecretVolumeSource("db", items, 0o440))) == {
        "deep/er/pass": (b"hunter2", 0o400)
    }
    assert content(Volume("v", secret=SecretVolumeSource("db", default_mode=0o440))) == {
        "password": (b"hunter2", 0o440)
    }


def test_a_missing_object_or_key_is_what_the_pod_waits_for():
    gone = Volume("v", secret=SecretVolumeSource("none"))
    assert missing_files(pod(gone), DATA).startswith(
        'volume "v": Secret "none" is not there in namespace shop'
    )
    no_key = Volume("v", config_map=ConfigMapVolumeSource("app", (KeyToPath("none", "x"),)))
    assert 'has no key "none"' in missing_files(pod(no_key), DATA)
    with pytest.raises(DataMissing):
        content(gone)


def test_what_is_optional_may_be_missing():
    assert content(Volume("v", secret=SecretVolumeSource("none", optional=True))) == {}
    items = (KeyToPath("a", "a"), KeyToPath("none", "x"))
    volume = Volume("v", config_map=ConfigMapVolumeSource("app", items, optional=True))
    assert content(volume) == {"a": (b"1", 0o644)}


def test_fields_of_the_pod_are_written_as_kubelet_writes_them():
    items = (
        DownwardAPIVolumeFile("labels", ObjectFieldSelector("metadata.labels")),
        DownwardAPIVolumeFile("name", ObjectFieldSelector("metadata.name"), mode=0o400),
        DownwardAPIVolumeFile(
            "limit", resource_field_ref=ResourceFieldSelector("limits.memory", "main", Quantity("1Mi"))
        ),
    )
    volume = Volume("v", downward_api=DownwardAPIVolumeSource(items))
    assert content(volume) == {
        "labels": (b'a="1"\nb="says \\"hi\\"\\n"', 0o644),
        "name": (b"web", 0o400),
        "limit": (b"64", 0o644),
    }


def test_a_field_that_cannot_be_had_is_refused():
    items = (DownwardAPIVolumeFile("ip", ObjectFieldSelector("status.podIP")),)
    volume = Volume("v", downward_api=DownwardAPIVolumeSource(items))
    assert "status.podIP" in files_refusal(pod(volume), volume)


def test_a_projected_volume_has_the_files_of_all_its_sources():
    sources = (
        VolumeProjection(config_map=ConfigMapProjection("app", (KeyToPath("a", "x"),))),
        VolumeProjection(secret=SecretProjection("db")),
        VolumeProjection(
            downward_api=DownwardAPIProjection(
                (DownwardAPIVolumeFile("n", ObjectFieldSelector("metadata.name")),)
            )
        ),
    )
    volume = Volume("v", projected=ProjectedVolumeSource(sources, 0o600))
    assert volume.has_secrets
    assert content(volume) == {"x": (b"1", 0o600), "password": (b"hunter2", 0o600), "n": (b"web", 0o600)}


def test_the_text_of_a_file_has_no_content():
    assert "hunter2" not in repr(VolumeFile("a", b"hunter2", 0o644))


# Writing


def write(directory: Path, group: int | None = None, **files: str) -> bool:
    return volume_content.write(
        str(directory),
        [VolumeFile(name.replace("__", "/"), text.encode(), 0o640) for name, text in files.items()],
        group,
    )


def seen(directory: Path) -> dict[str, str]:
    """What a container sees: everything but the names that begin with two dots."""
    found = {}
    for path in directory.iterdir():
        if not path.name.startswith(".."):
            files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
            found.update({str(one.relative_to(directory)): one.read_text() for one in files})
    return found


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def current(directory: Path) -> str:
    """The version that a container sees."""
    return str((directory / "..data").readlink())


def test_a_version_replaces_the_one_before_as_a_whole(tmp_path):
    assert write(tmp_path, a="1", b="1", deep__er__c="1")
    assert seen(tmp_path) == {"a": "1", "b": "1", "deep/er/c": "1"}
    first = current(tmp_path)
    assert not write(tmp_path, a="1", b="1", deep__er__c="1"), "nothing has changed"
    assert current(tmp_path) == first
    assert write(tmp_path, a="2", d="2")
    assert seen(tmp_path) == {"a": "2", "d": "2"}
    assert str((tmp_path / "a").readlink()) == "..data/a"
    versions = [name for name in names(tmp_path) if name.startswith("..") and name != "..data"]
    assert versions == [current(tmp_path)], "the old version is removed"


def test_an_open_directory_shows_one_version(tmp_path):
    write(tmp_path, a="1", b="1")
    held = os.open(tmp_path / "..data", os.O_RDONLY | os.O_DIRECTORY)
    try:
        before = os.open("a", os.O_RDONLY, dir_fd=held)
        write(tmp_path, a="2", b="2")
        assert os.read(before, 10) == b"1"
        os.close(before)
    finally:
        os.close(held)


def test_leftovers_of_a_killed_agent_are_removed(tmp_path):
    write(tmp_path, a="1")
    (tmp_path / "..2020_01_01_00_00_00.1").mkdir()
    (tmp_path / "..2020_01_01_00_00_00.1" / "a").write_text("half")
    (tmp_path / "..data_tmp").symlink_to("..2020_01_01_00_00_00.1")
    (tmp_path / "b").symlink_to("..data/b")
    assert not write(tmp_path, a="1")
    assert names(tmp_path) == sorted(["..data", current(tmp_path), "a"])


def test_modes_are_those_of_the_manifest_and_the_group_may_read(tmp_path):
    write(tmp_path, a="1")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    volume_content.write(str(tmp_path), [VolumeFile("a", b"1", 0o400)], os.getegid())
    status = (tmp_path / "a").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o440, os.getegid())


def test_a_sub_path_never_leaves_its_volume(tmp_path):
    volume = tmp_path / "volume"
    volume.mkdir()
    (tmp_path / "outside").write_text("secret")
    (volume / "out").symlink_to("../outside")
    (volume / "root").symlink_to("/etc/passwd")
    (volume / "inside").write_text("1")
    (volume / "link").symlink_to("inside")
    descriptor = os.open(volume, os.O_PATH)
    try:
        for path in ("out", "root"):
            with pytest.raises(SubPathRefused, match="leads out of the volume"):
                open_sub_path(descriptor, path)
        found = open_sub_path(descriptor, "link")
        assert os.path.samestat(os.fstat(found), (volume / "inside").stat())
        os.close(found)
        with pytest.raises(SubPathRefused, match="is no file of the volume"):
            open_sub_path(descriptor, "none", must_exist=True)
        assert not (volume / "none").exists()
        os.close(open_sub_path(descriptor, "made/deep"))
        assert (volume / "made" / "deep").is_dir()
    finally:
        os.close(descriptor)


def test_a_directory_that_a_sub_path_makes_has_the_permissions_of_its_volume(tmp_path: Path):
    """Whatever the agent's umask is: a container of another user is to write there."""
    tmp_path.chmod(0o3777)
    volume = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    before = os.umask(0o077)
    try:
        os.close(open_sub_path(volume, "one/two"))
    finally:
        os.umask(before)
        os.close(volume)
    assert stat.S_IMODE((tmp_path / "one" / "two").stat().st_mode) == 0o3777
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o3777
