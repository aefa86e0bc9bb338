"""The start of a container: image, sandbox, CreateContainer, StartContainer.

An attempt is started at most once. Its labels hold its number, so whatever became of a call that was never answered can
be found out by looking; nothing is said to have failed before that is known, and before nothing of it is left.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable

from evenkeel.cgroup.tree import Naming
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri import images
from evenkeel.runtime.cri.configs import ATTEMPT, CONTAINER, STATE, UID, container_config
from evenkeel.runtime.cri.connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.cri.sandboxes import Sandboxes
from evenkeel.runtime.interface import Attempt, Launch, StartFailed
from evenkeel.runtime.process.paths import StatePaths
from evenkeel.runtime.process.refusals import identity
from evenkeel.runtime.process.rootfs import TERMINATION_LOG

_CREATE_SECONDS = 120.0
_START_SECONDS = 120.0
_REMOVE_SECONDS = 60.0
_TRIES = 3
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 10.0


class Starts:
    """`available` returns when the runtime answers again; `has` says which cgroup files this kernel has."""

    def __init__(
        self,
        connection: Connection,
        paths: StatePaths,
        sandboxes: Sandboxes,
        naming: Naming,
        has: Callable[[str], bool],
        available: Callable[[], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self._paths = paths
        self._sandboxes = sandboxes
        self._naming = naming
        self._has = has
        self._available = available

    async def begin(self, launch: Launch) -> str:
        """The ID of the container, which runs, or has run. Raises StartFailed."""
        why = ""
        for _ in range(_TRIES):
            try:
                found = await self._begun_before(launch.attempt)
                if found:
                    return found
                return await self._begin(launch)
            except RuntimeAway as error:
                why = str(error)
                await self._available()
        found = await self._settled(launch.attempt)
        if found:
            return found
        raise StartFailed(why)

    async def _begin(self, launch: Launch) -> str:
        image = await images.have(self._connection, launch.container)
        wrong = root_refusal(launch, image)
        if wrong:
            raise StartFailed(wrong)
        sandbox, of_sandbox = await self._sandboxes.ready(launch, self._naming)
        self._make_message_file(launch.attempt)
        request = pb.CreateContainerRequest(
            pod_sandbox_id=sandbox.id,
            config=container_config(launch, self._paths, self._has),
            sandbox_config=of_sandbox,
        )
        try:
            made = await self._connection.ask(request, pb.CreateContainerResponse, _CREATE_SECONDS)
        except RuntimeAway:
            raise
        except CallFailed as error:
            raise StartFailed(error.message) from None
        try:
            await self._connection.ask(
                pb.StartContainerRequest(container_id=made.container_id),
                pb.StartContainerResponse,
                _START_SECONDS,
            )
        except RuntimeAway:
            raise
        except CallFailed as error:
            await self.remove(made.container_id)
            raise StartFailed(error.message) from None
        return made.container_id

    async def _begun_before(self, attempt: Attempt) -> str:
        """One that was made and never started is removed: the plan may be another by now."""
        for one in await self._of(attempt):
            if one.state != pb.ContainerState.CONTAINER_CREATED:
                return one.id
            await self.remove(one.id)
        return ""

    async def _settled(self, attempt: Attempt) -> str:
        while True:
            try:
                return await self._begun_before(attempt)
            except RuntimeAway:
                await self._available()

    async def _of(self, attempt: Attempt) -> list[pb.Container]:
        labels = {
            STATE: self._paths.root,
            UID: attempt.uid,
            CONTAINER: attempt.container,
            ATTEMPT: str(attempt.number),
        }
        answer = await self._connection.ask(
            pb.ListContainersRequest(filter=pb.ContainerFilter(label_selector=labels)),
            pb.ListContainersResponse,
        )
        return list(answer.containers)

    async def remove(self, id_: str) -> None:
        """Until it is gone: a runtime that is still busy starting it refuses for a while. Raises RuntimeAway."""
        wait = _FIRST_WAIT_SECONDS
        while True:
            try:
                await self._connection.ask(
                    pb.RemoveContainerRequest(container_id=id_), pb.RemoveContainerResponse, _REMOVE_SECONDS
                )
            except RuntimeAway:
                raise
            except CallFailed as error:
                if error.is_not_found:
                    return
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
            else:
                return

    def _make_message_file(self, attempt: Attempt) -> None:
        directory = self._paths.attempt(*attempt)
        try:
            os.makedirs(directory, 0o700, exist_ok=True)
            path = f"{directory}/{TERMINATION_LOG}"
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666))
            os.chmod(path, 0o666)  # noqa: S103 whoever the container runs as writes to it
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise StartFailed(f"the attempt's directory {directory} cannot be made: {why}") from None


def root_refusal(launch: Launch, image: pb.Image) -> str:
    """Why the container may not run as who it would be; empty if it may. Pure."""
    who = identity(launch.pod, launch.container)
    if not who.must_not_be_root:
        return ""
    if who.uid is not None:
        is_root = who.uid == 0
    elif image.HasField("uid"):
        is_root = image.uid.value == 0
    else:
        is_root = image.username in ("", "root")
        if not is_root:
            return (
                f"securityContext.runAsNonRoot is true, and image {launch.container.image} names user "
                f"{image.username}, of whom only the image knows the number: set runAsUser"
            )
    if is_root:
        return (
            "securityContext.runAsNonRoot is true, and the container would run as root: set runAsUser to a number "
            "above 0"
        )
    return ""
