"""What of a pod a container runtime cannot honour, as far as its manifest tells. Pure."""

from collections.abc import Iterator

from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.policy.admission import Refusal
from evenkeel.runtime import environment, volumes
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.cri_connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.interface import NoImage, StartFailed

_NEVER, _ALWAYS = "Never", "Always"  # else IfNotPresent
_PULL_SECONDS = 600.0


def image_refusal(image: str) -> str:
    """Why no container runtime has that image; empty if one may. Pure."""
    if image == "host" or image.startswith(("/", "./", "../")):
        return (
            f"{image} is a directory of this machine, and a container runtime runs images: name one, such as "
            "registry.example/busybox:1.36, or run the agent without --runtime-endpoint"
        )
    return ""


async def have(connection: Connection, container: Container) -> pb.Image:
    """The image, fetched where the policy asks for that. Raises NoImage, StartFailed and RuntimeAway."""
    policy, spec = container.image_pull_policy or "IfNotPresent", pb.ImageSpec(image=container.image)
    there = await _there(connection, spec)
    if there is not None and policy != _ALWAYS:
        return there
    if policy == _NEVER:
        raise NoImage(
            f"image {container.image} is not there, and imagePullPolicy Never says not to fetch it",
            "ErrImageNeverPull",
            hint="import it into the container runtime (ctr -n k8s.io images import FILE.tar), or take another policy",
        )
    try:
        await connection.ask(pb.PullImageRequest(image=spec), pb.PullImageResponse, _PULL_SECONDS)
    except RuntimeAway:
        raise
    except CallFailed as error:
        raise NoImage(
            f"image {container.image} {'is not there and ' if there is None else ''}cannot be fetched "
            f"(imagePullPolicy {policy}): {error.message}",
            "ImagePullBackOff",
            hint="where no registry can be reached: import it (ctr -n k8s.io images import FILE.tar), with "
            "imagePullPolicy: Never or IfNotPresent",
        ) from None
    there = await _there(connection, spec)
    if there is None:
        raise StartFailed(f"image {container.image} was fetched, and the container runtime does not have it")
    return there


async def _there(connection: Connection, spec: pb.ImageSpec) -> pb.Image | None:
    try:
        answer = await connection.ask(pb.ImageStatusRequest(image=spec), pb.ImageStatusResponse)
    except RuntimeAway:
        raise
    except CallFailed as error:
        raise StartFailed(f"image {spec.image} cannot be looked for: {error.message}") from None
    return answer.image if answer.image.id else None


async def remove_unused(connection: Connection, kept: str) -> None:
    """Those that no container of anybody runs from and that could be had again: what was imported has no digest of a
    registry's. `kept` is that of the sandboxes."""
    containers = await connection.ask(pb.ListContainersRequest(), pb.ListContainersResponse)
    used = {kept}.union(*((one.image.image, one.image_ref) for one in containers.containers))
    listed = await connection.ask(pb.ListImagesRequest(), pb.ListImagesResponse)
    for image in listed.images:
        names = (image.id, *image.repo_tags, *image.repo_digests)
        if image.repo_digests and not image.pinned and used.isdisjoint(names):
            await connection.ask(
                pb.RemoveImageRequest(image=pb.ImageSpec(image=image.id)), pb.RemoveImageResponse, 60.0
            )


REASON = "NotHonoured"


def refusal(pod: Pod) -> Refusal | None:
    for field, container in _containers(pod):
        wrong = image_refusal(container.image)
        if wrong:
            return Refusal(REASON, f"{field}.image: {wrong}")
        wrong = environment.refusal(pod, container)
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
