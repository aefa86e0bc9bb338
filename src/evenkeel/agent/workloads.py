"""Workloads: keeps the pods of Deployments, Jobs and the other kinds as `policy.workloads` wants them.

The pod loop calls `follow` in each step, after it has decided for pods. A decision is committed as a whole (the
workload's progress, new pods, pods that end), and the next steps act on it. `wake_at` is the time of the next decision
that no pod will cause.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, tzinfo

from evenkeel.agent.data_store import DataStore
from evenkeel.agent.desired_pods import CONFIGURED, CREATED, UNCHANGED, DesiredPods
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.front import Applied
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.sources.pod_files import FileSet
from evenkeel.agent.step_requests import StepRequests
from evenkeel.agent.workload_store import WorkloadStore
from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod
from evenkeel.api.scalars import Int32
from evenkeel.api.workload_pods import POD_INDEX, stateful_claims
from evenkeel.api.workload_types import CronJob, DaemonSet, Job, StatefulSet
from evenkeel.api.workloads import Workload, key_of, kind_of
from evenkeel.errors import EvenkeelError
from evenkeel.journal.records import FILE, NORMAL, WARNING, WORKLOAD, PodRecord, WorkloadRecord
from evenkeel.policy.lifecycle.pod_status import timestamp
from evenkeel.policy.workloads.decide import changed, decide, immutable_change
from evenkeel.policy.workloads.decision import Decision, JobFacts, Progress, Situation
from evenkeel.policy.workloads.pod_facts import PodFacts, pod_facts
from evenkeel.pressure.protocol import PodObserver

log = logging.getLogger(__name__)

# The clock may be set, or the machine may sleep. So a schedule is compared with the clock at least this often.
_CLOCK_SECONDS = 60.0
_CLAIM_SECONDS = 10.0  # after this time, claims that could not be written are tried again


class Workloads(PodObserver):
    def __init__(
        self,
        profile: Profile,
        store: WorkloadStore,
        pod_store: PodStore,
        desired_pods: DesiredPods,
        data: DataStore,
        event_recorder: EventRecorder,
        steps: StepRequests,
        clock: Callable[[], float],
        machine_zone: Callable[[], tzinfo],
    ) -> None:
        self._profile = profile
        self._store = store
        self._pod_store = pod_store
        self._desired_pods = desired_pods
        self._data = data
        self._event_recorder = event_recorder
        self._steps = steps
        self._clock = clock
        self._machine_zone = machine_zone
        self._due = {record.key for record in store}  # to be decided in the next step
        self._wake_at: dict[str, float] = {}  # by key
        self._facts_of: dict[str, tuple[PodRecord, PodFacts]] = {}  # by the UID of the pod
        self._blocked: dict[
            str, str
        ] = {}  # by the key of a pod that has the name: the workload that waits for it

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
            after = self._put(workload, source)
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
            self._put(workload._replace(spec=spec), record.source)  # type: ignore[arg-type]
        return True

    def delete(self, key: str, grace_seconds: float | None = None) -> bool:
        """Deletes an applied workload and its pods; False if there is none."""
        record = self._store.get(key)
        if record is None:
            return False
        _refuse_if_in_file(record)
        with self.all_or_nothing():
            self._remove(record, grace_seconds)
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
                    self._remove(
                        record, None
                    )  # as for a pod of a file: the old one ends, and a new one begins
                self._put(workload, source)
            for record in self._store:
                if record.source.startswith(FILE) and record.key not in in_files:
                    self._remove(record, None)

    # Objects

    def _put(self, workload: Workload, source: str) -> WorkloadRecord:
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
        self._due.add(key)
        self._steps.want_step()
        return record

    def _remove(self, record: WorkloadRecord, grace_seconds: float | None) -> None:
        """Removes a workload with all that belongs to it. No pod of it is made from now on."""
        for job in self._store.of_source(WORKLOAD + record.key):
            self._remove(job, grace_seconds)
        self._record(NORMAL, "Deleted", "it and its pods are to end", record.workload)
        self._store.remove(record.key)
        self._due.discard(record.key)
        self._wake_at.pop(record.key, None)
        for pod in self._pods_of(record):
            if pod.state.deleted_at is None:
                self._desired_pods.delete(pod, grace_seconds)

    def _pods_of(self, record: WorkloadRecord) -> list[PodRecord]:
        source = WORKLOAD + record.key
        return [pod for pod in self._pod_store if pod.source == source]

    def _record(self, type_: str, reason: str, message: str, workload: Workload) -> None:
        self._event_recorder.record(type_, reason, f"{_words(workload)}: {message}")

    # For the pod loop

    @property
    def wake_at(self) -> float | None:
        at = min(self._wake_at.values(), default=None)
        if at is not None and any(key.startswith("CronJob/") for key in self._wake_at):
            return min(at, self._clock() + _CLOCK_SECONDS)
        return at

    def gone(self, record: PodRecord) -> None:
        self._facts_of.pop(record.uid, None)
        self._touch(record)
        if (waiting := self._blocked.pop(record.pod.key, None)) is not None:
            self._due.add(waiting)

    def _touch(self, record: PodRecord) -> None:
        if record.source.startswith(WORKLOAD):
            key = record.source.removeprefix(WORKLOAD)
            if self._store.get(key) is not None:
                self._due.add(key)

    def follow(self, records: Iterable[PodRecord], now: float) -> None:
        """Decides for the workloads of these pods and for those whose time has come, and commits. Raises
        JournalError; everything is then as before, and the same workloads are decided in the next step."""
        for record in records:
            self._touch(record)
        due = self._due | {key for key, at in self._wake_at.items() if at <= now}
        while due:
            self._due = set()
            try:
                with self.all_or_nothing():
                    for key in sorted(due):
                        self._decide(key, now)
            except BaseException:
                self._due |= due
                raise
            due = self._due  # Jobs that a CronJob has made, and a CronJob whose Job has ended

    def _decide(self, key: str, now: float) -> None:
        record = self._store.get(key)
        if record is None:
            return
        pods = {pod.pod.metadata.name: pod for pod in self._pods_of(record) if _is_counted(pod, record)}
        situation = Situation(
            record.workload,
            record.progress,
            tuple(map(self._facts, pods.values())),
            now,
            self._profile,
            self._jobs_of(record),
        )
        decision = decide(situation, self._zone(record.workload))
        if decision.wake_at is None:
            self._wake_at.pop(key, None)
        else:
            self._wake_at[key] = decision.wake_at
        self._store.put(record._replace(workload=decision.workload, progress=decision.progress))
        self._carry_out(record, decision, pods, now)
        if record.source.startswith(WORKLOAD) and decision.progress != record.progress:
            self._due.add(record.source.removeprefix(WORKLOAD))

    def _facts(self, record: PodRecord) -> PodFacts:
        """Computed once for each record: one pod of many has changed."""
        known = self._facts_of.get(record.uid)
        if known is None or known[0] is not record:
            facts = pod_facts(record.pod, record.state, is_admitted=record.is_admitted)
            known = self._facts_of[record.uid] = (record, facts)
        return known[1]

    def _carry_out(
        self, record: WorkloadRecord, decision: Decision, pods: dict[str, PodRecord], now: float
    ) -> None:
        for happening in decision.happenings:
            self._record(*happening, decision.workload)
        for name in decision.delete:
            self._desired_pods.delete(pods[name], None)
        for pod in decision.create:
            if self._pod_store.by_key(pod.key) is None:
                if not self._has_claims(record, pod, now):
                    continue
                self._pod_store.add(pod, WORKLOAD + record.key, now)
                self._steps.want_step(pod.metadata.uid)
                self._steps.room_appeared()
            else:
                self._is_blocked(record, pod.key)
        for job in decision.create_jobs:
            self._put(job, WORKLOAD + record.key)
        for one in self._store.of_source(WORKLOAD + record.key):
            if one.workload.metadata.name in decision.delete_jobs:
                self._remove(one, None)
        if decision.is_over:
            self._remove(record, None)

    def _has_claims(self, record: WorkloadRecord, pod: Pod, now: float) -> bool:
        """Makes the claims of a pod of a StatefulSet. False if they cannot be written now."""
        if isinstance(record.workload, StatefulSet):
            try:
                self._data.ensure(stateful_claims(record.workload, int(pod.metadata.labels[POD_INDEX])))
            except EvenkeelError as error:
                self._record(WARNING, "FailedCreate", f"pod {pod.key}: {error.message}", record.workload)
                self._wake_at[record.key] = now + _CLAIM_SECONDS
                return False
        return True

    def _is_blocked(self, record: WorkloadRecord, key: str) -> None:
        """The name of a new pod is taken. A Job goes on with the next name; other kinds wait for the name."""
        if isinstance(record.workload, Job):
            self._due.add(record.key)
            return
        self._blocked[key] = record.key
        message = f"pod {key} is there already and does not belong to it: delete that pod"
        self._record(WARNING, "FailedCreate", message, record.workload)

    def _zone(self, workload: Workload) -> tzinfo:
        """The time zone of a CronJob. Other kinds need none."""
        if not isinstance(workload, CronJob):
            return UTC
        if not workload.spec.time_zone:
            return self._machine_zone()
        from zoneinfo import ZoneInfo  # late: it takes 0.8 MiB, and only CronJobs need it

        try:
            return ZoneInfo(workload.spec.time_zone)
        except (LookupError, ValueError, OSError):  # the machine's data was removed since
            return UTC

    def _jobs_of(self, record: WorkloadRecord) -> tuple[JobFacts, ...]:
        if not isinstance(record.workload, CronJob):
            return ()
        return tuple(
            JobFacts(one.workload, one.progress.job, one.progress.created_at)
            for one in self._store.of_source(WORKLOAD + record.key)
            if isinstance(one.workload, Job)
        )


def _is_counted(pod: PodRecord, record: WorkloadRecord) -> bool:
    """Whether the pod is of this workload. A pod of a Job that was deleted does not count for the next one of that
    name."""
    owners = pod.pod.metadata.owner_references
    return not isinstance(record.workload, Job) or owners[0].uid == record.workload.metadata.uid


def _words(workload: Workload) -> str:
    return f"{kind_of(workload)} {workload.metadata.namespace}/{workload.metadata.name}"


def _refuse_if_in_file(record: WorkloadRecord) -> None:
    if record.source.startswith(FILE):
        raise EvenkeelError(
            f"{_words(record.workload)} stands in {record.source.removeprefix(FILE)}",
            hint="change it there; it follows the file",
        )


def machine_zone() -> tzinfo:
    """The time zone of this machine, with its rules for summer time; UTC if it cannot be read."""
    from zoneinfo import ZoneInfo  # late: it takes 0.8 MiB, and only CronJobs need it

    try:
        with open("/etc/localtime", "rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError):
        return UTC
