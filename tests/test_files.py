"""Reading the files that users point at."""

import os
import subprocess
import sys

import pytest

from evenkeel.errors import EvenkeelError
from evenkeel.host.files import MAX_BYTES, manifest_paths, read_text


def refused(path):
    with pytest.raises(EvenkeelError) as caught:
        read_text(str(path))
    return str(caught.value)


def test_a_files_text_is_read_without_its_byte_order_mark(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: \xc3\xa9\r\n")
    assert read_text(str(file)) == "a: é\r\n"


def test_a_missing_file_is_named(tmp_path):
    assert refused(tmp_path / "nope") == f"cannot read {tmp_path}/nope: no such file or directory"


def test_a_directory_is_not_a_file(tmp_path):
    assert refused(tmp_path) == f"cannot read {tmp_path}: it is not a file"


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe").endswith("it is not a file")


def test_a_device_without_end_is_refused():
    assert refused("/dev/zero").endswith("it is not a file")


def test_a_file_of_the_kernel_is_read_though_it_has_no_size():
    assert "MemTotal" in read_text("/proc/meminfo")


@pytest.mark.parametrize("content, line", [(b"\xff\xfea\0", 1), (b"a: 1\nb: \xff\n", 2), (b"\n\n\xc3(", 3)])
def test_what_is_not_text_is_refused_with_its_line(tmp_path, content, line):
    (tmp_path / "a").write_bytes(content)
    assert refused(tmp_path / "a") == f"{tmp_path}/a:{line}: is not text in UTF-8"


def test_a_file_that_no_manifest_needs_is_not_read_to_its_end(tmp_path):
    file = tmp_path / "big"
    file.write_bytes(b"")
    os.truncate(file, MAX_BYTES + 1)
    assert refused(file) == f"{file} is larger than 16 MiB, which no manifest needs"
    os.truncate(file, MAX_BYTES)
    assert len(read_text(str(file))) == MAX_BYTES


@pytest.mark.parametrize("path", ["a\0b", ""])
def test_a_path_that_can_be_none_is_refused(path):
    assert "cannot read" in refused(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(tmp_path):
    (tmp_path / "a").touch(mode=0)
    assert refused(tmp_path / "a").endswith("permission denied")


def standard_input(redirection, **options):
    code = "from evenkeel.host.files import read_text; print(repr(read_text('-')))"
    return subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, code],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_standard_input_is_read_to_its_end():
    assert standard_input("", input="a: 1\n").stdout == "'a: 1\\n'\n"


def test_closed_standard_input_is_reported():
    done = standard_input("<&-")
    assert "EvenkeelError: cannot read -: bad file descriptor" in done.stderr


def test_a_directorys_manifests_are_those_with_their_endings_in_order(tmp_path):
    for name in ("b.yml", "a.yaml", "c.json", ".hidden.yaml", "notes.txt", "yaml"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "d.yaml").touch()
    assert [path.rpartition("/")[2] for path in manifest_paths(str(tmp_path))] == [
        "a.yaml",
        "b.yml",
        "c.json",
    ]


def test_a_directory_without_manifests_is_reported(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(EvenkeelError, match=r"holds no manifest: no file there ends in .yaml, .yml, .json"):
        list(manifest_paths(str(tmp_path)))


@pytest.mark.parametrize("path", ["-", "nowhere", "a\0b"])
def test_what_is_no_directory_stands_for_itself(path):
    assert list(manifest_paths(path)) == [path]
