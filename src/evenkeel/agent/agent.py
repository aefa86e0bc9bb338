"""The agent: pods from files and from its socket, kept running on this machine.

It is put together here; what it does is in `sync` (the loop), `kernel_events`, `probing` and the rooms below.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from evenkeel.agent import adoption
from evenkeel.agent.admission import FILE
from evenkeel.agent.desired_pods import DesiredPods
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.front import ADDED, Applied, ContainerUsage, NodeUsage, PodChange
from evenkeel.agent.node.kernel_events import KernelEvents
from evenkeel.agent.node.node_cgroups import NodeCgroups
from evenkeel.agent.node.oom_kills import OomKills
from evenkeel.agent.observe import history_file
from evenkeel.agent.observe.history import Advice, History
from evenkeel.agent.observe.node_snapshot import NodeSnapshot, NodeSnapshots, node_object
from evenkeel.agent.observe.story import Story, story_of
from evenkeel.agent.observe.sweep import Sweeper
from evenkeel.agent.parts import Parts
from evenkeel.agent.pod_loop import PodLoop
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.probes.prober import Prober
from evenkeel.agent.sources.pod_files import PodFiles
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.node import Node
from evenkeel.api.pod import Pod, PodStatus
from evenkeel.cgroup.driver import Driver
from evenkeel.cgroup.tree import Kind, Tree, Version
from evenkeel.errors import EvenkeelError
from evenkeel.host.capacity import parse_meminfo
from evenkeel.host.files import read_text
from evenkeel.host.memory_figures import node_memory
from evenkeel.host.node_figures import boot_id, machine_oom_kills
from evenkeel.journal.records import NORMAL, WARNING, Event, PodRecord
from evenkeel.journal.store import Journal, JournalError
from evenkeel.policy.admission import Refusal
from evenkeel.policy.lifecycle.actions import actions
from evenkeel.policy.lifecycle.pod_state import settings_of
from evenkeel.policy.lifecycle.pod_status import NO_WAITING, pod_status, timestamp, with_pending_resize
from evenkeel.policy.node_view import NodeView
from evenkeel.pressure.cpu_pressure import CpuPressure
from evenkeel.pressure.disk.disk_pressure import DiskPressure
from evenkeel.pressure.eviction_backoff import EvictionBackoff
from evenkeel.pressure.eviction_recorder import NodeConditions
from evenkeel.pressure.intents import Intents
from evenkeel.pressure.live_snapshot import live_given, live_snapshot
from evenkeel.pressure.memory.memory_pressure import MemoryPressure
from evenkeel.pressure.memory_stalls import MemoryStalls
from evenkeel.runtime.interface import Attempt, Exited, Readiness, Record, Runtime

log = logging.getLogger(__name__)

_HEAL_SECONDS = 10.0
_CHECKPOINT_SECONDS = 60.0
_FILES_RETRY_SECONDS = 5.0  # after the journal could not take what they want
_BOOT = "boot"  # which start of the machine the journal is of


class Agent:
    """Everything between `open` and `close`; nothing of it is safe for a second thread."""

    def __init__(
        self,
        node: NodeView,
        runtime: Runtime,
        journal: Journal,
        make_driver: Callable[[], Driver],
        files: PodFiles | None = None,
        clock: Callable[[], float] = time.time,
        machine_oom_kills: Callable[[], int | None] = machine_oom_kills,
    ) -> None:
        self._view = node
        self._runtime = runtime
        self._journal = journal
        self._files = files
        self._clock = clock
        settings = settings_of(node.config)
        self._settings = settings
        self._event_recorder = EventRecorder(journal, clock)
        # Known after the first step; until then nobody has asked for one.
        self._pending_resize: Callable[[PodRecord], Refusal | None] = lambda _: None
        self._pod_store = PodStore(journal, self._with_status)
        self._cgroups = NodeCgroups(node, make_driver, self._tree_changed)
        oom_kills = OomKills(self._cgroups, machine_oom_kills)
        self._pod_loop = PodLoop(
            node,
            settings,
            runtime,
            journal,
            self._pod_store,
            self._cgroups,
            oom_kills,
            self._event_recorder,
            self._clock,
        )
        self._intents = Intents(os.path.dirname(journal.path))
        parts = Parts(
            node,
            runtime,
            make_driver,
            journal,
            self._intents,
            self._pod_store,
            self._cgroups,
            oom_kills,
            self._event_recorder,
            self._pod_loop,
            clock,
        )
        self._desired_pods = DesiredPods(parts)
        self._pending_resize = self._desired_pods.pending_resize
        self._kernel = KernelEvents(parts)
        self._probing = Prober(parts)
        self._returning = EvictionBackoff(parts)
        self._pod_loop.on_evicted = self._returning.look_again
        self._conditions = NodeConditions(self._pod_loop, self._event_recorder)
        self._conditions.on_change = self._returning.look_again
        self._pressure = MemoryPressure(parts, self._conditions)
        self._node_pressure = DiskPressure(parts, self._conditions)
        self._cpu_pressure = CpuPressure(parts, self._conditions)
        self._stalls = MemoryStalls(parts)
        self._sweeper = Sweeper(node, make_driver, lambda: self._cgroups.tree, runtime, clock, runtime.daemon)
        self._history = History(node, clock(), os.path.join(os.path.dirname(journal.path), history_file.NAME))
        self._pictures = NodeSnapshots(parts, self._sweeper, self._node_pressure, self.node, self.pods)
        self._pod_loop.on_emptied = self._pressure.emptied
        self._pod_loop.on_cleaned = self._cleaned
        self._tasks: list[asyncio.Task[None]] = []
        self._storytelling = asyncio.Lock()
        self.before_removal: Callable[[], None] = lambda: None  # of the cgroups, when the pods have ended

    # From start to end

    async def open(self) -> None:
        """Takes over what runs, reads the files once, makes the cgroups; then works until `close`."""
        await self._runtime.open()
        records = await self._runtime.containers()
        if self._files is not None:
            self._desired_pods.files_are(await self._files.scan(), self._life_of(records))
        self._pressure.take_up()
        self._history.take_up()
        await self._adopt(records)
        self._notice_reboot()
        self._stalls.take_up()
        self._cpu_pressure.take_up()
        self._pod_loop.first_pass()
        self._pressure.open()
        self._node_pressure.open()
        loops = [
            self._pod_loop.run(),
            self._kernel.run(),
            self._listen(),
            self._heal(),
            self._checkpoint(),
            self._returning.run(),
            self._history.run(self._sweeper),
        ]
        if self._cgroups.driver.version == Version.V2:
            loops.append(self._stalls.run())
        if self._cpu_pressure.is_on:
            loops.append(self._cpu_pressure.run())
        if self._files is not None:
            loops.append(self._read_files(self._files))
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def close(self, *, stop_pods: bool = False) -> None:
        """Lets the pods run on, or stops them first."""
        self._pressure.close()
        await self._pictures.close()
        await self._sweeper.close()
        await self._node_pressure.close()
        if stop_pods:
            await self._stop_pods()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._history.save()
        await self._probing.close()
        await self._pod_loop.abandon()
        if self._files is not None:
            self._files.close()
        self._pod_store.changes.close()
        self._event_recorder.feed.close()
        await self._runtime.close()
        self._cgroups.close()
        self._intents.close()

    async def failed(self) -> BaseException | None:
        """Returns when one of the loops has ended, which none should, with what ended it."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        return next((task.exception() for task in done if not task.cancelled()), None)

    async def _stop_pods(self) -> None:
        self._pod_loop.stop_all()
        while not self._pod_loop.is_at_rest():
            await self._pod_loop.stepped()
        self._pod_loop.begin_anew()
        for uid in await self._runtime.pods():
            try:
                await self._runtime.remove(uid)  # volumes in memory are mounts
            except EvenkeelError as error:
                log.error("something of pod %s is left: %s", uid, error)  # noqa: TRY400 a sentence says it all
        self.before_removal()
        self._pod_loop.remove_cgroups()

    async def _adopt(self, records: Mapping[Attempt, Record]) -> None:
        for held in self._pod_store:
            for record in adoption.begun(held, records):
                self._pod_loop.started(record)
        for held in self._pod_store:
            for attempt, exit_ in adoption.unseen_ends(held, records):
                self._pod_loop.exited(attempt, exit_)
        uids = {held.pod.metadata.uid for held in self._pod_store}
        for record in adoption.strays(uids, records):
            message = (
                f"container {record.attempt.container} of pod {record.attempt.uid} runs, and nobody wants it"
            )
            self._event_recorder.record(WARNING, "Stray", f"{message}: it is stopped")
            try:
                await self._runtime.stop(record.attempt, 0)
            except EvenkeelError as error:
                self._event_recorder.record(WARNING, "FailedKill", str(error))
        for uid in await self._runtime.pods() - uids:
            try:
                await self._runtime.remove(uid)
                await self._runtime.remove_logs(uid)
            except EvenkeelError as error:  # the next time that the runtime is asked what it has
                self._event_recorder.record(
                    WARNING, "Leftover", f"pod {uid} is gone, and something of it is left: {error}"
                )

    def _notice_reboot(self) -> None:
        """The machine was started anew since the last agent: nothing runs, and nothing is left in memory."""
        before, now = self._journal.value(_BOOT), boot_id()
        if before is not None and before != now:
            self._pod_loop.begin_anew()
        if before != now:
            self._journal.set_value(_BOOT, now)

    def _life_of(self, records: Mapping[Attempt, Record]) -> Callable[[Pod], PodRecord | None]:
        """For pods that run and that the journal does not have."""

        def held(pod: Pod) -> PodRecord | None:
            life = adoption.life_from(pod, records)
            return None if life is None else PodRecord(pod, "", 0, is_admitted=True, life=life)

        return held

    # The loops

    async def _listen(self) -> None:
        async for event in self._runtime.events():
            if isinstance(event, Exited):
                self._pod_loop.exited(event.attempt, event.exit)
            else:
                type_, reason = (NORMAL, "RuntimeBack") if event.is_back else (WARNING, "RuntimeLost")
                self._event_recorder.record(type_, reason, event.why)
                await self._adopt(await self._runtime.containers())

    async def _heal(self) -> None:
        while True:
            await asyncio.sleep(_HEAL_SECONDS)
            self._pod_loop.heal()

    async def _checkpoint(self) -> None:
        """The journal's log of writes would grow without it; waiting for the disk is a thread's business."""
        last = ""
        while True:
            await asyncio.sleep(_CHECKPOINT_SECONDS)
            try:
                await asyncio.to_thread(self._journal.checkpoint)
            except JournalError as error:
                if str(error) != last:
                    log.error("%s", error)  # noqa: TRY400 a sentence says it all
                last = str(error)
            else:
                last = ""

    async def _read_files(self, files: PodFiles) -> None:
        async for found in files:
            while True:
                try:
                    self._desired_pods.files_are(found)
                    break
                except JournalError as error:
                    log.error("%s", error)  # noqa: TRY400 a sentence says it all
                    await asyncio.sleep(_FILES_RETRY_SECONDS)

    def _tree_changed(self, tree: Tree) -> None:
        self._kernel.follow(tree)
        self._pressure.follow(tree)
        self._node_pressure.follow(tree)
        self._stalls.follow(tree)

    def _cleaned(self, uid: str) -> None:
        self._pressure.emptied(uid)
        self._node_pressure.cleaned(uid)

    # Front: what others ask

    @property
    def config(self) -> KubeletConfiguration:
        return self._view.config

    @property
    def runtime(self) -> Readiness:
        return self._runtime.readiness

    def node(self) -> Node:
        return node_object(self._view, self._pod_loop.pressures, self._runtime.readiness)

    def pods(self) -> tuple[Pod, ...]:
        return self._pod_store.shown()

    def pod(self, key: str) -> Pod | None:
        return self._pod_store.shown_by_key(key)

    async def apply(self, pods: Sequence[Pod], source: str = "api") -> tuple[Applied, ...]:
        return self._desired_pods.apply(pods, source)

    async def delete(self, key: str, grace_seconds: float | None = None) -> bool:
        held = self._pod_store.by_key(key)
        if held is None:
            return False
        if held.source.startswith(FILE):
            path = held.source.removeprefix(FILE)
            raise EvenkeelError(
                f"pod {key} stands in {path}",
                hint="take it out of that file, or remove the file: it ends then",
            )
        self._desired_pods.delete(held, grace_seconds)
        return True

    def happenings(self, pod: str = "", most: int = 1000) -> tuple[Event, ...]:
        return self._journal.happenings(pod, most)

    def follow(self) -> AsyncIterator[Event]:
        return self._event_recorder.feed.listen()

    def watch(self) -> AsyncIterator[PodChange]:
        return self._pod_store.changes.listen(PodChange(ADDED, pod) for pod in self.pods())

    def not_ready(self) -> str:
        if not self._tasks:
            return "the agent is starting"
        if any(task.done() for task in self._tasks):
            return "the agent is ending"
        runtime = self._runtime.readiness
        return self._pod_loop.journal_fails or ("" if runtime.is_ready else runtime.message)

    def usage(self) -> NodeUsage:
        tree = self._cgroups.tree
        found = []
        root = None
        for cgroup in tree.cgroups if tree is not None else ():
            if cgroup.kind not in (Kind.ROOT, Kind.POD, Kind.CONTAINER):
                continue
            statistics = self._cgroups.statistics(cgroup)
            if cgroup.kind == Kind.ROOT:
                root = statistics
            elif statistics is not None:
                found.append(ContainerUsage(cgroup.pod, cgroup.container, statistics))
        capacity = self._view.capacity
        memory = node_memory(parse_meminfo(read_text("/proc/meminfo")), self._view.profile)
        # Of a node that is only a part of the machine, what is left of that part.
        left = capacity.memory_bytes - (root.memory_working_set_bytes if root is not None else 0)
        available = max(min(memory.available_bytes or 0, left), 0)
        return NodeUsage(
            self._clock(), capacity.memory_bytes, available, capacity.millicpu, root, tuple(found)
        )

    async def picture(self) -> NodeSnapshot:
        return await self._pictures.picture()

    def advice(self) -> Advice:
        tree = self._cgroups.tree
        paths = [
            (one.pod, one.container, one.path)
            for one in (tree.cgroups if tree is not None else ())
            if one.kind == Kind.CONTAINER
        ]
        return self._history.advice(self.pods(), paths)

    async def story(self, key: str) -> Story | None:
        """Read in a thread with a connection of its own, and one at a time: a long story holds up nobody."""
        async with self._storytelling:
            return await asyncio.to_thread(self._read_story, key)

    def _read_story(self, key: str) -> Story | None:
        with Journal.read(self._journal.path) as journal:
            return story_of(journal, key)

    async def snapshot(self) -> Mapping[str, object]:
        measured = await self._node_pressure.measured()
        driver = self._cgroups.driver
        return live_given(
            self._view, live_snapshot(self._view, self._cgroups.tree, self._pod_store, driver, measured)
        )

    def _with_status(self, held: PodRecord, before: Pod | None) -> Pod:
        """The pod with its status; conditions that are as they were in `before` keep their time."""
        todo = actions(held.pod, held.life, self._clock(), self._settings) if held.is_admitted else None
        told = held.pod._replace(status=before.status if before is not None else PodStatus())
        if held.life.deleted_at is not None:
            deleted = timestamp(held.life.deleted_at)
            told = told._replace(metadata=told.metadata._replace(deletion_timestamp=deleted))
        waiting = todo.waiting if todo is not None else NO_WAITING
        runtime = "" if self._view.config.container_runtime_endpoint else "process"
        status = pod_status(told, held.life, self._view.profile, waiting, runtime)
        status = with_pending_resize(status, self._pending_resize(held), self._clock())
        return told._replace(status=status)
