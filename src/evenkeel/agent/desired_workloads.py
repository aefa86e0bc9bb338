"""The desired workloads: Deployments, Jobs and the other kinds in files, and those that were applied over the socket.
And their records, in memory and in the journal.

A change here only marks the workload as due. `workload_controller` then makes and ends its pods. A change of records is
written in the caller's transaction, together with the pods that it adds or ends. `mark` and `back_to` undo it in memory
if the transaction fails.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from evenkeel.agent.desired_pods import CONFIGURED, CREATED, UNCHANGED, DesiredPods
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.front import Applied
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.sources.pod_files import FileSet
from evenkeel.agent.step_requests import StepRequests
from evenkeel.api.scalars import Int32
from evenkeel.api.workload_types import CronJob, DaemonSet, Job
from evenkeel.api.workloads import Workload, key_of, kind_of
from evenkeel.errors import EvenkeelError
from evenkeel.journal.records import FILE, NORMAL, WORKLOAD, PodRecord, WorkloadRecord
from evenkeel.journal.store import Journal
from evenkeel.policy.lifecycle.pod_status import timestamp
from evenkeel.policy.workloads.decide import changed, immutable_change
from evenkeel.policy.workloads.decision import Progress


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


class DesiredWorkloads:
    """For the agent's event loop. Every change is committed together with the pods that it ends."""

    def __init__(
        self,
        store: WorkloadStore,
        pod_store: PodStore,
        desired_pods: DesiredPods,
        event_recorder: EventRecorder,
        steps: StepRequests,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._pod_store = pod_store
        self._desired_pods = desired_pods
        self._event_recorder = event_recorder
        self._steps = steps
        self._clock = clock
        self._due = {record.key for record in store}

    # For clients

    def shown(self) -> tuple[Workload, ...]:
        return tuple(record.workload for record in self._store)

    def get(self, key: str) -> Workload | None:
        record = self._store.get(key)
        return record.workload if record is not None else None

    def check(self, workloads: Iterable[Workload]) -> None:
        """Raises EvenkeelError if one of them cannot be applied."""
        for workload in workloads:
            record = self._store.get(key_of(workload))
            if record is None:
                continue
            _refuse_if_in_file(record)
            if problem := immutable_change(record.workload, workload):
                raise EvenkeelError(
                    f"{_words(workload)}: {problem} cannot be changed",
                    hint=f"delete it first: evenkeel delete {kind_of(workload).lower()} {workload.metadata.name}",
                )

    def apply(self, workloads: Sequence[Workload], source: str = "api") -> tuple[Applied, ...]:
        """Applies workloads that were checked, in the caller's transaction."""
        applied = []
        for workload in workloads:
            before = self._store.get(key_of(workload))
            after = self.put(workload, source)
            outcome = CREATED if before is None else UNCHANGED if after == before else CONFIGURED
            name = f"{workload.metadata.namespace}/{workload.metadata.name}"
            applied.append(Applied(name, outcome, kind_of(workload)))
        return tuple(applied)

    def scale(self, key: str, replicas: int) -> bool:
        """Changes the number of replicas of an applied workload; False if there is none."""
        record = self._store.get(key)
        if record is None:
            return False
        _refuse_if_in_file(record)
        workload = record.workload
        if isinstance(workload, DaemonSet | Job | CronJob):
            raise EvenkeelError(f"{_words(workload)} has no replicas, so it cannot be scaled")
        with self.all_or_nothing():
            spec = workload.spec._replace(replicas=Int32(replicas))
            self.put(workload._replace(spec=spec), record.source)  # type: ignore[arg-type]
        return True

    def delete(self, key: str, grace_seconds: float | None = None) -> bool:
        """Deletes an applied workload and its pods; False if there is none."""
        record = self._store.get(key)
        if record is None:
            return False
        _refuse_if_in_file(record)
        with self.all_or_nothing():
            self.remove(record, grace_seconds)
        return True

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        mark = self._store.mark()
        try:
            with self._desired_pods.all_or_nothing():
                yield
        except BaseException:
            self._store.back_to(mark)
            raise

    # Files

    def files_are(self, found: FileSet) -> None:
        """Updates the workloads to the present content of the files."""
        in_files = {
            key_of(workload): (workload, FILE + file.path)
            for file in found.files
            for workload in file.workloads
        }
        with self.all_or_nothing():
            for key, (workload, source) in in_files.items():
                record = self._store.get(key)
                if record is not None and not record.source.startswith(FILE):
                    self._desired_pods.complain(
                        f"{source}: {_words(workload)} was handed in over the socket; delete that one first"
                    )
                    continue
                if record is not None and immutable_change(record.workload, workload):
                    # As for a pod of a file: the old one ends, and a new one begins.
                    self.remove(record, None)
                self.put(workload, source)
            for record in self._store:
                if record.source.startswith(FILE) and record.key not in in_files:
                    self.remove(record, None)

    # For the controller

    def due(self, key: str) -> None:
        """The next step decides about the workload."""
        self._due.add(key)

    def take_due(self) -> set[str]:
        """Returns the keys of the workloads that are due, also of removed ones. After this call none is due."""
        due, self._due = self._due, set()
        return due

    def put(self, workload: Workload, source: str) -> WorkloadRecord:
        """Adds or changes a workload. Its pods follow in the next step."""
        now, key = self._clock(), key_of(workload)
        before = self._store.get(key)
        if before is None:
            import uuid  # late, as its imports are many

            metadata = workload.metadata._replace(
                uid=str(uuid.uuid4()), generation=1, creation_timestamp=timestamp(now)
            )
            record = WorkloadRecord(
                workload._replace(metadata=metadata), source, self._store.next_order, Progress(now)
            )
        else:
            old = before.workload
            kept = old.metadata
            generation = (kept.generation or 1) + (old.spec != workload.spec)
            metadata = workload.metadata._replace(
                uid=kept.uid,
                generation=generation,
                creation_timestamp=kept.creation_timestamp,
                owner_references=kept.owner_references,
            )
            after = workload._replace(metadata=metadata, status=old.status)  # type: ignore[arg-type]
            record = before._replace(
                workload=after, source=source, progress=changed(old, after, before.progress)
            )
        self._store.put(record)
        self.due(key)
        self._steps.want_step()
        return record

    def remove(self, record: WorkloadRecord, grace_seconds: float | None) -> None:
        """Removes a workload with all that belongs to it. No pod of it is made from now on."""
        for job in self._store.of_source(WORKLOAD + record.key):
            self.remove(job, grace_seconds)
        self.record(NORMAL, "Deleted", "it and its pods are to end", record.workload)
        self._store.remove(record.key)
        self.due(record.key)
        for pod in self.pods_of(record):
            if pod.state.deleted_at is None:
                self._desired_pods.delete(pod, grace_seconds)

    def pods_of(self, record: WorkloadRecord) -> list[PodRecord]:
        source = WORKLOAD + record.key
        return [pod for pod in self._pod_store if pod.source == source]

    def record(self, type_: str, reason: str, message: str, workload: Workload) -> None:
        self._event_recorder.record(type_, reason, f"{_words(workload)}: {message}")


def _words(workload: Workload) -> str:
    return f"{kind_of(workload)} {workload.metadata.namespace}/{workload.metadata.name}"


def _refuse_if_in_file(record: WorkloadRecord) -> None:
    if record.source.startswith(FILE):
        raise EvenkeelError(
            f"{_words(record.workload)} stands in {record.source.removeprefix(FILE)}",
            hint="change it there; it follows the file",
        )
