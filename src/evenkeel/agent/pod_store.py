"""The records of the agent's pods, in memory and in the journal, and the pods as clients see them.

A change is made in memory at once, and written to the journal with the next `commit`. Clients that watch get it only
after that. So no client sees a change that a crash could undo.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from evenkeel.agent.admission import DeferredResizes
from evenkeel.agent.event_recorder import Broadcast, EventRecorder
from evenkeel.api.pod import Pod, PodStatus
from evenkeel.journal.records import PodRecord
from evenkeel.journal.store import Journal
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.lifecycle.actions import actions
from evenkeel.policy.lifecycle.pod_state import LifecycleSettings, PodState
from evenkeel.policy.lifecycle.pod_status import (
    NO_WAITING,
    is_resize_in_progress,
    pod_status,
    timestamp,
    with_addresses,
    with_resize,
)
from evenkeel.policy.node_view import NodeView
from evenkeel.runtime.interface import Attempt

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"


class PodChange(NamedTuple):
    type: str
    pod: Pod  # with its status; for a deleted pod, the last one


class PodStatuses:
    """Converts a pod's record to the pod that clients see, with its status."""

    def __init__(
        self,
        node: NodeView,
        settings: LifecycleSettings,
        resizes: DeferredResizes,
        addresses: Callable[[Pod], tuple[str, ...] | None],
        host_address: str,
        clock: Callable[[], float],
    ) -> None:
        self._addresses = addresses
        self._host_address = host_address
        self._node = node
        self._settings = settings
        self._resizes = resizes
        self._clock = clock

    def shown(self, record: PodRecord, before: Pod | None, every: Iterable[PodRecord]) -> Pod:
        """The pod that clients see. A condition that is the same as in `before` keeps its time. `every` has the records
        of all pods: a deferred resize must fit beside them."""
        now = self._clock()
        todo = actions(record.pod, record.state, now, self._settings) if record.is_admitted else None
        pod = record.pod._replace(status=before.status if before is not None else PodStatus())
        if record.state.deleted_at is not None:
            deleted = timestamp(record.state.deleted_at)
            pod = pod._replace(metadata=pod.metadata._replace(deletion_timestamp=deleted))
        waiting = todo.waiting if todo is not None else NO_WAITING
        runtime = "" if self._node.config.container_runtime_endpoint else "process"
        status = pod_status(pod, record.state, self._node.profile, waiting, runtime)
        status = with_addresses(status, self._host_address, self._addresses(pod))
        status = with_resize(
            status,
            self._resizes.refusal(record, every),
            now,
            in_progress=is_resize_in_progress(record.pod, record.state),
        )
        return pod._replace(status=status)


class Mark(NamedTuple):
    """The content of a store's memory at one moment."""

    records: dict[str, PodRecord]
    uids: dict[str, str]
    next_order: int
    unsaved: dict[str, None]
    gone: dict[str, None]


class PodStore:
    """For the agent's event loop only. `records` are those in the journal. `resizes` are written with the pods."""

    def __init__(
        self,
        journal: Journal,
        records: Iterable[PodRecord],
        resizes: DeferredResizes,
        statuses: PodStatuses,
    ) -> None:
        self.changes: Broadcast[PodChange] = Broadcast()
        self._journal = journal
        self._resizes = resizes
        self._statuses = statuses
        self._records: dict[str, PodRecord] = {record.uid: record for record in records}
        self._uids = {record.pod.key: uid for uid, record in self._records.items()}
        self._next_order = 1 + max((record.order for record in self._records.values()), default=0)
        self._shown: dict[str, Pod] = {
            uid: statuses.shown(record, None, self) for uid, record in self._records.items()
        }
        self._unsaved: dict[str, None] = {}  # in order of change
        self._gone: dict[str, None] = {}

    def __iter__(self) -> Iterator[PodRecord]:
        """The records in order of arrival."""
        return iter(tuple(self._records.values()))

    def get(self, uid: str) -> PodRecord | None:
        return self._records.get(uid)

    def by_key(self, key: str) -> PodRecord | None:
        return self._records.get(self._uids.get(key, ""))

    def of_attempt(self, attempt: Attempt) -> PodRecord | None:
        """The record of the attempt's pod, if the attempt is its container's last."""
        record = self._records.get(attempt.uid)
        if record is None or record.state.container(attempt.container).attempt != attempt.number:
            return None
        return record

    def add(self, pod: Pod, source: str, at: float) -> PodRecord:
        """Adds a new pod that arrived at the time `at`. No other pod has its name or UID."""
        metadata = pod.metadata._replace(creation_timestamp=timestamp(at), deletion_timestamp=None)
        record = PodRecord(pod._replace(metadata=metadata, status=PodStatus()), source, self._next_order)
        self._next_order += 1
        self._records[pod.metadata.uid] = record
        self._uids[pod.key] = pod.metadata.uid
        self._unsaved[pod.metadata.uid] = None
        return record

    def put(self, record: PodRecord) -> None:
        uid = record.pod.metadata.uid
        if self._records.get(uid) != record:
            self._records[uid] = record
            self._unsaved[uid] = None

    def put_state(self, uid: str, state: PodState) -> None:
        self.put(self._records[uid]._replace(state=state))

    def touch(self, uid: str) -> None:
        """Updates the pod's status at the next commit. Called for a change that the record itself does not contain."""
        if uid in self._records:
            self._unsaved[uid] = None

    def remove(self, uid: str) -> None:
        record = self._records.pop(uid)
        self._uids.pop(record.pod.key, None)
        self._unsaved.pop(uid, None)
        self._gone[uid] = None

    @property
    def is_committed(self) -> bool:
        return not self._unsaved and not self._gone and self._resizes.is_committed

    def commit(self) -> None:
        """Commits all changes. Raises JournalError; all changes then stay uncommitted."""
        self.write()
        self.announce()

    def commit_with(self, events: EventRecorder) -> None:
        """Commits all changes together with the waiting events. Raises JournalError; nothing is committed then."""
        if not (self.is_committed and events.is_committed):
            with self._journal.transaction():
                self.write()
                events.write()
        self.announce()
        events.announce()

    def write(self) -> None:
        """The first half of `commit`, for a transaction with further writes. Raises JournalError."""
        if self.is_committed:
            return
        with self._journal.transaction():
            for uid in self._gone:
                self._journal.remove(uid)
            for uid in self._unsaved:
                self._journal.save(self._records[uid])
            self._resizes.write()

    def announce(self) -> None:
        """The second half of `commit`: publishes the committed changes to clients that watch."""
        changed, gone = tuple(self._unsaved), tuple(self._gone)
        self._unsaved.clear()
        self._gone.clear()
        self._resizes.committed()
        for uid in gone:
            if last := self._shown.pop(uid, None):  # another pod may have its name and UID by now
                self.changes.publish(PodChange(DELETED, last))
        for uid in changed:
            before = self._shown.get(uid)
            now = self._statuses.shown(self._records[uid], before, self)
            if before != now:
                self._shown[uid] = now
                self.changes.publish(PodChange(ADDED if before is None else MODIFIED, now))

    def mark(self) -> "Mark":
        """The present content of memory, for `back_to`."""
        return Mark(
            dict(self._records), dict(self._uids), self._next_order, dict(self._unsaved), dict(self._gone)
        )

    def back_to(self, mark: "Mark") -> None:
        """Undoes all changes since `mark`. They must not be written yet."""
        self._records, self._uids, self._next_order, self._unsaved, self._gone = mark

    def shown(self) -> tuple[Pod, ...]:
        """Every pod as it was last committed, with its status."""
        return tuple(self._shown.values())

    def keep_times(self, uid: str, transitions: Mapping[str, tuple[str, str]]) -> None:
        """Conditions that are as they were keep their times. `transitions` has, by type, the status and the time of
        each condition that a former agent has reported to clients. The journal does not have all of these times."""
        pod = self._shown.get(uid)
        if pod is None:
            return
        conditions = tuple(
            one._replace(last_transition_time=at)
            if (known := transitions.get(one.type)) and known[0] == one.status and (at := known[1])
            else one
            for one in pod.status.conditions
        )
        self._shown[uid] = pod._replace(status=pod.status._replace(conditions=conditions))

    def shown_of(self, uid: str) -> Pod | None:
        return self._shown.get(uid)

    def shown_by_key(self, key: str) -> Pod | None:
        return self._shown.get(self._uids.get(key, ""))
