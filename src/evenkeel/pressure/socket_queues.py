"""Counts memory in queues of sockets for the pods that hold it, where the kernel charges it to no cgroup.

A pod could take the memory of a whole machine that way, and others would be evicted for it. So the memory watch adds it
to the pod's memory, and a limit holds for the sum (`policy.socket_queues`). A node whose kernel memory does not grow
pays one read a second. All sockets are looked at when it has grown, and now and then in any case. A look that takes
much of the CPU is taken more rarely.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.tree import Kind, Tree, Version
from evenkeel.host.socket_memory import BUFFERS_LIMIT_FILE, NO_BUFFERS_LIMIT, KernelMemory, buffers_bytes
from evenkeel.host.ticks import next_tick
from evenkeel.journal.records import WARNING, PodRecord
from evenkeel.policy.lifecycle import stops
from evenkeel.policy.lifecycle.actions import Stop
from evenkeel.policy.lifecycle.pod_state import AS_FAILURE
from evenkeel.policy.socket_queues import AboveLimit, above_limit
from evenkeel.pressure.protocol import Cgroups, Events, PodObserver, PodRecords, Steps
from evenkeel.pressure.socket_readings import LEAST_BYTES, Look, look
from evenkeel.pressure.targets import WatchTargets, watch_targets

log = logging.getLogger(__name__)

_CALM_SECONDS = 1.0
_MOVING_SECONDS = 0.2  # while queues change, or a limit is exceeded
_MOST_SECONDS = 20.0  # between two looks
_COST_SHARE = 0.01  # share of a CPU for looks that find nothing
_FOUND_SHARE = 0.1  # and for those that find queues
_STEP_BYTES = 1 << 20  # queues are counted in such steps: small changes are no news for the watch


class SocketQueues(PodObserver):
    """For the agent's loop. `count` gets the bytes in queues by the pod's UID, whenever they were read."""

    def __init__(
        self,
        cgroups: Cgroups,
        pods: PodRecords,
        count: Callable[[Mapping[str, int]], None],
        events: Events,
        steps: Steps,
        clock: Callable[[], float],
    ) -> None:
        self._cgroups = cgroups
        self._pods = pods
        self._count = count
        self._events = events
        self._steps = steps
        self._clock = clock
        self._is_v1 = cgroups.driver.version == Version.V1
        self._tree: Tree | None = None
        self._targets: WatchTargets | None = None  # of the tree; a look needs the places of the pods only
        self._root = ""  # v1: directory of the pods' cgroup
        # v1: containers by path, whose buffers the kernel counts; and those whose cgroup is not there yet.
        self._counting: set[str] = set()
        self._not_there: dict[str, str] = {}  # with the key of the pod
        self._kernel_bytes = 0  # the least kernel memory since the last look
        self._buffers_then = 0
        self._looked_at = -_MOST_SECONDS
        self._pause_seconds = 0.0  # after the last look, for what it has cost
        self._counted: dict[str, int] = {}
        self._above: dict[str, AboveLimit] = {}  # by UID: limits that were exceeded at the last look
        self._is_moving = False

    async def run(self) -> None:
        """Runs until it is cancelled."""
        kernel = KernelMemory()
        self._kernel_bytes = kernel.read()
        try:
            while True:
                await (asyncio.sleep(_MOVING_SECONDS) if self._is_moving else next_tick(_CALM_SECONDS))
                if self._not_there:
                    self._begin_counting(self._not_there)
                if self._is_due(kernel.read(), time.monotonic()):
                    await self._look()
        finally:
            kernel.close()

    # v1: the kernel counts buffers of TCP and UDP from the moment when a limit is written, and only of new sockets

    def cgroups_changed(self, tree: Tree) -> None:
        self._tree = tree
        self._targets = None
        if not self._is_v1:
            return
        if not self._root:
            root = next((one.path for one in tree.cgroups if one.kind == Kind.ROOT), "")
            self._root = self._cgroups.driver.files(root).get("memory", "") if root else ""
        current = {one.path: one.pod for one in tree.cgroups if one.kind == Kind.CONTAINER}
        self._counting &= current.keys()
        self._begin_counting({path: pod for path, pod in current.items() if path not in self._counting})

    def settled(self, uid: str, record: PodRecord | None) -> None:  # noqa: ARG002
        """A container runtime makes the cgroup of a container when it starts it."""
        if self._not_there and record is not None:
            key = record.pod.key
            self._begin_counting({path: pod for path, pod in self._not_there.items() if pod == key})

    def _begin_counting(self, containers: Mapping[str, str]) -> None:
        for path, pod in list(containers.items()):
            self._not_there.pop(path, None)
            self._counting.add(path)
            try:
                self._cgroups.driver.write(path, BUFFERS_LIMIT_FILE, NO_BUFFERS_LIMIT)
            except CgroupError as error:
                if error.reason == "ENOENT":
                    self._counting.discard(path)
                    self._not_there[path] = pod
        if self._not_there and self._tree is not None:
            there = {one.path for one in self._tree.cgroups}
            self._not_there = {path: pod for path, pod in self._not_there.items() if path in there}

    # Looking

    def _is_due(self, kernel_bytes: int, now: float) -> bool:
        since = now - self._looked_at
        self._kernel_bytes = min(self._kernel_bytes, kernel_bytes)
        buffers = buffers_bytes(self._root) if self._is_v1 and self._root else 0
        is_news = (
            bool(self._counted)
            or kernel_bytes - self._kernel_bytes >= LEAST_BYTES
            or abs(buffers - self._buffers_then) >= LEAST_BYTES
        )
        if since < self._pause_seconds or not (is_news or since >= _MOST_SECONDS):
            return False
        self._kernel_bytes, self._buffers_then, self._looked_at = kernel_bytes, buffers, now
        return True

    async def _look(self) -> None:
        if self._targets is None and self._tree is not None:
            self._targets = watch_targets(self._tree, self._pods, self._cgroups.driver, None)
        try:
            found = await asyncio.to_thread(look, self._targets or WatchTargets())
        except OSError as error:
            log.warning("the queues of sockets cannot be read: %s", error)
            return
        share = _FOUND_SHARE if found.pods else _COST_SHARE
        self._pause_seconds = found.cpu_seconds / share
        self.found(found)

    def found(self, found: Look) -> None:
        """Acts on what was read. A limit must be exceeded at two looks: a queue may be read at the next moment."""
        queues = {uid: held.pod.queue_bytes // _STEP_BYTES * _STEP_BYTES for uid, held in found.pods.items()}
        counted = {uid: held for uid, held in queues.items() if held}
        before, self._above = self._above, {}
        for uid, held in found.pods.items():
            above = above_limit(*held)
            if above is not None:
                self._above[uid] = above
                was = before.get(uid)
                if was is not None and was.container == above.container:
                    self._end(uid, above)
        self._is_moving = counted != self._counted or bool(self._above)
        self._counted = counted
        self._count(counted)

    def _end(self, uid: str, above: AboveLimit) -> None:
        record = self._pods.get(uid)
        if record is None or record.state.verdict is not None:
            return
        state = record.state.container(above.container)
        if not state.is_running or state.stopping:
            return
        stop = Stop(above.container, above.sentence, 0.0, AS_FAILURE)
        self._pods.put_state(uid, stops.asked_to_stop(record.state, stop, self._clock()))
        done = "it is killed, and its restart policy says what follows"
        message = f"container {above.container}: {above.sentence}; {done}"
        figures = {**above.held._asdict(), "container": above.container}
        self._events.record(WARNING, "MemoryLimitExceeded", message, record.pod, above.container, figures)
        self._steps.want_step(uid)
