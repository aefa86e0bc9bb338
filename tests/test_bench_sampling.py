"""How `bench sampling` evaluates the figures of its guest. Measuring them needs a disposable machine."""

from bench.bench_sampling import (
    AGENT,
    KINDS,
    REFERENCE,
    Cost,
    Crossing,
    closeness,
    cost_figure,
    crossing_of,
    numbers,
    reported,
    voluntary_switches,
)

SLOW = KINDS[0]
MIB = 2**20


def crossing(guard: str, late_ms: float | None, over_mib: float) -> Crossing:
    return Crossing(guard, SLOW.name, late_ms, over_mib, 100 - over_mib)


def test_a_cost_is_a_share_of_a_core_beside_that_of_as_many_looks_in_c():
    figure = cost_figure(Cost(3900, 240, 60.0, 0.3, 0.06))
    assert figure.reference is not None
    assert figure.ratio is not None
    assert (figure.value, round(figure.reference, 6), round(figure.ratio, 6)) == (0.5, 0.1, 5)
    assert "3900 MiB to the line, 4 looks a second" in figure.name


def test_what_the_guest_says_comes_back_from_its_lines():
    cost, one = Cost(8, 3, 1.0, 0.5, 0.25), crossing(AGENT, None, 7.5)
    assert reported(["booting", cost.to_json(), "", one.to_json()]) == ([cost], [one])


def test_the_distance_over_the_threshold_is_the_median_and_the_memory_left_is_the_minimum():
    ours = [crossing(AGENT, 3.0, 2), crossing(AGENT, 9.0, 8), crossing(AGENT, 4.0, 3)]
    late, over, left, *_ = closeness([*ours, crossing(REFERENCE, 2.0, 1)])
    assert (late.value, late.reference, late.ratio) == (4, 2, 2)
    assert (over.value, over.reference, over.ratio) == (3, 1, 3)
    assert "92 of 100 MiB left at the least" in over.name
    assert (left.value, left.unit, left.met) == (0, "of 3", True)


def test_a_crossing_left_to_the_kernel_has_no_time_and_misses_the_target():
    figures = list(closeness([crossing(AGENT, None, 100), crossing(REFERENCE, 2.0, 1)]))
    assert [one.met for one in figures if one.name.startswith("lines crossed at 64")] == [False]
    assert not [one for one in figures if "to kill sent" in one.name]


def test_a_kind_that_was_not_measured_is_said_to_have_failed():
    assert all(one.failure for one in closeness([]))


def test_a_crossing_is_made_of_times_and_usages():
    said = numbers("crossed 1000000000\nsent 1002500000\nmost 3145728\n")
    found = crossing_of(REFERENCE, SLOW, said, said["sent"], line=2 * MIB, limit=10 * MIB)
    assert found == Crossing(REFERENCE, SLOW.name, 2.5, 1.0, 7.0)
    assert crossing_of(AGENT, SLOW, said, None, line=0, limit=0).late_ms is None


def test_only_waits_of_a_thread_s_own_will_count_as_looks():
    status = "Name:\tevenkeel-memory\nvoluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t5\n"
    assert voluntary_switches(status) == 17
