"""Images: what is refused, and archives that are unpacked whole, once, and never outside their directory."""

import gzip
import io
import json
import lzma
import os
import stat
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.api.container import Container
from evenkeel.api.pod import Pod, PodSpec
from evenkeel.runtime.images.references import is_of_registry
from evenkeel.runtime.images.relative_images import with_absolute_images
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.process import archives
from evenkeel.runtime.process.process_images import ImageRefused, Images, refusal
from evenkeel.runtime.process.unpacking import Bounds

Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, **more: object) -> Entry:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mode = kind, len(content), 0o644
    info.uid, info.gid = os.getuid(), os.getgid()
    for field, value in more.items():
        setattr(info, field, value)
    return info, content


def directory(name: str, mode: int = 0o755) -> Entry:
    return entry(name, kind=tarfile.DIRTYPE, mode=mode)


def symlink(name: str, target: str) -> Entry:
    return entry(name, kind=tarfile.SYMTYPE, linkname=target)


def tar(*entries: Entry) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for info, content in entries:
            made.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


class Place:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.state.mkdir()
        self.images = Images(StatePaths(str(self.state)))

    def archive(self, content: bytes, name: str = "image.tar") -> str:
        path = self.directory / name
        path.write_bytes(content)
        return str(path)

    def unpacked(self, content: bytes, name: str = "image.tar") -> Path:
        return Path(self.images.directory(self.archive(content, name)))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def everything_below(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.mark.parametrize("image", ["host", "/srv/root", "/srv/root.tar.gz"])
def test_hosts_directories_and_archives_are_images(image: str) -> None:
    assert refusal(image) == ""
    assert not is_of_registry(image)


@pytest.mark.parametrize("image", ["nginx", "registry.example/library/nginx:1.27", "hosts"])
def test_every_other_name_is_one_of_a_registry(image: str) -> None:
    assert refusal(image) == ""
    assert is_of_registry(image)


@pytest.mark.parametrize(
    "image, said",
    [
        ("", "missing"),
        ("./app", "relative to its manifest"),
        ("../app", "relative to its manifest"),
        ("/a\0b", "zero byte"),
    ],
)
def test_other_images_are_refused_with_a_sentence(image: str, said: str) -> None:
    assert said in refusal(image)


def test_relative_images_are_relative_to_their_manifest() -> None:
    spec = PodSpec(
        containers=(Container(name="a", image="./root"), Container(name="b", image="host")),
        init_containers=(Container(name="c", image="../x.tar"),),
    )
    absolute = with_absolute_images(Pod(spec=spec), "/srv/pods")
    assert [container.image for container in absolute.spec.every_container] == [
        "/srv/x.tar",
        "/srv/pods/root",
        "host",
    ]


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress])
def test_an_archive_is_unpacked_as_it_is(compress: Callable[[bytes], bytes], place: Place) -> None:
    content = tar(
        directory("./"),
        directory("./etc"),
        entry("./etc/motd", b"hello\n", mode=0o640, mtime=1_000_000_000),
        entry("./bin/tool", b"x" * 4096, mode=0o755),
        symlink("./bin/link", "/etc/motd"),
        entry("./etc/same", kind=tarfile.LNKTYPE, linkname="./etc/motd"),
        entry("./fifo", kind=tarfile.FIFOTYPE),
    )
    root = place.unpacked(compress(content))
    assert (root / "etc/motd").read_bytes() == b"hello\n"
    assert stat.S_IMODE((root / "etc/motd").stat().st_mode) == 0o640
    assert (root / "etc/motd").stat().st_mtime == 1_000_000_000
    assert os.path.samefile(root / "etc/same", root / "etc/motd")  # noqa: PTH121
    assert (root / "bin/link").readlink() == Path("/etc/motd")
    assert stat.S_ISFIFO((root / "fifo").stat().st_mode)
    assert (root / "bin").is_dir()


def test_an_archive_is_unpacked_once_and_found_again(place: Place) -> None:
    content = tar(entry("file", b"1"))
    first = place.unpacked(content)
    (first / "mark").write_text("")
    assert place.images.is_ready(str(place.directory / "image.tar"))
    assert place.unpacked(content) == first
    assert place.unpacked(content, "copy.tar") == first
    assert (first / "mark").exists()
    assert Images(StatePaths(str(place.state))).directory(str(place.directory / "copy.tar")) == str(first)


def test_an_archive_that_changed_is_another_image(place: Place) -> None:
    first = place.unpacked(tar(entry("file", b"1")))
    second = place.unpacked(tar(entry("file", b"2")))
    assert first != second
    assert (first / "file").read_bytes() == b"1"
    assert (second / "file").read_bytes() == b"2"


def test_many_threads_unpack_an_archive_together(place: Place) -> None:
    path = place.archive(tar(*(entry(f"file{number}", b"x" * 100) for number in range(200))))
    copy = place.archive(Path(path).read_bytes(), "copy.tar")
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(place.images.directory, [path, copy] * 8))
    assert len(found) == 1
    assert len(everything_below(Path(found.pop()))) == 200
    assert len(list((place.state / "images").iterdir())) == 1


def escaping() -> dict[str, bytes]:
    return {
        "a name that climbs": tar(entry("../escaped", b"x")),
        "a name that climbs later": tar(directory("a"), entry("a/../../escaped", b"x")),
        "an absolute name": tar(entry("/escaped", b"x")),
        "through an absolute symlink": tar(symlink("a", "/"), entry("a/escaped", b"x")),
        "through a climbing symlink": tar(symlink("a", "../../.."), entry("a/escaped", b"x")),
        "through two symlinks": tar(symlink("a", "b/.."), symlink("b", "../.."), entry("a/escaped", b"x")),
        "over a symlink": tar(symlink("escaped", "../../../escaped"), entry("escaped", b"x")),
        "a directory over a symlink": tar(symlink("a", "../.."), directory("a"), entry("a/escaped", b"x")),
        "a hard link to outside": tar(
            entry("a", kind=tarfile.LNKTYPE, linkname="../../../image.tar"), entry("a", b"x")
        ),
        "a hard link through a symlink": tar(
            symlink("s", "/etc"), entry("a", kind=tarfile.LNKTYPE, linkname="s/passwd")
        ),
        "a fifo through a symlink": tar(symlink("a", "../../.."), entry("a/escaped", kind=tarfile.FIFOTYPE)),
    }


@pytest.mark.parametrize("how", sorted(escaping()))
def test_no_archive_writes_outside_its_directory(how: str, place: Place) -> None:
    content = escaping()[how]
    try:
        root = place.unpacked(content)
    except ImageRefused:
        root = place.state / "none"
    inside = (
        {f"state/images/{root.name}/{path}" for path in everything_below(root)} if root.exists() else set()
    )
    expected = {"state", "state/images", "image.tar", f"state/images/{root.name}"} | inside
    assert everything_below(place.directory) <= expected
    assert (place.directory / "image.tar").read_bytes() == content
    assert not Path("/escaped").exists()
    for path in root.rglob("*") if root.exists() else ():
        assert path.is_symlink() or path.stat().st_dev == place.state.stat().st_dev
        assert path.is_symlink() or not path.samefile("/etc/passwd")


def test_device_nodes_are_left_out(place: Place) -> None:
    null = entry("dev/null", kind=tarfile.CHRTYPE, devmajor=1, devminor=3)
    disk = entry("dev/disk", kind=tarfile.BLKTYPE, devmajor=8, devminor=0)
    root = place.unpacked(tar(directory("dev"), null, disk, entry("file", b"x")))
    assert everything_below(root) == {"dev", "file"}


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "is no sound archive"),
        (b"\0" * 10240, "is no sound archive"),
        (b"not an archive at all" * 100, "is no sound archive"),
        (gzip.compress(b"not an archive at all" * 100), "is no sound archive"),
        (gzip.compress(tar(entry("f", bytes(range(256)) * 99)))[:-200], "is no sound archive"),
        (tar(entry("f", b"x" * 5000), entry("g", b"y"))[:3000], "is no sound archive"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 600, "zstd"),
    ],
    ids=["empty", "zeros", "text", "text in gzip", "gzip cut short", "tar cut short", "zstd"],
)
def test_a_damaged_archive_is_refused_and_leaves_nothing(content: bytes, said: str, place: Place) -> None:
    with pytest.raises(ImageRefused, match=said):
        place.unpacked(content)
    assert list((place.state / "images").iterdir()) == []


def test_damage_in_the_middle_is_not_taken_for_the_end(place: Place) -> None:
    content = bytearray(tar(entry("first", b"1"), entry("second", b"2")))
    content[1024:1100] = b"\xff" * 76
    with pytest.raises(ImageRefused, match="is damaged 1024 bytes from its beginning"):
        place.unpacked(bytes(content))


@settings(deadline=None, max_examples=80)
@given(at=st.integers(0, 4000), junk=st.binary(min_size=1, max_size=600))
def test_whatever_the_damage_the_answer_is_a_sentence_or_an_image(
    at: int, junk: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = Place(tmp_path_factory.mktemp("image"))
    content = bytearray(
        tar(
            directory("d"),
            entry("d/f", b"x" * 700),
            symlink("d/s", "f"),
            entry("l", kind=tarfile.LNKTYPE, linkname="d/f"),
        )
    )
    content[at : at + len(junk)] = junk
    try:
        place.unpacked(bytes(content))
    except ImageRefused:
        left = list((place.state / "images").iterdir())
    else:
        left = []
    assert left == []


def sparse(name: str, content: bytes, size: int) -> bytes:
    """An archive with one file that begins with the content, and then is a hole; in GNU's format."""
    info, _ = entry(name, content, kind=tarfile.GNUTYPE_SPARSE)
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (0, len(content))
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header) + content.ljust(512, b"\0") + bytes(1024)


def test_a_sparse_file_is_whole_with_its_hole(place: Place) -> None:
    assert (place.unpacked(sparse("f", b"x", 5000)) / "f").read_bytes() == b"x".ljust(5000, b"\0")


def test_an_archive_is_unpacked_within_bounds(tmp_path: Path) -> None:
    bomb = tar(*(entry(f"zeros{number}", bytes(1 << 20)) for number in range(4)))
    for number, (content, bounds, said) in enumerate(
        (
            (bomb, Bounds(max_bytes=3 << 20), "too large"),
            (bomb, Bounds(max_entries=3), "more entries"),
            (sparse("holes", b"x", 1 << 32), Bounds(max_bytes=3 << 20), "too large"),
        )
    ):
        path = tmp_path / "bomb.tar"
        path.write_bytes(content)
        target = tmp_path / str(number)
        target.mkdir()
        with path.open("rb") as file, pytest.raises(ImageRefused, match=said):
            archives.unpack(file, str(target), "bomb", bounds)


@pytest.mark.parametrize("depth", [300, 1800])
def test_a_path_may_be_as_deep_as_the_kernel_allows(depth: int, place: Place) -> None:
    """The archive has an entry for the last name alone, and the directories above it are made."""
    root = place.unpacked(tar(entry("a/" * depth + "file", b"x")))
    assert (root / ("a/" * depth) / "file").read_bytes() == b"x"
    assert stat.S_IMODE((root / ("a/" * (depth - 1))).stat().st_mode) == 0o755
    place.images.remove_unused(frozenset())  # pytest could not remove it


def test_directories_without_entries_count_as_entries(tmp_path: Path) -> None:
    path, target = tmp_path / "deep.tar", tmp_path / "target"
    path.write_bytes(tar(entry("a/" * 50 + "file")))
    target.mkdir()
    with path.open("rb") as file, pytest.raises(ImageRefused, match="more entries"):
        archives.unpack(file, str(target), "deep", Bounds(max_entries=50))


def test_a_path_that_is_too_deep_is_refused_with_a_sentence(place: Place) -> None:
    with pytest.raises(ImageRefused, match="too long"):
        place.unpacked(tar(entry("a/" * 100_000 + "file")))


def test_a_header_that_asks_for_all_memory_is_refused(place: Place) -> None:
    info = tarfile.TarInfo("long")
    info.type, info.size = tarfile.XHDTYPE, 4 << 30
    with pytest.raises(ImageRefused, match="header in it is too long"):
        place.unpacked(info.tobuf() + bytes(1024))


def saved_image(*layers: bytes) -> bytes:
    """An image as `docker save` writes it."""
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = json.dumps([{"Config": "config.json", "RepoTags": ["app:1"], "Layers": names}]).encode()
    files = [entry(name, layer) for name, layer in zip(names, layers, strict=True)]
    return tar(*files, entry("config.json", b"{}"), entry("manifest.json", manifest))


def oci_image(*layers: bytes) -> bytes:
    manifest = json.dumps(
        {"layers": [{"digest": f"sha256:layer{number}"} for number in range(len(layers))]}
    ).encode()
    index = json.dumps({"manifests": [{"digest": "sha256:manifest"}]}).encode()
    return tar(
        *(entry(f"blobs/sha256/layer{number}", gzip.compress(layer)) for number, layer in enumerate(layers)),
        entry("blobs/sha256/manifest", manifest),
        entry("index.json", index),
        entry("oci-layout", b"{}"),
    )


LAYERS = (
    tar(
        directory("etc"), entry("etc/a", b"1"), entry("etc/b", b"1"), directory("opt"), entry("opt/old", b"1")
    ),
    tar(
        entry("etc/a", b"2"),
        entry("etc/.wh.b"),
        entry("opt/new", b"2"),
        entry("opt/.wh..wh..opq"),
        directory("usr"),
    ),
)


@pytest.mark.parametrize("save", [saved_image, oci_image])
def test_a_saved_image_is_its_layers_on_each_other(save: Callable[..., bytes], place: Place) -> None:
    root = place.unpacked(save(*LAYERS))
    assert everything_below(root) == {"etc", "etc/a", "opt", "opt/new", "usr"}
    assert (root / "etc/a").read_bytes() == b"2"
    assert len(list((place.state / "images").iterdir())) == 1


@pytest.mark.parametrize(
    "manifest",
    [b"[]", b"{", b'[{"Layers": ["../../secret"]}]', b'[{"Layers": [1]}]', b'[{"Layers": ["/nowhere"]}]'],
)
def test_a_saved_image_that_is_not_sound_is_refused(manifest: bytes, place: Place) -> None:
    (place.directory / "secret").write_bytes(tar(entry("stolen", b"x")))
    with pytest.raises(ImageRefused):
        place.unpacked(tar(entry("manifest.json", manifest)))
    assert list((place.state / "images").iterdir()) == []


def test_a_whiteout_takes_nothing_away_outside(place: Place) -> None:
    (place.directory / "precious").write_text("mine")
    layer = tar(symlink("out", "../../.."), entry("out/.wh.precious"))
    place.unpacked(saved_image(tar(directory("etc")), layer))
    assert (place.directory / "precious").read_text() == "mine"


@pytest.mark.parametrize("name", [".wh...", ".wh..", ".wh.", "etc/.wh...", "etc/.wh..", "./etc/.wh..."])
def test_a_whiteout_of_no_entry_is_refused_and_takes_nothing_away(name: str, place: Place) -> None:
    other = place.unpacked(tar(entry("precious", b"mine")))
    layers = tar(directory("etc"), entry("etc/motd", b"x")), tar(entry(name))
    with pytest.raises(ImageRefused, match="names no entry of its directory"):
        place.unpacked(saved_image(*layers), "hostile.tar")
    assert (other / "precious").read_text() == "mine"
    assert list((place.state / "images").iterdir()) == [other]


def test_a_directory_is_used_as_it_is(place: Place) -> None:
    (place.directory / "root").mkdir()
    (place.directory / "link").symlink_to("root")
    assert place.images.directory(str(place.directory / "link")) == str(place.directory / "root")
    assert not (place.state / "images").exists()


@pytest.mark.parametrize(
    "way, said", [("", "has the agent's state directory"), ("state/pods", "lies in the agent's")]
)
def test_the_state_directory_is_no_image_nor_part_of_one(way: str, said: str, place: Place) -> None:
    (place.state / "pods").mkdir()
    with pytest.raises(ImageRefused, match=said):
        place.images.directory(str(place.directory / way))


def test_what_is_no_file_is_no_image(place: Place) -> None:
    os.mkfifo(place.directory / "fifo")
    with pytest.raises(ImageRefused, match="neither a directory nor an archive"):
        place.images.directory(str(place.directory / "fifo"))
    with pytest.raises(ImageRefused, match="no such file"):
        place.images.directory(str(place.directory / "missing"))


def test_unused_images_and_unfinished_ones_are_removed(place: Place) -> None:
    kept = place.unpacked(tar(entry("file", b"1")))
    place.unpacked(tar(entry("file", b"2")))
    (place.state / "images" / ".unpacking-x").mkdir()
    place.images.remove_unused(frozenset({str(kept)}))
    assert list((place.state / "images").iterdir()) == [kept]
    assert place.unpacked(tar(entry("file", b"2"))).exists()
