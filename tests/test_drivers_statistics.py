"""The figures of a cgroup, out of the text that kernels write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.cgroup.statistics import V1_FILES, V2_FILES, Layout, field, v1_statistics, v2_statistics
from tests.models.cgroup_files import V1, V1_STAT, V2

EXPECTED = {
    "memory_usage_bytes": 41000960,
    "memory_working_set_bytes": 41000960 - 20971520,
    "memory_droppable_bytes": 20971520 + 10481664,
    "memory_rss_bytes": 8392704,
    "cpu_usage_us": 123456,
    "cpu_throttled_us": 45678,
    "pids": 4,
    "page_faults": 2581,
    "major_page_faults": 31,
    "oom_kills": 1,
    "swap_bytes": 8192,
}


def v2(**changes: bytes):
    contents = V2 | {name.replace("__", "."): content for name, content in changes.items()}
    return v2_statistics([contents[file] for file in V2_FILES])


def v1(**changes: bytes):
    contents = V1 | {name.replace("__", "."): content for name, content in changes.items()}
    return v1_statistics([contents[file] for file in V1_FILES])


@pytest.mark.req("D5")
def test_both_versions_tell_the_same_figures_of_the_same_cgroup():
    assert v2()._asdict() == EXPECTED
    assert v1()._asdict() == EXPECTED


def test_v1_counts_what_is_below_the_cgroup_too():
    assert v1().memory_rss_bytes == 8392704, "total_rss and not rss"


@pytest.mark.req("E3")
def test_the_working_set_is_never_negative():
    assert v2(memory__current=b"4096\n").memory_working_set_bytes == 0
    assert v1(memory__usage_in_bytes=b"4096\n").memory_working_set_bytes == 0


def test_without_swap_accounting_there_is_no_figure_for_swap():
    assert v2(memory__swap__current=b"").swap_bytes is None
    assert v1(memory__stat=V1_STAT.replace(b"total_swap 8192\n", b"")).swap_bytes is None


def test_old_kernels_that_lack_files_and_lines_count_as_zero():
    old = v2(cpu__stat=b"usage_usec 5\nuser_usec 3\nsystem_usec 2\n", pids__current=b"", memory__events=b"")
    assert (old.cpu_usage_us, old.cpu_throttled_us, old.pids, old.oom_kills) == (5, 0, 0, 0)
    older = v1(memory__oom_control=b"oom_kill_disable 0\nunder_oom 0\n", pids__current=b"", cpu__stat=b"")
    assert (older.cpu_throttled_us, older.pids, older.oom_kills) == (0, 0, 0)


def test_a_field_is_its_whole_name():
    text = b"\noom 1\noom_kill 2\noom_group_kill 3\n"
    assert field(text, b"\noom ") == 1
    assert field(text, b"\noom_kill ") == 2
    assert field(text, b"\nkill ") == 0


NAMES = st.lists(st.sampled_from([b"a", b"ab", b"total_a", b"total_ab", b"b", b"x_a"]), unique=True)


@given(st.lists(st.tuples(NAMES, st.integers(0, 2**64)), max_size=5))
def test_a_layout_finds_every_number_in_files_of_any_length(files: list[tuple[list[bytes], int]]):
    layout = Layout(b"a", b"total_ab", b"b")
    lengths: dict[int, list[bytes]] = {}
    for names, number in files:
        names = lengths.setdefault(len(names), names)  # one kernel, one order
        values = {name: number + index for index, name in enumerate(names)}
        text = b"".join(b"%s %d\n" % item for item in values.items())
        assert layout.numbers(text) == [values.get(name, 0) for name in (b"a", b"total_ab", b"b")]
