"""Values of cgroup files as the kernel understands them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.cgroup.kernel_files import DEFAULTS, default_value, direction, same_value
from evenkeel.cgroup.tree import Version

UNLIMITED_V1 = "9223372036854771712"


@pytest.mark.parametrize(
    "file, ours, theirs, same",
    [
        ("memory.max", "max", "max", True),
        ("memory.min", "4097", "4096", True),  # the kernel keeps whole pages
        ("memory.min", "8192", "4096", False),
        ("memory.limit_in_bytes", "-1", UNLIMITED_V1, True),
        ("memory.memsw.limit_in_bytes", "-1", UNLIMITED_V1, True),
        ("memory.swappiness", "0", "60", False),
        ("memory.limit_in_bytes", "-1", "4096", False),
        ("hugetlb.2MB.limit_in_bytes", "-1", "9223372036852678656", True),
        ("memory.oom.group", "1", "0", False),
        ("memory.swap.max", "0", "max", False),
        ("cpu.max", "max 100000", "max 100000", True),
        ("cpu.max", "50000 100000", "50000  100000\n", True),
        ("cpu.max", "50000 100000", "25000 50000", False),  # one ratio, but another period
        ("cpu.cfs_quota_us", "-1", "-1", True),
        ("cpu.weight", "100", "0100", True),
        ("pids.max", "max", "4194304", False),
        ("cpuset.cpus", "0-3", "0-3", True),
        ("cpuset.cpus", "0-3", "0-2", False),
        ("cpuset.cpus", "1", "01", False),
        ("memory.max", "max", "", False),
        ("memory.max", "4096", "nonsense", False),
    ],
)
def test_values_are_equal_if_the_kernel_treats_them_alike(file, ours, theirs, same):
    assert same_value(file, ours, theirs) is same


@pytest.mark.parametrize(
    "file, before, after, sign",
    [
        ("memory.max", "4096", "max", 1),
        ("memory.max", "max", "4096", -1),
        ("memory.limit_in_bytes", "-1", "4096", -1),
        ("cpu.max", "50000 100000", "50000 50000", 1),
        ("cpu.max", "max 100000", "200000 100000", -1),
        ("cpu.max", "50000 100000", "25000 50000", 0),
        ("cpu.max", "50000", "60000", 1),
        ("cpu.cfs_quota_us", "-1", "1000", -1),
        ("cpu.shares", "1024", "2", -1),
        ("memory.min", "4096", "4097", 0),
        ("cpuset.cpus", "0", "1", 0),
        ("memory.max", "", "4096", 0),
        ("cpu.max", "x 0", "50000 0", 0),
        ("cpu.max", "9" * 400 + " 100000", "max 100000", 0),
    ],
)
def test_the_direction_says_which_of_two_gives_more(file, before, after, sign):
    assert direction(file, before, after) == sign


def test_a_new_cgroup_has_the_kernels_defaults():
    assert default_value("cpu.weight", Version.V2) == "100"
    assert default_value("cpu.shares", Version.V1) == "1024"
    assert default_value("hugetlb.2MB.max", Version.V2) == "max"
    assert default_value("hugetlb.2MB.limit_in_bytes", Version.V1) == UNLIMITED_V1
    assert default_value("cpuset.cpus", Version.V2) == "", "those of the cgroup above"


FILES = sorted({file for files in DEFAULTS.values() for file in files} | {"cpuset.cpus", "hugetlb.2MB.max"})
texts = (
    st.sampled_from(["max", "-1", "", "max 100000", "max 0", UNLIMITED_V1, "1e5", "½"])
    | st.integers(-10, 2**70).map(str)
    | st.tuples(st.integers(-1, 10**6), st.integers(-1, 10**6)).map(lambda pair: f"{pair[0]} {pair[1]}")
    | st.text(max_size=8)
)


@given(st.sampled_from(FILES), texts, texts)
def test_any_text_can_be_compared(file, one, other):
    assert same_value(file, one, one)
    assert same_value(file, one, other) == same_value(file, other, one)
    assert direction(file, one, other) == -direction(file, other, one)
    if same_value(file, one, other):
        assert direction(file, one, other) == 0
