"""What wakes the watch before its time: the kernel's own events (E1), and the agent's loop.

On cgroup v1 the kernel tells when the usage of the pods' cgroup crosses a mark; on v2 when it meets its limit, and on
both when tasks stall for memory.
"""

import os
import select
from collections.abc import Sequence

from evenkeel.agent.pressure.roster import Roster
from evenkeel.cgroup.tree import Version
from evenkeel.host.memory_events import MemoryEventsWatch
from evenkeel.host.pressure import ArmedTrigger, Kind, Resource, Trigger, cgroup_file, node_file
from evenkeel.host.reasons import reason
from evenkeel.host.v1_notifications import UsageThreshold

# Tasks that stood still for memory so long within any such window: it is time to look, whatever was expected.
STALL = Trigger(Resource.MEMORY, Kind.SOME, 20_000, 500_000)


class Wakers:
    """For one thread, but `wake` is for all."""

    def __init__(self) -> None:
        self.notes: list[str] = []  # what the kernel does not tell, and why
        self._epoll = select.epoll()
        self._ours = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._ours, select.EPOLLIN)
        self._usage: dict[int, UsageThreshold] = {}  # by descriptor
        self._stalls: dict[int, ArmedTrigger] = {}
        self._events: MemoryEventsWatch | None = None
        self._add_stall(node_file(Resource.MEMORY))
        self._of_node = set(self._stalls)

    def wake(self) -> None:
        os.eventfd_write(self._ours, 1)

    def follow(self, roster: Roster, marks: Sequence[int]) -> bool:
        """Listens for the pods' cgroup, and on v1 for its usage crossing one of `marks`. Whether that will be told."""
        self._drop_all()
        if not roster.directory:
            return False
        is_told = False
        if roster.version == Version.V1:
            is_told = bool(marks) and sum(self._add_usage(roster, mark) for mark in marks) == len(marks)
        else:
            self._add_events(roster)
            self._add_stall(cgroup_file(roster.directory, Resource.MEMORY))
        return is_told

    def wait(self, seconds: float) -> bool:
        """Until something happens, or the time is over; whether something did."""
        try:
            ready = self._epoll.poll(seconds)
        except InterruptedError:
            return True
        for descriptor, _ in ready:
            self._take(descriptor)
        return bool(ready)

    def close(self) -> None:
        self._drop_all()
        for trigger in self._stalls.values():
            trigger.close()
        self._stalls.clear()
        self._epoll.close()
        os.close(self._ours)

    def _take(self, descriptor: int) -> None:
        """Leaves nothing that would wake us again for the same."""
        if descriptor == self._ours:
            os.eventfd_read(self._ours)
        elif descriptor in self._usage:
            for _ in self._usage[descriptor].ready():
                pass
        elif descriptor in self._stalls:
            if self._stalls[descriptor].is_gone():
                self._epoll.unregister(descriptor)
                self._stalls.pop(descriptor).close()
        elif self._events is not None:
            for _ in self._events.ready():
                pass

    def _add_usage(self, roster: Roster, mark: int) -> bool:
        try:
            source = UsageThreshold(roster.path, roster.directory, mark)
        except OSError as error:
            self._note(f"the kernel does not tell of memory thresholds: {reason(error)}")
            return False
        self._usage[source.fileno()] = source
        self._epoll.register(source.fileno(), select.EPOLLIN)
        return True

    def _add_events(self, roster: Roster) -> None:
        try:
            watch = MemoryEventsWatch()
            try:
                watch.add(roster.path, roster.directory)
            except BaseException:
                watch.close()
                raise
        except OSError as error:
            self._note(f"the kernel does not tell of memory events: {reason(error)}")
            return
        self._events = watch
        self._epoll.register(watch.fileno(), select.EPOLLIN)

    def _add_stall(self, file: str) -> None:
        try:
            trigger = ArmedTrigger(file, STALL)
        except OSError as error:
            self._note(f"the kernel does not tell of stalls in {file}: {reason(error)}")
            return
        self._stalls[trigger.fileno()] = trigger
        self._epoll.register(trigger.fileno(), select.EPOLLIN)

    def _drop_all(self) -> None:
        """All but the machine's own stalls."""
        for source in self._usage.values():
            self._epoll.unregister(source.fileno())
            source.close()
        self._usage.clear()
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
