"""`evenkeel cp` and `port-forward` before they ask the agent: what is read of their words, and of hostile streams."""

import io
import os
import stat
import tarfile
import tracemalloc

import pytest

from evenkeel.cli.cp import Place, place
from evenkeel.cli.port_forward import Ports, ports_of
from evenkeel.cli.tar_reader import DIRECTORY, FILE, TarReader
from evenkeel.cli.tar_streams import read_tree, write_tree
from evenkeel.errors import EvenkeelError


@pytest.mark.parametrize(
    ("word", "seen"),
    [
        ("web:/etc/hosts", Place("/etc/hosts", "web", "default")),
        ("batch/job:x", Place("x", "job", "batch")),
        ("./a:b", Place("./a:b")),
        ("/tmp/a:b", Place("/tmp/a:b")),
        ("plain", Place("plain")),
    ],
)
def test_a_word_is_a_path_or_a_pod_with_a_path(word, seen):
    assert place(word, "default") == seen


@pytest.mark.parametrize("word", ["", "web:", "/:x/"[1:], "ns/:x"])
def test_a_place_that_is_none_is_refused(word):
    with pytest.raises(EvenkeelError):
        place(word, "default")


@pytest.mark.parametrize(
    ("word", "seen"), [("80", Ports(80, 80)), ("9000:80", Ports(9000, 80)), (":80", Ports(0, 80))]
)
def test_ports_are_read_as_kubectl_reads_them(word, seen):
    assert ports_of(word) == seen


@pytest.mark.parametrize("word", ["", "x", "80:", "0", "1:2:3", "70000", "-1", "80:0", "٣"])
def test_a_port_that_is_none_is_refused(word):
    with pytest.raises(EvenkeelError, match="port-forward"):
        ports_of(word)


def stream(*members):
    """A tar stream with these members: a name, or a TarInfo with its content."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as made:
        for member in members:
            info, content = member if isinstance(member, tuple) else (tarfile.TarInfo(member), b"said")
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return io.BytesIO(file.getvalue())


def made(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o755
    return info, b""


def test_a_tree_is_the_same_after_its_way_through_a_stream(tmp_path):
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "run").write_bytes(os.urandom(100_000))
    (source / "run").chmod(0o751)
    (source / "deep" / "er" / "empty").touch()
    (source / "deep").chmod(0o555)
    file = io.BytesIO()
    write_tree(str(source), "site", file)
    (source / "deep").chmod(0o755)
    assert read_tree(io.BytesIO(file.getvalue()), "site", str(tmp_path / "target")) == 5
    target = tmp_path / "target"
    assert (target / "run").read_bytes() == (source / "run").read_bytes()
    assert stat.S_IMODE((target / "run").stat().st_mode) == 0o751
    assert stat.S_IMODE((target / "deep").stat().st_mode) == 0o555
    assert (target / "deep" / "er" / "empty").exists()


@pytest.mark.parametrize(
    "name", ["../out", "/abs/out", "site/../../out", "other/out", "site/../out", "site2"]
)
def test_a_stream_that_leads_out_of_the_target_is_refused(tmp_path, name):
    target = tmp_path / "in"
    target.mkdir()
    with pytest.raises(EvenkeelError, match="tar stream"):
        read_tree(stream(made("site", tarfile.DIRTYPE), name), "site", str(target / "site"))
    assert not list(tmp_path.glob("**/*out*"))


def test_links_and_devices_are_skipped_and_no_link_is_written_through(tmp_path, capsys):
    outside = tmp_path / "outside"
    outside.mkdir()
    target = str(tmp_path / "site")
    hostile = stream(
        made("site", tarfile.DIRTYPE),
        made("site/link", tarfile.SYMTYPE, str(outside)),
        made("site/hard", tarfile.LNKTYPE, "/etc/passwd"),
        made("site/null", tarfile.CHRTYPE),
        made("site/fifo", tarfile.FIFOTYPE),
    )
    assert read_tree(hostile, "site", target) == 1
    assert not list((tmp_path / "site").iterdir())
    assert capsys.readouterr().err.count("skipped") == 4
    # A link that is there already, the user's own, is not followed either.
    (tmp_path / "site" / "link").symlink_to(outside)
    with pytest.raises(EvenkeelError):
        read_tree(stream("site/link/out"), "site", target)
    (tmp_path / "site" / "file").symlink_to(outside / "file")
    with pytest.raises(EvenkeelError):
        read_tree(stream("site/file"), "site", target)
    assert not list(outside.iterdir())


def test_a_set_user_id_bit_does_not_come_out_of_a_container(tmp_path):
    info = tarfile.TarInfo("tool")
    info.mode = 0o6755
    read_tree(stream((info, b"x")), "tool", str(tmp_path / "tool"))
    assert stat.S_IMODE((tmp_path / "tool").stat().st_mode) == 0o755


def test_a_name_of_any_length_is_not_held_in_memory(tmp_path):
    info = tarfile.TarInfo("././@LongLink")
    info.type = tarfile.GNUTYPE_LONGNAME
    info.size = 1 << 33
    with pytest.raises(EvenkeelError, match="no tar writes"):
        read_tree(io.BytesIO(info.tobuf(tarfile.GNU_FORMAT) + bytes(10240)), "x", str(tmp_path / "x"))


@pytest.mark.parametrize("content", [b"no tar at all" * 100, b"\xff" * 512])
def test_what_is_no_tar_stream_is_a_sentence(tmp_path, content):
    with pytest.raises(EvenkeelError, match="cannot be read"):
        read_tree(io.BytesIO(content), "x", str(tmp_path / "x"))


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_stream_of_every_format_is_read(tmp_path, kind):
    names = ["site", "site/plain", f"site/{'long' * 20}", f"site/{'deep/' * 30}x", "site/ünï\N{SNOWMAN}"]
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as written:
        for name in names:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if name == "site" else tarfile.REGTYPE
            info.mode = 0o755
            content = b"" if info.isdir() else name.encode() * 100
            info.size = len(content)
            written.addfile(info, io.BytesIO(content))
    reader = TarReader(io.BytesIO(file.getvalue()))
    found = [(entry.name.rstrip("/"), entry.kind, b"".join(reader.content())) for entry in reader.entries()]
    assert found == [
        (name, DIRECTORY if name == "site" else FILE, b"" if name == "site" else name.encode() * 100)
        for name in names
    ]


def header(name, size=0, kind=b"0"):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.USTAR_FORMAT)


def attributes(**values):
    """A header with attributes of the next entry."""
    text = b""
    for key, value in values.items():
        record = f" {key.replace('_', '.')}={value}\n".encode()
        length = len(record) + len(str(len(record) + 3))
        text += str(length).encode() + record
    return header("x", len(text), b"x") + text + bytes(-len(text) % 512)


HOSTILE_STREAMS = {
    "a header that takes hours to search": header("x", 1 << 20, b"x") + b"1" * (1 << 20),
    "the same, and not too long": header("x", 1 << 15, b"x") + b"1" * (1 << 15),
    "headers without end": attributes(path="site/x") * 5000,
    "a map of a sparse file without end": attributes(GNU_sparse_major=1, GNU_sparse_minor=0)
    + header("site/s", 1 << 32)
    + b"100000000000\n"
    + b"0\n" * 1_000_000,
    "a negative size": attributes(size=-512) + header("site/x"),
    "a size that is no number": attributes(size="9" * 5000) + header("site/x"),
    "a huge file that ends": header("site", 0, b"5") + header("site/x", (1 << 33) - 1) + b"x",
    "attributes that are longer than they say": header("x", 512, b"x")
    + b"600 path=site/x\n".ljust(512, b"x"),
    "attributes of no length": header("x", 512, b"x") + b"0 path=x\n" * 56 + bytes(8),
}


@pytest.mark.parametrize("content", HOSTILE_STREAMS.values(), ids=HOSTILE_STREAMS)
def test_a_hostile_stream_is_a_sentence_and_costs_little(tmp_path, content):
    """Memory is bounded by what is measured here, and time by the test's own timeout."""
    tracemalloc.start()
    try:
        with pytest.raises(EvenkeelError, match=r"tar stream|sparse"):
            read_tree(io.BytesIO(content), "site", str(tmp_path / "site"))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_no_entry_is_kept_in_memory(tmp_path, capsys):
    one = attributes(comment="x" * 50_000) + header("site/l", 0, b"2")
    file = io.BytesIO(header("site", 0, b"5") + one * 300)
    tracemalloc.start()
    try:
        assert read_tree(file, "site", str(tmp_path / "site")) == 1
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 21
    assert said[-1] == "evenkeel: 280 more are skipped"
