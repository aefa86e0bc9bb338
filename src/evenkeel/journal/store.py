"""The journal: the agent's pods, events and decisions, which are on disk before the agent acts on them.

It uses SQLite with a write-ahead log. So committed data survives a kill of the agent, and no row is half written.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from evenkeel.api.workloads import KINDS, kind_of
from evenkeel.journal import schema, transactions
from evenkeel.journal.codec import Unreadable, from_text, plain_of, plain_text, to_text
from evenkeel.journal.columns import opened, packed, sealed, storable, stored, unpacked
from evenkeel.journal.pod_rows import PodRows
from evenkeel.journal.records import (
    DecisionRetention,
    Event,
    EventRetention,
    PodRecord,
    Repeats,
    WorkloadRecord,
)
from evenkeel.journal.transactions import SQLITE_FAULTS, JournalError, Transactions
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.workloads.decision import Progress

__all__ = ["Decision", "Journal", "JournalError"]

# A write-ahead log of at least this size is moved into the main file.
_CHECKPOINT_BYTES = 1 << 20
_CHECKED_EVERY = 10  # every tenth checkpoint looks for damage

_COLUMNS = "at, type, reason, message, pod, uid, container, figures, number, times"
_EVENTS = f"SELECT {_COLUMNS} FROM happenings WHERE number > ? ORDER BY number DESC LIMIT ?"  # noqa: S608
_EVENTS_OF_POD = _EVENTS.replace("WHERE", "WHERE pod = ? AND")


class Decision(NamedTuple):
    """A decision with its snapshot, both as plain values."""

    number: int
    at: float
    kind: str
    snapshot: object
    decision: object


class Journal:
    """For one thread. A method that fails raises JournalError. Nothing of its transaction is then on disk. It can be
    tried again when the cause is repaired."""

    def __init__(self, path: str, connection: sqlite3.Connection, *, is_writable: bool) -> None:
        """Use `open` or `read`."""
        self.path = path
        self.notes: tuple[str, ...] = ()  # a sentence for each problem, such as a row that cannot be read
        self._connection = connection
        self._transactions = Transactions(path, connection, self._undone)
        self._pods = PodRows(self._transactions, self._note, is_writable=is_writable)
        self._repeats = Repeats()
        self._event_retention = EventRetention()
        self._decision_retention = DecisionRetention()
        self._checkpoints = 0

    @classmethod
    def open(cls, path: str) -> "Journal":
        """Opens the journal at `path`, and makes it if there is none."""
        connection = schema.open_for_writing(path)
        journal = cls(path, connection, is_writable=True)
        try:
            journal._take_up()
        except BaseException:
            connection.close()
            raise
        return journal

    @classmethod
    def read(cls, path: str) -> "Journal":
        """Opens the journal at `path` for reading only. No agent needs to run."""
        return cls(path, schema.open_for_reading(path), is_writable=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the journal. Never raises, because committed data is safe."""
        try:
            self._connection.close()
        except sqlite3.Error:
            pass

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begins a transaction. The outermost one commits all writes at its end. An exception that leaves it rolls them
        back."""
        if not self._transactions.is_open:
            self._pods.begun()
        with self._transactions.begin():
            yield

    def _undone(self) -> None:
        """Forgets the writes of a transaction that was rolled back: they are not in the journal."""
        self._pods.undone()
        self._repeats.clear()

    def save(self, record: PodRecord) -> None:
        """Saves `record` under its UID. Writes only what has changed since the last save."""
        self._pods.save(record)

    def remove(self, uid: str) -> None:
        self._pods.remove(uid)

    def pods(self) -> tuple[PodRecord, ...]:
        """All pods, sorted by `order`. A pod that cannot be read is set aside, with a sentence in `notes`."""
        return self._pods.read()

    @property
    def set_aside(self) -> frozenset[str]:
        """The UIDs of the pods whose rows could not be read."""
        return self._pods.set_aside

    def ever_set_aside(self) -> frozenset[str]:
        """The UIDs of all pods whose rows could not be read, now or by an agent before."""
        return self._pods.ever_set_aside()

    def save_workload(self, record: WorkloadRecord) -> None:
        self._transactions.write(
            'INSERT INTO workloads (key, "order", kind, source, workload, progress) VALUES (?1, ?2, ?3, ?4, ?5, ?6)'
            ' ON CONFLICT (key) DO UPDATE SET "order" = ?2, source = ?4, workload = ?5, progress = ?6',
            (
                record.key,
                record.order,
                kind_of(record.workload),
                storable(record.source),
                sealed(to_text(record.workload)),
                sealed(to_text(record.progress)),
            ),
        )

    def remove_workload(self, key: str) -> None:
        self._transactions.write("DELETE FROM workloads WHERE key = ?", (key,))

    def workloads(self) -> tuple[WorkloadRecord, ...]:
        """All workloads, sorted by `order`. One that cannot be read is left out, with a sentence in `notes`."""
        found: list[WorkloadRecord] = []
        rows = self._transactions.rows(
            'SELECT key, "order", kind, source, workload, progress FROM workloads ORDER BY "order", key'
        )
        for key, order, kind, source, text, progress in rows:
            try:
                workload = from_text(KINDS[kind].type, opened(text))
                record = WorkloadRecord(
                    workload, stored(source), int(order), from_text(Progress, opened(progress))
                )
            except (Unreadable, ValueError, TypeError, KeyError) as error:
                self._note(f"the workload {key} cannot be read: {error}")
                continue
            found.append(record)
        return tuple(found)

    def record_event(self, event: Event) -> Event:
        """Records the event and returns it with its number. If an event without figures repeats another one within a
        minute, it is counted with that one and gets its number."""
        repeated = self._repeats.find(event)
        if repeated is not None:
            self._transactions.write(
                "UPDATE happenings SET at = ?, times = ? WHERE number = ?",
                (event.at, repeated.times, repeated.number),
            )
            self._repeats.note(repeated)
            return repeated
        cursor = self._transactions.write(
            "INSERT INTO happenings (at, type, reason, message, pod, uid, container, figures)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                event.at,
                *map(storable, event[1:7]),
                plain_text(dict(event.figures)) if event.figures else None,
            ),
        )
        recorded = event._replace(number=cursor.lastrowid or 0, times=1)
        self._repeats.note(recorded)
        self._transactions.prune(self._event_retention.due(recorded.at, storable(recorded.pod)))
        return recorded

    def events(self, pod: str = "", most: int = 1000, after: int = 0) -> tuple[Event, ...]:
        """The latest events with a number above `after`, oldest first: of one pod (namespace/name), or all."""
        rows = (
            self._transactions.rows(_EVENTS_OF_POD, (storable(pod), after, most))
            if pod
            else self._transactions.rows(_EVENTS, (after, most))
        )
        return tuple(event for row in reversed(rows) if (event := _event(row)) is not None)

    def value(self, key: str) -> Any:  # noqa: ANN401
        """The value that `set_value` stored under `key`; None if there is none."""
        for (text,) in self._transactions.rows('SELECT value FROM "values" WHERE key = ?', (key,)):
            try:
                return plain_of(opened(text))
            except Unreadable as error:
                self._note(f"the value {key} cannot be read: {error}")
        return None

    def set_value(self, key: str, plain: object) -> None:
        """Stores `plain` (dict, list, str, int, float, bool) under `key`. None removes the key."""
        if plain is None:
            self._transactions.write('DELETE FROM "values" WHERE key = ?', (key,))
            return
        # An update to the same value would still cost a write.
        self._transactions.write(
            'INSERT INTO "values" (key, value) VALUES (?1, ?2)'
            " ON CONFLICT (key) DO UPDATE SET value = ?2 WHERE value IS NOT ?2",
            (key, sealed(plain_text(plain))),
        )

    def record(self, kind: str, snapshot: object, decision: object, at: float) -> int:
        """Records a decision and its snapshot, as plain values. Returns the decision's number."""
        content = packed([snapshot, decision])
        cursor = self._transactions.write(
            "INSERT INTO decisions (at, kind, size, content) VALUES (?, ?, ?, ?)",
            (at, kind, len(content), content),
        )
        self._transactions.prune(self._decision_retention.due())
        return cursor.lastrowid or 0

    def decisions(self, kind: str = "", after: int = 0) -> Iterator[Decision]:
        """The decisions, oldest first."""
        while rows := self._transactions.rows(
            "SELECT number, at, kind, content FROM decisions"
            " WHERE number > ?1 AND (?2 = '' OR kind = ?2) ORDER BY number LIMIT 100",
            (after, kind),
        ):
            for number, at, kind_of_row, content in rows:
                after = number
                try:
                    snapshot, decision = unpacked(content)
                except (Unreadable, ValueError, TypeError) as error:
                    self._note(f"decision {number} cannot be read: {error}")
                    continue
                yield Decision(number, at, kind_of_row, snapshot, decision)

    def checkpoint(self) -> None:
        """Moves the write-ahead log into the main file. Call it about every minute. It waits for the disk, so call it
        in a thread beside the loop; any thread is safe. It is cheap if there is little to move. It also keeps reserve
        space in the file for a full disk, and checks that the file was not removed."""
        self.check_place()
        connection = schema.connect(self.path, "rw")
        try:
            self._checkpoints += 1
            if self._checkpoints % _CHECKED_EVERY == 0:
                schema.check(connection, self.path)
            if schema.size(f"{self.path}-wal") >= _CHECKPOINT_BYTES:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            schema.keep_reserve(connection)
        except SQLITE_FAULTS as error:
            raise transactions.sqlite_fault(self.path, error) from None
        finally:
            connection.close()

    @property
    def is_synced(self) -> bool:
        """Whether all that was written is on the disk, and survives a crash of the machine."""
        return self._transactions.is_synced

    def sync(self) -> Callable[[], None]:
        """Returns a call that writes to the disk what is committed now. It waits, so call it in a thread beside the
        loop. It raises JournalError."""
        return self._transactions.sync()

    def check_place(self) -> None:
        """Raises JournalError if the file was removed or replaced while in use. Later writes would be lost."""
        self._transactions.check_place()

    def _note(self, problem: str) -> None:
        self.notes += (f"the journal {self.path}: {problem}",)

    def _take_up(self) -> None:
        try:
            schema.check(self._connection, self.path)
        except SQLITE_FAULTS as error:
            raise transactions.sqlite_fault(self.path, error) from None
        try:
            schema.keep_reserve(self._connection, at_least_bytes=1 << 40)  # reserve also for the log
        except SQLITE_FAULTS as error:
            # Without free space the journal can still be read.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            fault = transactions.sqlite_fault(self.path, error)
            if not fault.is_passing:
                raise fault from None
            self.notes += (str(fault),)


def _event(row: tuple[Any, ...]) -> Event | None:
    at, *texts, figures, number, times = row
    try:
        kind, reason, message, pod, uid, container = map(stored, texts)
        figures = {} if figures is None else dict(plain_of(figures))
        return Event(float(at), kind, reason, message, pod, uid, container, figures, number, times)
    except (Unreadable, ValueError, TypeError):
        return None
