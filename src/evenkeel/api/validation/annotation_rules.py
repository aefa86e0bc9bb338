"""Annotations that were fields of old versions of Kubernetes, before the fields were there.

Without a word a pod would run without the filter or the init container that its author wants. AppArmor's annotation
still counts in a cluster, because its API server makes the field of it. The others have no effect anywhere.
"""

from collections.abc import Iterator

from evenkeel.api.pod import Pod
from evenkeel.api.problems import Problems
from evenkeel.errors import Problem

_APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"
_LOCALHOST = "localhost/"
_SECCOMP = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP_CONTAINER = "container.seccomp.security.alpha.kubernetes.io/"
_DEFAULT_FILTERS = ("runtime/default", "docker/default")  # what every container has anyway
_FORMER = {
    "pod.alpha.kubernetes.io/init-containers": "initContainers",
    "pod.beta.kubernetes.io/init-containers": "initContainers",
    "scheduler.alpha.kubernetes.io/critical-pod": "priorityClassName",
    "security.alpha.kubernetes.io/sysctls": "securityContext.sysctls",
    "security.alpha.kubernetes.io/unsafe-sysctls": "securityContext.sysctls",
}


def app_armor_annotations(pod: Pod) -> Iterator[tuple[str, str]]:
    """The annotations that name an AppArmor profile of the machine for a container without the field, and what to write
    in place of each."""
    for path, container in pod.spec.container_fields:
        key = f"{_APP_ARMOR}{container.name}"
        profile = pod.metadata.annotations.get(key, "")
        context = container.security_context
        if profile.startswith(_LOCALHOST) and (context is None or context.app_armor_profile is None):
            name = profile.removeprefix(_LOCALHOST)
            wanted = f"appArmorProfile: {{type: Localhost, localhostProfile: {name}}}"
            yield f"metadata.annotations[{key}]", f"write {wanted} in {path}.securityContext"


def annotation_warnings(pod: Pod, kind: str) -> Problems:
    """Annotations without effect, with the field that is there in place of each."""
    for key, value in pod.metadata.annotations.items():
        field = _FORMER.get(key, "")
        if key == _SECCOMP or key.startswith(_SECCOMP_CONTAINER):
            field = "" if value in _DEFAULT_FILTERS else "securityContext.seccompProfile"
        if field:
            yield Problem(f"metadata.annotations[{key}]", f"has no effect: write {field}", kind)
