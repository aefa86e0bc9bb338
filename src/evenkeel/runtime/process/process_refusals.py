"""Checks of a manifest: the fields of a pod that this runtime cannot honour. Pure.

`refusal` is called when a pod arrives. `users_refusal` is called when a container starts: Kubernetes too accepts such
a pod and then does not start the container.
"""

from typing import NamedTuple

from evenkeel.api.container import Container
from evenkeel.api.data_objects import takes_secrets
from evenkeel.api.pod import Pod
from evenkeel.policy.admission import NOT_HONOURED, Refusal
from evenkeel.runtime import environment, security, volumes
from evenkeel.runtime.environment import groups, identity
from evenkeel.runtime.images.references import is_of_registry
from evenkeel.runtime.process import process_images
from evenkeel.runtime.security import Granted


class Powers(NamedTuple):
    """The rights of the agent's own process."""

    uid: int
    gid: int
    has_namespaces: bool = True
    has_user_namespaces: bool = True  # for pods with hostUsers: false
    no_filter: str = ""  # why there is no seccomp filter
    no_network: str = ""  # why no pod can have a network of its own
    granted: Granted = Granted()

    @property
    def is_root(self) -> bool:
        return self.uid == 0


def has_own_network(pod: Pod) -> bool:
    """A pod of this runtime uses the host's network unless it says otherwise."""
    return pod.spec.host_network is False


def refusal(pod: Pod, powers: Powers) -> Refusal | None:
    for field, container in pod.spec.container_fields:
        wrong = process_images.refusal(container.image)
        if wrong:
            return Refusal(NOT_HONOURED, f"{field}.image: {wrong}")
        if not container.command and not is_of_registry(container.image):
            return Refusal(
                NOT_HONOURED,
                f"{field}.command: missing, and image {container.image} has no program of its own: write the "
                'program and its arguments, such as ["sleep", "60"]',
            )
        wrong = environment.refusal(pod, container)
        if wrong:
            return Refusal(NOT_HONOURED, f"{field}.{wrong}")
        if not powers.is_root and takes_secrets(container):
            return Refusal(
                NOT_HONOURED,
                f"{field}: it takes variables from a Secret, whose values are kept in memory, and only root can mount "
                "memory: run the agent as root",
            )
        wrong = _user(pod, container, powers)
        if wrong:
            return Refusal(NOT_HONOURED, f"{field}.securityContext: {wrong}")
        if not powers.has_namespaces and container.image != process_images.HOST:
            return Refusal(
                NOT_HONOURED,
                f"{field}.image: {container.image} needs a mount namespace, which the kernel does not give this "
                "user: run the agent as root, or use image host",
            )
    if not powers.has_namespaces and pod.spec.volumes:
        return Refusal(
            NOT_HONOURED,
            "spec.volumes: volumes need a mount namespace, which the kernel does not give this user: run the agent "
            "as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1)",
        )
    granted = _granted(pod, powers)
    forbidden = security.sysctl_refusal(pod, granted)
    if forbidden is not None:
        return forbidden
    wrong = (
        volumes.refusal(pod, is_root=powers.is_root)
        or security.refusal(pod, granted)
        or _namespaces(pod, powers)
        or _filter(pod, powers)
        or _network(pod, powers)
    )
    return Refusal(NOT_HONOURED, wrong) if wrong else None


def users_refusal(pod: Pod, container: Container, powers: Powers, image_user: str = "") -> str:
    """Returns why the container may not run as its user; empty if it may.

    `image_user` is the user of the image. A user by name is looked up in the container, which then refuses root.
    """
    who = identity(pod, container)
    if who.uid is None and image_user:
        if powers.is_root or image_user.partition(":")[0] == str(powers.uid):
            return _user(pod, container, powers)
        return f"the image runs as user {image_user[:80]}: only root can give containers another user than its own"
    uid = powers.uid if who.uid is None else who.uid
    if who.must_not_be_root and uid == 0:
        said = "runAsUser is 0" if who.uid == 0 else "without runAsUser it would be root"
        return f"securityContext.runAsNonRoot is true, and {said}: set runAsUser to a number above 0"
    return _user(pod, container, powers)


def _granted(pod: Pod, powers: Powers) -> Granted:
    return powers.granted._replace(
        has_own_network=has_own_network(pod),
        has_default_app_armor=False,
        no_user_namespace=_no_user_namespace(powers),
        no_privileged="processes that the agent starts have given up these rights, and cannot have them back: run the "
        "pod with a container runtime (--runtime-endpoint)",
    )


def _namespaces(pod: Pod, powers: Powers) -> str:
    """A user other than root needs a user namespace of each container, which can share no other namespace."""
    spec = pod.spec
    for field, is_asked in (
        ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc), ("shareProcessNamespace", spec.share_process_namespace)
    ):  # fmt: skip
        if is_asked and not powers.is_root:
            return f"spec.{field}: true needs root: run the agent as root, or leave it out"
    return ""


def _no_user_namespace(powers: Powers) -> str:
    if not powers.is_root:
        return "only root can give a pod users of its own: run the agent as root"
    if not powers.has_user_namespaces:
        return (
            "the supervisor of containers is of an earlier version, or the kernel gives it no namespaces: end all pods "
            "and start the agent again"
        )
    return ""


def _filter(pod: Pod, powers: Powers) -> str:
    if powers.no_filter:
        for field, container in pod.spec.container_fields:
            if security.privileges(pod, container).is_filtered:
                return f"{field}.securityContext.seccompProfile: {powers.no_filter}"
    return ""


def _network(pod: Pod, powers: Powers) -> str:
    if has_own_network(pod):
        if not powers.is_root:
            return "spec.hostNetwork: false needs root: only root can join a network of its own to the host's"
        return f"spec.hostNetwork: {powers.no_network}" if powers.no_network else ""
    for field, container in pod.spec.container_fields:
        for index, port in enumerate(container.ports):
            if port.host_port and port.host_port != port.container_port:
                return (
                    f"{field}.ports[{index}].hostPort: {port.host_port} is not containerPort {port.container_port}, "
                    "and the pod uses the host's network: make them equal, or write hostNetwork: false"
                )
    return ""


def _user(pod: Pod, container: Container, powers: Powers) -> str:
    if powers.is_root:
        return ""
    who = identity(pod, container)
    for name, asked, own in (
        ("runAsUser", who.uid, powers.uid),
        ("runAsGroup", who.gid, powers.gid),
    ):
        if asked is not None and asked != own:
            return (
                f"{name} {asked} is not {own}, which the agent runs as: only root can give containers another"
            )
    other = [group for group in groups(pod) if group != powers.gid]
    if other:
        return f"group {other[0]} (supplementalGroups or fsGroup): only root can give containers other groups"
    return ""
