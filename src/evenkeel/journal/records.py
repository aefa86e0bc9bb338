"""Records of pods, and events: the values that the journal keeps."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from evenkeel.api.pod import Pod
from evenkeel.policy.lifecycle.pod_state import PodState

NORMAL, WARNING = "Normal", "Warning"


class PodRecord(NamedTuple):
    """A pod that the agent knows. `order` is that of first arrival, and of admission after a restart. `source` says
    where it comes from: `file:PATH`, `api` or `run`."""

    pod: Pod
    source: str
    order: int
    is_admitted: bool = False
    state: PodState = PodState()

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def takes_room(self) -> bool:
        """It was admitted and has not ended. A pod that has to end takes its room until nothing of it runs."""
        return self.is_admitted and (self.state.verdict is None or self.state.is_alive)

    @property
    def is_waiting(self) -> bool:
        """For admission."""
        return not self.is_admitted and self.state.deleted_at is None


class Event(NamedTuple):
    """One thing that happened, in the words of Kubernetes' events. `figures` are the numbers it was decided on (E6,
    E14), as plain values. `number` is the journal's; `times` says how often it happened, `at` the last time."""

    at: float
    type: str  # Normal or Warning
    reason: str  # one word: Started, OOMKilled, Evicted …
    message: str
    pod: str = ""  # namespace/name; empty for what concerns the node
    uid: str = ""
    container: str = ""
    figures: Mapping[str, object] = MappingProxyType({})
    number: int = 0
    times: int = 1
