"""The ranges of users that pods with a user namespace get."""

import pytest

from evenkeel.runtime.id_ranges import LENGTH, IdRanges, NoRange, free_range, ranges_in
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
    ranges = IdRanges(paths)
    first, second = ranges.take("u-1"), ranges.take("u-2")
    assert ranges.take("u-1") == first != second
    again = IdRanges(paths)
    third = again.take("u-3")
    assert (again.take("u-2"), len({first, second, third})) == (second, 3)
    (tmp_path / "pods/u-2/users").unlink()
    again.release("u-2")
    assert again.take("u-4") == second
