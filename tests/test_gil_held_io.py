import errno
import os

import pytest

from evenkeel.host.gil_held_io import MOST_BYTES, close, contents, number, open_to_read, pread


def test_a_file_is_read_whole_however_long(tmp_path):
    file = tmp_path / "cgroup.procs"
    written = b"".join(b"%d\n" % number for number in range(50_000))
    assert len(written) > 2 * MOST_BYTES
    file.write_bytes(written)
    assert contents(str(file)) == written


def test_a_file_of_the_kernels_is_read_whole():
    assert contents("/proc/self/stat").startswith(b"%d " % os.getpid())


def test_what_is_not_there_is_told_as_python_tells_it(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        contents(str(tmp_path / "gone"))
    assert caught.value.filename == str(tmp_path / "gone")


def test_part_of_a_file_is_read_where_it_is_asked_for(tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    descriptor = open_to_read(str(tmp_path / "file"))
    assert pread(descriptor, 4) == b"0123"
    assert pread(descriptor, 4, at=8) == b"89"
    assert not os.get_inheritable(descriptor)
    close(descriptor)
    for use in (close, pread):
        with pytest.raises(OSError) as caught:
            use(descriptor)
        assert caught.value.errno == errno.EBADF


def test_a_number_is_read(tmp_path):
    (tmp_path / "memory.current").write_bytes(b"18446744073709551615\n")
    descriptor = open_to_read(str(tmp_path / "memory.current"))
    assert number(descriptor) == 2**64 - 1
    close(descriptor)
    with pytest.raises(OSError) as caught:
        number(descriptor)
    assert caught.value.errno == errno.EBADF
