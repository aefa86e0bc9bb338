"""Images of a container runtime: fetched before a container starts, and removed when nothing uses them."""

from evenkeel.api.container import Container
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.cri_connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.interface import NoImage, StartFailed

_NEVER, _ALWAYS = "Never", "Always"  # else IfNotPresent
_PULL_SECONDS = 600.0


async def ensure_image(connection: Connection, container: Container) -> pb.Image:
    """The image of the container, pulled if its policy asks for that. Raises NoImage, StartFailed and RuntimeAway."""
    policy, spec = container.image_pull_policy or "IfNotPresent", pb.ImageSpec(image=container.image)
    image = await _image(connection, spec)
    if image is not None and policy != _ALWAYS:
        return image
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
            f"image {container.image} {'is not there and ' if image is None else ''}cannot be fetched "
            f"(imagePullPolicy {policy}): {error.message}",
            "ImagePullBackOff",
            hint="where no registry can be reached: import it (ctr -n k8s.io images import FILE.tar), with "
            "imagePullPolicy: Never or IfNotPresent",
        ) from None
    image = await _image(connection, spec)
    if image is None:
        raise StartFailed(f"image {container.image} was fetched, and the container runtime does not have it")
    return image


async def _image(connection: Connection, spec: pb.ImageSpec) -> pb.Image | None:
    try:
        answer = await connection.ask(pb.ImageStatusRequest(image=spec), pb.ImageStatusResponse)
    except RuntimeAway:
        raise
    except CallFailed as error:
        raise StartFailed(f"image {spec.image} cannot be looked for: {error.message}") from None
    return answer.image if answer.image.id else None


async def remove_unused(connection: Connection, sandbox_image: str) -> None:
    """Removes images that no container uses, ours or others', and that can be pulled again: an imported image has no
    digest of a registry, and stays."""
    containers = await connection.ask(pb.ListContainersRequest(), pb.ListContainersResponse)
    used = {sandbox_image}.union(*((one.image.image, one.image_ref) for one in containers.containers))
    listed = await connection.ask(pb.ListImagesRequest(), pb.ListImagesResponse)
    for image in listed.images:
        names = (image.id, *image.repo_tags, *image.repo_digests)
        if image.repo_digests and not image.pinned and used.isdisjoint(names):
            await connection.ask(
                pb.RemoveImageRequest(image=pb.ImageSpec(image=image.id)), pb.RemoveImageResponse, 60.0
            )
