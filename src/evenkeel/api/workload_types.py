"""The types of workloads: Deployment, ReplicaSet, DaemonSet, StatefulSet, Job and CronJob, with all their parts.

Each kind has a type of its own, named as the kind. It is decoded, written to the journal and shown like a pod.
"""

from collections.abc import Mapping

from evenkeel.api.claims import PersistentVolumeClaim
from evenkeel.api.pod import NO_LABELS, ObjectMeta, PodTemplateSpec
from evenkeel.api.scalars import Int32
from evenkeel.named_tuples import NamedTuple

RECREATE, ROLLING_UPDATE, ON_DELETE = "Recreate", "RollingUpdate", "OnDelete"
ORDERED_READY, PARALLEL = "OrderedReady", "Parallel"
NON_INDEXED, INDEXED = "NonIndexed", "Indexed"
ALLOW, FORBID, REPLACE = "Allow", "Forbid", "Replace"
FAIL_JOB, FAIL_INDEX, IGNORE, COUNT = "FailJob", "FailIndex", "Ignore", "Count"
MAX_REPLICAS, MAX_COMPLETIONS, MAX_INDEXES = 1000, 100_000, 10_000


class LabelSelectorRequirement(NamedTuple):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class LabelSelector(NamedTuple):
    match_labels: Mapping[str, str] = NO_LABELS
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            _holds(one, labels) for one in self.match_expressions
        )


def _holds(one: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    if one.operator == "Exists":
        return one.key in labels
    if one.operator == "DoesNotExist":
        return one.key not in labels
    return (labels.get(one.key) in one.values) == (one.operator == "In")


class Condition(NamedTuple):
    """A condition of any workload."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_update_time: str | None = None
    last_probe_time: str | None = None


# Deployment


class RollingUpdateDeployment(NamedTuple):
    max_unavailable: int | str | None = None
    max_surge: int | str | None = None


class DeploymentStrategy(NamedTuple):
    type: str = ""
    rolling_update: RollingUpdateDeployment | None = None


class DeploymentSpec(NamedTuple):
    replicas: Int32 | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: Int32 = 0
    revision_history_limit: Int32 | None = None
    paused: bool = False
    progress_deadline_seconds: Int32 | None = None


class DeploymentStatus(NamedTuple):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    terminating_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class Deployment(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


# ReplicaSet and ReplicationController


class ReplicaSetSpec(NamedTuple):
    replicas: Int32 | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    min_ready_seconds: Int32 = 0


class ReplicaSetStatus(NamedTuple):
    observed_generation: int = 0
    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    conditions: tuple[Condition, ...] = ()

    @property
    def always_there(self) -> tuple[str, ...]:
        return ("replicas",)


class ReplicaSet(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class ReplicationControllerSpec(NamedTuple):
    replicas: Int32 | None = None
    selector: Mapping[str, str] = NO_LABELS
    template: PodTemplateSpec = PodTemplateSpec()
    min_ready_seconds: Int32 = 0


class ReplicationController(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicationControllerSpec = ReplicationControllerSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


# DaemonSet


class RollingUpdateDaemonSet(NamedTuple):
    max_unavailable: int | str | None = None
    max_surge: int | str | None = None


class DaemonSetUpdateStrategy(NamedTuple):
    type: str = ""
    rolling_update: RollingUpdateDaemonSet | None = None


class DaemonSetSpec(NamedTuple):
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    update_strategy: DaemonSetUpdateStrategy = DaemonSetUpdateStrategy()
    min_ready_seconds: Int32 = 0
    revision_history_limit: Int32 | None = None


class DaemonSetStatus(NamedTuple):
    observed_generation: int = 0
    desired_number_scheduled: int = 0
    current_number_scheduled: int = 0
    number_misscheduled: int = 0
    updated_number_scheduled: int = 0
    number_ready: int = 0
    number_available: int = 0
    number_unavailable: int = 0
    conditions: tuple[Condition, ...] = ()


class DaemonSet(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


# StatefulSet


class RollingUpdateStatefulSetStrategy(NamedTuple):
    partition: Int32 = 0


class StatefulSetUpdateStrategy(NamedTuple):
    type: str = ""
    rolling_update: RollingUpdateStatefulSetStrategy | None = None


class StatefulSetOrdinals(NamedTuple):
    start: Int32 = 0


class StatefulSetPersistentVolumeClaimRetentionPolicy(NamedTuple):
    when_deleted: str = ""
    when_scaled: str = ""


class StatefulSetSpec(NamedTuple):
    replicas: Int32 | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()
    service_name: str = ""
    volume_claim_templates: tuple[PersistentVolumeClaim, ...] = ()
    pod_management_policy: str = ""
    update_strategy: StatefulSetUpdateStrategy = StatefulSetUpdateStrategy()
    min_ready_seconds: Int32 = 0
    revision_history_limit: Int32 | None = None
    ordinals: StatefulSetOrdinals = StatefulSetOrdinals()
    persistent_volume_claim_retention_policy: StatefulSetPersistentVolumeClaimRetentionPolicy | None = None


class StatefulSetStatus(NamedTuple):
    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    current_replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    conditions: tuple[Condition, ...] = ()

    @property
    def always_there(self) -> tuple[str, ...]:
        return ("replicas", "available_replicas")


class StatefulSet(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


# Job


class PodFailurePolicyOnExitCodesRequirement(NamedTuple):
    container_name: str = ""
    operator: str = ""
    values: tuple[Int32, ...] = ()


class PodFailurePolicyOnPodConditionsPattern(NamedTuple):
    type: str = ""
    status: str = ""


class PodFailurePolicyRule(NamedTuple):
    action: str = ""
    on_exit_codes: PodFailurePolicyOnExitCodesRequirement | None = None
    on_pod_conditions: tuple[PodFailurePolicyOnPodConditionsPattern, ...] = ()


class PodFailurePolicy(NamedTuple):
    rules: tuple[PodFailurePolicyRule, ...] = ()


class SuccessPolicyRule(NamedTuple):
    succeeded_indexes: str | None = None
    succeeded_count: Int32 | None = None


class SuccessPolicy(NamedTuple):
    rules: tuple[SuccessPolicyRule, ...] = ()


class JobSpec(NamedTuple):
    parallelism: Int32 | None = None
    completions: Int32 | None = None
    completion_mode: str = ""
    active_deadline_seconds: int | None = None
    backoff_limit: Int32 | None = None
    backoff_limit_per_index: Int32 | None = None
    max_failed_indexes: Int32 | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    pod_replacement_policy: str = ""
    success_policy: SuccessPolicy | None = None
    selector: LabelSelector | None = None
    manual_selector: bool = False
    managed_by: str = ""
    template: PodTemplateSpec = PodTemplateSpec()
    ttl_seconds_after_finished: Int32 | None = None
    suspend: bool = False


class JobStatus(NamedTuple):
    start_time: str | None = None
    completion_time: str | None = None
    active: int = 0
    ready: int = 0
    terminating: int = 0
    succeeded: int = 0
    failed: int = 0
    completed_indexes: str = ""
    failed_indexes: str = ""
    conditions: tuple[Condition, ...] = ()


class Job(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


# CronJob


class JobTemplateSpec(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()


class CronJobSpec(NamedTuple):
    schedule: str = ""
    time_zone: str | None = None
    starting_deadline_seconds: int | None = None
    concurrency_policy: str = ""
    suspend: bool = False
    job_template: JobTemplateSpec = JobTemplateSpec()
    successful_jobs_history_limit: Int32 | None = None
    failed_jobs_history_limit: Int32 | None = None


class ObjectReference(NamedTuple):
    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class CronJobStatus(NamedTuple):
    active: tuple[ObjectReference, ...] = ()
    last_schedule_time: str | None = None
    last_successful_time: str | None = None


class CronJob(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    spec: CronJobSpec = CronJobSpec()
    status: CronJobStatus = CronJobStatus()
