"""What the results of a probe come to, and when it is asked next: kubelet's counting, without asking anybody.

A container has up to three probes. The startup probe goes first and holds the others back until it has passed once;
then liveness and readiness are asked for as long as the container runs. Liveness and startup that fail are the end of
the container's attempt, and the next attempt begins to count anew.
"""

from enum import StrEnum
from typing import NamedTuple

from evenkeel.api.container import Container, Probe


class ProbeKind(StrEnum):
    STARTUP = "startup"
    LIVENESS = "liveness"
    READINESS = "readiness"


class ProbeVerdict(StrEnum):
    """What a probe says of the container, after counting."""

    UNKNOWN = "unknown"
    PASSED = "passed"
    FAILED = "failed"


class ProbeState(NamedTuple):
    """`last` is the last result and `run` how often it came in a row; `verdict` changes with the thresholds alone."""

    verdict: ProbeVerdict = ProbeVerdict.UNKNOWN
    last: bool | None = None
    run: int = 0
    is_done: bool = False  # nothing more is to be asked in this attempt
    next_at: float = 0.0


def first_state(
    kind: ProbeKind, probe: Probe, started_at: float, now: float, jitter: float = 0.0
) -> ProbeState:
    """Before the first result: liveness counts as passed; of the others nothing is known, so that the first verdict is
    news, also of a container that was ready before the agent was started again. `jitter`, from 0 to 1, is the part of a
    period that the first probe is put off by, so that an agent which starts does not ask everybody at once."""
    verdict = ProbeVerdict.PASSED if kind is ProbeKind.LIVENESS else ProbeVerdict.UNKNOWN
    begin = max(now, started_at + probe.initial_delay_seconds)
    return ProbeState(verdict, next_at=begin + jitter * period_seconds(probe))


def after_result(
    kind: ProbeKind, probe: Probe, state: ProbeState, *, is_success: bool, now: float
) -> ProbeState:
    run = state.run + 1 if state.last is is_success else 1
    threshold = probe.success_threshold if is_success else (probe.failure_threshold or 3)
    state = state._replace(last=is_success, run=run, next_at=now + period_seconds(probe))
    if run < max(threshold, 1):
        return state
    verdict = ProbeVerdict.PASSED if is_success else ProbeVerdict.FAILED
    # A startup probe has done its work once it has passed; a failure of it or of liveness ends the attempt.
    is_done = kind is ProbeKind.STARTUP or (kind is ProbeKind.LIVENESS and not is_success)
    return state._replace(verdict=verdict, is_done=is_done)


def after_no_result(probe: Probe, state: ProbeState, now: float) -> ProbeState:
    """Asking itself went wrong, which says nothing of the container."""
    return state._replace(next_at=now + period_seconds(probe))


def due_probes(container: Container, *, is_started: bool) -> tuple[tuple[ProbeKind, Probe], ...]:
    """The probes to ask now: the startup probe until it has passed, then the others."""
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
