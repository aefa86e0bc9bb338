"""Paths and values as systemd's units and properties."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.scalars import format_cpuset
from evenkeel.cgroup import names
from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.drivers.systemd_units import (
    UNLIMITED,
    can_hold,
    file_value,
    first_properties,
    object_path,
    parent_slice,
    properties,
    slice_path,
    unit_of,
)

VECTORS = Path(__file__).parent / "vectors" / "names.json.gz"
POD = "/evenkeel.slice/evenkeel-kubepods.slice/evenkeel-kubepods-pod1_2.slice"
SCOPE = f"{POD}/evenkeel-1_2-web.scope"

# Parts of a cgroup's name such that no slice looks like a file of the kernel's.
COMPONENT = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,8}){0,3}x", fullmatch=True)
AMOUNT = st.one_of(st.just("max"), st.integers(1, 2**63).map(str))


def as_mapping(file, value):
    return {one.name: one.value for one in properties(file, value)}


@given(st.lists(COMPONENT, min_size=1, max_size=5))
@pytest.mark.req("A24", "B10")
def test_every_name_of_the_plan_is_a_slice_that_systemd_puts_where_the_plan_says(components):
    path = names.to_systemd(tuple(components))
    unit = unit_of(path)
    assert unit is not None
    assert slice_path(unit) == path
    assert parent_slice(path) == (unit_of(path.rpartition("/")[0]) if len(components) > 1 else "-.slice")


@pytest.mark.req("A24", "B10")
def test_the_slices_that_kubelet_names_are_units_at_the_same_place():
    vectors = json.loads(gzip.decompress(VECTORS.read_bytes()))
    expected = [vector["expected"] for vector in vectors if vector["input"]["fn"] == "podCgroup"]
    keys = ("systemd", "kubepodsSystemd", "burstableSystemd", "besteffortSystemd")
    paths = {answer[key] for answer in expected for key in keys}
    assert len(paths) > 50
    for path in paths:
        unit = unit_of(path)
        assert unit is not None
        assert slice_path(unit) == path


def test_a_container_is_a_scope_in_the_slice_of_its_pod():
    assert unit_of(SCOPE) == "evenkeel-1_2-web.scope"
    assert parent_slice(SCOPE) == "evenkeel-kubepods-pod1_2.slice"
    first = {one.name: one.value for one in first_properties(SCOPE)}
    assert first["Slice"] == "evenkeel-kubepods-pod1_2.slice"
    assert first["Delegate"] is True


def test_a_slice_is_never_delegated_and_names_no_slice_of_its_own():
    assert {"Slice", "Delegate"}.isdisjoint(one.name for one in first_properties(POD))


@pytest.mark.parametrize("path", [POD, SCOPE])
def test_a_new_unit_has_the_values_of_a_new_cgroup(path):
    first = {one.name: one.value for one in first_properties(path)}
    assert file_value("cpu.weight", first) == "100"
    assert file_value("pids.max", first) == "max"


@pytest.mark.parametrize(
    "path", ["/evenkeel/kubepods", "/", f"{SCOPE}/init.scope", f"{SCOPE}/system.slice", f"{SCOPE}/inner"]
)
def test_what_systemd_has_no_unit_for_is_a_plain_cgroup(path):
    assert unit_of(path) is None


@pytest.mark.parametrize("path", ["/system.slice", "/system.slice/ssh.service", "/init.scope"])
def test_the_units_of_daemons_are_units(path):
    assert unit_of(path) == path.rpartition("/")[2]


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/a.slice/b.slice", "/b.slice"),
        ("/a-b.slice", "/a.slice/a-b.slice"),
        ("/a b.slice", "letters"),
        ("/é.slice", "letters"),
        ("/a--b.slice", "single dashes"),
        ("/-a.slice", "single dashes"),
        ("/memory.slice", "file of the kernel"),
        ("/_a.slice", "file of the kernel"),
        (f"/{'a' * 250}.slice", "255"),
        ("/a.slice/.scope", "no name"),
    ],
)
def test_a_name_that_systemd_would_refuse_or_move_is_refused_with_the_reason(path, word):
    with pytest.raises(CgroupError, match=word):
        unit_of(path)


@given(st.text(max_size=60))
def test_any_path_is_a_unit_or_none_or_refused(text):
    try:
        unit = unit_of(f"/{text}")
    except CgroupError:
        return
    assert unit is None or unit == text.rpartition("/")[2]


@pytest.mark.parametrize(
    ("unit", "label"),
    [
        ("evenkeel-kubepods.slice", "evenkeel_2dkubepods_2eslice"),
        ("0a_b.scope", "_30a_5fb_2escope"),
        ("a\\x2db.scope", "a_5cx2db_2escope"),
    ],
)
def test_a_units_name_on_the_bus_has_letters_and_digits_only(unit, label):
    assert object_path(unit) == f"/org/freedesktop/systemd1/unit/{label}"


@given(
    st.sampled_from(["memory.min", "memory.low", "memory.high", "memory.max", "memory.swap.max", "pids.max"]),
    AMOUNT,
)
@pytest.mark.req("E9")
def test_systemd_keeps_every_amount(file, value):
    assert file_value(file, as_mapping(file, value)) == value
    assert can_hold(file, value)


@given(st.integers(1, 10_000).map(str))
@pytest.mark.req("E9")
def test_systemd_keeps_every_weight(weight):
    assert as_mapping("cpu.weight", weight) == {"CPUWeight": int(weight)}
    assert can_hold("cpu.weight", weight)


@given(st.sets(st.integers(0, 300), max_size=20))
@pytest.mark.req("E9")
def test_systemd_keeps_every_set_of_cpus(cpus):
    value = format_cpuset(cpus)
    mask = as_mapping("cpuset.cpus", value)["AllowedCPUs"]
    assert {cpu for cpu in range(8 * len(mask)) if mask[cpu // 8] >> cpu % 8 & 1} == cpus
    assert can_hold("cpuset.cpus", value)


@given(st.integers(1, 6400), st.sampled_from([10_000, 50_000, 100_000, 250_000, 1_000_000]))
@pytest.mark.req("E9")
def test_systemd_keeps_quotas_of_whole_percents(percent, period_us):
    quota_us = percent * period_us // 100
    if quota_us >= 1000:
        assert can_hold("cpu.max", f"{quota_us} {period_us}")


@given(st.integers(1000, 10_000_000), st.integers(1000, 1_000_000))
@pytest.mark.req("E9", "E10")
def test_a_quota_is_kept_exactly_or_by_less_than_a_percent_more(quota_us, period_us):
    held = file_value("cpu.max", as_mapping("cpu.max", f"{quota_us} {period_us}"))
    held_quota_us, held_period_us = map(int, held.split())
    assert held_period_us == period_us
    assert quota_us <= held_quota_us < quota_us + period_us / 100
    assert can_hold("cpu.max", f"{quota_us} {period_us}") == (held_quota_us == quota_us)


@given(st.integers(1000, 10_000_000), st.integers(1000, 1_000_000))
@pytest.mark.req("E9")
def test_what_a_reload_cuts_off_a_quota_is_nothing(quota_us, period_us):
    assert as_mapping("cpu.max", f"{quota_us} {period_us}")["CPUQuotaPerSecUSec"] % 10_000 == 0


def test_no_quota_is_kept_with_the_usual_period_only():
    assert as_mapping("cpu.max", "max 100000") == {
        "CPUQuotaPerSecUSec": UNLIMITED,
        "CPUQuotaPeriodUSec": 100_000,
    }
    assert can_hold("cpu.max", "max 100000")
    assert not can_hold("cpu.max", "max 50000")


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("memory.oom.group", "1"),
        ("cpu.max.burst", "1000"),
        ("hugetlb.2MB.max", "0"),
        ("cgroup.freeze", "1"),
        ("memory.max", "0"),
        ("memory.max", "-1"),
        ("memory.max", "1G"),
        ("memory.max", "18446744073709551615"),
        ("memory.max", "9" * 30),
        ("pids.max", "0"),
        ("cpu.weight", "0"),
        ("cpu.weight", "10001"),
        ("cpu.weight", "max"),
        ("cpu.max", "999 100000"),
        ("cpu.max", "1000 999"),
        ("cpu.max", "1000 1000001"),
        ("cpu.max", "x y"),
        ("cpu.max", ""),
        ("cpuset.cpus", "0-"),
    ],
)
def test_what_systemd_cannot_hold_is_no_property(file, value):
    assert properties(file, value) == ()
    assert not can_hold(file, value)


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_value_is_a_property_or_none(file, value):
    for known in (file, "memory.max", "cpu.max", "cpu.weight", "cpuset.cpus"):
        assert all(one.name for one in properties(known, value))
        can_hold(known, value)


def test_properties_that_are_not_there_give_no_value():
    for file in ("memory.max", "cpu.max", "cpu.weight", "cpuset.cpus", "memory.oom.group"):
        assert file_value(file, {}) is None
