"""Records events in the journal and publishes them to subscribers. Also records decisions with their snapshots."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

from evenkeel.agent.observe.counters import Counters
from evenkeel.api.pod import Pod
from evenkeel.cgroup.reconcile import Report
from evenkeel.journal.records import NORMAL, WARNING, Event
from evenkeel.journal.store import Journal, JournalError
from evenkeel.policy.lifecycle.actions import Stop
from evenkeel.policy.lifecycle.pod_state import Ended, PodState, TerminalStatus
from evenkeel.policy.pod_resources import pod_limits, pod_requests

T = TypeVar("T")

_MOST_UNREAD = 4096


class Broadcast(Generic[T]):
    """Passes items on to subscribers. A subscriber gets every item from its subscription on."""

    def __init__(self, most_waiting: int = _MOST_UNREAD) -> None:
        self._subscribers: set[asyncio.Queue[T | None]] = set()
        self._most_waiting = most_waiting

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    def publish(self, item: T) -> None:
        for queue in tuple(self._subscribers):
            if queue.qsize() < self._most_waiting:
                queue.put_nowait(item)
            else:
                self._subscribers.discard(queue)
                queue.put_nowait(None)

    def close(self) -> None:
        """Ends all subscriptions. A subscriber still gets the items that it has not read yet."""
        for queue in self._subscribers:
            queue.put_nowait(None)
        self._subscribers.clear()

    def subscribe(self, first: Iterable[T] = ()) -> AsyncIterator[T]:
        """Subscribes. The subscriber gets the items of `first` before all others. The subscription begins now, not when
        the first item is read."""
        queue: asyncio.Queue[T | None] = asyncio.Queue()
        for item in first:
            queue.put_nowait(item)
        self._subscribers.add(queue)
        return self._heard(queue)

    async def _heard(self, queue: asyncio.Queue[T | None]) -> AsyncIterator[T]:
        try:
            while (item := await queue.get()) is not None:
                yield item
        finally:
            self._subscribers.discard(queue)


log = logging.getLogger(__name__)

_NO_FIGURES: Mapping[str, object] = MappingProxyType({})
_MOST_WAITING = 10_000  # while the journal cannot be written
_MOST_DECISIONS_WAITING = 100  # each has a snapshot of the whole node


class EventRecorder:
    def __init__(self, journal: Journal, clock: Callable[[], float] = time.time) -> None:
        self.published: Broadcast[Event] = Broadcast()
        self.counts = Counters()
        self._journal = journal
        self._clock = clock
        self._waiting: list[Event] = []
        self._written: list[Event] = []  # by the last `write`, with their numbers
        self._decisions: list[tuple[str, object, object, float]] = []
        self._why_not = ""  # the last reason why decisions could not be written
        self._complaints: set[str] = set()  # failures of reconciliation, each recorded once

    def record(
        self,
        type_: str,
        reason: str,
        message: str,
        pod: Pod | None = None,
        container: str = "",
        figures: Mapping[str, object] = _NO_FIGURES,
    ) -> None:
        """Records an event. It is written and published with the next `commit`."""
        key, uid = (pod.key, pod.metadata.uid) if pod is not None else ("", "")
        at = self._clock()
        self.counts.happened(at, type_, reason, pod, container, figures)
        self._waiting.append(Event(at, type_, reason, message, key, uid, container, figures))
        del self._waiting[:-_MOST_WAITING]

    def decided(self, kind: str, snapshot: object, decision: object) -> None:
        """Records a decision at once. If the journal cannot be written (the decision may be about a full disk), it is
        recorded with a later `commit`."""
        self._decisions.append((kind, snapshot, decision, self._clock()))
        del self._decisions[:-_MOST_DECISIONS_WAITING]
        self._record()

    def count_eviction(self, cause: str) -> None:
        self.counts.evicted(cause)

    def observe_decision(self, seconds: float) -> None:
        """Counts the time from the sample that crossed a threshold to the kill."""
        self.counts.decision_seconds.observe(seconds)

    def admitted(self, pod: Pod, qos_class: str) -> None:
        """Records the admission with the pod's requests and limits. The pod's history begins with this event (E14)."""
        amounts = {"requests": pod_requests(pod), "limits": pod_limits(pod)}
        words = [
            f"{what} {', '.join(f'{name} {amount}' for name, amount in found.items())}"
            for what, found in amounts.items()
            if found
        ]
        figures = {
            what: {name: str(amount) for name, amount in found.items()} for what, found in amounts.items()
        }
        message = f"class {qos_class}, {'; '.join(words) or 'requests nothing'}"
        self.record(NORMAL, "Admitted", message, pod, figures={"class": str(qos_class), **figures})

    def stopping(self, pod: Pod, state: PodState, stop: Stop) -> None:
        """Records why a container is being stopped, once: not for one that has ended or is stopping already."""
        container = state.container(stop.container)
        if container.is_running and container.stop_by is None:
            message = f"stopping container {stop.container}: {stop.reason}"
            self.record(NORMAL, "Killing", message, pod, stop.container)

    def ended(
        self, pod: Pod, container: str, ended: Ended | None, *, is_oom_killed: bool, was_asked: bool
    ) -> None:
        """Records the end of a container. With `was_asked` the container was asked to end, so its end is no warning."""
        if ended is None:
            return
        how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.exit_code}"
        if was_asked and not is_oom_killed:
            self.record(NORMAL, "Stopped", f"container {container} has ended: {how}", pod, container)
            return
        is_fine = ended.exit_code == 0 and not is_oom_killed
        message = f"container {container} ended: {ended.reason}, {how}"
        self.record(NORMAL if is_fine else WARNING, ended.reason or "Exited", message, pod, container)

    def verdict(self, pod: Pod, verdict: TerminalStatus) -> None:
        type_ = NORMAL if verdict.phase == "Succeeded" else WARNING
        message = verdict.message or f"the pod has {verdict.phase.lower()}"
        self.record(type_, verdict.reason or verdict.phase, message, pod)

    def reconciled(self, report: Report) -> None:
        """Records repaired drift (E9), and each refusal of the kernel once."""
        for repair in report.repairs:
            where = f"{repair.path}/{repair.file}" if repair.file else repair.path
            message = (
                f"{where}: found {repair.found or 'nothing'}, restored {repair.restored} ({repair.reason})"
            )
            self.record(WARNING, "DriftRepaired", message, figures=repair._asdict())
        complaints = {str(error) for error in report.failures}
        complaints |= {one.message for one in report.unavailable}
        for complaint in sorted(complaints - self._complaints):
            self.record(WARNING, "CgroupRefused", complaint)
        self._complaints = complaints

    def mark(self) -> tuple[Event, ...]:
        """The events that are not written yet, for `back_to`."""
        return tuple(self._waiting)

    def back_to(self, mark: tuple[Event, ...]) -> None:
        """Drops the events that were recorded since `mark`."""
        self._waiting[:] = mark
        self._written = []

    def commit(self) -> None:
        """Writes and publishes the waiting events. Raises JournalError; the events then stay waiting."""
        self.write()
        self.announce()

    @property
    def is_committed(self) -> bool:
        """Whether no event waits. Decisions may."""
        return not self._waiting

    def write(self) -> None:
        """The first half of `commit`, for a transaction with further writes. Raises JournalError."""
        self._written = []  # what a failed transaction wrote is not there
        if self._waiting:
            with self._journal.transaction():
                self._written = [self._journal.record_event(event) for event in self._waiting]

    def announce(self) -> None:
        """The second half of `commit`: publishes the written events."""
        written, self._written = self._written, []
        if written:
            self._waiting.clear()
        for event in written:
            self.published.publish(event)
        self._record()

    def _record(self) -> None:
        """Writes the waiting decisions. An error is only logged, so that the eviction still happens: on a full disk it
        may free the space that the journal needs."""
        if not self._decisions:
            return
        try:
            with self._journal.transaction():
                for decision in self._decisions:
                    self._journal.record(*decision)
        except JournalError as error:
            if str(error) != self._why_not:
                log.error("%s", error)  # noqa: TRY400 the message is enough
            self._why_not = str(error)
        else:
            self._decisions.clear()
            self._why_not = ""
