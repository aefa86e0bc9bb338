"""What of a pod a container runtime cannot honour, as far as its manifest tells. Pure."""

from collections.abc import Iterator

from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.policy.admission import Refusal
from evenkeel.runtime import downward, volumes
from evenkeel.runtime.cri import images

REASON = "NotHonoured"


def refusal(pod: Pod) -> Refusal | None:
    for field, container in _containers(pod):
        wrong = images.refusal(container.image)
        if wrong:
            return Refusal(REASON, f"{field}.image: {wrong}")
        wrong = downward.refusal(pod, container)
        if wrong:
            return Refusal(REASON, f"{field}.{wrong}")
        for index, mount in enumerate(container.volume_mounts):
            if mount.sub_path:  # a link that a container puts there would lead the runtime out of the volume
                return Refusal(
                    REASON,
                    f"{field}.volumeMounts[{index}].subPath: {mount.sub_path} cannot be had from a container runtime: "
                    "mount the volume whole",
                )
    wrong = volumes.refusal(pod)
    return Refusal(REASON, wrong) if wrong else None


def _containers(pod: Pod) -> Iterator[tuple[str, Container]]:
    for name, containers in (
        ("initContainers", pod.spec.init_containers),
        ("containers", pod.spec.containers),
    ):
        for index, container in enumerate(containers):
            yield f"spec.{name}[{index}]", container
