"""Pod records and events: the values that the journal keeps, and how long it keeps them."""

from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType

from evenkeel.api.pod import Pod
from evenkeel.api.workloads import Workload, key_of
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.lifecycle.pod_state import PodState
from evenkeel.policy.workloads.decision import Progress

NORMAL, WARNING = "Normal", "Warning"
FILE = "file:"  # prefix of the source of a pod in a manifest file, before its path
CLUSTER = "cluster"  # the source of a pod that the API server of a cluster gave to this node
WORKLOAD = "workload:"  # prefix of the source of a workload's pod, before the workload's key
_JOB = f"{WORKLOAD}Job/"


class PodRecord(NamedTuple):
    """A pod that the agent knows. `order` is the order of first arrival. After a restart pods are admitted in this
    order. `source` is `file:PATH`, `api`, `run`, `workload:KEY` or `cluster`."""

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
        """Whether the pod was admitted and has not ended. A pod that is being ended takes room until none of its
        containers runs."""
        return self.is_admitted and (self.state.verdict is None or self.state.is_alive)

    @property
    def is_replaced_by_owner(self) -> bool:
        """Whether its owner makes a new pod after an eviction: a Job, or a controller of a cluster. The pod itself does
        not come back."""
        return self.source == CLUSTER or self.source.startswith(_JOB)

    @property
    def is_waiting(self) -> bool:
        """Whether the pod waits for admission. A cluster's pod that was refused does not: its owner makes another."""
        is_refused = self.source == CLUSTER and self.state.verdict is not None
        return not self.is_admitted and self.state.deleted_at is None and not is_refused


class WorkloadRecord(NamedTuple):
    """A workload that the agent knows. `source` is `file:PATH`, `api`, or `workload:KEY` for a Job of a CronJob."""

    workload: Workload
    source: str
    order: int
    progress: Progress

    @property
    def key(self) -> str:
        return key_of(self.workload)


class Event(NamedTuple):
    """One event, with the terms of Kubernetes' events. `figures` are the numbers behind it (E6, E14), as plain values.
    `number` is its number in the journal. `times` says how often it happened, and `at` when it happened last."""

    at: float
    type: str  # Normal or Warning
    reason: str  # one word: Started, OOMKilled, Evicted …
    message: str
    pod: str = ""  # namespace/name; empty for an event of the node
    uid: str = ""
    container: str = ""
    figures: Mapping[str, object] = MappingProxyType({})
    number: int = 0
    times: int = 1


REPEAT_SECONDS = 60.0
_REPEATS = 256

MAX_EVENTS = 100_000
MAX_EVENTS_OF_POD = 5_000  # so that a pod that is noisy on purpose takes the history of no other one away
MAX_EVENT_SECONDS = 30 * 86_400.0
_EVENTS_A_STEP = 512
EVENTS_BETWEEN = 128

MAX_DECISION_BYTES = 64 * 1024 * 1024
_DECISIONS_A_STEP = 64
_RECORDS_BETWEEN = 16

Statement = tuple[str, tuple[object, ...]]


class Repeats:
    """The latest events, to find repeated ones. An event with figures always has its own record (E6), and is never
    counted as a repeat."""

    def __init__(self) -> None:
        self._latest: OrderedDict[tuple[object, ...], Event] = OrderedDict()

    def find(self, event: Event) -> Event | None:
        """The earlier event that `event` repeats, with the new time and count; None if there is none."""
        if event.figures:
            return None
        latest = self._latest.get(event[1:7])
        if latest is None or not 0 <= event.at - latest.at <= REPEAT_SECONDS:
            return None
        return latest._replace(at=event.at, times=latest.times + 1)

    def note(self, event: Event) -> None:
        if not event.figures:
            self._latest[event[1:7]] = event
            self._latest.move_to_end(event[1:7])
            if len(self._latest) > _REPEATS:
                self._latest.popitem(last=False)

    def clear(self) -> None:
        self._latest.clear()


class EventRetention:
    def __init__(self) -> None:
        self._since = 0

    def due(self, now: float, pod: str | bytes) -> Statement | None:
        """A statement that deletes the oldest events: those that are too old, those above the limit, and those above
        the limit of one pod. `pod` is that of the latest event, as its column has it: most often a noisy one. The
        latest event is never deleted, so that no number is used twice. None if it is not due."""
        self._since += 1
        if self._since < EVENTS_BETWEEN:
            return None
        self._since = 0
        statement = (
            "WITH oldest AS (SELECT number, at FROM happenings ORDER BY number LIMIT ?1),"
            " above AS (SELECT number FROM happenings ORDER BY number"
            "  LIMIT max(0, min(?1, (SELECT count(*) FROM happenings) - ?3))),"
            " noise AS (SELECT number FROM happenings WHERE pod = ?4 AND ?4 <> ''"
            "  ORDER BY number DESC LIMIT ?1 OFFSET ?5)"
            " DELETE FROM happenings WHERE number < (SELECT max(number) FROM happenings) AND number IN"
            "  (SELECT number FROM oldest WHERE at < ?2 UNION SELECT number FROM above UNION SELECT number FROM noise)"
        )
        return statement, (_EVENTS_A_STEP, now - MAX_EVENT_SECONDS, MAX_EVENTS, pod, MAX_EVENTS_OF_POD)


class DecisionRetention:
    def __init__(self) -> None:
        self._since = 0

    def due(self) -> Statement | None:
        self._since += 1
        if self._since < _RECORDS_BETWEEN:
            return None
        self._since = 0
        statement = (
            "DELETE FROM decisions WHERE number IN (SELECT number FROM decisions ORDER BY number LIMIT ?1)"
            " AND number < (SELECT max(number) FROM decisions)"
            " AND (SELECT sum(size) FROM decisions) > ?2"
        )
        return statement, (_DECISIONS_A_STEP, MAX_DECISION_BYTES)
