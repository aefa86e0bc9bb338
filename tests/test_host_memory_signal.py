"""The memory signal (E3), from figures; tests/kernel/test_memory_signal.py shows it on a real kernel."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import Profile
from evenkeel.cgroup.driver import Statistics
from evenkeel.errors import EvenkeelError
from evenkeel.host.capacity import parse_meminfo
from evenkeel.host.memory_figures import Reading, cgroup_memory, node_memory

MI = 1 << 20
MEMINFO = parse_meminfo(
    "MemTotal: 1024000 kB\nMemFree: 102400 kB\nMemAvailable: 614400 kB\nInactive(file): 307200 kB\n"
)


def statistics(usage, droppable=0, working_set=0):
    return Statistics(usage, working_set, droppable, 0, 0, 0, 0)


@pytest.mark.req("E3")
def test_the_nodes_signal_is_what_the_kernel_says_is_available():
    assert node_memory(MEMINFO) == (600 * MI, 400 * MI)


def test_in_the_kubernetes_profile_it_is_capacity_less_the_working_set():
    assert node_memory(MEMINFO, Profile.KUBERNETES) == (400 * MI, 600 * MI)


@pytest.mark.req("E3")
def test_a_cgroups_signal_is_its_limit_less_what_cannot_be_dropped():
    figures = statistics(80 * MI, droppable=50 * MI, working_set=60 * MI)
    assert cgroup_memory(figures, 100 * MI) == (70 * MI, 30 * MI)
    assert cgroup_memory(figures, 100 * MI, Profile.KUBERNETES) == (40 * MI, 60 * MI)


@pytest.mark.req("E3")
def test_cache_that_memory_min_protects_is_not_available():
    inside = Reading(80 * MI, 0, droppable_bytes=50 * MI, reclaimable_bytes=0)
    assert inside.protected_bytes(0) == 0
    assert inside.protected_bytes(30 * MI) == 0  # all above the protection is cache, and can go
    assert inside.protected_bytes(40 * MI) == 10 * MI
    assert inside.protected_bytes(100 * MI) == 50 * MI


AMOUNTS = st.integers(0, 1 << 44)


@given(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS, st.sampled_from(Profile))
def test_both_figures_together_are_the_limit(usage, droppable, working_set, limit, profile):
    figures = cgroup_memory(statistics(usage, droppable, working_set), limit, profile)
    assert figures.available_bytes is not None
    assert figures.working_set_bytes is not None
    assert figures.available_bytes + figures.working_set_bytes == limit
    assert min(figures.available_bytes, figures.working_set_bytes) >= 0


@given(AMOUNTS, AMOUNTS, AMOUNTS)
def test_protection_never_holds_more_than_there_is(usage, droppable, minimum):
    assert 0 <= Reading(usage, 0, droppable, 0).protected_bytes(minimum) <= droppable


def test_a_meminfo_without_the_figure_is_named():
    with pytest.raises(EvenkeelError, match="no MemAvailable"):
        node_memory({"MemTotal": 1})
