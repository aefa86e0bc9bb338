"""Checks of a manifest: the fields of a pod that no container runtime can honour as this node uses it. Pure."""

from collections.abc import Iterator
from itertools import chain

from evenkeel.api.pod import Pod
from evenkeel.policy.admission import NOT_HONOURED, Refusal
from evenkeel.runtime import environment, security, volumes
from evenkeel.runtime.images.references import is_of_registry
from evenkeel.runtime.security import Granted


def refusal(pod: Pod, granted: Granted) -> Refusal | None:
    """Returns the first reason for which a container runtime cannot run the pod as its manifest is written; None if it
    can."""
    return next(refusals(pod, granted), None)


def refusals(pod: Pod, granted: Granted) -> Iterator[Refusal]:
    """Every such reason."""
    for field, container in pod.spec.container_fields:
        if wrong := _image_refusal(container.image):
            yield Refusal(NOT_HONOURED, f"{field}.image: {wrong}")
        for problem in environment.problems(pod, container):
            yield Refusal(NOT_HONOURED, f"{field}.{problem}")
    context = pod.spec.security_context
    if context is not None and context.supplemental_groups_policy == "Strict":
        yield Refusal(
            NOT_HONOURED,
            "spec.securityContext.supplementalGroupsPolicy: Strict is not supported by a container runtime, which may "
            "add the groups of the image: write Merge, or leave it out",
        )
    granted = granted._replace(
        has_own_network=not pod.spec.host_network, has_handlers=True, has_se_linux=True
    )
    forbidden = security.sysctl_refusal(pod, granted)
    if forbidden is not None:
        yield forbidden
    for problem in chain(volumes.problems(pod), security.problems(pod, granted)):
        yield Refusal(NOT_HONOURED, problem)


def _image_refusal(image: str) -> str:
    """Returns why the image is not a container image; empty if it may be one."""
    if not is_of_registry(image):
        return (
            f"{image} is a directory of this machine, and a container runtime runs images: name one, such as "
            "registry.example/busybox:1.36, or run the agent without --runtime-endpoint"
        )
    return ""
