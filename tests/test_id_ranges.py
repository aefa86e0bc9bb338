"""The ranges of users that pods with a user namespace get."""

import json
import shutil
from pathlib import Path

import pytest

from evenkeel.runtime.id_ranges import LENGTH, AgentsOfMachine, IdRanges, NoRange, free_range, ranges_in
from evenkeel.runtime.paths import StatePaths


def test_the_lowest_free_range_is_given_and_never_the_hosts_own():
    assert free_range((), ()) == LENGTH
    assert free_range([LENGTH, 3 * LENGTH], ()) == 2 * LENGTH
    # 100000 to 165535 is what the first user of a machine often has.
    assert free_range((), [(100000, 65536), (4 * LENGTH, 1)]) == 3 * LENGTH
    assert free_range((), [(LENGTH, 0)]) == LENGTH
    with pytest.raises(NoRange):
        free_range((), [(LENGTH, 1 << 31)])


def test_files_with_nonsense_are_read_as_far_as_possible():
    text = "me:100000:65536\n\nno\nother:x:5\n:7:2\n"
    assert list(ranges_in(text, 1, 2)) == [(100000, 65536), (7, 2)]
    assert list(ranges_in("root:x:0:0::/:/bin/sh\nlarge:x:70000:70000::/:\n", 2, None)) == [
        (0, 1),
        (70000, 1),
    ]


def test_a_range_is_kept_over_a_restart_and_given_again_after_the_end(tmp_path):
    paths = StatePaths(str(tmp_path))
    ranges = IdRanges(paths, None)
    first, second = ranges.take("u-1"), ranges.take("u-2")
    assert ranges.take("u-1") == first != second
    again = IdRanges(paths, None)
    third = again.take("u-3")
    assert (again.take("u-2"), len({first, second, third})) == (second, 3)
    (tmp_path / "pods/u-2/users").unlink()
    again.release("u-2")
    assert again.take("u-4") == second


def agent(place: Path, name: str) -> IdRanges:
    """An agent of a machine, which is the directory `place`. A former one of this name may have had pods."""
    (place / name).mkdir(exist_ok=True)
    paths = StatePaths(str(place / name))
    return IdRanges(paths, AgentsOfMachine(paths.root, str(place / "run/users")))


def test_pods_of_several_agents_on_a_machine_have_different_ranges(tmp_path):
    one, other = agent(tmp_path, "one"), agent(tmp_path, "other")
    given = [ranges.take(f"u-{number}") for number in range(3) for ranges in (one, other)]
    assert sorted(given) == [LENGTH * number for number in range(1, 7)]
    again = agent(tmp_path, "one")
    assert [again.take(f"u-{number}") for number in range(3)] == given[::2]
    shutil.rmtree(tmp_path / "other")
    assert again.take("u-9") == given[1], "an agent whose state is gone has no pods"


@pytest.mark.parametrize("has_mount_point", [False, True])
def test_an_agent_whose_state_directory_is_unmounted_for_a_while_keeps_its_ranges(tmp_path, has_mount_point):
    """A directory that is moved away stands for one that is unmounted: what is there then is of another device."""
    one, other = agent(tmp_path, "one"), agent(tmp_path, "other")
    given = [other.take("u-1"), other.take("u-2")]
    (entry,) = (path for path in (tmp_path / "run/users").iterdir() if path.is_symlink())
    entry.rename(entry.with_name(f"{entry.name.partition('.')[0]}.{tmp_path.stat().st_dev + 1}"))
    given.append(one.take("u-3"))
    (tmp_path / "other").rename(tmp_path / "unmounted")
    if has_mount_point:
        (tmp_path / "other").mkdir()
    given.append(one.take("u-4"))
    if has_mount_point:
        (tmp_path / "other").rmdir()
    (tmp_path / "unmounted").rename(tmp_path / "other")
    given.append(one.take("u-5"))
    given.append(agent(tmp_path, "third").take("u-6"))
    assert len(set(given)) == 6


def test_the_entry_of_a_state_directory_that_was_removed_is_removed(tmp_path):
    one, other = agent(tmp_path, "one"), agent(tmp_path, "other")
    other.take("u-1")
    shutil.rmtree(tmp_path / "other")
    one.take("u-2")
    assert [path.readlink() for path in (tmp_path / "run/users").iterdir() if path.is_symlink()] == [
        tmp_path / "one"
    ]


def test_an_agent_has_one_entry_whatever_device_or_version_it_had_before(tmp_path):
    one = agent(tmp_path, "one")
    one.take("u-1")
    (entry,) = (path for path in (tmp_path / "run/users").iterdir() if path.is_symlink())
    for name in (entry.name.partition(".")[0], f"{entry.name}0"):
        entry.with_name(name).symlink_to(tmp_path / "one")
    one.take("u-2")
    assert [path for path in (tmp_path / "run/users").iterdir() if path.is_symlink()] == [entry]


def test_a_range_from_before_a_boot_that_another_agent_has_given_since_is_changed(tmp_path):
    """After a boot, an agent that has not been started yet is not known to the others."""
    one = agent(tmp_path, "one")
    first, second = one.take("u-1"), one.take("u-2")
    for uid in ("u-1", "u-2"):
        record = tmp_path / "one/pods" / uid / "users"
        record.write_text(json.dumps({**json.loads(record.read_text()), "boot": "before"}))
    shutil.rmtree(tmp_path / "run")
    other = agent(tmp_path, "other")
    assert other.take("u-3") == first
    one = agent(tmp_path, "one")
    assert one.take("u-2") == second
    assert one.take("u-1") not in (first, second)
    # From now on they are of this boot, and stay.
    assert agent(tmp_path, "other").take("u-3") == first
    assert agent(tmp_path, "one").take("u-2") == second


def test_a_pod_hears_why_it_cannot_get_users_if_the_files_of_the_machine_cannot_be_written(tmp_path):
    ranges = agent(tmp_path, "one")
    (tmp_path / "run").write_text("no directory")
    with pytest.raises(NoRange, match="hostUsers: false: no users can be given to the pod: not a directory"):
        ranges.take("u-1")
    (tmp_path / "run").unlink()
    assert ranges.take("u-1") == LENGTH
