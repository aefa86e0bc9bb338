"""The disk usage of a directory, whatever a container put into it."""

import errno
import os
import subprocess
import tracemalloc
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest

from evenkeel.host import disk_usage
from evenkeel.host.disk_usage import Usage, Walk, usage_below
from evenkeel.host.inodes import open_inode
from evenkeel.host.unlinked_files import unlinked_usage
from tests.descriptors import alone, descriptors

pytestmark = pytest.mark.req("B12")


def du(path: Path) -> Usage:
    """What du says, without the directory itself."""
    blocks = subprocess.run(["du", "-s", "-x", "-B1", str(path)], capture_output=True, text=True, check=True)
    inodes = subprocess.run(
        ["du", "-s", "-x", "--inodes", str(path)], capture_output=True, text=True, check=True
    )
    own = path.stat().st_blocks * 512
    return Usage(int(blocks.stdout.split()[0]) - own, int(inodes.stdout.split()[0]) - 1)


def walked(path: str) -> Usage:
    walk = Walk(path)
    while not walk.is_done:
        walk.advance(1000)
    return walk.usage


def write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def test_it_counts_what_du_counts(tmp_path: Path):
    for number in range(50):
        write(tmp_path / f"d{number % 7}" / f"e{number % 3}" / f"f{number}", number * 1000)
    assert walked(str(tmp_path)) == du(tmp_path)


def test_a_walk_in_one_go_is_the_same(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 5000)
    assert usage_below(str(tmp_path)) == walked(str(tmp_path))
    assert usage_below(str(tmp_path / "nowhere")) == (0, 0)


def test_a_directory_that_is_not_there_takes_nothing(tmp_path: Path):
    assert walked(str(tmp_path / "none")) == Usage()
    assert walked(str(tmp_path)) == Usage()


def test_a_file_of_several_names_counts_once(tmp_path: Path):
    write(tmp_path / "one", 100_000)
    before = walked(str(tmp_path))
    (tmp_path / "sub").mkdir()
    for number in range(5):
        os.link(tmp_path / "one", tmp_path / "sub" / str(number))
    assert walked(str(tmp_path)).inodes == before.inodes + 1  # the new directory
    assert walked(str(tmp_path)) == du(tmp_path)


def test_a_sparse_file_counts_what_is_there(tmp_path: Path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert walked(str(tmp_path)).used_bytes < 1 << 20


def test_symlinks_are_counted_and_lead_nowhere(tmp_path: Path):
    outside = tmp_path / "outside"
    write(outside / "large", 1_000_000)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "directory").symlink_to(outside)
    (inside / "file").symlink_to(outside / "large")
    (inside / "up").symlink_to("..")
    assert walked(str(inside)).inodes == 3
    assert walked(str(inside)).used_bytes < 100_000


@alone
def test_depth_costs_no_descriptors(tmp_path: Path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    depth = 2000
    for _ in range(depth):
        os.mkdir("d" * 50, dir_fd=descriptor)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(os.open("leaf", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor))
    os.close(descriptor)
    walk = Walk(str(tmp_path))
    most = 0
    while not walk.is_done:
        walk.advance(100)
        most = max(most, descriptors())
    assert walk.usage.inodes == depth + 1
    assert walk.is_whole
    assert most < 100
    subprocess.run(["rm", "-rf", str(tmp_path)], check=True)


def test_depth_costs_no_memory_where_nothing_is_left_to_do_on_the_way_up(tmp_path: Path):
    """A container can make directories a million levels deep, and the agent's memory is not its own."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for depth in range(4000):
        os.mkdir("d", dir_fd=descriptor)
        if depth % 1000 == 0:
            os.mkdir("beside", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    walk = Walk(str(tmp_path))
    tracemalloc.start()
    try:
        while not walk.is_done:
            assert walk.advance(100) <= 100
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (walk.usage.inodes, walk.is_whole, walk.missed) == (4004, True, 0)
    assert most < 100_000
    subprocess.run(["rm", "-rf", str(tmp_path)], check=True)


def finished(walk: Walk) -> Walk:
    while not walk.is_done:
        walk.advance(1)
    return walk


@pytest.fixture
def numbers(tmp_path: Path) -> None:
    """Files of this filesystem can be opened by their numbers."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        os.close(open_inode(tmp_path.stat().st_ino, os.O_RDONLY, descriptor))
    except OSError as error:
        pytest.skip(f"no file can be opened by its number here: {error}")
    finally:
        os.close(descriptor)


@pytest.fixture
def no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: int) -> int:
        raise OSError(errno.ESTALE, "as other filesystems say")

    monkeypatch.setattr(disk_usage, "open_inode", refused)


@pytest.mark.usefixtures("no_numbers")
def test_a_directory_that_has_another_name_by_then_is_missed_where_numbers_do_not_help(tmp_path: Path):
    write(tmp_path / "first" / "file", 100_000)
    walk = Walk(str(tmp_path))
    walk.advance(1)
    (tmp_path / "first").rename(tmp_path / "second")
    assert (finished(walk).usage.inodes, walk.missed) == (1, 1)


@pytest.mark.usefixtures("no_numbers")
def test_a_directory_in_the_place_of_another_is_not_taken_for_it_where_numbers_do_not_help(tmp_path: Path):
    write(tmp_path / "first" / "file", 100_000)
    walk = Walk(str(tmp_path))
    walk.advance(1)
    (tmp_path / "first").rename(tmp_path / "second")
    (tmp_path / "first").mkdir()
    assert (finished(walk).usage.inodes, walk.missed) == (1, 1)


@pytest.mark.usefixtures("numbers")
def test_a_directory_that_has_another_name_by_then_is_found(tmp_path: Path):
    write(tmp_path / "first" / "file", 100_000)
    walk = Walk(str(tmp_path))
    walk.advance(1)
    (tmp_path / "first").rename(tmp_path / "second")
    assert finished(walk).missed == 0
    assert walk.usage == du(tmp_path)


@pytest.mark.usefixtures("numbers")
def test_directories_that_take_each_others_names_are_both_counted(tmp_path: Path):
    write(tmp_path / "full" / "file", 100_000)
    (tmp_path / "empty").mkdir()
    walk = Walk(str(tmp_path))
    is_exchanged = False
    while not walk.is_done:
        walk.advance(1)
        if (
            walk.usage.inodes == 2 and not is_exchanged
        ):  # both names are read, and neither directory is entered
            is_exchanged = True
            (tmp_path / "full").rename(tmp_path / "between")
            (tmp_path / "empty").rename(tmp_path / "full")
            (tmp_path / "between").rename(tmp_path / "empty")
    assert is_exchanged
    assert walk.missed == 0
    assert walk.usage == du(tmp_path)


@pytest.mark.usefixtures("numbers")
def test_a_file_that_has_another_name_by_then_is_counted(tmp_path: Path):
    for name in ("one", "two", "three"):
        write(tmp_path / name, 100_000)
    walk = Walk(str(tmp_path))
    walk.advance(1)  # the kernel has told all names by then
    for name in ("one", "two", "three"):
        (tmp_path / name).rename(tmp_path / f"{name}-renamed")
    assert finished(walk).usage == du(tmp_path)


@pytest.mark.usefixtures("numbers")
def test_what_is_gone_or_of_others_by_then_is_neither_counted_nor_missed(tmp_path: Path):
    walked_one, others = tmp_path / "walked", tmp_path / "others"
    others.mkdir()
    for name in ("removed", "taken"):
        write(walked_one / name / "file", 100_000)
    walk = Walk(str(walked_one))
    walk.advance(2)
    subprocess.run(["rm", "-r", str(walked_one / "removed")], check=True)
    (walked_one / "taken").rename(others / "taken")
    assert (finished(walk).usage.inodes, walk.missed) == (2, 0)


def test_a_slice_is_as_large_as_asked_for_and_all_of_them_are_the_whole(tmp_path: Path):
    for number in range(100):
        write(tmp_path / f"d{number % 10}" / str(number), 10)
    walk = Walk(str(tmp_path))
    assert walk.advance(30) == 30
    assert not walk.is_done
    assert walk.usage.inodes <= 30
    while not walk.is_done:
        assert walk.advance(7) <= 7
    assert walk.usage == du(tmp_path)


def test_directories_that_are_moved_all_the_time_hide_nothing_beside_them(tmp_path: Path):
    places = [tmp_path / f"place{number}" for number in range(8)]
    for place in places:
        write(place / "holds", 100_000)
        write(place / "moves" / "deeper" / "file", 10)
    (tmp_path / "other").mkdir()
    walk, is_moved = Walk(str(tmp_path)), False
    while not walk.is_done:
        walk.advance(1)
        for place in places:  # as often as a container could
            ways = (place / "moves", tmp_path / "other" / place.name)
            ways[is_moved].rename(ways[not is_moved])
        is_moved = not is_moved
    assert walk.usage.used_bytes >= len(places) * 100_000
    assert walk.usage.inodes >= 2 * len(places) + 1


def test_a_directory_moved_away_deep_below_is_admitted_and_what_is_above_is_counted(tmp_path: Path):
    tree = tmp_path / "tree"
    names = [f"d{number}" for number in range(100)]
    write(tree.joinpath(*names) / "file", 20_000_000)
    for depth in range(100):  # the walk comes back to all of these, except where it meets the deep one last
        for number in range(5):
            tree.joinpath(*names[:depth], f"s{number}").mkdir()
    for number in range(10):  # some of them come after the deep one, in any order
        write(tree / f"a{number}" / "above", 100_000)
    walk, is_moved = Walk(str(tree)), False
    while not walk.is_done:
        walk.advance(1)
        # It is at the bottom then, deeper than that directory, which is deeper than those that stay open.
        if not is_moved and walk.usage.used_bytes >= 20_000_000:
            tree.joinpath(*names[:80]).rename(tmp_path / "elsewhere")
            is_moved = True
    assert is_moved
    assert not walk.is_whole
    assert walk.usage.used_bytes >= 21_000_000


@alone
def test_a_walk_that_is_given_up_leaves_no_descriptor(tmp_path: Path):
    write(tmp_path / "a" / "b", 10)
    before = descriptors()
    walk = Walk(str(tmp_path))
    walk.advance(2)
    walk.close()
    del walk
    assert descriptors() == before


def test_deleted_files_are_found_through_the_processes_that_hold_them(tmp_path: Path):
    device = tmp_path.stat().st_dev
    assert unlinked_usage([os.getpid()], [0]) == Usage()
    with (tmp_path / "gone").open("wb") as file:
        file.write(b"x" * 500_000)
        file.flush()
        os.fsync(file.fileno())
        assert unlinked_usage([os.getpid()], [device]).used_bytes < 500_000
        (tmp_path / "gone").unlink()
        copy = os.dup(file.fileno())
        held = unlinked_usage([os.getpid(), 2**22 - 1], [device])
        os.close(copy)
        assert held.used_bytes >= 500_000
        assert walked(str(tmp_path)) == Usage()


def test_a_file_without_a_name_is_found_where_it_is_only_mapped_and_counts_once(tmp_path: Path):
    device = tmp_path.stat().st_dev
    with (tmp_path / "gone").open("w+b") as file:
        file.write(b"x" * 500_000)
        file.flush()
        os.fsync(file.fileno())
        with mmap(file.fileno(), 4096) as one, mmap(file.fileno(), 8192, access=ACCESS_READ) as other:
            before = unlinked_usage([os.getpid()], [device])
            (tmp_path / "gone").unlink()
            open_too = unlinked_usage([os.getpid()], [device])
            file.close()
            only_mapped = unlinked_usage([os.getpid()], [device])
            assert one[0] == other[0]
    assert only_mapped == open_too
    assert only_mapped.inodes - before.inodes == 1
    assert only_mapped.used_bytes - before.used_bytes >= 500_000
    assert unlinked_usage([os.getpid()], [device]) == before


@pytest.mark.parametrize("kind, is_read", [("ext4", True), ("nfs4", False), ("fuse.sshfs", False)])
def test_mappings_are_not_listed_where_a_file_may_be_of_a_server(tmp_path: Path, kind: str, is_read: bool):
    """The list waits while the process waits for a server that does not answer."""
    (tmp_path / "gone").write_bytes(b"x" * 500_000)
    process = tmp_path / "proc" / "7"
    (process / "fd").mkdir(parents=True)
    (process / "map_files").mkdir()
    (process / "mountinfo").write_text(f"90 1 0:90 / /mnt rw - {kind} {kind} rw\n")
    (process / "maps").write_text("00400000-00401000 r--s 00000000 08:01 77          /gone (deleted)\n")
    with (tmp_path / "gone").open("rb") as file:
        os.fsync(file.fileno())
        (tmp_path / "gone").unlink()
        (process / "map_files" / "400000-401000").symlink_to(f"/proc/self/fd/{file.fileno()}")
        found = unlinked_usage([7], [tmp_path.stat().st_dev], proc=str(tmp_path / "proc"))
    assert found.inodes == is_read


def test_a_file_of_another_filesystem_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its server may not answer. It is called as the kernel calls deleted files."""
    device = tmp_path.stat().st_dev
    asked: list[str] = []
    real_stat = os.stat

    def noted(path, *args, **options):
        asked.append(str(path))
        return real_stat(path, *args, **options)

    process = tmp_path / "proc" / "7"
    for directory in ("fd", "fdinfo"):
        (process / directory).mkdir(parents=True)
    kinds = {"90": "fuse.sshfs", "91": "tmpfs", "92": "overlay", "93": "nfs4"}
    lines = [
        f"{number} 1 0:{number} / /mnt/{number} rw - {kind} {kind} rw\n" for number, kind in kinds.items()
    ]
    (process / "mountinfo").write_text("".join(lines))
    for number in kinds:
        file = tmp_path / f"{number} (deleted)"
        file.touch()
        (process / "fd" / number).symlink_to(file)
        (process / "fdinfo" / number).write_text(f"pos:\t0\nmnt_id:\t{number}\n")
    monkeypatch.setattr(os, "stat", noted)
    unlinked_usage([7], [device], proc=str(tmp_path / "proc"))
    monkeypatch.undo()
    assert {Path(path).name for path in asked if "/fd/" in path} == {"91", "92"}
