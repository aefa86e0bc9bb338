"""The reports of the watch: numbered, and kept until an agent has written them to its journal.

The agent may be away, or stopped for as long as anyone likes. So nothing here waits for it, and the memory that waiting
reports need is bounded: evictions are kept, and of the other reports the latest.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping

from evenkeel.named_tuples import NamedTuple
from evenkeel.pressure.eviction_steps import Step
from evenkeel.pressure.memory.memory_sink import Evicted, Timing
from evenkeel.pressure.targets import PodTarget
from evenkeel.pressure.watch.messages import Message, step_plain

_MOST_WAITING = 512
_HEARD_SECONDS = 1.0  # an agent that acknowledges nothing for this long is taken for stopped


class Waiting(NamedTuple):
    number: int
    at: float  # by CLOCK_MONOTONIC
    message: Message
    keys: frozenset[str]  # of the pods' texts that the message refers to
    is_eviction: bool


class Outbox:
    """The sink of the memory watch. `send` sends a message to the agent, if there is one, with the texts of these keys
    that the agent does not know."""

    def __init__(self, send: Callable[[Message, frozenset[str]], None]) -> None:
        self._send = send
        self._waiting: deque[Waiting] = deque()
        self._last = 0
        self.key_of: dict[str, str] = {}  # by UID: the keys of the targets' texts
        self.is_connected = False

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        return tuple(self._waiting)

    @property
    def keys(self) -> set[str]:
        """The keys of the texts that are still needed."""
        return {key for one in self._waiting for key in one.keys}.union(self.key_of.values())

    def heard(self, number: int) -> None:
        """All reports up to this one are in the journal."""
        while self._waiting and self._waiting[0].number <= number:
            self._waiting.popleft()

    # The sink

    @property
    def is_heard(self) -> bool:
        if not self.is_connected:
            return False
        return not self._waiting or time.monotonic() - self._waiting[0].at < _HEARD_SECONDS

    def stepped(self, step: Step, timing: Timing, evicted: Evicted | None) -> None:
        plain = step_plain(step, self.key_of)
        keys = frozenset(self.key_of[seen.pod.metadata.uid] for seen in step.snapshot.pods)
        self._report(
            "stepped",
            keys,
            is_eviction=evicted is not None,
            step=plain,
            timing=list(timing[:3]),
            stages=timing.stages and list(timing.stages),
            evicted=evicted and list(evicted),
        )

    def back(self, target: PodTarget, held_bytes: int, took_seconds: float) -> None:
        self._report("back", uid=target.uid, bytes=held_bytes, seconds=took_seconds)

    def reclaiming(self, expected_bytes: int, short_bytes: int) -> None:
        self._report("reclaiming", expected=expected_bytes, short=short_bytes)

    def throttling(self, most_bytes: Mapping[str, int]) -> None:
        self._report("throttling", most=dict(most_bytes))

    def freezing(self, uids: tuple[str, ...]) -> None:
        self._report("freezing", uids=list(uids))

    def noted(self, text: str) -> None:
        self._report("noted", text=text)

    def _report(
        self, kind: str, keys: frozenset[str] = frozenset(), *, is_eviction: bool = False, **fields: object
    ) -> None:
        self._last += 1
        message: Message = {"event": "report", "number": self._last, "kind": kind, **fields}
        self._waiting.append(Waiting(self._last, time.monotonic(), message, keys, is_eviction))
        if len(self._waiting) > _MOST_WAITING:
            self._drop_one()
        self._send(message, keys)

    def _drop_one(self) -> None:
        """Drops the oldest report that is no eviction; the pods bound the number of evictions."""
        for place, one in enumerate(self._waiting):
            if not one.is_eviction:
                del self._waiting[place]
                return
