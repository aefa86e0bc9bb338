"""The reports of the memory watch, and the interface that takes them. The watch must not wait for the agent, so each
call returns at once."""

from collections.abc import Mapping
from typing import Protocol

from evenkeel.named_tuples import NamedTuple
from evenkeel.pressure.eviction_steps import Step
from evenkeel.pressure.targets import PodTarget


class Stages(NamedTuple):
    """When each step towards a kill was done, by CLOCK_MONOTONIC. The decision begins after `sampled`."""

    woken: float = 0.0  # the kernel's event, or the time to look again
    sampled: float = 0.0
    read: float = 0.0  # every pod
    decided: float = 0.0
    noted: float = 0.0  # the intent
    # When the kernel last reported that the usage crossed the threshold. Usage counts cache that can be dropped, so
    # memory may be short only later: at `woken`. On v2, and if the watch was quicker, this is of an earlier crossing.
    reported: float = 0.0


class Timing(NamedTuple):
    """The times at which a decision was made and carried out, by CLOCK_MONOTONIC."""

    began_at: float
    sent_at: float | None = None  # when the kill was sent
    # The kernel's OOM killer acted at this moment. The decision is to be compared with the kernel's choice (E12).
    is_kernels: bool = False
    stages: "Stages | None" = None

    @property
    def plain(self) -> dict[str, object]:
        """The value for the journal."""
        if self.is_kernels:
            return {"beganAt": self.began_at, "byKernel": True}
        if self.sent_at is None:
            return {"beganAt": self.began_at}
        took = self.sent_at - self.began_at
        stages = self.stages._asdict() if self.stages is not None else {}
        return {"beganAt": self.began_at, "killSentAt": self.sent_at, "tookSeconds": took, "stages": stages}


class Evicted(NamedTuple):
    """How the victim of a step was evicted."""

    at: float  # seconds since the epoch
    grace_seconds: int  # above 0: the agent has to ask the pod to end


class MemoryWatchSink(Protocol):
    @property
    def is_heard(self) -> bool:
        """Whether an agent is there and takes the reports."""
        ...

    def stepped(self, step: Step, timing: Timing, evicted: Evicted | None) -> None:
        """A decision that changed something, after it was carried out."""
        ...

    def back(self, target: PodTarget, held_bytes: int, took_seconds: float) -> None:
        """The memory of a killed pod is free."""
        ...

    def reclaiming(self, expected_bytes: int, short_bytes: int) -> None: ...
    def throttling(self, most_bytes: Mapping[str, int]) -> None:
        """By UID: these pods are throttled to the given bytes. No other pod is throttled."""
        ...

    def freezing(self, uids: tuple[str, ...]) -> None:
        """These pods are frozen until memory is free again."""
        ...

    def noted(self, text: str) -> None:
        """A problem that makes the watch less effective."""
        ...
