"""Kernel triggers: kernel events (E1), or other descriptors of the watch's process, that wake the memory watch early.

On cgroup v1 the kernel reports when the usage of the pods' cgroup crosses a threshold. On v2 it reports when the cgroup
reaches its limit. On both it reports when tasks stall for memory.
"""

import select
import time
from collections.abc import Callable, Sequence

from evenkeel.cgroup.tree import Version
from evenkeel.host.event_types import subscription_refusal
from evenkeel.host.memory_notifications import (
    MemoryEventsWatch,
    OomNotification,
    UsageThreshold,
    parse_counters,
)
from evenkeel.host.polling import Poller
from evenkeel.host.psi import ArmedTrigger, Kind, Resource, Trigger, cgroup_file, node_file
from evenkeel.pressure.targets import WatchTargets

_LEAST_EPOLL_SECONDS = 0.001
# Tasks stalled for memory for this long within such a window. The watch then samples at once, before the planned time.
STALL = Trigger(Resource.MEMORY, Kind.SOME, 20_000, 500_000)


class KernelTriggers:
    def __init__(self) -> None:
        self.notes: list[str] = []  # events that the kernel does not report, and why
        self._epoll = Poller()
        self._others: dict[int, Callable[[], None]] = {}  # by descriptor: what to call when it is ready
        self._usage: dict[int, UsageThreshold] = {}  # by descriptor
        # The descriptors of `_usage` that belong to thresholds. The others belong to marks below a threshold.
        self._lines: set[int] = set()
        self._stalls: dict[int, ArmedTrigger] = {}
        self._events: MemoryEventsWatch | None = None
        self._oom: OomNotification | None = None
        # v2: the file that counts how often the pods' cgroup itself ran out of memory.
        self._local_events = ""
        self._ooms = 0
        self._is_oom = False
        self._is_crossing = False
        self.woken_at = 0.0  # when the last wait ended, by CLOCK_MONOTONIC
        self.reported_at = 0.0  # when the last wait ended in which a threshold was crossed
        self._add_stall(node_file(Resource.MEMORY))
        self._of_node = set(self._stalls)

    def call_when_ready(
        self, descriptor: int, call: Callable[[], None], events: int = select.EPOLLIN
    ) -> None:
        """Waits for this descriptor too. If it is known already, `call` and `events` replace the former."""
        if descriptor in self._others:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)
        self._others[descriptor] = call

    def forget(self, descriptor: int) -> None:
        """Waits for it no longer. Call this before it is closed."""
        if self._others.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def follow(self, targets: WatchTargets, lines: Sequence[int], marks: Sequence[int]) -> bool:
        """Listens to the pods' cgroup. On v1 it also listens for usage that crosses one of `lines` (thresholds) or
        `marks` (levels below a threshold). Returns whether the kernel will report these crossings."""
        self._drop_all()
        if not targets.directory:
            return False
        is_notified = False
        if targets.version == Version.V1:
            added = [self._add_usage(targets, line, is_line=True) for line in lines]
            added += [self._add_usage(targets, mark, is_line=False) for mark in marks]
            is_notified = bool(added) and all(added)
            self._add_oom(targets)
        else:
            self._add_events(targets)
            self._add_stall(cgroup_file(targets.directory, Resource.MEMORY))
        return is_notified

    def take_oom(self) -> bool:
        """Whether, since the last call, the pods' cgroup ran out of memory and the kernel's OOM killer acted."""
        is_oom, self._is_oom = self._is_oom, False
        return is_oom

    def take_crossing(self) -> bool:
        """Whether the usage crossed a threshold or a mark since the last call."""
        is_crossing, self._is_crossing = self._is_crossing, False
        return is_crossing

    def wait(self, seconds: float) -> bool:
        """Waits until an event occurs or the time is over. Returns whether an event occurred. A wait of less
        than a millisecond is not ended by an event, because epoll counts whole milliseconds."""
        if 0 < seconds < _LEAST_EPOLL_SECONDS:
            time.sleep(seconds)
            seconds = 0.0
        try:
            ready = self._epoll.poll(seconds)
        except InterruptedError:
            return True
        finally:
            self.woken_at = time.monotonic()
        for descriptor, _ in ready:
            self._take(descriptor)
        return bool(ready)

    def close(self) -> None:
        self._drop_all()
        for trigger in self._stalls.values():
            trigger.close()
        self._stalls.clear()
        self._epoll.close()

    def _take(self, descriptor: int) -> None:
        """Consumes the event, so that it does not wake the thread again."""
        if descriptor in self._usage:
            # edge-triggered: it wakes the thread only once, so no time is spent on reading it
            if not self._epoll.has_edges:
                self._usage[descriptor].consume()
            self._is_crossing = True
            if descriptor in self._lines:
                self.reported_at = self.woken_at
        elif descriptor in self._stalls:
            if self._stalls[descriptor].is_gone():
                self._epoll.unregister(descriptor)
                self._stalls.pop(descriptor).close()
        elif self._oom is not None and descriptor == self._oom.fileno():
            self._is_oom |= any(True for _ in self._oom.ready())
        elif descriptor in self._others:  # an earlier call may have removed it
            self._others[descriptor]()
        elif self._events is not None and descriptor == self._events.fileno():
            for _ in self._events.ready():
                pass
            before, self._ooms = self._ooms, self._count_ooms()
            self._is_oom |= self._ooms > before

    def _add_usage(self, targets: WatchTargets, level: int, *, is_line: bool) -> bool:
        try:
            source = UsageThreshold(targets.path, targets.directory, level)
        except OSError as error:
            self._note(f"the kernel does not report memory thresholds: {subscription_refusal(error)}")
            return False
        self._usage[source.fileno()] = source
        if is_line:
            self._lines.add(source.fileno())
        self._epoll.register(source.fileno(), select.EPOLLIN | select.EPOLLET)
        return True

    def _add_events(self, targets: WatchTargets) -> None:
        try:
            watch = MemoryEventsWatch()
            try:
                watch.add(targets.path, targets.directory)
            except BaseException:
                watch.close()
                raise
        except OSError as error:
            self._note(f"the kernel does not report memory events: {subscription_refusal(error)}")
            return
        self._events = watch
        self._epoll.register(watch.fileno(), select.EPOLLIN)
        self._local_events = f"{targets.directory}/memory.events.local"
        self._ooms = self._count_ooms()

    def _count_ooms(self) -> int:
        try:
            with open(self._local_events, encoding="ascii") as file:
                return parse_counters(file.read()).get("oom", 0)
        except OSError:
            return self._ooms  # the file is gone, or the kernel is old

    def _add_oom(self, targets: WatchTargets) -> None:
        try:
            self._oom = OomNotification(targets.path, targets.directory)
        except OSError as error:
            self._note(f"the kernel does not report when its OOM killer acts: {subscription_refusal(error)}")
            return
        self._epoll.register(self._oom.fileno(), select.EPOLLIN)

    def _add_stall(self, file: str) -> None:
        try:
            trigger = ArmedTrigger(file, STALL)
        except OSError as error:
            self._note(f"the kernel does not report stalls in {file}: {subscription_refusal(error)}")
            return
        self._stalls[trigger.fileno()] = trigger
        self._epoll.register(trigger.fileno(), select.EPOLLIN)

    def _drop_all(self) -> None:
        """Stops listening to everything except the machine's own stalls."""
        for source in self._usage.values():
            self._epoll.unregister(source.fileno())
            source.close()
        self._usage.clear()
        self._lines.clear()
        if self._oom is not None:
            self._epoll.unregister(self._oom.fileno())
            self._oom.close()
            self._oom = None
        if self._events is not None:
            self._epoll.unregister(self._events.fileno())
            self._events.close()
            self._events = None
        for descriptor in self._stalls.keys() - self._of_node:
            self._epoll.unregister(descriptor)
            self._stalls.pop(descriptor).close()

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
