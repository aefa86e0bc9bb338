"""Decisions about CPU as the journal keeps them, and the same decisions made again (A22, E14)."""

from typing import NamedTuple

from evenkeel.agent.journal import Decision as Recorded
from evenkeel.agent.journal_text import Unreadable, from_text, plain_of, plain_text, to_text
from evenkeel.policy.cpu_shortage import CpuDecision, CpuSettings, CpuState, CpuWindow, decide_cpu

KIND = "cpu"  # of decisions in the journal


class CpuStep(NamedTuple):
    """One call of `decide_cpu`, with what it was given and what it said."""

    state: CpuState
    window: CpuWindow
    settings: CpuSettings
    decision: CpuDecision


def given(state: CpuState, window: CpuWindow, settings: CpuSettings) -> dict[str, object]:
    return {
        "state": plain_of(to_text(state)),
        "window": plain_of(to_text(window)),
        "settings": plain_of(to_text(settings)),
    }


def said(decision: CpuDecision) -> dict[str, object]:
    """What was decided, as plain values."""
    victim = decision.victim
    return {
        "short": [one._asdict() for one in decision.short],
        "isPressure": decision.is_pressure,
        "evictions": []
        if victim is None
        else [
            {
                "pod": victim.key,
                "uid": victim.metadata.uid,
                "graceSeconds": decision.grace_seconds,
                "message": decision.message,
            }
        ],
    }


def replayed(record: Recorded) -> tuple[CpuStep, dict[str, object]]:
    """The recorded step made again, and what it says now, to be compared with `record.decision`. Raises Unreadable."""
    content = record.snapshot
    if not isinstance(content, dict):
        raise Unreadable(f"decision {record.number} has no snapshot")
    state = from_text(CpuState, plain_text(content.get("state")))
    window = from_text(CpuWindow, plain_text(content.get("window")))
    settings = from_text(CpuSettings, plain_text(content.get("settings")))
    decision = decide_cpu(state, window, settings)[1]
    return CpuStep(state, window, settings, decision), said(decision)
