"""Workloads: the objects that make pods from a template, such as Deployment and Job.

`KINDS` has every kind with its names. The functions ask any workload for its key, its pod template or its number of
pods. The types themselves are in `workload_types`.
"""

from collections.abc import Mapping

from evenkeel.api.encode import encode
from evenkeel.api.pod import PodTemplateSpec
from evenkeel.api.workload_types import (
    CronJob,
    DaemonSet,
    Deployment,
    Job,
    ReplicaSet,
    ReplicationController,
    StatefulSet,
)
from evenkeel.named_tuples import NamedTuple

Workload = Deployment | ReplicaSet | ReplicationController | DaemonSet | StatefulSet | Job | CronJob


class Kind(NamedTuple):
    """The names of a kind for clients, and the place of its objects in the HTTP interface."""

    type: type[Workload]
    group: str  # empty for the core group
    plural: str
    short: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"


KINDS: Mapping[str, Kind] = {
    "Deployment": Kind(Deployment, "apps", "deployments", "deploy"),
    "ReplicaSet": Kind(ReplicaSet, "apps", "replicasets", "rs"),
    "ReplicationController": Kind(ReplicationController, "", "replicationcontrollers", "rc"),
    "DaemonSet": Kind(DaemonSet, "apps", "daemonsets", "ds"),
    "StatefulSet": Kind(StatefulSet, "apps", "statefulsets", "sts"),
    "Job": Kind(Job, "batch", "jobs", "job"),
    "CronJob": Kind(CronJob, "batch", "cronjobs", "cj"),
}


def workload_object(workload: Workload) -> dict[str, object]:
    """The workload as Kubernetes writes it."""
    kind = kind_of(workload)
    fields = encode(workload)
    assert isinstance(fields, dict)
    return {"apiVersion": KINDS[kind].api_version, "kind": kind, "spec": {}, "status": {}, **fields}


def kind_of(workload: Workload) -> str:
    return type(workload).__name__


def workload_key(kind: str, namespace: str, name: str) -> str:
    """Identifies a workload. Two workloads of different kinds may have the same name."""
    return f"{kind}/{namespace}/{name}"


def key_of(workload: Workload) -> str:
    return workload_key(kind_of(workload), workload.metadata.namespace, workload.metadata.name)


def template_of(workload: Workload) -> PodTemplateSpec:
    if isinstance(workload, CronJob):
        return workload.spec.job_template.spec.template
    return workload.spec.template


def with_template(workload: Workload, template: PodTemplateSpec) -> Workload:
    if isinstance(workload, CronJob):
        inner = workload.spec.job_template
        inner = inner._replace(spec=inner.spec._replace(template=template))
        return workload._replace(spec=workload.spec._replace(job_template=inner))
    return workload._replace(spec=workload.spec._replace(template=template))  # type: ignore[arg-type]


def replicas_of(workload: Workload) -> int:
    """The desired number of pods at a time. It is also 0 for a CronJob: its Jobs have the pods."""
    if isinstance(workload, CronJob):
        return 0
    if isinstance(workload, Job):
        parallelism = 1 if workload.spec.parallelism is None else workload.spec.parallelism
        return (
            parallelism if workload.spec.completions is None else min(parallelism, workload.spec.completions)
        )
    if isinstance(workload, DaemonSet):
        return 1
    return 1 if workload.spec.replicas is None else workload.spec.replicas
