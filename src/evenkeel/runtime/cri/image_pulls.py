"""Images of the container runtime: pulled with the credentials of the pod and of the machine, listed, and removed.

The runtime has the images and talks to the registries. Policies, credentials and the record of the pods that may use an
image are ours, as they are kubelet's.
"""

import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from evenkeel.errors import EvenkeelError
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.cri_connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.images import references
from evenkeel.runtime.images.credentials import (
    FOR_ALL,
    Credential,
    Credentials,
    HostCredentials,
    ImageAccess,
    all_matching,
    first_access,
    pod_keyrings,
)
from evenkeel.runtime.images.pull_settings import AwaitedPulls, PullSettings, PullTurns, pulled_text
from evenkeel.runtime.images.references import ImageReference, InvalidReference
from evenkeel.runtime.interface import Attempt, Image, ImageNoted, Launch
from evenkeel.runtime.paths import read_json, write_json
from evenkeel.runtime.start_errors import NoImage, StartFailed

_NEVER, _ALWAYS = "Never", "Always"  # the third policy is IfNotPresent
_PULL_SECONDS = 600.0
_ACCESS = "image-access.json"  # in the state directory


class ImagePulls:
    """`record` gets each event of a pull, for the events of the pod. `in_thread` runs a blocking function."""

    def __init__(
        self,
        connection: Connection,
        state_directory: str,
        host: HostCredentials,
        settings: PullSettings,
        record: Callable[[ImageNoted], None],
        in_thread: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]],
    ) -> None:
        self._connection = connection
        self._state_directory = state_directory
        self._host = host
        self._turns = PullTurns(settings)
        self._verifies = settings.verifies_access
        self._record = record
        self._in_thread = in_thread
        self._access: dict[str, ImageAccess] = _read_access(state_directory)
        self._awaited: AwaitedPulls[pb.Image] = AwaitedPulls()

    async def ensure(self, launch: Launch) -> pb.Image:
        """Returns the image of the container, and pulls it if the policy says so.

        Raises NoImage, StartFailed and RuntimeAway.
        """
        container, attempt = launch.container, launch.attempt
        policy, spec = container.image_pull_policy or "IfNotPresent", pb.ImageSpec(image=container.image)
        try:
            reference = references.parse(container.image)
        except InvalidReference as error:
            raise NoImage(error.message, "InvalidImageName", hint=error.hint) from None
        of_pod = all_matching(pod_keyrings(launch.pod, launch.data), reference)
        image = await _image(self._connection, spec)
        is_allowed = not self._verifies or self._access.get(str(reference), FOR_ALL).allows(of_pod)
        if image is not None and policy != _ALWAYS and is_allowed:
            self._note(attempt, "Pulled", f'Container image "{container.image}" already present on machine')
            return image
        if policy == _NEVER:
            why = (
                "is not there" if image is None else "was pulled with a password that this pod does not have"
            )
            raise NoImage(
                f"image {container.image} {why}, and imagePullPolicy Never says not to fetch it",
                "ErrImageNeverPull",
                hint="import it into the container runtime (ctr -n k8s.io images import FILE.tar), or take another "
                "policy",
            )
        if not launch.is_wanted:
            raise NoImage(f"image {container.image} is not needed any more", "ErrImagePull")
        pull = self._pulled(attempt, spec, reference, of_pod, policy, is_there=image is not None)
        return await self._awaited.wait(attempt, container.image, pull)

    def give_up(self, attempt: Attempt) -> None:
        """The attempt will not be started: `ensure` raises NoImage."""
        self._awaited.give_up(attempt)

    async def _pulled(
        self,
        attempt: Attempt,
        spec: pb.ImageSpec,
        reference: ImageReference,
        of_pod: tuple[Credential, ...],
        policy: str,
        *,
        is_there: bool,
    ) -> pb.Image:
        asked_at = time.time()
        self._note(attempt, "Pulling", f'Pulling image "{spec.image}"')
        of_host = await self._in_thread(partial(self._host.matching, reference))
        async with self._turns.turn():
            began_at = time.time()
            try:
                await self._pull(spec, reference, Credentials(of_pod, of_host))
            except RuntimeAway:
                raise
            except CallFailed as error:
                raise NoImage(
                    f"image {spec.image} {'' if is_there else 'is not there and '}cannot be fetched "
                    f"(imagePullPolicy {policy}): {error.message}",
                    "ErrImagePull",
                    hint="where no registry can be reached: import it (ctr -n k8s.io images import FILE.tar), with "
                    "imagePullPolicy: Never or IfNotPresent",
                ) from None
        image = await _image(self._connection, spec)
        if image is None:
            raise StartFailed(f"image {spec.image} was fetched, and the container runtime does not have it")
        now = time.time()
        self._note(attempt, "Pulled", pulled_text(spec.image, now - began_at, now - asked_at, image.size))
        return image

    async def _pull(self, spec: pb.ImageSpec, reference: ImageReference, known: Credentials) -> None:
        """Tries each credential until the registry accepts one. Raises CallFailed."""
        failure: CallFailed | None = None
        for credential in known.in_order:
            request = pb.PullImageRequest(image=spec, auth=_auth(credential))
            try:
                await self._connection.ask(request, pb.PullImageResponse, _PULL_SECONDS)
            except RuntimeAway:
                raise
            except CallFailed as error:
                failure = error
                continue
            await self._granted(str(reference), credential, known)
            return
        assert failure is not None
        raise failure

    async def _granted(self, reference: str, credential: Credential | None, known: Credentials) -> None:
        before = self._access.get(reference)
        if before is None and (credential is None or credential not in known.of_pod):
            return  # every pod may use it, and could before
        after = (before or first_access(credential, known)).with_accepted(credential, known)
        self._access[reference] = after
        value = {name: list(access) for name, access in self._access.items() if access != FOR_ALL}
        try:
            await self._in_thread(partial(write_json, self._state_directory, _ACCESS, value))
        except OSError as error:
            raise EvenkeelError(
                f"the use of image {reference} cannot be recorded: {error.strerror}"
            ) from None

    def _note(self, attempt: Attempt, reason: str, message: str) -> None:
        self._record(ImageNoted(attempt, reason, message))


def _auth(credential: Credential | None) -> pb.AuthConfig | None:
    if credential is None:
        return None
    return pb.AuthConfig(
        username=credential.username,
        password=credential.password,
        identity_token=credential.identity_token,
        registry_token=credential.registry_token,
    )


def _read_access(directory: str) -> dict[str, ImageAccess]:
    value: Mapping[str, Any] = read_json(directory, _ACCESS) or {}
    found = {}
    for reference, one in value.items():
        if isinstance(one, list) and len(one) == 2 and isinstance(one[1], list):
            found[reference] = ImageAccess(str(one[0]), tuple(map(str, one[1])))
    return found


async def _image(connection: Connection, spec: pb.ImageSpec) -> pb.Image | None:
    try:
        answer = await connection.ask(pb.ImageStatusRequest(image=spec), pb.ImageStatusResponse)
    except RuntimeAway:
        raise
    except CallFailed as error:
        raise StartFailed(f"image {spec.image} cannot be looked for: {error.message}") from None
    return answer.image if answer.image.id else None


async def remove_unused(connection: Connection, sandbox_image: str) -> None:
    """Removes images that no container uses (ours or others') and that can be pulled again."""
    for image in await list_images(connection, sandbox_image):
        if not image.is_in_use and not image.is_pinned:
            await remove_image(connection, image.id)


async def list_images(connection: Connection, sandbox_image: str) -> tuple[Image, ...]:
    """Lists the images of the runtime. An imported one has no digest of a registry and could not be pulled again, so it
    counts as pinned."""
    containers = await connection.ask(pb.ListContainersRequest(), pb.ListContainersResponse)
    used = {sandbox_image}.union(*((one.image.image, one.image_ref) for one in containers.containers))
    listed = await connection.ask(pb.ListImagesRequest(), pb.ListImagesResponse)
    return tuple(
        Image(
            image.id,
            tuple(image.repo_tags) or tuple(image.repo_digests),
            image.size,
            is_in_use=not used.isdisjoint((image.id, *image.repo_tags, *image.repo_digests)),
            is_pinned=image.pinned or not image.repo_digests,
        )
        for image in listed.images
    )


async def remove_image(connection: Connection, id_: str) -> None:
    await connection.ask(pb.RemoveImageRequest(image=pb.ImageSpec(image=id_)), pb.RemoveImageResponse, 60.0)
