"""The sandboxes of pods: one for each pod, made before its first container and removed after its last.

A sandbox runs one process that does nothing. It is the infrastructure of the pod: its cgroup is the infrastructure
cgroup of the plan (D4), and its process has the OOM score of infrastructure (A12).
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress

from evenkeel.api.pod import Pod
from evenkeel.cgroup.tree import Naming
from evenkeel.host.oom_scores import set_oom_scores
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.configs import STATE, UID, sandbox_config
from evenkeel.runtime.cri.container_calls import is_removed
from evenkeel.runtime.cri.container_table import save_sandbox
from evenkeel.runtime.cri.cri_connection import CallFailed, RuntimeAway
from evenkeel.runtime.cri.cri_status import location
from evenkeel.runtime.cri.runtime_link import RuntimeLink
from evenkeel.runtime.id_ranges import IdRanges
from evenkeel.runtime.interface import Launch
from evenkeel.runtime.paths import StatePaths, UnsafeName
from evenkeel.runtime.start_errors import FAILED_SANDBOX, NotPrepared, StartFailed

log = logging.getLogger(__name__)

_RUN_SECONDS = 120.0
_STOP_SECONDS = 60.0
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 20.0


class Sandbox(NamedTuple):
    id: str
    number: int  # counts the sandboxes of the pod
    is_ready: bool
    pid: int = 0
    cgroup: str = ""
    has_own_network: bool = False
    addresses: tuple[str, ...] = ()  # in its own network


class Sandboxes:
    def __init__(
        self, link: RuntimeLink, paths: StatePaths, ranges: IdRanges, listed: Callable[[], Awaitable[None]]
    ) -> None:
        self._link = link
        self._connection = link.connection
        self._paths = paths
        self._ranges = ranges
        self._listed = listed  # lists the runtime's containers and sandboxes again
        self._of_pod: dict[str, dict[str, Sandbox]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._locating: dict[str, asyncio.Task[None]] = {}
        self._removing: set[str] = set()  # pods whose sandboxes are being removed

    def ids(self) -> frozenset[str]:
        return frozenset(id_ for of_pod in self._of_pod.values() for id_ in of_pod)

    async def update(self, sandboxes: Iterable[pb.PodSandbox], before: frozenset[str]) -> None:
        """Replaces the table by the complete list of the runtime's sandboxes. `before` are the IDs in the table before
        the runtime was asked: a sandbox that was made since need not be in the list, and stays."""
        found: dict[str, dict[str, Sandbox]] = {}
        for one in sandboxes:
            uid = one.labels.get(UID, "")
            is_ready = one.state == pb.PodSandboxState.SANDBOX_READY
            known = self._of_pod.get(uid, {}).get(one.id)
            if known is None or not known.cgroup:
                known = await self._inspect(uid, one.id, one.metadata.attempt, is_ready=is_ready)
            found.setdefault(uid, {})[one.id] = known._replace(is_ready=is_ready)
        for uid, of_pod in self._of_pod.items():
            for id_, made in of_pod.items():
                if id_ not in before:
                    found.setdefault(uid, {}).setdefault(id_, made)
        self._of_pod = found

    def uids(self) -> frozenset[str]:
        return frozenset(self._of_pod)

    def cgroup(self, uid: str) -> str:
        """Returns the name of the cgroup of the pod's sandbox; empty if there is none, or it is not known."""
        ready = self._ready(uid)
        return ready.cgroup.rpartition("/")[2] if ready is not None else ""

    async def ready(self, launch: Launch, naming: Naming) -> tuple[Sandbox, pb.PodSandboxConfig]:
        """Returns the pod's sandbox, and makes it if there is none. Raises StartFailed and RuntimeAway."""
        uid = launch.attempt.uid
        async with self._locks.setdefault(uid, asyncio.Lock()):
            sandbox = self._ready(uid)
            if sandbox is None:
                sandbox = await self._run(launch, naming)
            config = sandbox_config(
                launch,
                self._paths,
                naming,
                sandbox.number,
                has_own_network=sandbox.has_own_network,
                first_id=self.first_id(launch.pod),
            )
            return sandbox, config

    def first_id(self, pod: Pod) -> int | None:
        """The first of the pod's own users; None if its users are the host's."""
        return self._ranges.take(pod.metadata.uid) if pod.spec.has_own_users else None

    def addresses(self, pod: Pod) -> tuple[str, ...] | None:
        """Returns the addresses of the pod's own network, as far as they are known; None if it uses the host's."""
        sandbox = self._ready(pod.metadata.uid)
        if pod.spec.host_network or (sandbox is not None and not sandbox.has_own_network):
            return None
        return sandbox.addresses if sandbox is not None else ()

    def may_have_own_network(self, pod: Pod) -> bool:
        return pod.spec.host_network is False or (pod.spec.host_network is None and self._link.has_network)

    async def located(self, uid: str) -> None:
        """Returns when the cgroup of the pod's sandbox is known, or cannot be found out now."""
        locating = self._locating.get(uid)
        if locating is not None:
            await asyncio.wait([locating])
            self._locating.pop(uid, None)

    def removals_of_left(
        self, inhabited: frozenset[str], starting: frozenset[str]
    ) -> Iterator[Coroutine[None, None, None]]:
        """Yields the removals of sandboxes whose pods are gone, and of incomplete ones, for the caller to run.

        An incomplete sandbox is left if an agent asked for it and was killed before the answer. `inhabited` are
        sandboxes with containers, `starting` the UIDs of pods with containers that are being started.
        """
        for uid in frozenset(self._of_pod) - starting - self._removing:
            with suppress(UnsafeName):  # not one of our pods
                unready = {one.id for one in self._of_pod[uid].values() if not one.is_ready}
                if not os.path.isdir(self._paths.pod(uid)):
                    yield self.remove(uid)
                elif unready - inhabited:
                    yield self._discard(uid, unready - inhabited)

    async def remove(self, uid: str) -> None:
        """Removes all sandboxes of the pod with everything in them. Raises CallFailed."""
        with self._being_removed(uid):
            await self._remove_all(uid)

    async def _discard(self, uid: str, ids: Iterable[str]) -> None:
        with self._being_removed(uid):
            for id_ in ids:
                await self._remove(id_)
                self._of_pod.get(uid, {}).pop(id_, None)

    @contextmanager
    def _being_removed(self, uid: str) -> Iterator[None]:
        self._removing.add(uid)
        try:
            yield
        finally:
            self._removing.discard(uid)

    async def _remove_all(self, uid: str) -> None:
        ours = {STATE: self._paths.root, UID: uid}
        answer = await self._connection.ask(
            pb.ListPodSandboxRequest(filter=pb.PodSandboxFilter(label_selector=ours)),
            pb.ListPodSandboxResponse,
        )
        for one in answer.items:
            await self._remove(one.id)
        self._of_pod.pop(uid, None)
        self._locks.pop(uid, None)

    async def _remove(self, id_: str) -> None:
        for request, response in (
            (pb.StopPodSandboxRequest(pod_sandbox_id=id_), pb.StopPodSandboxResponse),
            (pb.RemovePodSandboxRequest(pod_sandbox_id=id_), pb.RemovePodSandboxResponse),
        ):
            wait = _FIRST_WAIT_SECONDS
            while True:
                try:
                    await self._connection.ask(request, response, _STOP_SECONDS)
                    break
                except RuntimeAway:
                    raise
                except CallFailed as error:
                    # The sandbox, or a container in it, is being removed or is just ending.
                    # "Not found" may refer to a container in it that another call has just removed.
                    if error.is_not_found and not await self._is_there(id_):
                        break
                    if wait > _LONGEST_WAIT_SECONDS:
                        raise
                    if error.has_task:
                        await self._remove_containers(id_)
                await asyncio.sleep(wait)
                wait *= 2

    async def _is_there(self, id_: str) -> bool:
        try:
            await self._connection.ask(
                pb.PodSandboxStatusRequest(pod_sandbox_id=id_), pb.PodSandboxStatusResponse
            )
        except RuntimeAway:
            raise
        except CallFailed as error:
            return not error.is_not_found
        return True

    async def _remove_containers(self, id_: str) -> None:
        """Removes the containers one by one, because the runtime cannot remove some of them by itself."""
        answer = await self._connection.ask(
            pb.ListContainersRequest(filter=pb.ContainerFilter(pod_sandbox_id=id_)), pb.ListContainersResponse
        )
        for one in answer.containers:
            await is_removed(self._connection, one.id)

    def _ready(self, uid: str) -> Sandbox | None:
        ready = [one for one in self._of_pod.get(uid, {}).values() if one.is_ready]
        return max(ready, key=lambda one: one.number, default=None)

    async def _run(self, launch: Launch, naming: Naming) -> Sandbox:
        """Makes a sandbox. If an earlier answer was lost, the name is taken, and listing again finds the sandbox."""
        uid = launch.attempt.uid
        number = 1 + max((one.number for one in self._of_pod.get(uid, {}).values()), default=-1)
        has_own_network = await self._has_own_network(launch.pod)
        pod, handler = launch.pod, launch.pod.spec.runtime_class_name or ""
        first_id = self.first_id(pod)
        # A runtime that does not know of user namespaces would run the pod without one.
        if first_id is not None and (problem := self._link.no_user_namespace(handler)):
            raise StartFailed(f"spec.hostUsers: false is not supported: {problem}")
        config = sandbox_config(
            launch, self._paths, naming, number, has_own_network=has_own_network, first_id=first_id
        )
        # The runtime refuses a handler that it does not have.
        request = pb.RunPodSandboxRequest(config=config, runtime_handler=handler)
        wait = _FIRST_WAIT_SECONDS
        while True:
            try:
                answer = await self._connection.ask(request, pb.RunPodSandboxResponse, _RUN_SECONDS)
                break
            except RuntimeAway:
                raise
            except CallFailed as error:
                await self._listed()
                sandbox = self._ready(uid)
                if sandbox is not None:
                    return sandbox
                if not error.is_taken or wait > _LONGEST_WAIT_SECONDS:
                    message = f"the pod's sandbox cannot be made: {error.message}"
                    raise NotPrepared(message, FAILED_SANDBOX) from None
            await asyncio.sleep(wait)
            wait *= 2
        sandbox = Sandbox(answer.pod_sandbox_id, number, is_ready=True, has_own_network=has_own_network)
        self._of_pod.setdefault(uid, {})[sandbox.id] = sandbox
        # A container can be made in it before its cgroup is known.
        self._locating[uid] = asyncio.get_running_loop().create_task(self._locate(launch, sandbox))
        return sandbox

    async def _has_own_network(self, pod: Pod) -> bool:
        """The pod's choice. A pod that leaves it open gets the runtime's network, if the runtime had one when the agent
        connected. Raises StartFailed and RuntimeAway."""
        if pod.spec.host_network is not False:
            return not pod.spec.host_network and self._link.has_network
        problem = await self._link.no_network()
        if problem:
            raise StartFailed(
                f"hostNetwork: false, and the runtime has no network: {problem}",
                hint="give it one in /etc/cni/net.d, or leave hostNetwork out to use the host's",
            )
        return True

    async def _locate(self, launch: Launch, sandbox: Sandbox) -> None:
        uid = launch.attempt.uid
        with suppress(RuntimeAway):  # the next listing finds it
            seen = await self._inspect(uid, sandbox.id, sandbox.number, is_ready=True)
            if sandbox.id in self._of_pod.get(uid, {}):
                self._of_pod[uid][sandbox.id] = seen
            self._set_score(launch, seen)

    def _set_score(self, launch: Launch, sandbox: Sandbox) -> None:
        """A12: replaces the OOM score that the runtime gives to sandboxes."""
        assert launch.planned is not None
        score = launch.planned.infrastructure.oom_score_adj
        if score is not None and sandbox.pid:
            scored = set_oom_scores(lambda: (sandbox.pid,), int(score.value))
            if scored.message:
                log.debug("the sandbox of pod %s: %s", launch.pod.key, scored.message)

    async def _inspect(self, uid: str, id_: str, number: int, *, is_ready: bool) -> Sandbox:
        try:
            status = await self._connection.ask(
                pb.PodSandboxStatusRequest(pod_sandbox_id=id_, verbose=True), pb.PodSandboxStatusResponse
            )
        except RuntimeAway:
            raise
        except CallFailed:  # the sandbox has just gone
            return Sandbox(id_, number, is_ready=False)
        pid, cgroup = location(status.info, uid)
        if is_ready and uid:
            save_sandbox(uid, cgroup, self._paths)
        network = status.status.network
        addresses = (network.ip, *(one.ip for one in network.additional_ips))
        return Sandbox(
            id_,
            number,
            is_ready,
            pid,
            cgroup,
            status.status.linux.namespaces.options.network == pb.NamespaceMode.POD,
            tuple(filter(None, addresses)),
        )
