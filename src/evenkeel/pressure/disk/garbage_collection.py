"""Garbage collection: frees disk by removing what no pod needs, before any pod is evicted (B12)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from evenkeel.errors import EvenkeelError
from evenkeel.policy.eviction.conditions import is_relieved
from evenkeel.policy.eviction.decide import Decision, Reclaim
from evenkeel.policy.eviction.snapshot import FilesystemFigures, NodeFigures
from evenkeel.policy.eviction.thresholds import Threshold
from evenkeel.policy.eviction.usage import Resource, resource_of

_AGAIN_SECONDS = 10.0  # between two collections, unless a pod was evicted


class Collector(NamedTuple):
    """One way to free disk. `collect` blocks."""

    kind: Reclaim
    name: str
    collect: Callable[[], None]


class Collected(NamedTuple):
    what: str
    bytes: int = 0
    inodes: int = 0
    failure: str = ""


class GarbageCollection:
    """For one thread. `read_node` returns the node's figures of this moment."""

    def __init__(self, collectors: Sequence[Collector], read_node: Callable[[], NodeFigures]) -> None:
        self._collectors = collectors
        self._read_node = read_node
        self._not_before = 0.0

    def a_pod_has_gone(self) -> None:
        """Its logs stay, and may be what is missing."""
        self._not_before = 0.0

    def collect(self, decision: Decision, now: float) -> tuple[list[Collected], bool]:
        """Collects until it is enough. What was collected, and whether no pod has to be evicted any more."""
        if not decision.reclaim or now < self._not_before:
            return [], False
        self._not_before = now + _AGAIN_SECONDS
        due = [one for one in decision.due if is_disk(one)]
        found: list[Collected] = []
        before = self._read_node()
        for collector in self._collectors:
            if collector.kind not in decision.reclaim:
                continue
            try:
                collector.collect()
            except (OSError, EvenkeelError, TimeoutError) as error:
                found.append(Collected(collector.name, failure=str(error) or "it takes too long"))
                continue
            after = self._read_node()
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
