"""Writes the files that the supervisor needs for a start into the attempt's directory: the plan, and the container's
own files.

Values of Secrets never reach the disk: the part of a plan that may contain them is written to memory."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from evenkeel.api.data_objects import takes_secrets
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import Driver
from evenkeel.errors import EvenkeelError
from evenkeel.host.node_figures import host_address
from evenkeel.runtime import memory_mounts, security, volumes
from evenkeel.runtime.environment import wants_addresses, with_addresses
from evenkeel.runtime.host_paths import HostPaths
from evenkeel.runtime.interface import Launch
from evenkeel.runtime.log_relay import LogLimits
from evenkeel.runtime.network_files import ETC, own_files
from evenkeel.runtime.paths import StatePaths, make_directory, write_json
from evenkeel.runtime.process import supervisor_protocol
from evenkeel.runtime.process.container_images import ContainerImages
from evenkeel.runtime.process.image_config import NO_CONFIG
from evenkeel.runtime.process.launch import OwnUsers, Surroundings, entrances, plan_of, surroundings
from evenkeel.runtime.process.pod_networks import PodNetworks
from evenkeel.runtime.process.process_refusals import Powers, has_own_network
from evenkeel.runtime.process.seccomp import Filter
from evenkeel.runtime.process.seccomp_profiles import localhost_filter
from evenkeel.runtime.process.supervisor.start_plan import PRIVATE
from evenkeel.runtime.process.user_namespaces import UserNamespaces
from evenkeel.runtime.procfs import MountWatch, mount_lines, mounts_outside, parse_mounts
from evenkeel.runtime.start_errors import NotCreated


class PlanWriter:
    """`profiles` is the directory of seccompProfile Localhost."""

    def __init__(
        self,
        paths: StatePaths,
        images: ContainerImages,
        networks: PodNetworks,
        users: UserNamespaces,
        host_paths: HostPaths,
        in_thread: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]],
        *,
        limits: LogLimits,
        profiles: str,
    ) -> None:
        self._paths = paths
        self._images = images
        self._networks = networks
        self._users = users
        self._host_paths = host_paths
        self._in_thread = in_thread
        self._limits = limits
        self._profiles = profiles
        self._around: Surroundings | None = None
        self._mounts = MountWatch()
        self._listed = b""  # the mounts outside the state directory, as the kernel lists them

    def close(self) -> None:
        self._mounts.close()

    async def write(self, launch: Launch, driver: Driver, powers: Powers) -> str:
        """Returns the image with its digest in the registry; empty if it has none. Raises EvenkeelError and OSError."""
        around = self._surroundings()
        image_directory, stored = await self._images.root_of(launch)
        if wants_addresses(launch.container) or has_own_network(launch.pod) or own_files(launch.pod):
            own = own_addresses(launch.pod, self._networks)
            launch = launch._replace(pod=with_addresses(launch.pod, host_address(), own))
        plan = plan_of(
            launch,
            self._paths,
            powers,
            procs=entrances(driver.files(launch.cgroup), driver.version),
            image_directory=image_directory,
            around=around,
            limits=self._limits,
            places=self._host_paths.places(launch.attempt.uid),
            network=self._networks.namespace(launch.attempt.uid) if has_own_network(launch.pod) else "",
            config=NO_CONFIG if stored is None else stored.config,
            own_filter=await self._own_filter(launch),
            holder_procs=_holder_procs(launch, driver),
            users=self._own_users(launch.pod),
        )
        directory = self._paths.attempt(*launch.attempt)
        make_directory(directory)
        for name in own_files(launch.pod):
            make_directory(f"{directory}/{ETC}")
            volumes.write_network_file(f"{directory}/{ETC}/{name}", name, launch.pod)
        written = plan._asdict()
        if takes_secrets(launch.container):
            # Its arguments and variables may have values of Secrets, which must not be on disk.
            private = self._paths.private(*launch.attempt)
            hidden = {name: written.pop(name) for name in PRIVATE}
            written["private"] = private
            await self._in_thread(partial(memory_mounts.write_private, private, hidden, self._paths))
        write_json(directory, supervisor_protocol.LAUNCH, written)
        return "" if stored is None else stored.repository_digest

    def _surroundings(self) -> Surroundings:
        """The volumes in memory of each pod are mounts of ours, so mounts change with most starts. Only those of others
        matter."""
        if self._around is None or self._mounts.have_changed():
            listed = mounts_outside(self._paths.root, mount_lines())
            if self._around is None or listed != self._listed:
                self._around, self._listed = surroundings(self._paths, parse_mounts(listed)), listed
        return self._around

    def _own_users(self, pod: Pod) -> OwnUsers | None:
        if not pod.spec.has_own_users:
            return None
        uid = pod.metadata.uid
        return OwnUsers(self._users.path(uid), self._users.first_id(uid))

    async def _own_filter(self, launch: Launch) -> Filter | None:
        profile = security.seccomp_profile(launch.pod, launch.container)
        if profile.type != security.LOCALHOST:
            return None
        try:
            own: Filter = await self._in_thread(
                partial(localhost_filter, self._profiles, profile.localhost_profile or "")
            )
        except EvenkeelError as error:
            raise NotCreated(error.message, hint=error.hint) from None
        return own


def own_addresses(pod: Pod, networks: PodNetworks) -> tuple[str, ...] | None:
    """Returns None if the pod uses the host's network."""
    return networks.addresses(pod.metadata.uid) if has_own_network(pod) else None


def _holder_procs(launch: Launch, driver: Driver) -> tuple[str, ...]:
    if not launch.pod.spec.share_process_namespace or launch.planned is None:
        return ()
    return entrances(driver.files(launch.planned.infrastructure.path), driver.version)
