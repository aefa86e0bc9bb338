"""The pods in the journal: written when they change, read at the start, and set aside if they cannot be read."""

from collections.abc import Callable

from evenkeel.api.pod import Pod
from evenkeel.journal.codec import Unreadable, from_text, to_text
from evenkeel.journal.columns import opened, sealed, storable, stored
from evenkeel.journal.records import PodRecord
from evenkeel.journal.transactions import JournalError, Transactions
from evenkeel.policy.lifecycle.pod_state import PodState


class PodRows:
    """The pods of the journal. It keeps the last written record of each pod, so that only changes are written. `note`
    takes a sentence for each row that cannot be read."""

    def __init__(self, transactions: Transactions, note: Callable[[str], None], *, is_writable: bool) -> None:
        self.set_aside: frozenset[str] = frozenset()  # UIDs of pods whose rows could not be read
        self._transactions = transactions
        self._note = note
        self._is_writable = is_writable
        self._last: dict[str, PodRecord] = {}
        self._touched: set[str] = set()  # UIDs written in the open transaction

    def begun(self) -> None:
        """A transaction has begun."""
        self._touched.clear()

    def undone(self) -> None:
        """The transaction was rolled back: its records are not in the journal."""
        for uid in self._touched:
            self._last.pop(uid, None)
        self._touched.clear()

    def save(self, record: PodRecord) -> None:
        """Saves `record` under its UID. Writes only what has changed since the last save."""
        uid = record.pod.metadata.uid
        last = self._last.get(uid)
        is_same_pod = last is not None and _is_same_pod(last, record)
        if last is not None and is_same_pod and _is_same_state(last, record):
            return
        if is_same_pod:
            self._save_state(uid, record)
        else:
            with self._transactions.begin():
                self._transactions.write(
                    'INSERT INTO pods (uid, "order", source, pod) VALUES (?1, ?2, ?3, ?4)'
                    ' ON CONFLICT (uid) DO UPDATE SET "order" = ?2, source = ?3, pod = ?4',
                    (uid, record.order, storable(record.source), sealed(to_text(record.pod))),
                )
                self._save_state(uid, record)
        self._last[uid] = record
        self._touched.add(uid)

    def remove(self, uid: str) -> None:
        self._transactions.write("DELETE FROM pods WHERE uid = ?", (uid,))
        self._last.pop(uid, None)

    def read(self) -> tuple[PodRecord, ...]:
        """All pods, sorted by `order`. A pod that cannot be read is set aside, and noted."""
        rows = self._transactions.rows(
            'SELECT uid, "order", source, pod, is_admitted, life FROM pods LEFT JOIN lives USING (uid)'
            ' ORDER BY "order", uid'
        )
        found: list[PodRecord] = []
        for uid, order, source, pod_text, is_admitted, state_text in rows:
            try:
                pod, state = from_text(Pod, opened(pod_text)), from_text(PodState, opened(state_text))
                record = PodRecord(pod, stored(source), int(order), bool(is_admitted), state)
            except (Unreadable, ValueError, TypeError) as error:
                self._set_aside(str(uid), str(error))
                continue
            if pod.metadata.uid != uid:
                self._set_aside(str(uid), f"its UID is {pod.metadata.uid}")
                continue
            found.append(record)
            self._last[uid] = record
        return tuple(found)

    def ever_set_aside(self) -> frozenset[str]:
        """The UIDs of all pods whose rows could not be read, now or by an agent before."""
        rows = self._transactions.rows("SELECT uid FROM pods_aside", ())
        return self.set_aside | {str(uid) for (uid,) in rows}

    def _set_aside(self, uid: str, why: str) -> None:
        self.set_aside |= {uid}
        self._note(f"the pod {uid} cannot be read and is set aside: {why}")
        if not self._is_writable:
            return
        try:
            with self._transactions.begin():
                self._transactions.write(
                    'INSERT INTO pods_aside (uid, "order", source, pod, is_admitted, life, why)'
                    ' SELECT uid, "order", source, pod, is_admitted, life, ?2'
                    " FROM pods LEFT JOIN lives USING (uid) WHERE uid = ?1",
                    (uid, storable(why)),
                )
                self._transactions.write("DELETE FROM pods WHERE uid = ?", (uid,))
        except JournalError as error:
            if not error.is_passing:
                raise

    def _save_state(self, uid: str, record: PodRecord) -> None:
        self._transactions.write(
            "INSERT INTO lives (uid, is_admitted, life) VALUES (?1, ?2, ?3)"
            " ON CONFLICT (uid) DO UPDATE SET is_admitted = ?2, life = ?3",
            (uid, record.is_admitted, sealed(to_text(record.state))),
        )


def _is_same_pod(one: PodRecord, other: PodRecord) -> bool:
    return (one.pod is other.pod or one.pod == other.pod) and one[1:3] == other[1:3]


def _is_same_state(one: PodRecord, other: PodRecord) -> bool:
    return one.is_admitted == other.is_admitted and (one.state is other.state or one.state == other.state)
