"""Memory pressure in the agent's loop: gives `evenkeel-watch` its settings and targets, and records what it did.

Without a memory threshold there is no watch; one that is still there is asked to end.
"""

import os
from collections.abc import Callable, Mapping

from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.tree import Kind, Tree
from evenkeel.host.protection import lock_memory
from evenkeel.journal.codec import to_text
from evenkeel.journal.store import Journal
from evenkeel.policy.eviction.decide import settings_from
from evenkeel.policy.eviction.thresholds import config_thresholds
from evenkeel.policy.node_view import NodeView
from evenkeel.pressure.eviction_recorder import EvictionRecorder, NodeConditions
from evenkeel.pressure.eviction_steps import state_plain
from evenkeel.pressure.intents import Intents, OthersIntents
from evenkeel.pressure.memory.memory_reports import MemoryReports, Throttle
from evenkeel.pressure.memory.memory_watch import WatchSettings
from evenkeel.pressure.protocol import Cgroups, Events, Evictions, PodObserver, PodRecords, Steps
from evenkeel.pressure.targets import MEMORY_SIGNALS, WatchTargets, watch_targets
from evenkeel.pressure.watch.messages import INTENTS_NAME, Message, settings_message, targets_plain
from evenkeel.pressure.watch.watch_connection import WatchConnection
from evenkeel.pressure.watch.watch_link import WatchLink

SOURCE = "memory"


class PodTexts:
    """The pods as texts, each with a key. A pod is encoded when it is sent: once for each watch."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[Pod, str]] = {}  # by UID, with the key
        self._count = 0
        self._sent: set[str] = set()

    def of(self, targets: WatchTargets) -> tuple[dict[str, str], dict[str, str]]:
        """The key of each target by UID, and the texts that the watch does not know yet by their keys."""
        current = {}
        for target in targets.pods:
            before, key = self._of.get(target.uid, (None, ""))
            if before is not target.pod and before != target.pod:
                self._count += 1
                key = f"{os.getpid()}.{self._count}"
            current[target.uid] = (target.pod, key)
        self._of = current
        new = {key: to_text(pod) for pod, key in current.values() if key not in self._sent}
        self._sent = {key for _, key in current.values()}
        return {uid: key for uid, (_, key) in current.items()}, new

    def forget_sent(self) -> None:
        """A new watch knows no pod."""
        self._sent.clear()


class MemoryPressure(PodObserver):
    """For the agent's loop."""

    def __init__(
        self,
        node: NodeView,
        make_driver: Callable[[], Driver],
        journal: Journal,
        intents: Intents,
        cgroups: Cgroups,
        pods: PodRecords,
        evictions: Evictions,
        conditions: NodeConditions,
        events: Events,
        steps: Steps,
    ) -> None:
        self._node = node
        self._make_driver = make_driver
        self._intents = intents
        self._cgroups = cgroups
        self._pods = pods
        self._conditions = conditions
        self._driver: Driver | None = None  # finds the files of cgroups
        self._directory = os.path.dirname(journal.path)
        thresholds = tuple(one for one in config_thresholds(node.config) if one.signal in MEMORY_SIGNALS)
        settings = settings_from(node.config)._replace(local_storage_capacity_isolation=False)
        self._given = WatchSettings(thresholds, settings, os.cpu_count() or 1)
        self.recorder = EvictionRecorder(
            SOURCE, journal, self._taken_up, pods, evictions, conditions, events, steps
        )
        self.throttle = Throttle(journal, cgroups, pods, events, steps)
        self._reports = MemoryReports(journal, pods, events, steps, self.recorder, self.throttle, self._heard)
        self._link = WatchLink(
            self._directory, self._introduce, self._reports.take, self.recorder.noted, self._release_all
        )
        self._watch_intents = OthersIntents(self._directory, INTENTS_NAME)
        self._texts = PodTexts()
        self.queues: dict[str, int] = {}
        self._tree: Tree | None = None
        self._hello: Message | None = None  # of the watch that was found
        self._taken: set[str] = set()  # while this agent starts: pods whose intent is no longer needed

    async def take_up(self) -> None:
        """Call this first. Records what the watch did while no agent was there, and the evictions of which only the
        intent is known."""
        self.throttle.take_up()
        for intent in self._intents.found:
            self._reports.take_intent(intent)
        self._hello = await self._link.find()
        if self._hello is None:
            left = self._watch_intents.all()
            for intent in left:
                self._reports.take_intent(intent)
            if self._taken.issuperset(intent.uid for intent in left):
                self._watch_intents.remove()

    async def open(self) -> None:
        """Starts the watch, or goes on with the one that was found."""
        self._driver = self._make_driver()
        if self._hello is None:
            self._thaw(self._driver)
        if not self._given.thresholds:
            await self._link.close(end=True)
            return
        if note := lock_memory("the agent's memory"):
            self.recorder.noted(note)
        self._link.open()

    async def close(self, *, end: bool) -> None:
        """Leaves the watch to itself. With `end`, it ends: no pod is left."""
        await self._link.close(end=end)
        self._watch_intents.close()
        if self._driver is not None:
            self._driver.close()

    @property
    def not_ready(self) -> str:
        """The reason why no watch looks for a shortage of memory; empty if one does, or if none is needed."""
        return self._link.absence if self._given.thresholds else ""

    # Calls from the agent

    def exited(self, uid: str) -> None:
        """If the watch killed the pod, the eviction is recorded first. Then the restart policy does not apply. The
        intent is on disk before the kill; the report may come later."""
        self._link.receive()
        intent = self._watch_intents.find(uid) if self._given.thresholds else None
        if intent is not None:
            self._reports.take_intent(intent)

    def emptied(self, uid: str) -> None:
        self._link.send({"do": "emptied", "uid": uid})

    def cleaned(self, uid: str) -> None:
        self.emptied(uid)

    def cgroups_changed(self, tree: Tree) -> None:
        self._tree = tree
        # Before `open`, a watch that was found keeps the targets that it has.
        if self._driver is not None:
            self._link.change(self._targets_message)

    # The watch

    def count_queues(self, queues: Mapping[str, int]) -> None:
        """By UID: what pods have in queues of sockets and no cgroup has."""
        if queues != self.queues:
            self.queues = dict(queues)
            self._link.change(self._queues_message)

    def _queues_message(self) -> Message:
        return {"do": "queues", "bytes": self.queues}

    def _introduce(self, connection: WatchConnection) -> None:
        state = self.recorder.state_before(self._given.thresholds)
        connection.send({"do": "settings", **settings_message(self._given), "state": state_plain(state)})
        self.throttle.set(connection.throttled)
        self._texts.forget_sent()
        connection.send(self._targets_message())
        connection.send(self._queues_message())

    def _targets_message(self) -> Message:
        assert self._driver is not None
        targets = WatchTargets()
        tree = self._cgroups.planned or self._tree
        if tree is not None:
            targets = watch_targets(tree, self._pods, self._driver, self._node.pods_limits.memory_bytes)
        key_of, texts = self._texts.of(targets)
        self._reports.follow({key_of[target.uid]: target.pod for target in targets.pods})
        return {"do": "targets", "targets": targets_plain(targets, key_of), "texts": texts}

    def _heard(self, number: int) -> None:
        self._link.send({"do": "heard", "number": number})

    def _taken_up(self, uid: str) -> None:
        self._taken.add(uid)
        self._intents.taken_up(uid)
        self._link.send({"do": "taken", "uid": uid})

    def _release_all(self) -> None:
        """The watch is gone. Its guard releases all pods, but may be gone as well. The agent has to forget which pods
        were throttled, because the next watch does not report them."""
        self.throttle.set({})
        if self._driver is not None:
            self._thaw(self._driver)

    def _thaw(self, driver: Driver) -> None:
        """Thaws pods that were frozen when a former watch and its guard were killed."""
        for one in self._tree.cgroups if self._tree is not None else ():
            if one.kind in (Kind.POD, Kind.CONTAINER):
                try:
                    driver.send_freeze(one.path, frozen=False)
                except CgroupError:
                    continue  # the cgroup is gone, or the machine cannot freeze
