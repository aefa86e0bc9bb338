"""Memory pressure in the agent's loop: starts the memory watch, gives it targets, and records its actions.

It does nothing if no memory threshold is configured.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from evenkeel.cgroup.driver import Driver
from evenkeel.cgroup.tree import Kind, Tree
from evenkeel.host.protection import collect_garbage_rarely, lock_memory, run_soon
from evenkeel.policy.eviction.decide import settings_from
from evenkeel.policy.eviction.thresholds import config_thresholds
from evenkeel.policy.node_view import NodeView
from evenkeel.pressure.eviction_recorder import EvictionRecorder
from evenkeel.pressure.guard_client import GuardClient
from evenkeel.pressure.intents import Intents
from evenkeel.pressure.memory.freezer import thaw
from evenkeel.pressure.memory.memory_reports import MemoryReports
from evenkeel.pressure.memory.memory_watch import SWITCH_SECONDS, MemoryWatch
from evenkeel.pressure.memory.throttle import Throttle
from evenkeel.pressure.protocol import MEMORY_SIGNALS, PodObserver, PodRecords, watch_targets

SOURCE = "memory"
_THREADS = 4


class MemoryPressure(PodObserver):
    """For the agent's loop. `throttle` and `recorder` are the same objects that `reports` uses."""

    def __init__(
        self,
        node: NodeView,
        make_driver: Callable[[], Driver],
        intents: Intents,
        pods: PodRecords,
        recorder: EvictionRecorder,
        guard: GuardClient,
        throttle: Throttle,
        reports: MemoryReports,
        clock: Callable[[], float],
    ) -> None:
        self._node = node
        self._make_driver = make_driver
        self._intents = intents
        self._pods = pods
        self.recorder = recorder
        self._guard = guard
        self.throttle = throttle
        self._reports = reports
        self._clock = clock
        self._driver: Driver | None = None  # finds the files of cgroups
        self._thresholds = tuple(
            one for one in config_thresholds(node.config) if one.signal in MEMORY_SIGNALS
        )
        self._settings = settings_from(node.config)._replace(local_storage_capacity_isolation=False)
        self._watch: MemoryWatch | None = None
        self._tree: Tree | None = None

    def take_up(self) -> None:
        """Call this first. Records the evictions that the watch of a former agent had decided and that were not
        recorded."""
        self.throttle.take_up()
        for uid, message, at in self._intents.found:
            record = self._pods.get(uid)
            # Otherwise the former agent had recorded it, or the intent is older than the pod's return.
            if record is not None and record.state.verdict is None and record.state.accepted_at <= at:
                self.recorder.evict(uid, message, at)
            else:
                self._intents.taken_up(uid)

    def open(self) -> None:
        self._driver = self._make_driver()
        if self._tree is not None:  # thaws pods that were frozen when a former agent was killed
            inside = (Kind.POD, Kind.CONTAINER)
            thaw(self._driver, (one.path for one in self._tree.cgroups if one.kind in inside))
        if not self._thresholds:
            return
        state = self.recorder.state_before(self._thresholds)
        self._guard.start()  # before a thread has to leave the agent's cgroup to run soon (v1)
        for note in (lock_memory(), run_soon()):
            if note:
                self.recorder.noted(note)
        sys.setswitchinterval(SWITCH_SECONDS)
        # Threads that work for the loop also hold the GIL, so they need the same priority.
        threads = ThreadPoolExecutor(_THREADS, "evenkeel", initializer=run_soon)
        asyncio.get_running_loop().set_default_executor(threads)
        collect_garbage_rarely()
        self._watch = MemoryWatch(
            self._thresholds,
            self._settings,
            state,
            os.cpu_count() or 1,
            self._make_driver,
            self._intents,
            self._reports,
            self._reports.unrecorded,
            self._clock,
            self._guard,
        )
        if self._tree is not None:
            self.cgroups_changed(self._tree)
        self._watch.start()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
            for uid in self._reports.unrecorded.uids():
                self._reports.record_eviction(uid)
        self.throttle.set({})
        self._guard.close()
        if self._driver is not None:
            self._driver.close()

    # Calls from the agent

    def exited(self, uid: str) -> None:
        """If the watch killed the pod, the eviction is recorded first. Then the restart policy does not apply."""
        self._reports.record_eviction(uid)

    def emptied(self, uid: str) -> None:
        if self._watch is not None:
            self._watch.emptied(uid)

    def cleaned(self, uid: str) -> None:
        self.emptied(uid)

    def cgroups_changed(self, tree: Tree) -> None:
        self._tree = tree
        if self._watch is not None and self._driver is not None:
            limit = self._node.pods_limits.memory_bytes
            self._watch.follow(watch_targets(tree, self._pods, self._driver, limit))
