"""Detects containers that stall at `memory.high`, and resolves the stall as `memoryHighStall` says (C8, E4; cgroup v2).

The kernel reports when a container reaches its memory.high. Before that, nothing is sampled. After that, its usage and
its memory pressure are sampled a few times per period, until it has not reached memory.high for a period. A raised
memory.high is part of the plan. It survives restarts of the agent, and lasts until the container ends or its usage has
fallen back.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from evenkeel.cgroup.tree import Cgroup, Kind, Setting, Tree, Version
from evenkeel.errors import EvenkeelError
from evenkeel.host.event_stream import EventStream
from evenkeel.host.event_types import MemoryEvents, SubscriptionEnded
from evenkeel.host.memory_notifications import parse_counters
from evenkeel.host.psi import Resource, cgroup_file, parse_pressure, read_if_there
from evenkeel.journal.records import NORMAL, WARNING, PodRecord
from evenkeel.journal.store import Journal, JournalError
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.amounts import PAGE_BYTES, bytes_text
from evenkeel.policy.lifecycle import stops
from evenkeel.policy.lifecycle.actions import Stop
from evenkeel.policy.lifecycle.pod_state import AS_FAILURE
from evenkeel.policy.memory_stall import (
    UNLIMITED,
    Answer,
    Stall,
    StallSample,
    has_fallen_back,
    raised_bytes,
    recent,
    stall,
)
from evenkeel.policy.node_view import NodeView
from evenkeel.pressure.decision_records import STALL_KIND, stall_given, stall_said
from evenkeel.pressure.protocol import Cgroups, Events, PodObserver, PodRecords, Steps

log = logging.getLogger(__name__)

SOURCE = "memoryStall"
_RAISED = "memoryHighRaised"  # key in the journal's values
_HIGH, _MAX = "memory.high", "memory.max"
_LOOKS = 10  # samples per period


class Raised(NamedTuple):
    """A memory.high that replaces the planned one."""

    uid: str
    container: str
    attempt: int
    high_bytes: int
    planned_bytes: int


class MemoryStalls(PodObserver):
    """For the agent's loop. Call `take_up` before the first pass, then `run` until it is cancelled."""

    def __init__(
        self,
        node: NodeView,
        journal: Journal,
        cgroups: Cgroups,
        pods: PodRecords,
        events: Events,
        steps: Steps,
        clock: Callable[[], float],
    ) -> None:
        self._answer = Answer(node.config.memory_high_stall)
        self._period = node.config.memory_high_stall_period.seconds
        self._allocatable_bytes = node.allocatable_bytes
        self._journal = journal
        self._cgroups = cgroups
        self._pods = pods
        self._events = events
        self._steps = steps
        self._clock = clock
        self._stream: EventStream | None = None
        # containers with their memory.high, by path
        self._known: dict[str, tuple[Cgroup, int | None]] = {}
        self._marked: dict[str, Cgroup] = {}  # planned containers that have a memory.high, by path
        self._listening: set[str] = set()
        self._seen: dict[str, tuple[StallSample, ...]] = {}  # samples of suspected containers, by path
        self._reported: set[str] = set()  # stalls that were recorded and are not over
        self._raised: dict[str, Raised] = {}
        self._timer: asyncio.TimerHandle | None = None

    def take_up(self) -> None:
        """Restores the memory.high values that a former agent had raised."""
        kept = self._journal.value(_RAISED)
        for path, fields in kept.items() if isinstance(kept, dict) else ():
            try:
                self._raised[path] = Raised(*fields)
            except TypeError:
                continue
        self._override()

    def cgroups_changed(self, tree: Tree) -> None:
        if tree.version != Version.V2:
            return
        planned = self._cgroups.planned or tree
        before, self._known = self._known, {}
        for cgroup in planned.cgroups:
            if cgroup.kind == Kind.CONTAINER:
                known = before.get(cgroup.path)
                is_same = known is not None and known[0] is cgroup
                self._known[cgroup.path] = known if is_same and known else (cgroup, _mark(cgroup))
        self._marked = {path: one for path, (one, mark) in self._known.items() if mark is not None}
        for path in [path for path in self._seen if path not in self._marked]:
            del self._seen[path]
        self._reported &= self._marked.keys()
        if self._stream is not None:
            self._listen(self._stream)
            self._look_later()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with EventStream() as stream:
            self._stream = stream
            self._listen(stream)
            self._look_at_all()
            self._look_later()
            try:
                async for event in stream:
                    if isinstance(event, MemoryEvents) and event.high:
                        self._suspect(event.path)
                    elif isinstance(event, SubscriptionEnded):
                        self._listening.discard(event.path)
            finally:
                self._stream = None
                if self._timer is not None:
                    self._timer.cancel()

    # Listening and sampling

    def _listen(self, stream: EventStream) -> None:
        """Listens for kernel events of the containers that are not sampled already."""
        wanted = self._marked.keys() - self._seen.keys()
        for path in self._listening - wanted:
            stream.unwatch(path)
        for path in wanted - self._listening:
            directory = self._directory(path)
            if directory:
                stream.watch_memory_events(path, directory)
        self._listening = set(wanted)

    def _look_at_all(self) -> None:
        """Samples all containers once: some may have stalled before this agent was started."""
        for path in self._marked:
            sample = self._sample(path, time.monotonic())
            if sample is not None and sample.high_events:
                self._suspect(path)

    def _suspect(self, path: str) -> None:
        if path in self._marked and path not in self._seen and self._stream is not None:
            self._seen[path] = ()
            self._listening.discard(path)
            self._stream.unwatch(path)
            self._look_later()

    def _look_later(self) -> None:
        if self._timer is None and (self._seen or self._raised):
            loop = asyncio.get_running_loop()
            wait = self._period / _LOOKS if self._seen else self._period
            self._timer = loop.call_later(wait, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._stream is None:
            return
        now = time.monotonic()
        for path, before in list(self._seen.items()):
            sample = self._sample(path, now)
            if sample is None or path not in self._seen:
                self._seen.pop(path, None)
                continue
            samples = self._seen[path] = recent((*before, sample), self._period)
            found = stall(samples, self._period)
            if found is not None:
                self._seen[path] = ()
                self._resolve(path, found, samples)
            elif _is_off(samples, self._period):
                del self._seen[path]
                self._over(path)
        self._lower_raised(now)
        self._listen(self._stream)
        self._look_later()

    def _sample(self, path: str, now: float) -> StallSample | None:
        return read_stall_sample(self._directory(path), now)

    def _directory(self, path: str) -> str:
        try:
            return self._cgroups.driver.files(path).get("memory", "")
        except EvenkeelError:
            return ""

    # Resolving

    def _resolve(self, path: str, found: Stall, samples: tuple[StallSample, ...]) -> None:
        cgroup = self._marked[path]
        record = self._pods.by_key(cgroup.pod)
        if record is None or not record.state.container(cgroup.container).is_running:
            return
        if self._answer is Answer.RAISE:
            if self._is_under_way(path, found):
                return
            done = self._raise(path, cgroup, record, found)
        elif self._answer is Answer.KILL:
            done = "it is killed, and its restart policy says what follows"
            self._kill(cgroup, record, found)
        else:
            done = ""
            if path in self._reported:
                return
        if self._answer is not Answer.KILL:
            self._reported.add(path)
        message = f"container {cgroup.container}: {found.sentence}{f'; {done}' if done else ''}"
        figures = {**found._asdict(), "answer": str(self._answer)}
        self._events.record(WARNING, "MemoryHighStall", message, record.pod, cgroup.container, figures)
        snapshot = stall_given(record.pod.key, cgroup.container, self._period, samples)
        outcome = {**stall_said(found), "answer": str(self._answer), "done": done}
        self._events.decided(STALL_KIND, snapshot, outcome)
        self._steps.want_step(record.pod.metadata.uid)

    def _is_under_way(self, path: str, found: Stall) -> bool:
        """Whether the kernel still has to apply the last raise. The kernel rounds memory.high down to whole pages."""
        raised = self._raised.get(path)
        if raised is None:
            return False
        return raised.high_bytes == UNLIMITED or found.high_bytes + PAGE_BYTES <= raised.high_bytes

    def _raise(self, path: str, cgroup: Cgroup, record: PodRecord, found: Stall) -> str:
        planned = _mark(cgroup) or found.high_bytes
        limit = _number(cgroup.value(_MAX)) or self._allocatable_bytes
        high = raised_bytes(planned, found.high_bytes, limit)
        attempt = record.state.container(cgroup.container).attempt
        self._raised[path] = Raised(record.pod.metadata.uid, cgroup.container, attempt, high, planned)
        self._keep()
        self._override()
        if high == UNLIMITED:
            return f"nothing but the limit of {bytes_text(limit)} is left to bound it"
        return f"memory.high is raised to {bytes_text(high)}, towards {bytes_text(limit)}"

    def _kill(self, cgroup: Cgroup, record: PodRecord, found: Stall) -> None:
        stop = Stop(cgroup.container, found.sentence, 0.0, AS_FAILURE)
        self._pods.put_state(record.pod.metadata.uid, stops.asked_to_stop(record.state, stop, self._clock()))

    def _over(self, path: str) -> None:
        if path in self._reported:
            self._reported.discard(path)
            cgroup = self._marked[path]
            record = self._pods.by_key(cgroup.pod)
            message = f"container {cgroup.container} gets on again: it is no longer held up at memory.high"
            pod = record.pod if record is not None else None
            self._events.record(NORMAL, "MemoryHighStallOver", message, pod, cgroup.container)
            self._steps.want_step()

    def _lower_raised(self, now: float) -> None:
        """Restores the planned memory.high where the container that stalled has ended, or its usage has fallen back."""
        before = dict(self._raised)
        for path, raised in before.items():
            record = self._pods.get(raised.uid)
            state = record.state.container(raised.container) if record is not None else None
            if state is None or state.attempt != raised.attempt or path not in self._marked:
                del self._raised[path]
                continue
            sample = self._sample(path, now)
            if sample is None or has_fallen_back(sample.usage_bytes, raised.planned_bytes):
                del self._raised[path]
                if record is not None and sample is not None:
                    message = (
                        f"container {raised.container} uses {bytes_text(sample.usage_bytes)}:"
                        f" memory.high is {bytes_text(raised.planned_bytes)} again, as planned"
                    )
                    self._events.record(NORMAL, "MemoryHighRestored", message, record.pod, raised.container)
                    self._steps.want_step()
        if self._raised != before:
            self._keep()
            self._override()

    def _override(self) -> None:
        wanted = {}
        for path, raised in self._raised.items():
            value = "max" if raised.high_bytes == UNLIMITED else str(raised.high_bytes)
            reason = f"raised from {bytes_text(raised.planned_bytes)}, at which the container stalled"
            wanted[path] = (Setting(_HIGH, value, "C8", reason),)
        self._cgroups.override(SOURCE, wanted)

    def _keep(self) -> None:
        try:
            self._journal.set_value(
                _RAISED, {path: list(raised) for path, raised in self._raised.items()} or None
            )
        except JournalError as error:
            log.error("%s", error)  # noqa: TRY400


def _mark(cgroup: Cgroup) -> int | None:
    """The planned memory.high of a container, if it has one."""
    return _number(cgroup.value(_HIGH))


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdecimal() else None


def _is_off(samples: tuple[StallSample, ...], period_seconds: float) -> bool:
    """Whether the container did not reach memory.high for a period."""
    first, last = samples[0], samples[-1]
    return last.at - first.at >= period_seconds and first.high_events == last.high_events


def read_stall_sample(directory: str, now: float) -> StallSample | None:
    """Usage, memory.high and stall time of a cgroup that is throttled at its memory.high; None if it is gone. The stall
    time is 0 without pressure files."""
    high = _text(f"{directory}/memory.high")
    try:
        usage = int(_text(f"{directory}/memory.current"))
        high_bytes = UNLIMITED if high == "max" else int(high)
    except ValueError:
        return None
    events = parse_counters(_text(f"{directory}/memory.events"))
    full = parse_pressure(_text(cgroup_file(directory, Resource.MEMORY))).full.total_us
    return StallSample(now, usage, high_bytes, full, events.get("high", 0))


def _text(path: str) -> str:
    return read_if_there(path).decode("ascii", "replace").strip()
