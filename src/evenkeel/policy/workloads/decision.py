"""The input of a decision about a workload (the facts about its pods, and its progress), and its result.

`Progress` has the facts that the present pods do not show: how many pods of a Job have succeeded, and when a CronJob
ran last. It is written to the journal together with the pods that a decision adds, so that nothing is counted or run
twice after a crash."""

from collections.abc import Mapping
from types import MappingProxyType

from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod, PodTemplateSpec
from evenkeel.api.workload_types import Condition, Job
from evenkeel.api.workloads import Workload
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.lifecycle.pod_state import PodState
from evenkeel.policy.lifecycle.pod_status import PENDING, RUNNING, pod_phase, timestamp
from evenkeel.policy.lifecycle.restarts import FAILED, SUCCEEDED

NORMAL, WARNING = "Normal", "Warning"


class PodFacts(NamedTuple):
    """A pod of a workload. A pod that the node has not admitted is Pending, also while it is refused for lack of
    room: it is tried again when room appears."""

    pod: Pod
    phase: str = PENDING
    is_deleting: bool = False
    is_refused: bool = False  # there was no room for it
    is_ready: bool = False
    ready_since: float = 0.0
    ended_at: float = 0.0
    is_disruption: bool = False  # the node ended it to protect itself: an eviction
    exit_codes: Mapping[str, int] = {}
    restarts: int = 0

    @property
    def name(self) -> str:
        return self.pod.metadata.name

    @property
    def has_ended(self) -> bool:
        return self.phase in (SUCCEEDED, FAILED)

    def is_available(self, min_ready_seconds: float, now: float) -> bool:
        return not self.is_deleting and self.is_ready and self.ready_since + min_ready_seconds <= now


def pod_facts(pod: Pod, state: PodState, *, is_admitted: bool) -> PodFacts:
    is_deleting = state.deleted_at is not None
    if not is_admitted:
        return PodFacts(pod, PENDING, is_deleting, is_refused=state.verdict is not None)
    phase = pod_phase(pod, state)
    counted = [
        state.container(each.name)
        for each in pod.spec.every_container
        if each in pod.spec.containers or each.is_sidecar
    ]
    records = [state.container(each.name) for each in pod.spec.every_container]
    ends = {
        each.name: end
        for each in pod.spec.every_container
        if (end := state.container(each.name).ended) is not None
    }
    last_end = max((end.finished_at for end in ends.values()), default=0.0)
    return PodFacts(
        pod,
        phase,
        is_deleting,
        is_ready=phase == RUNNING and all(one.is_running and one.is_ready for one in counted),
        ready_since=max((one.ready_changed_at for one in counted), default=0.0),
        ended_at=max(last_end, state.verdict.at if state.verdict is not None else 0.0),
        is_disruption=state.verdict is not None and state.verdict.is_disruption,
        exit_codes={name: end.exit_code for name, end in ends.items()},
        restarts=sum(max(one.attempt - 1, 0) for one in records),
    )


class RollProgress(NamedTuple):
    """The progress of a Deployment: when its rollout last came forward."""

    at: float = 0.0
    updated: int = 0
    available: int = 0
    revision: str = ""


class JobProgress(NamedTuple):
    started_at: float = 0.0  # 0: not started, or suspended
    finished_at: float = 0.0
    outcome: str = ""  # Complete or Failed, once it is over
    reason: str = ""
    message: str = ""
    is_failing: bool = False  # it has failed, and its last pods are being ended
    is_succeeding: bool = False  # a rule of successPolicy is met, and its last pods are being ended
    attempts: int = 0  # pods made so far; numbers their names
    succeeded: int = 0
    failed: int = 0
    completed_indexes: str = ""  # such as 0-2,5: a list of all would be long
    failed_indexes: str = ""
    failures_of: Mapping[str, int] = MappingProxyType({})  # by index, where each has a back-off of its own
    failed_at: Mapping[str, float] = MappingProxyType({})  # the last failure; "" without indexes
    failures_in_a_row: int = 0
    disruptions_in_a_row: int = 0
    disrupted_at: float = 0.0
    counted: tuple[str, ...] = ()  # names of ended pods that are counted already and still there

    @property
    def is_ending(self) -> bool:
        return self.is_failing or self.is_succeeding


class CronProgress(NamedTuple):
    last_schedule_at: float = 0.0
    last_success_at: float = 0.0
    blocked_at: float = 0.0  # the time that waits because a Job still runs


class Progress(NamedTuple):
    created_at: float = 0.0
    conditions: tuple[Condition, ...] = ()
    roll: RollProgress = RollProgress()
    stable: PodTemplateSpec | None = None  # of a StatefulSet: the template before the present update
    job: JobProgress = JobProgress()
    cron: CronProgress = CronProgress()


class JobFacts(NamedTuple):
    """A Job of a CronJob."""

    job: Job
    progress: JobProgress
    created_at: float


class Situation(NamedTuple):
    """Everything that a decision is a function of."""

    workload: Workload
    progress: Progress
    pods: tuple[PodFacts, ...]
    now: float
    profile: Profile
    jobs: tuple[JobFacts, ...] = ()


class WorkloadEvent(NamedTuple):
    type: str
    reason: str
    message: str


class Decision(NamedTuple):
    """`workload` has its new status. `delete` and `delete_jobs` are names."""

    workload: Workload
    progress: Progress
    create: tuple[Pod, ...] = ()
    delete: tuple[str, ...] = ()
    create_jobs: tuple[Job, ...] = ()
    delete_jobs: tuple[str, ...] = ()
    is_over: bool = False  # the workload itself is to be deleted, with its pods
    wake_at: float | None = None
    events: tuple[WorkloadEvent, ...] = ()


def clock_moved(progress: Progress, seconds: float) -> Progress:
    """The machine's clock was set forward by this many seconds, or back: back-offs and deadlines are as far away as
    before. Schedules go by the clock, so those of a CronJob stay."""

    def moved(at: float) -> float:
        return at + seconds if at else 0.0

    job = progress.job
    return progress._replace(
        roll=progress.roll._replace(at=moved(progress.roll.at)),
        job=job._replace(
            started_at=moved(job.started_at),
            finished_at=moved(job.finished_at),
            failed_at={place: moved(at) for place, at in job.failed_at.items()},
            disrupted_at=moved(job.disrupted_at),
        ),
    )


def condition(
    before: tuple[Condition, ...], kind: str, *, is_true: bool, reason: str, message: str, now: float
) -> Condition:
    """The condition as it is now. It keeps its times if it has not changed."""
    status = "True" if is_true else "False"
    known = next((one for one in before if one.type == kind), None)
    if known is not None and (known.status, known.reason, known.message) == (status, reason, message):
        return known
    since = known.last_transition_time if known is not None and known.status == status else timestamp(now)
    return Condition(kind, status, reason, message, since, timestamp(now))


def earliest(times: "list[float] | tuple[float, ...]", now: float) -> float | None:
    """The first of `times` that is still to come."""
    return min((at for at in times if at > now), default=None)
