"""What the watch over memory tells the agent's loop."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from evenkeel.agent.pressure.recording import Step
from evenkeel.agent.pressure.roster import Member
from evenkeel.policy.eviction.decide import Eviction, State


class Evicting(NamedTuple):
    """A pod that goes, told before anything is done to it."""

    uid: str
    eviction: Eviction
    at: float  # seconds since the epoch


class Timing(NamedTuple):
    """Of one decision, by the machine's own clock (CLOCK_MONOTONIC)."""

    began_at: float
    sent_at: float | None = None  # when the kill was
    # It was made when the kernel's own killer acted, to be held against what that did.
    is_kernels: bool = False


class Reports(Protocol):
    """Called in the watch's thread; they must not keep it."""

    def evicting(self, evicting: Evicting) -> None: ...
    def stepped(self, step: Step, after: State, timing: Timing) -> None:
        """A decision that changed something, after it was carried out."""
        ...

    def back(self, member: Member, held_bytes: int, took_seconds: float) -> None: ...
    def reclaiming(self, expected_bytes: int, short_bytes: int) -> None: ...
    def throttling(self, most_bytes: Mapping[str, int]) -> None:
        """By the pods' UIDs: they are to get no more than that; and no others. Nobody, if it is empty."""
        ...

    def holding(self, uids: tuple[str, ...]) -> None:
        """These pods stand still until memory is back."""
        ...

    def noted(self, text: str) -> None:
        """Something that makes the watch worse than it could be."""
        ...
