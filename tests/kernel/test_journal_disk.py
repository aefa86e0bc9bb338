"""The journal on real file systems that are full, and on ones that have become read-only."""

import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.journal.records import PodRecord
from evenkeel.journal.store import Journal, JournalError
from evenkeel.policy.lifecycle.pod_state import PodState
from tests.kernel.small_disk import fill
from tests.machines import Unavailable
from tests.machines.packages import require
from tests.models.journal_records import named, some_event
from tests.needing import needing

SIZE_MIB = 4
pytestmark = pytest.mark.cgroup("v1", "v2")


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


# A file system is the same whatever the cgroups: the one that takes tools and a loop device is shown on the host.
@pytest.fixture(params=["tmpfs", pytest.param("ext4", marks=pytest.mark.cgroup("host"))])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system with little room."""
    mount = tmp_path / f"small{secrets.token_hex(3)}"
    mount.mkdir()
    if request.param == "tmpfs":
        run("mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m,mode=700", "evenkeel-test", str(mount))
    else:
        with needing():
            require(["e2fsprogs", "mount"])
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(SIZE_MIB << 20)
        run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image))
        with needing():
            mount_image(image, mount)
    try:
        yield mount
    finally:
        run("umount", str(mount))


def mount_image(image: Path, mount: Path) -> None:
    try:
        run("mount", "-o", "loop", str(image), str(mount))
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"no loop devices here: {error.stderr.decode().strip()}") from None


def save_until_it_fails(journal: Journal) -> tuple[int, JournalError]:
    for number in range(10_000):
        try:
            journal.save(named(f"filler-{number}", order=number, source="x" * 2000))
        except JournalError as error:
            return number, error
    raise AssertionError("it is never full")


def test_a_disk_that_becomes_full_is_reported_and_nothing_is_lost(small: Path):
    path = str(small / "journal.db")
    with Journal.open(path) as journal:
        journal.save(named("first", order=-1))
        filler = fill(small)
        number, error = save_until_it_fails(journal)
        assert error.is_passing
        assert f"the disk is full: the journal {path} takes no more; running pods keep running" in str(error)
        assert len(journal.pods()) == number + 1
        filler.unlink()
        journal.save(named(f"filler-{number}", order=number, source="x" * 2000))
        journal.record_event(some_event("there is room again"))
    with Journal.open(path) as journal:
        assert len(journal.pods()) == number + 2
        assert journal.pods()[0] == named("first", order=-1)
        assert journal.events()[-1].message == "there is room again"


def test_lives_can_still_be_noted_on_a_full_disk(small: Path):
    """In the room that the journal has from the start; so that what runs is known after a restart."""
    with Journal.open(str(small / "journal.db")) as journal:
        for number in range(20):
            journal.save(named(f"pod-{number}", order=number))
        fill(small)
        for number in range(20):
            journal.save(named(f"pod-{number}", order=number, state=PodState(accepted_at=5.0)))
    with Journal.open(str(small / "journal.db")) as journal:
        assert [held.state.accepted_at for held in journal.pods()] == [5.0] * 20


def opened(path: str) -> tuple[PodRecord, ...] | str:
    """Opens the journal. On some full file systems there is no room even for the files that SQLite makes beside it."""
    try:
        with Journal.open(path) as journal:
            return journal.pods()
    except JournalError as error:
        return "no room" if error.is_passing else str(error)


def test_a_journal_on_a_full_disk_can_be_opened_read_and_closed(small: Path):
    path = str(small / "journal.db")
    with Journal.open(path) as journal:
        journal.save(named("a"))
    filler = fill(small)
    for _ in range(2):
        assert opened(path) in ((named("a"),), "no room")
    filler.unlink()
    with Journal.open(path) as journal:
        assert journal.pods() == (named("a"),)
        journal.save(named("b"))


def test_no_journal_can_be_made_on_a_full_disk_and_the_sentence_says_so(small: Path):
    filler = fill(small)
    with pytest.raises(JournalError, match=r"the disk is full|the disk fails under"):
        Journal.open(str(small / "journal.db"))
    filler.unlink()
    with Journal.open(str(small / "journal.db")) as journal:
        journal.save(named("a"))


def test_a_file_system_that_becomes_read_only_is_reported_and_passes(small: Path):
    path = str(small / "journal.db")
    with Journal.open(path) as journal:
        journal.save(named("a"))
    run("mount", "-o", "remount,ro", str(small))
    with pytest.raises(JournalError, match="is read-only, by its mode or its file system") as caught:
        Journal.open(path)
    assert caught.value.is_passing
    with Journal.read(path) as reader:
        assert reader.pods() == (named("a"),)
    run("mount", "-o", "remount,rw", str(small))
    with Journal.open(path) as journal:
        assert journal.pods() == (named("a"),)
