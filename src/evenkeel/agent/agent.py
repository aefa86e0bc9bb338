"""The running agent: opens and closes its parts, runs the loops, and answers clients (`Front`).

`agent.bootstrap` constructs the parts and connects them.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from evenkeel.agent.adoption import BOOT, Adoption, state_from_containers
from evenkeel.agent.background_loops import BackgroundLoops
from evenkeel.agent.cluster_pods import ClusterPods
from evenkeel.agent.container_access import ContainerAccess
from evenkeel.agent.data_store import DataStore
from evenkeel.agent.desired_pods import CONFIGURED, CREATED, UNCHANGED, DesiredPods
from evenkeel.agent.desired_workloads import DesiredWorkloads
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.front import Applied
from evenkeel.agent.node.image_collection import ImageCollection
from evenkeel.agent.node.node_cgroups import NodeCgroups
from evenkeel.agent.node.oom_kills import KernelEvents
from evenkeel.agent.node.own_cgroup import OwnCgroup
from evenkeel.agent.observe.history import Advice, History
from evenkeel.agent.observe.node_snapshot import NodeSnapshot, NodeSnapshots, NodeUsage, node_usage
from evenkeel.agent.observe.pod_history import PodHistories, PodHistory
from evenkeel.agent.observe.sweep import Sweeper
from evenkeel.agent.pod_cgroups import PodCgroups
from evenkeel.agent.pod_loop import PodLoop
from evenkeel.agent.pod_store import ADDED, PodChange, PodStore
from evenkeel.agent.prober import Prober
from evenkeel.agent.sources.pod_files import PodFiles
from evenkeel.agent.step_requests import StepRequests
from evenkeel.api.claims import CLAIM
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.data_objects import DataKey
from evenkeel.api.node import Node
from evenkeel.api.pod import Pod
from evenkeel.api.stored_objects import StoredObject
from evenkeel.api.workloads import Workload
from evenkeel.cgroup.tree import Kind
from evenkeel.errors import EvenkeelError
from evenkeel.host.files import descriptor_shortage
from evenkeel.host.node_figures import boot_id
from evenkeel.journal.records import CLUSTER, FILE, Event
from evenkeel.journal.store import Journal, JournalError
from evenkeel.policy.node_view import NodeView
from evenkeel.pressure.watches import Watches, live_given, live_snapshot
from evenkeel.runtime import interface
from evenkeel.runtime.interface import Readiness, Runtime
from evenkeel.runtime.sessions import Session, Streams

log = logging.getLogger(__name__)


class Agent:
    """Runs between `open` and `close`. It must be used from one thread only."""

    def __init__(
        self,
        *,
        view: NodeView,
        runtime: Runtime,
        journal: Journal,
        clock: Callable[[], float],
        steps: StepRequests,
        event_recorder: EventRecorder,
        pod_store: PodStore,
        desired_pods: DesiredPods,
        data: DataStore,
        desired_workloads: DesiredWorkloads,
        cluster_pods: ClusterPods,
        files: PodFiles | None,
        cgroups: NodeCgroups,
        pod_cgroups: PodCgroups,
        pod_loop: PodLoop,
        adoption: Adoption,
        kernel_events: KernelEvents,
        background_loops: BackgroundLoops,
        image_collection: ImageCollection,
        prober: Prober,
        watches: Watches,
        sweeper: Sweeper,
        history: History,
        snapshots: NodeSnapshots,
        own_cgroup: OwnCgroup | None,
    ) -> None:
        self.steps = steps
        self.cgroups = cgroups
        self.pod_loop = pod_loop
        self.watches = watches
        self.cluster_pods = cluster_pods
        self.data = data
        self._view = view
        self._runtime = runtime
        self._journal = journal
        self._clock = clock
        self._event_recorder = event_recorder
        self._pod_store = pod_store
        self._desired_pods = desired_pods
        self._desired_workloads = desired_workloads
        self._files = files
        self._pod_cgroups = pod_cgroups
        self._adoption = adoption
        self._kernel_events = kernel_events
        self._background_loops = background_loops
        self._image_collection = image_collection
        self._prober = prober
        self._sweeper = sweeper
        self._history = history
        self._snapshots = snapshots
        self._own_cgroup = own_cgroup
        self._tasks: list[asyncio.Task[None]] = []
        self._histories = PodHistories(journal.path)
        self._access = ContainerAccess(runtime, pod_store)

    # Start and end

    async def open(self) -> None:
        """Adopts running containers, reads the files once, and makes the cgroups. Then the loops run until `close`."""
        await self._runtime.open()
        records = await self._runtime.containers()
        if self._files is not None:
            found = await self._files.scan()
            self._desired_pods.files_are(found, lambda pod: state_from_containers(pod, records))
            self._desired_workloads.files_are(found)
        await self.watches.memory.take_up()
        self._history.take_up()
        await self._adoption.adopt(records)
        for record in self._pod_store:
            if self._runtime.addresses(record.pod) is not None:
                self._pod_store.touch(record.uid)  # the runtime did not know its address before
        self._notice_reboot()
        self.watches.take_up()
        self.pod_loop.first_pass()
        await self.watches.open()
        loops = [
            self.pod_loop.run(),
            self._kernel_events.run(),
            *self._background_loops.all(),
            self._image_collection.run(),
            *self.watches.loops(self.cgroups.driver.version),
            self._history.run(self._sweeper),
        ]
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def close(self, *, stop_pods: bool = False) -> None:
        """Ends the agent. The pods continue to run, unless `stop_pods` stops them first."""
        if not stop_pods:
            await self.watches.memory.close(end=False)
        await self._snapshots.close()
        await self._sweeper.close()
        await self.watches.disk.close()
        if stop_pods:
            await self._stop_pods()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._history.save()
        await self._prober.close()
        await self.pod_loop.abandon()
        self._adoption.close()
        self._record_last_events()
        if self._files is not None:
            self._files.close()
        self._pod_store.changes.close()
        self._event_recorder.published.close()
        await self._runtime.close()
        self.cgroups.close()
        self.watches.intents.close()

    def kill_pods(self) -> None:
        """Kills the pods that `close` stops, or is going to stop, without their grace periods."""
        self.pod_loop.stop_all(0.0)

    async def failed(self) -> BaseException | None:
        """Waits until one of the loops ends, which should not happen. Returns the error that ended it."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        return next((task.exception() for task in done if not task.cancelled()), None)

    def _record_last_events(self) -> None:
        """Writes what the loops have recorded since the last step: no other step follows."""
        try:
            self._event_recorder.commit()
        except JournalError as error:
            log.error("%s", error)  # noqa: TRY400 the message is enough

    async def _stop_pods(self) -> None:
        self.pod_loop.stop_all()
        while not self.pod_loop.is_at_rest():
            await self.pod_loop.stepped()
        await self.watches.memory.close(end=True)
        self.pod_loop.begin_anew()
        for uid in await self._runtime.pods():
            try:
                await self._runtime.remove(uid)  # memory volumes are mounts, and must be unmounted
            except EvenkeelError as error:
                log.error("something of pod %s is left: %s", uid, error)  # noqa: TRY400 the message is enough
        if self._own_cgroup is not None and (note := self._own_cgroup.leave()):
            log.warning("%s", note)
        self._pod_cgroups.remove_all()

    def _notice_reboot(self) -> None:
        """If the machine was rebooted since the last agent, no container runs, and memory volumes are empty."""
        before, now = self._journal.value(BOOT), boot_id()
        if before is not None and before != now:
            self.pod_loop.begin_anew()
        if before != now:
            self._journal.set_value(BOOT, now)

    # Front: the interface for clients

    @property
    def config(self) -> KubeletConfiguration:
        return self._view.config

    @property
    def runtime(self) -> Readiness:
        return self._runtime.readiness

    def node(self) -> Node:
        return self._snapshots.node()

    def pods(self) -> tuple[Pod, ...]:
        return self._pod_store.shown()

    def pod(self, key: str) -> Pod | None:
        return self._pod_store.shown_by_key(key)

    async def apply(
        self,
        pods: Sequence[Pod],
        source: str = "api",
        objects: Sequence[StoredObject] = (),
        *,
        workloads: Sequence[Workload] = (),
    ) -> tuple[Applied, ...]:
        self._desired_workloads.check(workloads)
        before = self.data.apply(objects)
        try:
            with self._desired_workloads.all_or_nothing():
                applied = self._desired_pods.apply(pods, source) + self._desired_workloads.apply(workloads)
        except BaseException:
            self.data.put_back(before)
            raise
        return (*(_applied(self.data.get(key), key, one) for key, one in before.items()), *applied)

    def data_objects(self, kind: str) -> tuple[StoredObject, ...]:
        return self.data.listed(kind)

    def data_object(self, key: DataKey) -> StoredObject | None:
        return self.data.get(key)

    async def delete_data(self, key: DataKey) -> bool:
        was_there = self.data.delete(key)
        if was_there and key.kind == CLAIM:
            # The object was deleted first, so that no pod starts with files that are going to be removed.
            await self._runtime.remove_claim(key.namespace, key.name)
        return was_there

    def workloads(self) -> tuple[Workload, ...]:
        return self._desired_workloads.shown()

    def workload(self, key: str) -> Workload | None:
        return self._desired_workloads.get(key)

    async def scale(self, key: str, replicas: int) -> bool:
        return self._desired_workloads.scale(key, replicas)

    async def delete_workload(self, key: str, grace_seconds: float | None = None) -> bool:
        return self._desired_workloads.delete(key, grace_seconds)

    async def delete(self, key: str, grace_seconds: float | None = None) -> bool:
        record = self._pod_store.by_key(key)
        if record is None:
            return False
        if record.source.startswith(FILE):
            path = record.source.removeprefix(FILE)
            raise EvenkeelError(
                f"pod {key} stands in {path}",
                hint="take it out of that file, or remove the file: it ends then",
            )
        if record.source == CLUSTER and self.cluster_pods.is_joined:
            raise EvenkeelError(f"pod {key} belongs to the cluster", hint="delete it with kubectl")
        self._desired_pods.delete(record, grace_seconds)
        return True

    def events(self, pod: str = "", most: int = 1000) -> tuple[Event, ...]:
        return self._journal.events(pod, most)

    def follow(self) -> AsyncIterator[Event]:
        return self._event_recorder.published.subscribe()

    def watch(self) -> AsyncIterator[PodChange]:
        return self._pod_store.changes.subscribe(PodChange(ADDED, pod) for pod in self.pods())

    async def open_exec(self, key: str, container: str, command: tuple[str, ...], wanted: Streams) -> Session:
        return await self._access.open_exec(key, container, command, wanted)

    async def open_attach(self, key: str, container: str, wanted: Streams) -> Session:
        return await self._access.open_attach(key, container, wanted)

    async def open_port(self, key: str, port: int) -> socket.socket:
        return await self._access.open_port(key, port)

    def not_ready(self) -> str:
        if not self._tasks:
            return "the agent is starting"
        if any(task.done() for task in self._tasks):
            return "the agent is ending"
        runtime = self._runtime.readiness
        return (
            self.pod_loop.journal_fails
            or self._background_loops.journal_fault
            or ("" if runtime.is_ready else runtime.message)
            or (f"the agent {shortage}" if (shortage := descriptor_shortage()) else "")
            or self.watches.memory.not_ready
        )

    def usage(self) -> NodeUsage:
        return node_usage(self._view, self.cgroups, self._clock())

    async def images(self) -> tuple[tuple[interface.Image, ...], tuple[interface.Pull, ...]]:
        return await self._runtime.images(), self._runtime.pulls()

    async def node_snapshot(self) -> NodeSnapshot:
        return await self._snapshots.node_snapshot()

    def advice(self) -> Advice:
        tree = self.cgroups.tree
        paths = [
            (one.pod, one.container, one.path)
            for one in (tree.cgroups if tree is not None else ())
            if one.kind == Kind.CONTAINER
        ]
        return self._history.advice(self.pods(), paths)

    async def pod_history(self, key: str) -> PodHistory | None:
        return await self._histories.read(key)

    async def snapshot(self) -> Mapping[str, object]:
        measured = await self.watches.disk.measured()
        driver, queues = self.cgroups.driver, self.watches.memory.queues
        seen = live_snapshot(self._view, self.cgroups.tree, self._pod_store, driver, measured, queues)
        return live_given(self._view, seen)


def _applied(now: StoredObject | None, key: DataKey, before: StoredObject | None) -> Applied:
    outcome = CREATED if before is None else UNCHANGED if now == before else CONFIGURED
    return Applied(f"{key.namespace}/{key.name}", outcome, key.kind)
