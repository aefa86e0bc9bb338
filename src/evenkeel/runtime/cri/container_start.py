"""The start of a container: image, sandbox, CreateContainer, StartContainer.

An attempt is started once. Its labels hold its number, so after a call without an answer, a listing shows the result of
the call. A start is repeated only if it was cut off and containerd says that it never happened. A start is reported as
failed only when the failure is certain and nothing of the attempt is left.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from evenkeel.cgroup.tree import Naming
from evenkeel.errors import EvenkeelError
from evenkeel.host.node_figures import host_address
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.configs import (
    ATTEMPT,
    CONTAINER,
    NETWORK_FILES,
    STATE,
    UID,
    container_config,
)
from evenkeel.runtime.cri.container_calls import is_removed, removed
from evenkeel.runtime.cri.cri_connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.cri.host_mounts import bind_parts, make_files, paths_to_state
from evenkeel.runtime.cri.image_pulls import ImagePulls
from evenkeel.runtime.cri.sandboxes import Sandboxes
from evenkeel.runtime.environment import (
    identity,
    sub_paths,
    wants_addresses,
    with_addresses,
)
from evenkeel.runtime.host_paths import HostPaths
from evenkeel.runtime.interface import Attempt, Launch
from evenkeel.runtime.memory_mounts import VolumeRefused
from evenkeel.runtime.network_files import HOSTS
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.procfs import is_below, other_ways, read_mounts
from evenkeel.runtime.start_errors import DataMissing, NotCreated, NoValue, StartFailed, WrongConfig

A = TypeVar("A")
B = TypeVar("B")

log = logging.getLogger(__name__)

_CREATE_SECONDS = 120.0
_START_SECONDS = 120.0
_TRIES = 3
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 10.0


class _Taken(EvenkeelError):
    """The name of the container is taken by a container that is not listed yet."""


class _NotListed(EvenkeelError):
    """The runtime refuses to list containers, so it is not known whether a container of the attempt exists."""


class Starts:
    """Starts containers.

    `available` returns when the runtime answers again; `has` tests for a cgroup file of this kernel. `profiles` is the
    directory of seccomp profiles.
    """

    def __init__(
        self,
        connection: Connection,
        paths: StatePaths,
        sandboxes: Sandboxes,
        images: ImagePulls,
        naming: Naming,
        has: Callable[[str], bool],
        available: Callable[[], Awaitable[None]],
        host_paths: HostPaths,
        profiles: str,
    ) -> None:
        self._connection = connection
        self._paths = paths
        self._sandboxes = sandboxes
        self._images = images
        self._naming = naming
        self._has = has
        self._available = available
        self._host_paths = host_paths
        self._profiles = profiles

    async def start(self, launch: Launch) -> str:
        """Returns the ID of the container, which runs or has run. Raises StartFailed."""
        tries, why, wait, is_first = 0, "", _FIRST_WAIT_SECONDS, True
        while tries < _TRIES and wait <= _LONGEST_WAIT_SECONDS:
            try:
                # The first call needs no listing: if the container exists, its name is taken.
                found = "" if is_first else await self._started_before(launch.attempt)
                is_first = False
                return found or await self._start(launch)
            except RuntimeAway as error:
                why = str(error)
                tries += 1
                await self._available()
            # Taken: a former agent asked for it, and it is listed when it is complete.
            except (_Taken, _NotListed) as error:
                why = str(error)
                await asyncio.sleep(wait)
                wait *= 2
        found = await self._settled(launch.attempt)
        if found:
            return found
        raise StartFailed(why)

    async def _start(self, launch: Launch) -> str:
        (sandbox, of_sandbox), _ = await _both(
            self._sandboxes.ready(launch, self._naming), self._prepared(launch)
        )
        config = await self._config(launch)
        config.linux.security_context.namespace_options.network = (
            of_sandbox.linux.security_context.namespace_options.network
        )
        request = pb.CreateContainerRequest(
            pod_sandbox_id=sandbox.id, config=config, sandbox_config=of_sandbox
        )
        try:
            made = await self._connection.ask(request, pb.CreateContainerResponse, _CREATE_SECONDS)
        except RuntimeAway:
            raise
        except CallFailed as error:
            if error.is_taken:
                raise _Taken(error.message) from None
            raise NotCreated(error.message) from None
        try:
            await self._connection.ask(
                pb.StartContainerRequest(container_id=made.container_id),
                pb.StartContainerResponse,
                _START_SECONDS,
            )
        except RuntimeAway:
            raise
        except CallFailed as error:
            await removed(self._connection, made.container_id)
            raise StartFailed(error.message) from None
        return made.container_id

    async def _prepared(self, launch: Launch) -> None:
        """Prepares everything that a container needs except its sandbox.

        The sandbox takes longer and is made meanwhile.
        """
        image = await self._images.ensure(launch)
        wrong = root_refusal(launch, image)
        if wrong:
            raise WrongConfig(wrong)
        # A pod's own address, which is in its hosts, is known when the sandbox is there.
        waits = self._sandboxes.may_have_own_network(launch.pod)
        if not waits:
            launch = launch._replace(pod=with_addresses(launch.pod, host_address(), None))
        make_files(
            self._paths, launch, *(name for name in NETWORK_FILES.values() if not (waits and name == HOSTS))
        )

    async def _config(self, launch: Launch) -> pb.ContainerConfig:
        """Describes the container. A pod has its address once its sandbox is there."""
        if wants_addresses(launch.container) or self._sandboxes.may_have_own_network(launch.pod):
            await self._sandboxes.located(launch.attempt.uid)
            own = self._sandboxes.addresses(launch.pod)
            launch = launch._replace(pod=with_addresses(launch.pod, host_address(), own))
        make_files(self._paths, launch, HOSTS)
        try:
            bound, hidden = await self._volumes(launch)
            first_id = self._sandboxes.first_id(launch.pod)
            target_id = await self._target_id(launch)
            return container_config(
                launch, self._paths, self._has, bound, hidden, self._profiles, first_id, target_id
            )
        except (NoValue, DataMissing, VolumeRefused) as error:
            raise StartFailed(error.message, hint=error.hint) from None

    async def _target_id(self, launch: Launch) -> str:
        """The ID of the container whose process namespace it enters; empty if it enters none. Raises StartFailed."""
        target = launch.pod.spec.process_target(launch.container.name)
        if not target:
            return ""
        for one in await self._listed({UID: launch.attempt.uid, CONTAINER: target}):
            if one.state == pb.ContainerState.CONTAINER_RUNNING:
                return one.id
        raise StartFailed(f'container "{target}", whose processes it is to see, does not run')

    async def _volumes(self, launch: Launch) -> tuple[frozenset[int], tuple[str, ...]]:
        """Mounts the parts of volumes that are not left to the runtime. Returns the indices of their mounts, and the
        paths in the container that lead to the state directory."""
        container, places = launch.container, self._host_paths.places(launch.attempt.uid)
        parts = sub_paths(launch.pod, container, launch.data)
        real = {}
        for index, mount in enumerate(container.volume_mounts):
            if mount.name in places:
                real[index] = places[mount.name].base
                if places[mount.name].below:
                    parts.setdefault(index, "")
        ways = (self._paths.root, *other_ways(self._paths.root, read_mounts())) if real else ()
        if parts:
            number = launch.attempt.number
            bound = await asyncio.to_thread(
                bind_parts, launch.pod, container, number, parts, places, self._paths
            )
            real.update((index, path) for index, path in bound.items() if index in real)
        for index, path in real.items():
            if any(is_below(path, way) for way in ways):
                mount = container.volume_mounts[index]
                raise VolumeRefused(
                    f"container {container.name}: volumeMount {mount.mount_path} leads to the agent's state directory"
                )
        return frozenset(parts), paths_to_state(container, real, ways)

    async def _started_before(self, attempt: Attempt) -> str:
        """Returns the ID of the attempt's container if it was started before, else "".

        A container that was made and never started is removed, because the plan may have changed. The runtime refuses
        the removal while it works on a call of a former agent. So the removal is tried until the result of that call
        is known.
        """
        wait = _FIRST_WAIT_SECONDS
        while True:
            never_started = []
            for one in await self._of(attempt):
                if await self._has_run(one):
                    return one.id
                never_started.append(one.id)
            if not never_started or all([await is_removed(self._connection, id_) for id_ in never_started]):
                return ""
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    async def _has_run(self, one: pb.Container) -> bool:
        """Returns whether the container ran. An interrupted start leaves a container that ended and never ran."""
        if one.state != pb.ContainerState.CONTAINER_EXITED:
            return one.state != pb.ContainerState.CONTAINER_CREATED
        return await started_at(self._connection, one.id) > 0

    async def _settled(self, attempt: Attempt) -> str:
        wait = _FIRST_WAIT_SECONDS
        while True:
            try:
                return await self._started_before(attempt)
            except RuntimeAway:
                await self._available()
            except _NotListed as error:
                log.warning("it is not known whether %s was started: %s", attempt, error)
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    async def _of(self, attempt: Attempt) -> list[pb.Container]:
        labels = {UID: attempt.uid, CONTAINER: attempt.container, ATTEMPT: str(attempt.number)}
        return await self._listed(labels)

    async def _listed(self, labels: dict[str, str]) -> list[pb.Container]:
        """The containers of this agent that have the labels. Raises RuntimeAway and _NotListed."""
        request = pb.ListContainersRequest(
            filter=pb.ContainerFilter(label_selector={STATE: self._paths.root, **labels})
        )
        try:
            answer = await self._connection.ask(request, pb.ListContainersResponse)
        except RuntimeAway:
            raise
        except CallFailed as error:
            raise _NotListed(error.message) from None
        return list(answer.containers)


async def _both(one: Coroutine[Any, Any, A], other: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Runs both at once, and both to their end, so that a new sandbox is always recorded.

    The error of `other` is raised first: a missing image matters more than a failed sandbox.
    """
    first, second = await asyncio.gather(one, other, return_exceptions=True)
    if isinstance(second, BaseException):
        raise second
    if isinstance(first, BaseException):
        raise first
    return first, second


async def started_at(connection: Connection, id_: str) -> float:
    """Returns the start time in seconds since the epoch; 0 if the container never started or is gone.

    Raises RuntimeAway.
    """
    try:
        answer = await connection.ask(pb.ContainerStatusRequest(container_id=id_), pb.ContainerStatusResponse)
    except RuntimeAway:
        raise
    except CallFailed:
        return 0.0
    return answer.status.started_at / 1e9


def root_refusal(launch: Launch, image: pb.Image) -> str:
    """Why the container may not run as its user (runAsNonRoot); empty if it may."""
    user = identity(launch.pod, launch.container)
    if not user.must_not_be_root:
        return ""
    if user.uid is not None:
        is_root = user.uid == 0
    elif image.HasField("uid"):
        is_root = image.uid.value == 0
    else:
        is_root = image.username in ("", "root")
        if not is_root:
            return (
                f"securityContext.runAsNonRoot is true, and image {launch.container.image} names user "
                f"{image.username}, whose number only the image knows: set runAsUser"
            )
    if is_root:
        return (
            "securityContext.runAsNonRoot is true, and the container would run as root: set runAsUser to a number "
            "above 0"
        )
    return ""
