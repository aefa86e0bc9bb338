"""The pods that the agent holds, in memory and in the journal.

A change is made in memory at once, written down with the next `commit`, and told to those who watch only then: nobody
hears of what a crash could take back.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from evenkeel.agent.event_recorder import Broadcast
from evenkeel.agent.front import ADDED, DELETED, MODIFIED, PodChange
from evenkeel.api.pod import Pod, PodStatus
from evenkeel.journal.records import PodRecord
from evenkeel.policy.lifecycle.pod_state import ContainerRecord, PodState
from evenkeel.policy.lifecycle.pod_status import timestamp

if TYPE_CHECKING:
    from evenkeel.journal.store import Journal


class Mark(NamedTuple):
    """What a store holds at one moment."""

    held: dict[str, PodRecord]
    uids: dict[str, str]
    next_order: int
    unsaved: dict[str, None]
    gone: dict[str, None]


class PodStore:
    """`status` makes the pod as others see it, with its status, given how they saw it last."""

    def __init__(self, journal: "Journal", status: Callable[[PodRecord, Pod | None], Pod]) -> None:
        self.changes: Broadcast[PodChange] = Broadcast()
        self._journal = journal
        self._status = status
        self._held: dict[str, PodRecord] = {held.pod.metadata.uid: held for held in journal.pods()}
        self._uids = {held.pod.key: uid for uid, held in self._held.items()}
        self._next_order = 1 + max((held.order for held in self._held.values()), default=0)
        self._shown: dict[str, Pod] = {uid: status(held, None) for uid, held in self._held.items()}
        self._unsaved: dict[str, None] = {}  # in order of change
        self._gone: dict[str, None] = {}

    def __iter__(self) -> Iterator[PodRecord]:
        """In order of arrival."""
        return iter(tuple(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    def get(self, uid: str) -> PodRecord | None:
        return self._held.get(uid)

    def by_key(self, key: str) -> PodRecord | None:
        return self._held.get(self._uids.get(key, ""))

    def add(self, pod: Pod, source: str, at: float) -> PodRecord:
        """A pod that was not held, and came at that time; its name and UID are nobody else's."""
        metadata = pod.metadata._replace(creation_timestamp=timestamp(at), deletion_timestamp=None)
        held = PodRecord(pod._replace(metadata=metadata, status=PodStatus()), source, self._next_order)
        self._next_order += 1
        self._held[pod.metadata.uid] = held
        self._uids[pod.key] = pod.metadata.uid
        self._unsaved[pod.metadata.uid] = None
        return held

    def put(self, held: PodRecord) -> None:
        uid = held.pod.metadata.uid
        if self._held.get(uid) != held:
            self._held[uid] = held
            self._unsaved[uid] = None

    def put_life(self, uid: str, life: PodState) -> None:
        self.put(self._held[uid]._replace(life=life))

    def put_container(self, uid: str, name: str, life: ContainerRecord) -> None:
        self.put_life(uid, self._held[uid].life.with_container(name, life))

    def touch(self, uid: str) -> None:
        """Something that its status shows, but that is not kept, has changed."""
        if uid in self._held:
            self._unsaved[uid] = None

    def remove(self, uid: str) -> None:
        held = self._held.pop(uid)
        self._uids.pop(held.pod.key, None)
        self._unsaved.pop(uid, None)
        self._gone[uid] = None

    @property
    def is_committed(self) -> bool:
        return not self._unsaved and not self._gone

    def commit(self) -> None:
        """Raises JournalError, and then everything is still to be committed."""
        self.write()
        self.announce()

    def write(self) -> None:
        """The first half of `commit`, for a transaction that has more in it. Raises JournalError."""
        if self.is_committed:
            return
        with self._journal.transaction():
            for uid in self._gone:
                self._journal.remove(uid)
            for uid in self._unsaved:
                self._journal.save(self._held[uid])

    def announce(self) -> None:
        """The second half: what `write` wrote is committed, and those who watch are told."""
        changed, gone = tuple(self._unsaved), tuple(self._gone)
        self._unsaved.clear()
        self._gone.clear()
        for uid in gone:
            if uid not in self._held and (last := self._shown.pop(uid, None)):
                self.changes.tell(PodChange(DELETED, last))
        for uid in changed:
            before, now = self._shown.get(uid), self._status(self._held[uid], self._shown.get(uid))
            if before != now:
                self._shown[uid] = now
                self.changes.tell(PodChange(ADDED if before is None else MODIFIED, now))

    def mark(self) -> "Mark":
        """What is held now, for `back_to`."""
        return Mark(
            dict(self._held), dict(self._uids), self._next_order, dict(self._unsaved), dict(self._gone)
        )

    def back_to(self, mark: "Mark") -> None:
        """What has changed since then, and was not written, has not happened."""
        self._held, self._uids, self._next_order, self._unsaved, self._gone = mark

    def shown(self) -> tuple[Pod, ...]:
        """Every pod as it was last committed, with its status."""
        return tuple(self._shown.values())

    def shown_by_key(self, key: str) -> Pod | None:
        return self._shown.get(self._uids.get(key, ""))
