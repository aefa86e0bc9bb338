"""Disk and process pressure in the agent's loop: starts the watch, gives it targets, and records its actions."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping

from evenkeel.cgroup.driver import Driver
from evenkeel.cgroup.tree import Tree
from evenkeel.journal.records import NORMAL
from evenkeel.policy.eviction.decide import Eviction, Reclaim, State, settings_from
from evenkeel.policy.eviction.message import readable
from evenkeel.policy.eviction.thresholds import config_thresholds
from evenkeel.policy.eviction.usage import Resource
from evenkeel.policy.node_view import NodeView
from evenkeel.pressure.disk.disk_readings import DiskTargets, Measured
from evenkeel.pressure.disk.disk_watch import DiskWatch
from evenkeel.pressure.disk.garbage_collection import Collected, Collector
from evenkeel.pressure.eviction_recorder import EvictionRecorder
from evenkeel.pressure.eviction_steps import Step
from evenkeel.pressure.intents import Intents
from evenkeel.pressure.protocol import PodObserver, PodRecords
from evenkeel.pressure.targets import MEMORY_SIGNALS, watch_targets
from evenkeel.pressure.watch_thread import LoopCalls
from evenkeel.runtime.interface import Runtime

SOURCE = "node"
_COLLECT_SECONDS = 60.0  # how long the watch waits for a garbage collection
# After a change of pods, containers are started. The watch is woken a little later, because its thread would compete
# with the starts for the interpreter.
_LOOK_SECONDS = 0.005


class DiskPressure(PodObserver):
    """For the agent's loop."""

    def __init__(
        self,
        node: NodeView,
        runtime: Runtime,
        make_driver: Callable[[], Driver],
        intents: Intents,
        pods: PodRecords,
        recorder: EvictionRecorder,
        calls: LoopCalls,
        clock: Callable[[], float],
    ) -> None:
        self._node = node
        self._runtime = runtime
        self._make_driver = make_driver
        self._intents = intents
        self._pods = pods
        self._recorder = recorder
        self._calls = calls
        self._clock = clock
        self._driver: Driver | None = None  # finds the files of cgroups
        self._watch: DiskWatch | None = None
        self._tree: Tree | None = None
        self._look: asyncio.TimerHandle | None = None  # when the watch will be woken

    def open(self) -> None:
        loop = asyncio.get_running_loop()
        thresholds = tuple(
            one for one in config_thresholds(self._node.config) if one.signal not in MEMORY_SIGNALS
        )
        self._driver = self._make_driver()
        self._watch = DiskWatch(
            thresholds,
            settings_from(self._node.config),
            self._recorder.state_before(thresholds),
            most_processes=self._node.capacity.pids,
            storage_path=self._runtime.storage_path,
            images_path=self._runtime.images_path,
            directories=self._runtime.directories,
            collectors=self._collectors(loop),
            make_driver=self._make_driver,
            intents=self._intents,
            reports=_Reports(self._recorder, self._calls),
            clock=self._clock,
        )
        if self._tree is not None:
            self.cgroups_changed(self._tree)
        self._watch.start()

    async def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
        if self._watch is not None:
            watch, self._watch = self._watch, None
            # The watch may be waiting for the loop to collect garbage, so the loop must not block here.
            await asyncio.to_thread(watch.stop)
        if self._driver is not None:
            self._driver.close()

    def cgroups_changed(self, tree: Tree) -> None:
        self._tree = tree
        if self._watch is None or self._driver is None:
            return
        targets = watch_targets(tree, self._pods, self._driver, None)
        pids = self._driver.files(targets.path).get("pids", "") if targets.path else ""
        # A pod is among the targets before it is started: it may fill a small disk at once.
        self._watch.follow(DiskTargets(targets.path, targets.pods, pids.removesuffix(targets.path)))
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._wake, self._watch)

    def _wake(self, watch: DiskWatch) -> None:
        self._look = None
        watch.wake()

    def cleaned(self, uid: str) -> None:
        """The pod's directories and volumes are removed."""
        if self._watch is not None:
            self._watch.cleaned(uid)

    async def measured(self) -> Measured | None:
        """Measures disk and processes of the node and of every pod now."""
        if self._watch is None:
            return None
        return await asyncio.wrap_future(self._watch.measure())

    # Garbage

    def _collectors(self, loop: asyncio.AbstractEventLoop) -> tuple[Collector, ...]:
        """The order is: remains of ended pods, images that can be pulled again, and then old logs."""

        def blocking(work: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
            def collect() -> None:
                asyncio.run_coroutine_threadsafe(work(), loop).result(_COLLECT_SECONDS)

            return collect

        return (
            Collector(Reclaim.CONTAINERS, "what pods that have ended left", blocking(self._collect_dead)),
            Collector(Reclaim.IMAGES, "unused images", blocking(self._runtime.remove_unused_images)),
            Collector(Reclaim.CONTAINERS, "old logs", blocking(self._runtime.remove_old_logs)),
        )

    async def _collect_dead(self) -> None:
        """Removes logs of pods that have ended, and all remains of pods that the agent does not know."""
        for uid in await self._runtime.pods():
            record = self._pods.get(uid)
            if record is None:
                await self._runtime.remove(uid)
                await self._runtime.remove_logs(uid)
            elif not record.takes_room and not record.state.is_alive:
                await self._runtime.remove_logs(uid)


class _Reports:
    """Passes reports from the watch's thread to the agent's loop."""

    def __init__(self, recorder: EvictionRecorder, calls: LoopCalls) -> None:
        self._recorder = recorder
        self._calls = calls

    def evicting(self, uid: str, eviction: Eviction, at: float) -> None:
        self._calls.call(self._recorder.evicting, uid, eviction, at)

    def stepped(self, step: Step, after: State, more: Mapping[str, object]) -> None:
        self._calls.call(self._recorder.stepped, step, after, more)

    def collected(self, collected: Collected) -> None:
        what, bytes_, inodes, _ = collected
        message = f"removed {what}: {readable(bytes_, Resource.STORAGE)} and {inodes} inodes are free again"
        figures = {"bytes": bytes_, "inodes": inodes}
        self._calls.call(self._recorder.record, NORMAL, "Collected", message, figures)

    def noted(self, text: str) -> None:
        self._calls.call(self._recorder.noted, text)
