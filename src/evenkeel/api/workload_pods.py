"""The pods of workloads: their names, which stay the same, and how a pod is made from a template.

A name depends on the workload, the place of the pod in it and, for a Deployment, the template. So the same manifest has
the same pods each time, and two workloads with one name and different kinds have different pods.
"""

from collections.abc import Iterator, Mapping

from evenkeel.api.claims import PersistentVolumeClaim, claim_volume
from evenkeel.api.config import Profile
from evenkeel.api.container import Container, EnvVar
from evenkeel.api.defaults import default_pod, stable_uid
from evenkeel.api.pod import NO_LABELS, ObjectMeta, OwnerReference, Pod, PodSpec, PodTemplateSpec
from evenkeel.api.validation.name_rules import dns_label
from evenkeel.api.workload_types import INDEXED, CronJob, DaemonSet, Deployment, Job, StatefulSet
from evenkeel.api.workloads import KINDS, Workload, kind_of, replicas_of, template_of
from evenkeel.named_tuples import NamedTuple

TEMPLATE_HASH = "pod-template-hash"
REVISION = "controller-revision-hash"
POD_NAME = "statefulset.kubernetes.io/pod-name"
POD_INDEX = "apps.kubernetes.io/pod-index"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
# Without letters that make words, as in Kubernetes.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BASE = 57  # with a dash and five more characters it is a host name


class Extras(NamedTuple):
    """The fields that a workload adds to a pod of its template."""

    labels: Mapping[str, str] = NO_LABELS
    annotations: Mapping[str, str] = NO_LABELS
    environment: Mapping[str, str] = NO_LABELS
    hostname: str = ""


def code(text: str, length: int) -> str:
    """A short text that stands for `text`."""
    number = int(stable_uid("", text).replace("-", ""), 16)
    letters = []
    for _ in range(length):
        number, rest = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[rest])
    return "".join(letters)


def template_hash(template: PodTemplateSpec) -> str:
    """The same as long as the template is. Only what differs from a default counts, so a field that a later release
    adds changes no hash."""
    return code(_written(template), 10)


def replica_names(workload: Workload) -> list[str]:
    """The names of the pods of a Deployment, ReplicaSet, ReplicationController or DaemonSet, by slot."""
    kind, name = kind_of(workload), workload.metadata.name
    revision = template_hash(template_of(workload))
    base, places = _cut(name, _LONGEST_BASE), f"{kind}/{name}"
    if isinstance(workload, Deployment):
        base = f"{_cut(name, _LONGEST_BASE - 11)}-{revision}"
    elif isinstance(workload, DaemonSet):
        places = f"{places}/{revision}"
    return [f"{base}-{code(f'{places}/{slot}', 5)}" for slot in range(replicas_of(workload))]


def job_pod_name(job: Job, attempt: int, index: int | None) -> str:
    name = job.metadata.name
    base = _cut(name, _LONGEST_BASE) if index is None else f"{_cut(name, _LONGEST_BASE - 7)}-{index}"
    return f"{base}-{code(f'Job/{name}/{attempt}', 5)}"


def _cut(name: str, length: int) -> str:
    """`name` as the beginning of a longer name."""
    return name[:length].rstrip("-.")


def make_pod(
    workload: Workload, template: PodTemplateSpec, name: str, profile: Profile, extras: Extras
) -> Pod:
    """A pod of `template`, with its defaults, that belongs to `workload`."""
    kind, owner = kind_of(workload), workload.metadata
    reference = OwnerReference(
        KINDS[kind].api_version, kind, owner.name, owner.uid, controller=True, block_owner_deletion=True
    )
    metadata = ObjectMeta(
        name=name,
        namespace=owner.namespace,
        uid=stable_uid(owner.namespace, name),
        labels={**template.metadata.labels, **extras.labels},
        annotations={**template.metadata.annotations, **extras.annotations},
        owner_references=(reference,),
    )
    spec = template.spec
    if extras.hostname and not spec.hostname:
        spec = spec._replace(hostname=extras.hostname)
    if extras.environment:
        spec = spec._replace(
            containers=tuple(_with_environment(one, extras.environment) for one in spec.containers),
            init_containers=tuple(_with_environment(one, extras.environment) for one in spec.init_containers),
        )
    return default_pod(Pod(metadata, spec), profile)


def _with_environment(container: Container, more: Mapping[str, str]) -> Container:
    names = {variable.name for variable in container.env}
    added = tuple(EnvVar(name=name, value=value) for name, value in more.items() if name not in names)
    return container._replace(env=(*container.env, *added))


def replica(workload: Workload, name: str, profile: Profile) -> Pod:
    """The pod with this name, which is one of `replica_names`."""
    template = template_of(workload)
    label = TEMPLATE_HASH if isinstance(workload, Deployment) else REVISION
    return make_pod(workload, template, name, profile, Extras({label: template_hash(template)}))


def stateful_pod(workload: StatefulSet, template: PodTemplateSpec, ordinal: int, profile: Profile) -> Pod:
    name = f"{workload.metadata.name}-{ordinal}"
    labels = {POD_NAME: name, POD_INDEX: str(ordinal), REVISION: template_hash(template)}
    spec = with_claims(template.spec, workload, ordinal)
    if not spec.subdomain and not dns_label(workload.spec.service_name):  # Kubernetes takes any text there
        spec = spec._replace(subdomain=workload.spec.service_name)
    return make_pod(workload, template._replace(spec=spec), name, profile, Extras(labels, hostname=name))


def stateful_claims(workload: StatefulSet, ordinal: int) -> Iterator[PersistentVolumeClaim]:
    """The claims of the pod with this ordinal. They stay when the pod is removed, and the next pod of its name uses
    them."""
    for template in workload.spec.volume_claim_templates:
        metadata = ObjectMeta(
            name=_claim_name(template, workload, ordinal),
            namespace=workload.metadata.namespace,
            labels={**template.metadata.labels, **_selected(workload)},
            annotations=template.metadata.annotations,
        )
        yield PersistentVolumeClaim(metadata, template.spec)


def with_claims(spec: PodSpec, workload: StatefulSet, ordinal: int) -> PodSpec:
    """The pod's spec with a volume for each claim template. It replaces a volume of the same name."""
    templates = workload.spec.volume_claim_templates
    if not templates:
        return spec
    names = {template.metadata.name for template in templates}
    own = tuple(
        claim_volume(template.metadata.name, _claim_name(template, workload, ordinal))
        for template in templates
    )
    return spec._replace(volumes=(*(one for one in spec.volumes if one.name not in names), *own))


def _claim_name(template: PersistentVolumeClaim, workload: StatefulSet, ordinal: int) -> str:
    return f"{template.metadata.name}-{workload.metadata.name}-{ordinal}"


def _selected(workload: StatefulSet) -> Mapping[str, str]:
    selector = workload.spec.selector
    return selector.match_labels if selector is not None else NO_LABELS


def job_pod(job: Job, attempt: int, index: int | None, profile: Profile) -> Pod:
    owner = job.metadata
    labels = {
        "batch.kubernetes.io/controller-uid": owner.uid,
        "batch.kubernetes.io/job-name": owner.name,
        "controller-uid": owner.uid,
        "job-name": owner.name,
    }
    extras = Extras(labels)
    if index is not None:
        number = {COMPLETION_INDEX: str(index)}
        hostname = f"{_cut(owner.name, _LONGEST_BASE - 7)}-{index}"
        extras = Extras({**labels, **number}, number, {"JOB_COMPLETION_INDEX": str(index)}, hostname)
    return make_pod(job, job.spec.template, job_pod_name(job, attempt, index), profile, extras)


def job_of(cron_job: CronJob, name: str) -> Job:
    """A Job of the CronJob's template. It has no UID yet."""
    template, owner = cron_job.spec.job_template, cron_job.metadata
    reference = OwnerReference(
        KINDS["CronJob"].api_version,
        "CronJob",
        owner.name,
        owner.uid,
        controller=True,
        block_owner_deletion=True,
    )
    metadata = ObjectMeta(
        name=name,
        namespace=owner.namespace,
        labels=template.metadata.labels,
        annotations=template.metadata.annotations,
        owner_references=(reference,),
    )
    return Job(metadata, template.spec)


def pods_when_well(workload: Workload, profile: Profile) -> Iterator[Pod]:
    """The pods that the workload has when all of them run. `explain` and other commands compute with these. A CronJob
    counts as one run of its Job."""
    if isinstance(workload, CronJob):
        yield from pods_when_well(job_of(workload, workload.metadata.name), profile)
        return
    if not isinstance(workload, StatefulSet | Job):
        yield from (replica(workload, name, profile) for name in replica_names(workload))
        return
    for slot in range(replicas_of(workload)):
        if isinstance(workload, StatefulSet):
            ordinal = workload.spec.ordinals.start + slot
            yield stateful_pod(workload, workload.spec.template, ordinal, profile)
        else:
            index = slot if workload.spec.completion_mode == INDEXED else None
            yield job_pod(workload, slot, index, profile)


def fixed_names(workload: Workload) -> Iterator[str]:
    """The names of its pods that another object in a manifest could have: those with an ordinal and no code."""
    if isinstance(workload, StatefulSet):
        start = workload.spec.ordinals.start
        yield from (f"{workload.metadata.name}-{start + place}" for place in range(replicas_of(workload)))


def _written(value: object) -> str:
    fields: tuple[str, ...] | None = getattr(value, "_fields", None)
    if fields is not None:
        defaults: Mapping[str, object] = getattr(value, "_field_defaults", {})
        pairs = ((name, getattr(value, name)) for name in fields)
        return "{" + ",".join(f"{n}:{_written(v)}" for n, v in pairs if v != defaults.get(n, ...)) + "}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key!r}:{_written(item)}" for key, item in sorted(value.items())) + "}"
    if isinstance(value, tuple | list):
        return "[" + ",".join(map(_written, value)) + "]"
    return f"{value!s}" if not isinstance(value, str) else repr(str(value))
