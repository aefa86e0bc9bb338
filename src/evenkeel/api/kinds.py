"""The kinds of objects in a manifest: each is read, passed over with a note, or refused.

A kind that only concerns a cluster (accounts, roles, autoscalers) does not change what a pod is, so it is passed over.
A kind without which pods would be less restricted, or have other data or priorities than their author wants, is
refused.
"""

from collections.abc import Mapping

from evenkeel.api.decode import Findings
from evenkeel.api.problems import join
from evenkeel.errors import Problem

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
    "PodSecurityPolicy": "nothing on this node checks pods by it; take it out if you do not rely on it",
}
_GROUPS = {"", "apps", "batch"}


def kind_in(value: Mapping[str, object], path: str, found: Findings) -> str:
    """The kind; empty if it is missing or wrong, which is then reported."""
    version, kind = value.get("apiVersion"), value.get("kind")
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
