"""The controller of workloads: keeps the pods of Deployments, Jobs and other kinds as `policy.workloads` decides.

The pod loop calls `follow` in each step, after it has decided for pods. A decision is committed as a whole (the
workload's progress, new pods, pods that end), and the next steps act on it. `wake_at` is the time of the next decision
that is due without a change of a pod."""

from collections.abc import Callable, Iterable
from datetime import UTC, tzinfo

from evenkeel.agent.data_store import DataStore
from evenkeel.agent.desired_pods import DesiredPods
from evenkeel.agent.desired_workloads import DesiredWorkloads, WorkloadStore
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.step_requests import StepRequests
from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod
from evenkeel.api.workload_pods import POD_INDEX, stateful_claims
from evenkeel.api.workload_types import CronJob, Job, StatefulSet
from evenkeel.api.workloads import Workload
from evenkeel.errors import EvenkeelError
from evenkeel.journal.records import WARNING, WORKLOAD, PodRecord, WorkloadRecord
from evenkeel.policy.workloads.decide import decide
from evenkeel.policy.workloads.decision import Decision, JobFacts, PodFacts, Situation, clock_moved, pod_facts
from evenkeel.pressure.protocol import PodObserver

# The clock may be set, or the machine may sleep. So a schedule is compared with the clock at least this often.
_CLOCK_SECONDS = 60.0
_CLAIM_SECONDS = 10.0  # after this time, claims that could not be written are tried again


class WorkloadController(PodObserver):
    def __init__(
        self,
        profile: Profile,
        store: WorkloadStore,
        desired: DesiredWorkloads,
        pod_store: PodStore,
        desired_pods: DesiredPods,
        data: DataStore,
        steps: StepRequests,
        clock: Callable[[], float],
        machine_zone: Callable[[], tzinfo],
    ) -> None:
        self._profile = profile
        self._store = store
        self._desired = desired
        self._pod_store = pod_store
        self._desired_pods = desired_pods
        self._data = data
        self._steps = steps
        self._clock = clock
        self._machine_zone = machine_zone
        self._wake_at: dict[str, float] = {}  # by key
        self._facts_of: dict[str, tuple[PodRecord, PodFacts]] = {}  # by the UID of the pod
        self._moved_seconds = 0.0  # by which the clock was set, and progress was not moved yet
        self._blocked: dict[str, str] = {}  # by the key of a pod: the workload that waits for its name

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
            self._desired.due(waiting)

    def _touch(self, record: PodRecord) -> None:
        if record.source.startswith(WORKLOAD):
            key = record.source.removeprefix(WORKLOAD)
            if self._store.get(key) is not None:
                self._desired.due(key)

    def follow(self, records: Iterable[PodRecord], now: float) -> None:
        """Decides for the workloads of these pods and for those whose time has come, and commits. Raises
        JournalError; everything is then as before, and the same workloads are decided in the next step."""
        self._follow_clock()
        for record in records:
            self._touch(record)
        due = self._desired.take_due() | {key for key, at in self._wake_at.items() if at <= now}
        while due:
            try:
                with self._desired.all_or_nothing():
                    for key in sorted(due):
                        self._decide(key, now)
            except BaseException:
                for key in due:
                    self._desired.due(key)
                raise
            due = self._desired.take_due()  # Jobs that a CronJob has made, and a CronJob whose Job has ended

    def clock_moved(self, seconds: float) -> None:
        """The machine's clock was set forward by this many seconds, or back. The next `follow` moves the times."""
        self._moved_seconds += seconds

    def _follow_clock(self) -> None:
        if not self._moved_seconds:
            return
        with self._desired.all_or_nothing():
            for record in self._store:
                progress = clock_moved(record.progress, self._moved_seconds)
                self._store.put(record._replace(progress=progress))
        self._moved_seconds = 0.0
        for record in self._store:
            self._desired.due(record.key)

    def _decide(self, key: str, now: float) -> None:
        record = self._store.get(key)
        if record is None:
            self._wake_at.pop(key, None)  # it was removed
            return
        pods = {
            pod.pod.metadata.name: pod for pod in self._desired.pods_of(record) if _is_counted(pod, record)
        }
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
            self._desired.due(record.source.removeprefix(WORKLOAD))

    def _facts(self, record: PodRecord) -> PodFacts:
        """Computed once for each record, because most pods have not changed since the last step."""
        known = self._facts_of.get(record.uid)
        if known is None or known[0] is not record:
            facts = pod_facts(record.pod, record.state, is_admitted=record.is_admitted)
            known = self._facts_of[record.uid] = (record, facts)
        return known[1]

    def _carry_out(
        self, record: WorkloadRecord, decision: Decision, pods: dict[str, PodRecord], now: float
    ) -> None:
        for event in decision.events:
            self._desired.record(*event, decision.workload)
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
            self._desired.put(job, WORKLOAD + record.key)
        for one in self._store.of_source(WORKLOAD + record.key):
            if one.workload.metadata.name in decision.delete_jobs:
                self._desired.remove(one, None)
        if decision.is_over:
            self._desired.remove(record, None)

    def _has_claims(self, record: WorkloadRecord, pod: Pod, now: float) -> bool:
        """Makes the claims of a pod of a StatefulSet. False if they cannot be written now."""
        if isinstance(record.workload, StatefulSet):
            try:
                self._data.ensure(stateful_claims(record.workload, int(pod.metadata.labels[POD_INDEX])))
            except EvenkeelError as error:
                self._desired.record(
                    WARNING, "FailedCreate", f"pod {pod.key}: {error.message}", record.workload
                )
                self._wake_at[record.key] = now + _CLAIM_SECONDS
                return False
        return True

    def _is_blocked(self, record: WorkloadRecord, key: str) -> None:
        """The name of a new pod is taken. A Job goes on with the next name; other kinds wait for the name."""
        if isinstance(record.workload, Job):
            self._desired.due(record.key)
            return
        self._blocked[key] = record.key
        message = f"pod {key} is there already and does not belong to it: delete that pod"
        self._desired.record(WARNING, "FailedCreate", message, record.workload)

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
    """Whether the pod belongs to this workload. A pod of a Job that was deleted does not count for the next one of that
    name."""
    owners = pod.pod.metadata.owner_references
    return not isinstance(record.workload, Job) or owners[0].uid == record.workload.metadata.uid


def machine_zone() -> tzinfo:
    """The time zone of this machine, with its rules for summer time; UTC if it cannot be read."""
    from zoneinfo import ZoneInfo  # late: it takes 0.8 MiB, and only CronJobs need it

    try:
        with open("/etc/localtime", "rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError):
        return UTC
