"""Memory pressure, the loop's side of it: what the watch decided becomes part of the pods' lives, the journal and the
node's conditions."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from evenkeel.agent.parts import Parts
from evenkeel.cgroup.driver import Driver
from evenkeel.cgroup.tree import Kind, Tree
from evenkeel.host.protection import lock_memory, run_soon, tidy_rarely
from evenkeel.journal.records import NORMAL, WARNING
from evenkeel.policy.eviction.decide import State, settings_from
from evenkeel.policy.eviction.message import readable
from evenkeel.policy.eviction.thresholds import config_thresholds
from evenkeel.policy.eviction.usage import Resource
from evenkeel.pressure.decision_records import Step
from evenkeel.pressure.eviction_recorder import EvictionRecorder, NodeConditions
from evenkeel.pressure.guard_client import GuardClient
from evenkeel.pressure.memory.freezer import thaw
from evenkeel.pressure.memory.memory_watch import SWITCH_SECONDS, MemoryWatch
from evenkeel.pressure.memory.sampling import MEMORY_SIGNALS
from evenkeel.pressure.memory.throttle import Throttle
from evenkeel.pressure.protocol import Evicting, PodTarget, Timing, watch_targets

SOURCE = "memory"
_THREADS = 4


class MemoryPressure:
    """Does nothing where no memory threshold is configured."""

    def __init__(self, parts: Parts, conditions: NodeConditions) -> None:
        self._node = node = parts.node
        self._make_driver = parts.make_driver
        self._driver: Driver | None = None  # to find files with
        self._intents = parts.intents
        self._pod_store = parts.pod_store
        self._pod_loop = parts.pod_loop
        self._event_recorder = parts.event_recorder
        self.outcomes = EvictionRecorder(SOURCE, parts, conditions)
        self._guard = GuardClient(self._noted)
        self._throttle = Throttle(parts, self._guard)
        self._clock = parts.clock
        self._thresholds = tuple(
            one for one in config_thresholds(node.config) if one.signal in MEMORY_SIGNALS
        )
        self._settings = settings_from(node.config)._replace(local_storage_capacity_isolation=False)
        self._watch: MemoryWatch | None = None
        parts.pod_loop.on_exit = self.settle
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tree: Tree | None = None

    # From start to end

    def take_up(self) -> None:
        """What a former agent's watch had decided, and nobody had written down: before anything else is done."""
        self._throttle.take_up()
        for uid, message, at in self._intents.found:
            held = self._pod_store.get(uid)
            # Else the loop had taken it up, and died of that; or it was about what the pod was before it came back.
            if held is not None and held.life.verdict is None and held.life.accepted_at <= at:
                self.outcomes.evict(uid, message, at)
            else:
                self._intents.taken_up(uid)

    def open(self) -> None:
        self._driver = self._make_driver()
        if self._tree is not None:  # whoever stood still when a former agent was killed goes on
            inside = (Kind.POD, Kind.CONTAINER)
            thaw(self._driver, (one.path for one in self._tree.cgroups if one.kind in inside))
        if not self._thresholds:
            return
        self._loop = asyncio.get_running_loop()
        state = self.outcomes.state_before(self._thresholds)
        self._guard.start()  # before a thread has to leave the agent's cgroup to run soon (v1)
        for note in (lock_memory(), run_soon()):
            if note:
                self.outcomes.noted(note)
        sys.setswitchinterval(SWITCH_SECONDS)
        # Threads that work for the loop hold the interpreter as it does.
        threads = ThreadPoolExecutor(_THREADS, "evenkeel", initializer=run_soon)
        self._loop.set_default_executor(threads)
        tidy_rarely()
        self._watch = MemoryWatch(
            self._thresholds,
            self._settings,
            state,
            os.cpu_count() or 1,
            self._make_driver,
            self._intents,
            _Reports(self, self._loop),
            self._clock,
            self._guard,
        )
        if self._tree is not None:
            self.follow(self._tree)
        self._watch.start()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            for uid in tuple(self._watch.evicting):
                self.settle(uid)
            self._watch = None
        self._throttle.set({})
        self._guard.close()
        if self._driver is not None:
            self._driver.close()

    def follow(self, tree: Tree) -> None:
        """The cgroups are now these."""
        self._tree = tree
        if self._watch is not None and self._driver is not None:
            limit = self._node.pods_limits.memory_bytes
            self._watch.follow(watch_targets(tree, self._pod_store, self._driver, limit))

    def emptied(self, uid: str) -> None:
        """The pod's volumes in memory are."""
        if self._watch is not None:
            self._watch.emptied(uid)

    # What the watch tells

    def settle(self, uid: str) -> None:
        """Something of the pod has ended: if it was the watch that ended it, that is to be known first."""
        if self._watch is not None and (evicting := self._watch.evicting.get(uid)) is not None:
            self._evicting(evicting)

    def _noted(self, text: str) -> None:
        """By any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self.outcomes.noted, text)

    def _evicting(self, evicting: Evicting) -> None:
        if self._watch is not None and self._watch.evicting.pop(evicting.uid, None) is not None:
            self.outcomes.evicting(evicting.uid, evicting.eviction, evicting.at)

    def _stepped(self, step: Step, after: State, timing: Timing) -> None:
        self.outcomes.stepped(step, after, _plain_timing(timing))

    def _back(self, member: PodTarget, held_bytes: int, took_seconds: float) -> None:
        held = self._pod_store.get(member.uid)
        message = f"{readable(held_bytes, Resource.MEMORY)} came back within {took_seconds * 1000:.0f} ms"
        figures = {"bytes": held_bytes, "seconds": took_seconds}
        pod = held.pod if held is not None else None
        self._event_recorder.record(NORMAL, "MemoryBack", message, pod, figures=figures)
        self._pod_loop.want_step()

    def _reclaiming(self, expected_bytes: int, short_bytes: int) -> None:
        expected, short = (readable(amount, Resource.MEMORY) for amount in (expected_bytes, short_bytes))
        message = (
            f"{short} are missing: taking back {expected} of files and caches from pods above their requests"
        )
        figures = {"expectedBytes": expected_bytes, "shortBytes": short_bytes}
        self._event_recorder.record(NORMAL, "Reclaiming", message, figures=figures)
        self._pod_loop.want_step()

    def _holding(self, uids: tuple[str, ...]) -> None:
        for uid in uids:
            held = self._pod_store.get(uid)
            if held is not None:
                message = (
                    "next to no memory is left: the pod, above its request, stands still until more is back"
                )
                self._event_recorder.record(WARNING, "Held", message, held.pod)
        self._pod_loop.want_step()


class _Reports:
    """From the watch's thread into the loop."""

    def __init__(self, pressure: MemoryPressure, loop: asyncio.AbstractEventLoop) -> None:
        self._pressure = pressure
        self._loop = loop

    def evicting(self, evicting: Evicting) -> None:
        self._call(self._pressure._evicting, evicting)  # noqa: SLF001 - its other half

    def stepped(self, step: Step, after: State, timing: Timing) -> None:
        self._call(self._pressure._stepped, step, after, timing)  # noqa: SLF001

    def back(self, member: PodTarget, held_bytes: int, took_seconds: float) -> None:
        self._call(self._pressure._back, member, held_bytes, took_seconds)  # noqa: SLF001

    def reclaiming(self, expected_bytes: int, short_bytes: int) -> None:
        self._call(self._pressure._reclaiming, expected_bytes, short_bytes)  # noqa: SLF001

    def throttling(self, most_bytes: Mapping[str, int]) -> None:
        self._call(self._pressure._throttle.set, most_bytes)  # noqa: SLF001

    def holding(self, uids: tuple[str, ...]) -> None:
        self._call(self._pressure._holding, uids)  # noqa: SLF001

    def noted(self, text: str) -> None:
        self._pressure._noted(text)  # noqa: SLF001

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            pass  # the loop has ended; the journal has the intent


def _plain_timing(timing: Timing) -> dict[str, object]:
    if timing.is_kernels:
        return {"beganAt": timing.began_at, "byKernel": True}
    if timing.sent_at is None:
        return {"beganAt": timing.began_at}
    took = timing.sent_at - timing.began_at
    return {"beganAt": timing.began_at, "killSentAt": timing.sent_at, "tookSeconds": took}
