"""What the disk watch reports. The watch must not wait for the agent, so each call returns at once."""

from collections.abc import Mapping
from typing import Protocol

from evenkeel.policy.eviction.decide import Eviction, State
from evenkeel.pressure.disk.garbage_collection import Collected
from evenkeel.pressure.eviction_steps import Step


class DiskWatchSink(Protocol):
    """Called in the watch's thread."""

    def evicting(self, uid: str, eviction: Eviction, at: float) -> None: ...
    def stepped(self, step: Step, after: State, more: Mapping[str, object]) -> None: ...
    def collected(self, collected: Collected) -> None: ...
    def noted(self, text: str) -> None: ...
