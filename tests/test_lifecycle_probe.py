"""How probe results are counted."""

import pytest

from evenkeel.api.container import Container, ExecAction, Probe
from evenkeel.policy.lifecycle.probe_results import (
    ProbeKind,
    ProbeOutcome,
    after_no_result,
    after_result,
    due_probes,
    first_state,
)

ASK = Probe(ExecAction(("true",)), period_seconds=10, success_threshold=1, failure_threshold=3)


def judged(kind, probe, results):
    """The outcome after each of the results, written as + and -."""
    state = first_state(kind, probe, 0.0, 0.0)
    outcomes = []
    for result in results:
        state = after_result(kind, probe, state, is_success=result == "+", now=state.next_at)
        outcomes.append(state.outcome)
    return state, outcomes


@pytest.mark.parametrize(
    "kind, before",
    [
        (ProbeKind.LIVENESS, ProbeOutcome.PASSED),
        (ProbeKind.READINESS, ProbeOutcome.UNKNOWN),
        (ProbeKind.STARTUP, ProbeOutcome.UNKNOWN),
    ],
)
def test_the_outcome_before_the_first_result(kind, before):
    assert first_state(kind, ASK, 0.0, 0.0).outcome == before


def test_a_outcome_falls_when_failures_in_a_row_reach_the_threshold():
    _, outcomes = judged(ProbeKind.READINESS, ASK, "+--+---")
    passed, failed = ProbeOutcome.PASSED, ProbeOutcome.FAILED
    assert outcomes == [passed, passed, passed, passed, passed, passed, failed]


def test_readiness_comes_back_when_successes_in_a_row_reach_theirs():
    probe = ASK._replace(success_threshold=2, failure_threshold=1)
    _, outcomes = judged(ProbeKind.READINESS, probe, "+-++-+")
    passed, failed = ProbeOutcome.PASSED, ProbeOutcome.FAILED
    assert outcomes == [ProbeOutcome.UNKNOWN, failed, failed, passed, failed, failed]


def test_liveness_and_startup_ask_no_more_once_they_have_failed():
    for kind in (ProbeKind.LIVENESS, ProbeKind.STARTUP):
        state, outcomes = judged(kind, ASK, "---")
        assert (outcomes[-1], state.is_done) == (ProbeOutcome.FAILED, True)
    state, _ = judged(ProbeKind.READINESS, ASK, "---")
    assert not state.is_done


def test_startup_has_done_its_work_with_the_first_success():
    state, outcomes = judged(ProbeKind.STARTUP, ASK, "--+")
    assert (outcomes, state.is_done) == ([ProbeOutcome.UNKNOWN] * 2 + [ProbeOutcome.PASSED], True)


def test_the_first_question_waits_for_the_initial_delay_and_the_next_for_the_period():
    probe = ASK._replace(initial_delay_seconds=30)
    state = first_state(ProbeKind.LIVENESS, probe, started_at=100.0, now=101.0)
    assert state.next_at == 130.0
    assert after_result(ProbeKind.LIVENESS, probe, state, is_success=True, now=131.0).next_at == 141.0
    assert first_state(ProbeKind.LIVENESS, probe, started_at=100.0, now=500.0).next_at == 500.0
    assert first_state(ProbeKind.LIVENESS, probe, 100.0, 500.0, jitter=0.5).next_at == 505.0


def test_a_question_that_could_not_be_asked_counts_for_nothing():
    state, _ = judged(ProbeKind.LIVENESS, ASK, "--")
    later = after_no_result(ASK, state, 50.0)
    assert later == state._replace(next_at=60.0)
    assert after_result(ProbeKind.LIVENESS, ASK, later, is_success=False, now=60.0).is_done


def test_other_probes_wait_for_the_startup_probe():
    container = Container(startup_probe=ASK, liveness_probe=ASK, readiness_probe=ASK)
    assert [kind for kind, _ in due_probes(container, is_started=False)] == ["startup"]
    assert [kind for kind, _ in due_probes(container, is_started=True)] == ["liveness", "readiness"]
    assert due_probes(Container(), is_started=True) == ()
