"""The result of reading manifests: pods, workloads, objects and nodes with their source and line, and all problems.
Also decides by its kind whether an object is read.

An object is read, ignored with a note, or refused. A kind that only concerns a cluster (accounts, roles, autoscalers)
does not change pods, so it is ignored. A kind without which pods would be less restricted, or have other data or
priorities than they should, is refused."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from evenkeel.api.config import Profile
from evenkeel.api.decode import Findings
from evenkeel.api.node import Node
from evenkeel.api.pod import Pod
from evenkeel.api.problems import join
from evenkeel.errors import InvalidInput, Problem
from evenkeel.named_tuples import NamedTuple

if TYPE_CHECKING:
    from evenkeel.api.stored_objects import StoredObject
    from evenkeel.api.workloads import Workload

# Each kind with the path of its pod template.
TEMPLATES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("Deployment", "ReplicaSet", "StatefulSet", "ReplicationController", "DaemonSet", "Job"),
        ("spec", "template"),
    ),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "PodTemplate": ("template",),
}
STORED = ("ConfigMap", "Secret", "Service", "PersistentVolumeClaim")
LISTS = {"List", *(f"{kind}List" for kind in ("Pod", "Node", *STORED, *TEMPLATES))}
_READ = {"Pod", "Node", *STORED, *TEMPLATES, *LISTS}
# Other kinds of the groups that are read here. A kind that is in neither set is a typing error.
_PASSED_OVER = {
    "Binding", "ControllerRevision", "Endpoints", "Event", "HorizontalPodAutoscaler", "Ingress", "Namespace",
    "PodDisruptionBudget", "Role", "RoleBinding", "RuntimeClass", "ServiceAccount", "StorageClass",
}  # fmt: skip
REFUSED = {
    "NetworkPolicy": "nothing on this node keeps pods from reaching each other; take it out if you do not rely on it",
    "LimitRange": "write the requests and limits into the pods, and take it out",
    "ResourceQuota": "pods share what the node allocates, whatever their namespace; take it out",
    "PersistentVolume": "a claim gets a directory of its own; take it out, and write hostPath in the pods for a "
    "directory of this machine",
    "PriorityClass": "write its value as priority into the pods, and take it out",
    "Kustomization": "its changes would be missing; take it out, and hand in what kubectl kustomize prints",
    "PodSecurityPolicy": "nothing on this node checks pods by it; take it out if you do not rely on it",
}
_GROUPS = {"", "apps", "batch"}


class WrittenWorkload(NamedTuple):
    workload: "Workload"
    origin: Problem  # its source and line
    place: int  # how many pods were written before it


class Reading(NamedTuple):
    """The content of a text. `problems` are errors; `warnings` say what will not be as written. `origins` has the
    source and line of each of `pods`. The pods of workloads are not among `pods`."""

    pods: tuple[Pod, ...]
    origins: tuple[Problem, ...]
    nodes: tuple[Node, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    objects: tuple["StoredObject", ...] = ()  # ConfigMaps, Secrets, Services and claims
    object_origins: tuple[Problem, ...] = ()
    workloads: tuple[WrittenWorkload, ...] = ()

    def __add__(self, other: object) -> "Reading":
        if not isinstance(other, Reading):
            return NotImplemented
        before = len(self.pods)
        return Reading(
            self.pods + other.pods,
            self.origins + other.origins,
            self.nodes + other.nodes,
            self.problems + other.problems,
            self.warnings + other.warnings,
            self.objects + other.objects,
            self.object_origins + other.object_origins,
            self.workloads + tuple(one._replace(place=one.place + before) for one in other.workloads),
        )

    def with_every_pod(self, profile: Profile) -> "Reading":
        """The reading with the pods of its workloads, as when all of them run, in the order of the text. For commands
        that compute with pods and do not run them."""
        if not self.workloads:
            return self
        from evenkeel.api.workload_pods import pods_when_well

        pods, origins, start = [], [], 0
        for workload, origin, place in self.workloads:
            made = tuple(pods_when_well(workload, profile))
            pods += [*self.pods[start:place], *made]
            origins += [*self.origins[start:place], *(origin for _ in made)]
            start = place
        pods += self.pods[start:]
        origins += self.origins[start:]
        return self._replace(pods=tuple(pods), origins=tuple(origins), workloads=())

    def without_duplicates(self) -> "Reading":
        """The reading with a problem for each pod, workload or object that has the name (or UID) of another."""
        seen: dict[str, Problem] = {}
        found: list[Problem] = []
        for fields, origin in self._identities():
            for field, value in fields:
                first = seen.setdefault(f"{field} {value}", origin)
                if first is not origin:
                    message = (
                        f"{value} stands twice, first at {first.source}:{first.line}: give one another name"
                    )
                    found.append(origin._replace(field=field, message=message, kind="FieldValueDuplicate"))
                    break
        for one, origin in zip(self.objects, self.object_origins, strict=True):
            from evenkeel.api.stored_objects import key_of_object

            key = key_of_object(one)
            first = seen.setdefault(str(key), origin)
            if first is not origin:
                message = f"{key} stands twice, first at {first.source}:{first.line}: give one another name"
                found.append(
                    origin._replace(field="metadata.name", message=message, kind="FieldValueDuplicate")
                )
        return self._replace(problems=(*self.problems, *found))

    def _identities(self) -> Iterator[tuple[list[tuple[str, str]], Problem]]:
        """The fields by which each pod and each workload is known, and its origin."""
        for workload, origin, _ in self.workloads:
            from evenkeel.api.workload_pods import fixed_names
            from evenkeel.api.workloads import key_of

            namespace = workload.metadata.namespace
            names = [key_of(workload), *(f"{namespace}/{name}" for name in fixed_names(workload))]
            yield [("metadata.name", name) for name in names], origin
        for pod, origin in zip(self.pods, self.origins, strict=True):
            yield [("metadata.name", pod.key), ("metadata.uid", pod.metadata.uid)], origin

    def or_raise(self) -> "Reading":
        """The reading itself; raises `InvalidInput` if it has problems."""
        if self.problems:
            raise InvalidInput(self.problems)
        return self


NOTHING_READ = Reading((), (), (), (), ())


# Files without apiVersion and kind that stand beside manifests, each with a word that only it has.
_OTHERS = {
    "it is a kustomization; hand in what `kubectl kustomize DIRECTORY` prints": (
        "resources", "bases", "patches", "patchesStrategicMerge", "configMapGenerator", "secretGenerator", "namePrefix",
        "components", "kustomize",
    ),
    "it is a file of Docker Compose; hand in what `kompose convert` makes of it": ("services",),
}  # fmt: skip
_CHART = "it describes a chart of Helm; hand in what `helm template CHART` prints"


def _of_another_program(value: Mapping[str, object]) -> str:
    """What the file is, if it is one that often stands beside manifests; empty if it may be meant as an object."""
    if not value.keys().isdisjoint(("metadata", "spec", "data", "items")):
        return ""
    if "apiVersion" in value:
        return _CHART if {"name", "version"} <= value.keys() else ""
    for what, words in _OTHERS.items():
        if not value.keys().isdisjoint(words):
            return what
    return "it has neither apiVersion nor kind, nor metadata or spec; leave the file out (are they values of a chart?)"


def kind_in(value: Mapping[str, object], path: str, found: Findings) -> str:
    """The kind; empty if it is missing or wrong, which is then reported."""
    version, kind = value.get("apiVersion"), value.get("kind")
    what = _of_another_program(value) if kind is None and not path else ""
    if what:
        found.problems.append(Problem("", f"is no Kubernetes object: {what}", "FieldValueRequired"))
        return ""
    for name, written, right in (("apiVersion", version, "v1"), ("kind", kind, "Pod")):
        if written is None:
            found.problems.append(
                Problem(join(path, name), f"is missing: write {name}: {right}", "FieldValueRequired")
            )
        elif not isinstance(written, str):
            found.wrong_shape(join(path, name), f"must be a string such as {right}")
    if not isinstance(version, str) or not isinstance(kind, str):
        return ""
    group = version.rpartition("/")[0]
    right_group = "apps" if kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet") else ""
    right_group = "batch" if kind in ("Job", "CronJob") else right_group
    if kind in _READ and not kind.endswith("List"):
        if "." in group:
            return f"{kind}.{group}"  # another object that has the name of one of ours
        right = f"{right_group}/v1" if right_group else "v1"
        if version != right:
            found.problems.append(
                Problem(join(path, "apiVersion"), f'a {kind} is of apiVersion {right}, not "{version[:60]}"')
            )
    elif group in _GROUPS and kind not in _READ | _PASSED_OVER | REFUSED.keys():
        from evenkeel.api import known_fields

        closest = known_fields.closest(kind, _READ | _PASSED_OVER | REFUSED.keys())
        hint = (
            f"did you mean {closest}?"
            if closest
            else "write Pod, or one of the kinds that hold a pod template"
        )
        found.problems.append(Problem(join(path, "kind"), f'there is no kind "{kind[:60]}"; {hint}'))
        return ""
    return kind


def passed_over_note(kinds: Mapping[str, int]) -> str:
    """One sentence about all objects of a text that are passed over. `kinds` has the number of each kind."""
    names = (kind[:60] if count == 1 else f"{kind[:60]} ({count})" for kind, count in kinds.items())
    return f"passed over, since it concerns a cluster and no pod of a node alone: {', '.join(names)}"
