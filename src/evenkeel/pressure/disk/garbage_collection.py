"""Room on disk without touching a pod: what nobody needs goes first, and then everything is looked at again (B12)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from evenkeel.errors import EvenkeelError
from evenkeel.policy.eviction.conditions import is_relieved
from evenkeel.policy.eviction.decide import Decision, Reclaim
from evenkeel.policy.eviction.snapshot import FilesystemFigures, NodeFigures
from evenkeel.policy.eviction.thresholds import Threshold
from evenkeel.policy.eviction.usage import Resource, resource_of

_AGAIN_SECONDS = 10.0  # between two collections, unless a pod has gone


class Collector(NamedTuple):
    """One way to have room again. `collect` blocks."""

    kind: Reclaim
    name: str
    collect: Callable[[], None]


class Collected(NamedTuple):
    what: str
    bytes: int = 0
    inodes: int = 0
    failure: str = ""


class GarbageCollection:
    """Of one thread. `look` says how the node is now."""

    def __init__(self, collectors: Sequence[Collector], look: Callable[[], NodeFigures]) -> None:
        self._collectors = collectors
        self._look = look
        self._not_before = 0.0

    def a_pod_has_gone(self) -> None:
        """Its logs stay, and may be what is missing."""
        self._not_before = 0.0

    def collect(self, decision: Decision, now: float) -> tuple[list[Collected], bool]:
        """Goes on until it is enough; what was collected, and whether nobody has to go any more."""
        if not decision.reclaim or now < self._not_before:
            return [], False
        self._not_before = now + _AGAIN_SECONDS
        due = [one for one in decision.due if is_disk(one)]
        found: list[Collected] = []
        before = self._look()
        for collector in self._collectors:
            if collector.kind not in decision.reclaim:
                continue
            try:
                collector.collect()
            except (OSError, EvenkeelError, TimeoutError) as error:
                found.append(Collected(collector.name, failure=str(error) or "it takes too long"))
                continue
            after = self._look()
            found.append(Collected(collector.name, *_gain(before.nodefs, after.nodefs)))
            if is_relieved(due, after):
                return found, True
            before = after
        return found, False


def is_disk(threshold: Threshold) -> bool:
    return resource_of(threshold.signal) in (Resource.STORAGE, Resource.INODES)


def _gain(before: FilesystemFigures | None, after: FilesystemFigures | None) -> tuple[int, int]:
    if before is None or after is None:
        return 0, 0
    bytes_ = (after.available_bytes or 0) - (before.available_bytes or 0)
    return max(bytes_, 0), max((after.inodes_free or 0) - (before.inodes_free or 0), 0)
