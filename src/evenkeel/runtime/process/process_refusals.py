"""Checks of a manifest: the fields of a pod that this runtime cannot honour. Pure.

`refusal` is called when a pod arrives, `refusals` by `evenkeel validate` and `apply`. `users_refusal` is called when a
container starts: Kubernetes too accepts such a pod and then does not start the container.
"""

from collections.abc import Iterator
from itertools import chain

from evenkeel.api.container import Container
from evenkeel.api.data_objects import takes_secrets
from evenkeel.api.pod import Pod
from evenkeel.named_tuples import NamedTuple
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
    enters_namespaces: bool = True  # ephemeral containers with a target
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
    """Returns the first reason for which the pod cannot run as its manifest is written; None if it can."""
    return next(refusals(pod, powers), None)


def refusals(pod: Pod, powers: Powers) -> Iterator[Refusal]:
    """Every such reason."""
    for field, container in pod.spec.container_fields:
        for problem in _container_problems(pod, container, powers):
            yield Refusal(NOT_HONOURED, f"{field}{problem}")
    if not powers.has_namespaces and pod.spec.volumes:
        yield Refusal(
            NOT_HONOURED,
            "spec.volumes: volumes need a mount namespace, which the kernel does not give this user: run the agent "
            "as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1)",
        )
    granted = _granted(pod, powers)
    forbidden = security.sysctl_refusal(pod, granted)
    if forbidden is not None:
        yield forbidden
    for problem in chain(
        volumes.problems(pod, is_root=powers.is_root),
        security.problems(pod, granted),
        _namespaces(pod, powers),
        _filter(pod, powers),
        _network(pod, powers),
    ):
        yield Refusal(NOT_HONOURED, problem)


def _container_problems(pod: Pod, container: Container, powers: Powers) -> Iterator[str]:
    """Every problem of a container. Each text is appended to the field of the container."""
    if wrong := process_images.refusal(container.image):
        yield f".image: {wrong}"
    elif not container.command and not is_of_registry(container.image):
        yield (
            f".command: missing, and image {container.image} has no program of its own: write the program and its "
            'arguments, such as ["sleep", "60"]'
        )
    yield from (f".{problem}" for problem in environment.problems(pod, container))
    if not powers.is_root and takes_secrets(container):
        yield (
            ": it takes variables from a Secret, whose values are kept in memory, and only root can mount memory: run "
            "the agent as root"
        )
    if wrong := _user(pod, container, powers):
        yield f".securityContext: {wrong}"
    for index, mount in enumerate(container.volume_mounts):
        if mount.propagates:
            yield (
                f".volumeMounts[{index}].mountPropagation: {mount.mount_propagation} is not supported for processes: a "
                "mount that comes later would bring device nodes and other pods' files with it; leave it out, or run "
                "the pod with a container runtime (--runtime-endpoint)"
            )
    if not powers.has_namespaces and container.image != process_images.HOST:
        yield (
            f".image: {container.image} needs a mount namespace, which the kernel does not give this user: run the "
            "agent as root, or use image host"
        )


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


def _namespaces(pod: Pod, powers: Powers) -> Iterator[str]:
    """A user other than root needs a user namespace of each container, which can share no other namespace."""
    spec = pod.spec
    for field, is_asked in (
        ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc), ("shareProcessNamespace", spec.share_process_namespace)
    ):  # fmt: skip
        if is_asked and not powers.is_root:
            yield f"spec.{field}: true needs root: run the agent as root, or leave it out"
    for index, one in enumerate(spec.ephemeral_containers):
        if spec.process_target(one.name) and not (powers.is_root and powers.enters_namespaces):
            yield (
                f"spec.ephemeralContainers[{index}].targetContainerName: the supervisor of containers is not root's, "
                "or of an earlier version: leave it out"
            )


def _no_user_namespace(powers: Powers) -> str:
    if not powers.is_root:
        return "only root can give a pod users of its own: run the agent as root"
    if not powers.has_user_namespaces:
        return (
            "the supervisor of containers is of an earlier version, or the kernel gives it no namespaces: end all pods "
            "and start the agent again"
        )
    return ""


def _filter(pod: Pod, powers: Powers) -> Iterator[str]:
    if powers.no_filter:
        for field, container in pod.spec.container_fields:
            if security.privileges(pod, container).is_filtered:
                yield f"{field}.securityContext.seccompProfile: {powers.no_filter}"


def _network(pod: Pod, powers: Powers) -> Iterator[str]:
    if has_own_network(pod):
        if not powers.is_root:
            yield "spec.hostNetwork: false needs root: only root can join a network of its own to the host's"
        elif powers.no_network:
            yield f"spec.hostNetwork: {powers.no_network}"
        return
    for field, container in pod.spec.container_fields:
        for index, port in enumerate(container.ports):
            if port.host_port and port.host_port != port.container_port:
                yield (
                    f"{field}.ports[{index}].hostPort: {port.host_port} is not containerPort {port.container_port}, "
                    "and the pod uses the host's network: make them equal, or write hostNetwork: false"
                )


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
