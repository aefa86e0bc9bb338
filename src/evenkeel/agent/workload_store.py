"""The records of the agent's workloads, in memory and in the journal.

A change is written in the caller's transaction, together with the pods that it adds or ends. `mark` and `back_to` undo
it in memory if the transaction fails.
"""

from collections.abc import Iterable, Iterator

from evenkeel.journal.records import WorkloadRecord
from evenkeel.journal.store import Journal


class WorkloadStore:
    """For the agent's event loop only."""

    def __init__(self, journal: Journal, records: Iterable[WorkloadRecord]) -> None:
        self._journal = journal
        self._records = {record.key: record for record in records}
        self._next_order = 1 + max((record.order for record in self._records.values()), default=0)

    def __iter__(self) -> Iterator[WorkloadRecord]:
        """The records in order of arrival."""
        return iter(tuple(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: str) -> WorkloadRecord | None:
        return self._records.get(key)

    def of_source(self, source: str) -> list[WorkloadRecord]:
        return [record for record in self._records.values() if record.source == source]

    @property
    def next_order(self) -> int:
        return self._next_order

    def put(self, record: WorkloadRecord) -> None:
        if self._records.get(record.key) != record:
            self._journal.save_workload(record)
            self._records[record.key] = record
            self._next_order = max(self._next_order, record.order + 1)

    def remove(self, key: str) -> None:
        self._journal.remove_workload(key)
        self._records.pop(key, None)

    def mark(self) -> dict[str, WorkloadRecord]:
        return dict(self._records)

    def back_to(self, mark: dict[str, WorkloadRecord]) -> None:
        self._records = mark
