"""Images of registries on disk: checked before they are unpacked, kept whole or not at all, removed when unused."""

import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from evenkeel.runtime.images.credentials import FOR_ALL
from evenkeel.runtime.images.references import parse
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.process.image_config import ImageRefused
from evenkeel.runtime.process.image_store import ImageStore, StoredImage, list_images
from evenkeel.runtime.process.process_images import Images
from tests.machines.container_images import Entry
from tests.machines.oci_images import Layout

IMAGE = parse("registry.example/app:1")
DIGEST = "sha256:" + "0" * 64


class Place:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.paths = StatePaths(str(directory / "state"))
        self.store = ImageStore(self.paths)
        self.layouts = 0

    def layout(self) -> Layout:
        self.layouts += 1
        return Layout(self.directory / f"layout{self.layouts}")

    def staged(self, layout: Layout) -> Path:
        """What skopeo leaves: the index in one directory, the blobs in another."""
        staging = Path(self.store.make_staging())
        (staging / "layout").mkdir()
        shutil.copy(layout.directory / "index.json", staging / "layout")
        for blob in (layout.directory / "blobs/sha256").iterdir():
            target = staging / "blobs/sha256" / blob.name
            if not target.exists():
                shutil.copy(blob, target)
        return staging

    def adopt(self, layout: Layout, name: str = str(IMAGE)) -> StoredImage:
        staging = self.staged(layout)
        try:
            return self.store.adopt(str(staging), parse(name), DIGEST, 1.0, FOR_ALL)
        finally:
            self.store.remove_staging(str(staging))

    def root(self, stored: StoredImage) -> Path:
        return Path(self.store.directory(stored))

    def left(self) -> set[str]:
        return {path.name for path in Path(self.paths.images).iterdir()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def one_layer(place: Place, *entries: Entry, **config: object) -> Layout:
    layout = place.layout()
    layout.named("image", layout.image([entries or [Entry("bin/app", b"app")]], config))
    return layout


def zstd(content: bytes) -> bytes:
    return subprocess.run(["zstd", "-q", "-c"], input=content, capture_output=True, check=True).stdout


@pytest.mark.parametrize("compress, kind", [(gzip.compress, "+gzip"), (bytes, ""), (zstd, "+zstd")])
def test_layers_are_unpacked_over_each_other(
    compress: Callable[[bytes], bytes], kind: str, place: Place
) -> None:
    layout = place.layout()
    layers = [
        [Entry("etc/a", b"1"), Entry("etc/b", b"1"), Entry("var/c", b"1" * 5_000_000)],
        [Entry("etc/a", b"2"), Entry("etc/.wh.b")],
    ]
    layout.named("image", layout.image(layers, {"Cmd": ["/a"]}, compress=compress, kind=kind))
    stored = place.adopt(layout)
    root = place.root(stored)
    assert (root / "etc/a").read_text() == "2"
    assert not (root / "etc/b").exists()
    assert (root / "var/c").stat().st_size == 5_000_000
    assert stored.config.command == ("/a",)
    assert place.store.find(str(IMAGE)) == stored


def test_an_image_of_a_hundred_layers_is_one_root(place: Place) -> None:
    layout = place.layout()
    layout.named("image", layout.image([[Entry(f"etc/{n}", b"x")] for n in range(100)]))
    assert len(list((place.root(place.adopt(layout)) / "etc").iterdir())) == 100


def test_blobs_are_shared_and_need_not_be_fetched_again(place: Place) -> None:
    base = [Entry("bin/busybox", b"b" * 10_000)]
    for name, more in (("one", b"1"), ("two", b"2")):
        layout = place.layout()
        layout.named("image", layout.image([base, [Entry("etc/own", more)]]))
        place.adopt(layout, f"registry.example/{name}")
    blobs = Path(place.paths.images) / "blobs/sha256"
    assert len(list(blobs.iterdir())) == 5  # a layer of both, a layer of each, a configuration of each
    staging = Path(place.store.make_staging())
    assert {blob.name for blob in (staging / "blobs/sha256").iterdir()} == {
        blob.name for blob in blobs.iterdir()
    }


def test_a_layer_with_another_digest_is_refused_and_nothing_is_left(place: Place) -> None:
    layout = one_layer(place)
    manifest = json.loads((layout.directory / "index.json").read_text())["manifests"][0]["digest"]
    layer = json.loads((layout.directory / "blobs/sha256" / manifest[7:]).read_text())["layers"][0]["digest"]
    (layout.directory / "blobs/sha256" / layer[7:]).write_bytes(gzip.compress(b"\0" * 1024))
    with pytest.raises(ImageRefused, match="does not have that digest"):
        place.adopt(layout)
    assert place.store.find(str(IMAGE)) is None
    assert place.left() == set()


@pytest.mark.parametrize("which", ["config", "manifest"])
def test_a_changed_configuration_or_manifest_is_refused(which: str, place: Place) -> None:
    layout = one_layer(place)
    manifest = json.loads((layout.directory / "index.json").read_text())["manifests"][0]["digest"]
    path = layout.directory / "blobs/sha256" / manifest[7:]
    if which == "config":
        path = layout.directory / "blobs/sha256" / json.loads(path.read_text())["config"]["digest"][7:]
    path.write_text(path.read_text() + " ")
    with pytest.raises(ImageRefused, match="does not have that digest"):
        place.adopt(layout)


def test_an_image_cannot_take_the_place_of_another_with_the_same_configuration(place: Place) -> None:
    honest = place.adopt(one_layer(place, Entry("bin/app", b"honest")), "registry.example/honest")
    hostile = one_layer(place, Entry("bin/app", b"honest"))
    index = json.loads((hostile.directory / "index.json").read_text())
    path = hostile.directory / "blobs/sha256" / index["manifests"][0]["digest"][7:]
    manifest = json.loads(path.read_text())
    evil = place.layout().image([[Entry("bin/app", b"evil")]])
    source = place.directory / f"layout{place.layouts}" / "blobs/sha256"
    layer = json.loads((source / evil["digest"][7:]).read_text())["layers"][0]
    shutil.copy(source / layer["digest"][7:], hostile.directory / "blobs/sha256")
    manifest["layers"] = [layer]
    hostile.named("image", hostile.blob(json.dumps(manifest).encode(), manifest["mediaType"]))
    index = json.loads((hostile.directory / "index.json").read_text())
    (hostile.directory / "index.json").write_text(json.dumps({**index, "manifests": index["manifests"][-1:]}))
    other = place.adopt(hostile, "evil.example/app")
    assert other.manifest.config == honest.manifest.config
    assert (place.root(other) / "bin/app").read_text() == "evil"
    assert (place.root(honest) / "bin/app").read_text() == "honest"


def test_hostile_layers_stay_within_the_root(place: Place) -> None:
    layout = place.layout()
    layers = [
        [Entry("tmp/x"), Entry("out", link="/../../../../../../tmp"), Entry("dots", link="../../..")],
        [Entry("out/evenkeel-was-here", b"x"), Entry("dots/evenkeel-was-here", b"x")],
    ]
    layout.named("image", layout.image(layers, has_parents=False))
    root = place.root(place.adopt(layout))
    assert (root / "tmp/evenkeel-was-here").exists()
    assert (root / "evenkeel-was-here").exists()
    assert not Path("/tmp/evenkeel-was-here").exists()


def test_a_layer_that_leads_out_is_refused(place: Place) -> None:
    layout = place.layout()
    layout.named("image", layout.image([[Entry("../evenkeel-was-here", b"x")]], has_parents=False))
    with pytest.raises(ImageRefused, match="leads out of it"):
        place.adopt(layout)
    assert place.left() == set()


def test_a_layer_that_takes_away_what_is_above_it_is_refused(place: Place) -> None:
    layout = place.layout()
    layout.named("image", layout.image([[Entry("a", b"x")], [Entry(".wh...")]], has_parents=False))
    with pytest.raises(ImageRefused, match="names no entry of its directory"):
        place.adopt(layout)
    assert place.left() == set()


def test_an_artifact_is_no_image(place: Place) -> None:
    layout = place.layout()
    layout.named("image", layout.image([[Entry("chart", b"x")]], kind=".chart"))
    text = (layout.directory / "index.json").read_text()
    digest = json.loads(text)["manifests"][0]["digest"][7:]
    blob = layout.directory / "blobs/sha256" / digest
    changed = blob.read_bytes().replace(
        b"vnd.oci.image.layer.v1.tar.chart", b"vnd.cncf.helm.chart.content.v1"
    )
    made = layout.blob(changed, "application/vnd.oci.image.manifest.v1+json")
    (layout.directory / "index.json").write_text(text.replace(digest, made["digest"][7:]))
    with pytest.raises(ImageRefused, match="no image of a container"):
        place.adopt(layout)


def test_a_new_agent_finds_the_images_and_removes_what_an_interrupted_pull_left(place: Place) -> None:
    stored = place.adopt(one_layer(place))
    (Path(place.store.make_staging()) / "half").write_text("x")
    (Path(place.paths.images) / "references" / "damaged.json").write_text("{")
    again = ImageStore(place.paths)
    again.open()
    assert again.find(str(IMAGE)) == stored
    assert not [name for name in place.left() if name.startswith(".")]
    shutil.rmtree(again.directory(stored))
    again.open()
    assert again.find(str(IMAGE)) is None


def test_unused_images_are_removed_with_the_blobs_that_no_other_has(place: Place) -> None:
    base = [Entry("bin/busybox", b"b" * 10_000)]
    stored = []
    for name in ("used", "unused"):
        layout = place.layout()
        layout.named("image", layout.image([base, [Entry("etc/own", name.encode())]]))
        stored.append(place.adopt(layout, f"registry.example/{name}"))
    used, unused = stored
    images = Images(place.paths)
    place.store.remove_unused(frozenset({place.store.directory(used)}), images.remove_unused)
    assert place.store.images() == (used,)
    assert place.root(used).is_dir()
    assert not place.root(unused).exists()
    assert len(list((Path(place.paths.images) / "blobs/sha256").iterdir())) == 3
    (listed,) = list_images(place.store, place.paths, frozenset())
    assert (listed.names, listed.is_in_use) == (("registry.example/used:latest",), False)
    place.store.remove(used.key)
    assert not place.root(used).exists()
    assert list((Path(place.paths.images) / "blobs/sha256").iterdir()) == []


def test_two_names_of_one_image_share_its_root(place: Place) -> None:
    layout = one_layer(place)
    first, second = place.adopt(layout, "registry.example/a"), place.adopt(layout, "registry.example/b")
    assert place.root(first) == place.root(second)
    (listed,) = list_images(place.store, place.paths, frozenset())
    assert set(listed.names) == {"registry.example/a:latest", "registry.example/b:latest"}


def test_blobs_of_the_store_cannot_be_changed_through_a_staging_directory(place: Place) -> None:
    place.adopt(one_layer(place))
    for blob in (Path(place.paths.images) / "blobs/sha256").iterdir():
        assert blob.stat().st_mode & 0o222 == 0
        assert blob.stat().st_uid == os.getuid()
