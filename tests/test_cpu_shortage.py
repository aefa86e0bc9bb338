"""CPU shortage: which pods are short, which pods are candidates, and the steps of the policy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import Profile
from evenkeel.policy.cpu_shortage import (
    CpuSettings,
    CpuState,
    CpuWindow,
    PodCpu,
    cpu_candidates,
    decide_cpu,
    short_pods,
)
from tests.models.agents import pods_of

pytestmark = pytest.mark.req("A22")

SECONDS = 60.0
SETTINGS = CpuSettings(transition_period_seconds=100.0, max_pod_grace_period_seconds=5)
DOCUMENTS = Profile.DOCUMENTS


def pod(name: str, request: str = "", limit: str = "", **spec: object):
    amounts = {key: f"{{cpu: {value}}}" for key, value in (("requests", request), ("limits", limit)) if value}
    resources = ", ".join(f"{key}: {value}" for key, value in amounts.items())
    more = "".join(f"  {key}: {value}\n" for key, value in spec.items())
    (found,) = pods_of(
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n{more}"
        f"  containers: [{{name: c, image: host, command: [a], resources: {{{resources}}}}}]"
    )
    return found


def figures(name: str, used: float, waited: float | None = 0.0, request: str = "", **more: object) -> PodCpu:
    """`used` and `waited` in cores."""
    of_tasks = bool(more.pop("of_tasks", False))
    us = None if waited is None else round(waited * SECONDS * 1e6)
    return PodCpu(pod(name, request, **more), round(used * SECONDS * 1e6), us, of_tasks)  # type: ignore[arg-type]


def window(*pods: PodCpu, ends_at: float = 0.0) -> CpuWindow:
    return CpuWindow(ends_at, SECONDS, pods)


@pytest.mark.parametrize(
    ("used", "waited", "request_", "of_tasks", "is_short"),
    [
        (0.3, 0.7, "500m", False, True),
        (0.44, 0.5, "500m", False, True),
        (0.46, 0.5, "500m", False, False),  # nine tenths and more
        (0.3, 0.0, "500m", False, False),  # did not wait: wanted no more
        (
            0.05,
            0.02,
            "500m",
            False,
            False,
        ),  # nearly idle: would not have had its request without waiting either
        (0.3, None, "500m", False, False),  # nobody knows whether it waited
        (0.9, 0.9, "", False, False),  # requested nothing
        (1.0, 1.0, "4", False, True),  # that one of its tasks always waited may mean that three did
        (1.0, 1.0, "4", True, False),  # here it is known that it was one
        (1.0, 3.0, "4", True, True),
    ],
)
def test_a_pod_is_short_when_it_waited_and_received_less_than_nine_tenths(
    used: float, waited: float | None, request_: str, of_tasks: bool, is_short: bool
):
    seen = window(figures("p", used, waited, request_, of_tasks=of_tasks))
    assert bool(short_pods(seen, DOCUMENTS)) == is_short


def test_best_effort_pods_are_evicted_by_usage_then_burstable_by_usage_over_request_and_no_other():
    seen = window(
        figures("burst-little", 0.6, request="500m"),
        figures("burst-much", 0.9, request="200m"),
        figures("within", 0.4, request="500m"),
        figures("idle", 0.001),
        figures("effort-little", 0.1),
        figures("effort-much", 0.2),
        figures("effort-critical", 0.9, priorityClassName="system-node-critical", priority="2000001000"),
    )
    names = [candidate.pod.removeprefix("default/") for candidate, _ in cpu_candidates(seen, DOCUMENTS)]
    assert names == ["effort-much", "effort-little", "burst-much", "burst-little", "effort-critical"]


def test_first_the_condition_and_the_weight_then_one_pod_a_window():
    starved = figures("starved", 0.1, 0.8, "900m")
    pods = starved, figures("batch", 0.5), figures("other", 0.3)
    state, first = decide_cpu(CpuState(), window(*pods, ends_at=60), SETTINGS)
    assert (first.is_pressure, first.victim) == (True, None)
    state, second = decide_cpu(state, window(*pods, ends_at=120), SETTINGS)
    assert second.victim is not None
    assert second.victim.metadata.name == "batch"
    assert second.grace_seconds == 5
    state, third = decide_cpu(state, window(starved, figures("other", 0.3), ends_at=180), SETTINGS)
    assert third.victim is not None
    assert third.victim.metadata.name == "other"
    state, fourth = decide_cpu(state, window(starved, ends_at=240), SETTINGS)
    assert (fourth.is_pressure, fourth.victim) == (True, None)  # there is no other candidate


def test_a_window_without_shortage_begins_the_count_anew_and_the_condition_lasts_its_time():
    starved, fed = figures("starved", 0.1, 0.8, "900m"), figures("starved", 0.9, 0.1, "900m")
    batch = figures("batch", 0.5)
    state, _ = decide_cpu(CpuState(), window(starved, batch, ends_at=60), SETTINGS)
    state, better = decide_cpu(state, window(fed, batch, ends_at=120), SETTINGS)
    assert (better.is_pressure, better.victim) == (True, None)
    again, once_more = decide_cpu(state, window(starved, batch, ends_at=159), SETTINGS)
    assert (again.short_windows, once_more.victim) == (1, None)
    state, over = decide_cpu(state, window(fed, batch, ends_at=160), SETTINGS)
    assert not over.is_pressure
    assert state == CpuState()


@pytest.mark.req("E14")
def test_the_message_has_the_figures_and_the_next_in_rank():
    pods = figures("starved", 0.1, 0.8, "1"), figures("batch", 0.5), figures("burst", 0.6, request="500m")
    state, _ = decide_cpu(CpuState(), window(*pods), SETTINGS)
    _, decision = decide_cpu(state, window(*pods), SETTINGS)
    assert decision.message == (
        "default/starved received 100m of the 1 cpu that it requested for 60 s, less than 90%, while it waited for"
        " cpu; it is the second such time in a row, and BestEffort pods have the least weight already."
        " default/batch (BestEffort, priority 0) uses 500m cpu, requested none, and is first in rank by class and use"
        " over request. Next in rank: default/burst (Burstable, priority 0) uses 600m cpu, 100m above its request"
        " of 500m."
    )


amounts = st.integers(0, 3000)


@given(st.lists(st.tuples(amounts, amounts, st.sampled_from(["", "100m", "500m", "2"])), max_size=6))
def test_no_pod_within_its_request_is_ever_evicted(of_pods: list[tuple[int, int, str]]):
    pods = [figures(f"p{n}", used / 1000, waited / 1000, r) for n, (used, waited, r) in enumerate(of_pods)]
    _, decision = decide_cpu(CpuState(3, 0.0), window(*pods), SETTINGS)
    if decision.victim is not None:
        assert decision.reason is not None
        assert decision.reason.victim.used_millicpu > decision.reason.victim.request_millicpu
        assert decision.victim.key not in {one.pod for one in decision.short}
