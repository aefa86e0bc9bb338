"""Probe results: what they mean for the container, and when the next probe is due. The counting is kubelet's.

A container has up to three probes. The startup probe runs first; liveness and readiness wait until it has passed once,
and then run as long as the container. A failed liveness or startup probe ends the attempt of the container, and the
next attempt counts from zero.
"""

from enum import StrEnum

from evenkeel.api.container import Container, Probe
from evenkeel.named_tuples import NamedTuple


class ProbeKind(StrEnum):
    STARTUP = "startup"
    LIVENESS = "liveness"
    READINESS = "readiness"


class ProbeOutcome(StrEnum):
    """The state of a probe after its thresholds are applied."""

    UNKNOWN = "unknown"
    PASSED = "passed"
    FAILED = "failed"


class ProbeState(NamedTuple):
    """`last` is the last result and `run` is how often it came in a row. `outcome` changes only when a threshold is
    reached."""

    outcome: ProbeOutcome = ProbeOutcome.UNKNOWN
    last: bool | None = None
    run: int = 0
    is_done: bool = False  # no more probes in this attempt
    next_at: float = 0.0


def first_state(
    kind: ProbeKind, probe: Probe, started_at: float, now: float, jitter: float = 0.0
) -> ProbeState:
    """The state before the first result. Liveness counts as passed. The others are unknown, so that their first outcome
    is a change, even of a container that was ready before the agent was restarted. `jitter` (0 to 1) delays the first
    probe by a part of a period, so that a starting agent does not probe all containers at once."""
    outcome = ProbeOutcome.PASSED if kind is ProbeKind.LIVENESS else ProbeOutcome.UNKNOWN
    begin = max(now, started_at + probe.initial_delay_seconds)
    return ProbeState(outcome, next_at=begin + jitter * period_seconds(probe))


def after_result(
    kind: ProbeKind, probe: Probe, state: ProbeState, *, is_success: bool, now: float
) -> ProbeState:
    run = state.run + 1 if state.last is is_success else 1
    threshold = probe.success_threshold if is_success else (probe.failure_threshold or 3)
    state = state._replace(last=is_success, run=run, next_at=now + period_seconds(probe))
    if run < max(threshold, 1):
        return state
    outcome = ProbeOutcome.PASSED if is_success else ProbeOutcome.FAILED
    # A startup probe that has passed is not needed any more. If it or liveness fails, the attempt ends.
    is_done = kind is ProbeKind.STARTUP or (kind is ProbeKind.LIVENESS and not is_success)
    return state._replace(outcome=outcome, is_done=is_done)


def after_no_result(probe: Probe, state: ProbeState, now: float) -> ProbeState:
    """The probe itself could not be run. This says nothing about the container."""
    return state._replace(next_at=now + period_seconds(probe))


def due_probes(container: Container, *, is_started: bool) -> tuple[tuple[ProbeKind, Probe], ...]:
    """The probes that run now: the startup probe until it has passed, then the others."""
    kinds = (
        ((ProbeKind.LIVENESS, container.liveness_probe), (ProbeKind.READINESS, container.readiness_probe))
        if is_started
        else ((ProbeKind.STARTUP, container.startup_probe),)
    )
    return tuple((kind, probe) for kind, probe in kinds if probe is not None)


def period_seconds(probe: Probe) -> float:
    return float(probe.period_seconds or 10)


def timeout_seconds(probe: Probe) -> float:
    return float(probe.timeout_seconds or 1)
