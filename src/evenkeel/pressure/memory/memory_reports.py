"""Reports of the memory watch: values and calls that pass from its thread to the agent's loop.

The watch must not wait for the loop, which may be busy or short of memory itself. So the watch hands over a report, and
the loop records it later.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from evenkeel.journal.records import NORMAL, WARNING
from evenkeel.policy.eviction.decide import Eviction, State
from evenkeel.policy.eviction.message import readable
from evenkeel.policy.eviction.usage import Resource
from evenkeel.pressure.decision_records import Step
from evenkeel.pressure.eviction_recorder import EvictionRecorder
from evenkeel.pressure.memory.throttle import Throttle
from evenkeel.pressure.protocol import Events, PodRecords, PodTarget, Steps
from evenkeel.pressure.watch_thread import LoopCalls


class Evicting(NamedTuple):
    """An eviction by the memory watch."""

    uid: str
    eviction: Eviction
    at: float  # seconds since the epoch


class Timing(NamedTuple):
    """The times at which a decision was made and carried out, by CLOCK_MONOTONIC."""

    began_at: float
    sent_at: float | None = None  # when the kill was sent
    # The kernel's OOM killer acted at this moment. The decision is to be compared with the kernel's choice (E12).
    is_kernels: bool = False

    @property
    def plain(self) -> dict[str, object]:
        """The value for the journal."""
        if self.is_kernels:
            return {"beganAt": self.began_at, "byKernel": True}
        if self.sent_at is None:
            return {"beganAt": self.began_at}
        took = self.sent_at - self.began_at
        return {"beganAt": self.began_at, "killSentAt": self.sent_at, "tookSeconds": took}


class MemoryWatchSink(Protocol):
    """Called in the watch's thread. A call must return at once."""

    def evicting(self, evicting: Evicting) -> None: ...
    def stepped(self, step: Step, after: State, timing: Timing) -> None:
        """A decision that changed something, after it was carried out."""
        ...

    def back(self, target: PodTarget, held_bytes: int, took_seconds: float) -> None:
        """The memory of a killed pod is free."""
        ...

    def reclaiming(self, expected_bytes: int, short_bytes: int) -> None: ...
    def throttling(self, most_bytes: Mapping[str, int]) -> None:
        """By UID: these pods are throttled to the given bytes. No other pod is throttled."""
        ...

    def freezing(self, uids: tuple[str, ...]) -> None:
        """These pods are frozen until memory is free again."""
        ...

    def noted(self, text: str) -> None:
        """A problem that makes the watch less effective."""
        ...


class UnrecordedEvictions:
    """Evictions that the watch has begun and the agent's loop has not recorded yet. For any thread: each method is one
    operation on a dict."""

    def __init__(self) -> None:
        self._of: dict[str, Evicting] = {}  # by UID

    def add(self, evicting: Evicting) -> None:
        self._of[evicting.uid] = evicting

    def take(self, uid: str) -> Evicting | None:
        """Removes and returns the eviction. Only this caller records it."""
        return self._of.pop(uid, None)

    def uids(self) -> tuple[str, ...]:
        return tuple(self._of)


class MemoryReports:
    """The sink of the memory watch. It hands every report to the loop, which records it."""

    def __init__(
        self,
        calls: LoopCalls,
        pods: PodRecords,
        events: Events,
        steps: Steps,
        recorder: EvictionRecorder,
        throttle: Throttle,
    ) -> None:
        self.unrecorded = UnrecordedEvictions()
        self._calls = calls
        self._pods = pods
        self._events = events
        self._steps = steps
        self._recorder = recorder
        self._throttle = throttle

    # In the watch's thread

    def evicting(self, evicting: Evicting) -> None:
        self._calls.call(self.record_eviction, evicting.uid)

    def stepped(self, step: Step, after: State, timing: Timing) -> None:
        self._calls.call(self._recorder.stepped, step, after, timing.plain)

    def back(self, target: PodTarget, held_bytes: int, took_seconds: float) -> None:
        self._calls.call(self._back, target, held_bytes, took_seconds)

    def reclaiming(self, expected_bytes: int, short_bytes: int) -> None:
        self._calls.call(self._reclaiming, expected_bytes, short_bytes)

    def throttling(self, most_bytes: Mapping[str, int]) -> None:
        self._calls.call(self._throttle.set, most_bytes)

    def freezing(self, uids: tuple[str, ...]) -> None:
        self._calls.call(self._freezing, uids)

    def noted(self, text: str) -> None:
        self._calls.call(self._recorder.noted, text)

    # In the loop

    def record_eviction(self, uid: str) -> None:
        """Records the eviction of this pod, if one is not recorded yet."""
        evicting = self.unrecorded.take(uid)
        if evicting is not None:
            self._recorder.evicting(evicting.uid, evicting.eviction, evicting.at)

    def _back(self, target: PodTarget, held_bytes: int, took_seconds: float) -> None:
        record = self._pods.get(target.uid)
        message = f"{readable(held_bytes, Resource.MEMORY)} came back within {took_seconds * 1000:.0f} ms"
        figures = {"bytes": held_bytes, "seconds": took_seconds}
        pod = record.pod if record is not None else None
        self._events.record(NORMAL, "MemoryBack", message, pod, figures=figures)
        self._steps.want_step()

    def _reclaiming(self, expected_bytes: int, short_bytes: int) -> None:
        expected, short = (readable(amount, Resource.MEMORY) for amount in (expected_bytes, short_bytes))
        message = (
            f"{short} are missing: taking back {expected} of files and caches from pods above their requests"
        )
        figures = {"expectedBytes": expected_bytes, "shortBytes": short_bytes}
        self._events.record(NORMAL, "Reclaiming", message, figures=figures)
        self._steps.want_step()

    def _freezing(self, uids: tuple[str, ...]) -> None:
        for uid in uids:
            record = self._pods.get(uid)
            if record is not None:
                message = (
                    "next to no memory is left: the pod, above its request, stands still until more is back"
                )
                self._events.record(WARNING, "Held", message, record.pod)
        self._steps.want_step()
