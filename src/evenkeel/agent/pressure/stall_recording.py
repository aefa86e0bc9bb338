"""Stalls at `memory.high` as the journal keeps them, and found again in what was kept (C8, E14)."""

from collections.abc import Sequence

from evenkeel.agent.journal import Decision as Recorded
from evenkeel.agent.journal_text import Unreadable
from evenkeel.policy.memory_stall import Stall, StallSample, stall

KIND = "memoryStall"  # of decisions in the journal


def given(
    pod: str, container: str, period_seconds: float, samples: Sequence[StallSample]
) -> dict[str, object]:
    return {
        "pod": pod,
        "container": container,
        "periodSeconds": period_seconds,
        "samples": [list(sample) for sample in samples],
    }


def pod_of(record: Recorded) -> str:
    """Whose it was, namespace/name."""
    return str(record.snapshot.get("pod", "")) if isinstance(record.snapshot, dict) else ""


def said(found: Stall | None) -> dict[str, object]:
    return {"stall": None if found is None else list(found)}


def replayed(record: Recorded) -> dict[str, object]:
    """What the recorded samples show now, to be compared with `record.decision`. Raises Unreadable."""
    content = record.snapshot
    try:
        assert isinstance(content, dict)
        samples = [StallSample(*sample) for sample in content["samples"]]
        return said(stall(samples, float(content["periodSeconds"])))
    except (AssertionError, KeyError, TypeError, ValueError):
        raise Unreadable(f"decision {record.number} has no samples") from None
