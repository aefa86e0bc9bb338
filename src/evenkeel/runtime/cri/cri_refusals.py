"""Checks of a manifest: the fields of a pod that no container runtime can honour as this node uses it. Pure."""

from evenkeel.api.pod import Pod
from evenkeel.policy.admission import NOT_HONOURED, Refusal
from evenkeel.runtime import environment, security, volumes
from evenkeel.runtime.images.references import is_of_registry
from evenkeel.runtime.security import Granted


def refusal(pod: Pod, granted: Granted) -> Refusal | None:
    """Returns why a container runtime cannot run the pod as its manifest is written; None if it can."""
    for field, container in pod.spec.container_fields:
        wrong = _image_refusal(container.image)
        if wrong:
            return Refusal(NOT_HONOURED, f"{field}.image: {wrong}")
        wrong = environment.refusal(pod, container)
        if wrong:
            return Refusal(NOT_HONOURED, f"{field}.{wrong}")
    context = pod.spec.security_context
    if context is not None and context.supplemental_groups_policy == "Strict":
        return Refusal(
            NOT_HONOURED,
            "spec.securityContext.supplementalGroupsPolicy: Strict cannot be had from a container runtime, which may "
            "add the groups of the image: write Merge, or leave it out",
        )
    granted = granted._replace(
        has_own_network=not pod.spec.host_network, has_handlers=True, has_se_linux=True
    )
    forbidden = security.sysctl_refusal(pod, granted)
    if forbidden is not None:
        return forbidden
    wrong = volumes.refusal(pod) or security.refusal(pod, granted)
    return Refusal(NOT_HONOURED, wrong) if wrong else None


def _image_refusal(image: str) -> str:
    """Returns why the image is not a container image; empty if it may be one."""
    if not is_of_registry(image):
        return (
            f"{image} is a directory of this machine, and a container runtime runs images: name one, such as "
            "registry.example/busybox:1.36, or run the agent without --runtime-endpoint"
        )
    return ""
