"""What cgroups used while the agent has run, in little memory: the most, and how often how much. For advice about
requests and reservations; it starts anew with the agent."""

import asyncio
from array import array
from collections.abc import Iterable
from typing import NamedTuple

from evenkeel.agent.samples import Sample
from evenkeel.agent.sweep import Sweep, Sweeper
from evenkeel.api.pod import Pod
from evenkeel.cgroup.tree import Kind
from evenkeel.errors import EvenkeelError
from evenkeel.policy.advice import (
    ContainerUse,
    ReservationFinding,
    Suggestion,
    UseOverTime,
    request_suggestions,
    reservation_findings,
)
from evenkeel.policy.node import NodeView
from evenkeel.policy.reserved import reserved_of

_EVERY_SECONDS = 60.0
_MOST_WATCHED = 2000  # cgroups, some hundred bytes each
_BUCKETS = 96
_GROWTH = 1.15  # from one bucket to the next: 1 millicore to 600 cores
_MOSTLY = 0.95
_BESIDE_PODS = ""  # the name of everything that is no pod


class Advice(NamedTuple):
    since: float
    at: float
    requests: tuple[Suggestion, ...]
    reservations: tuple[ReservationFinding, ...]


class Watched:
    """One cgroup."""

    def __init__(self, at: float, cpu_us: int) -> None:
        self._since = self._at = at
        self._cpu_us = cpu_us
        self._most_bytes = 0
        self._counts = array("I", bytes(4 * _BUCKETS))

    def note(self, at: float, cpu_us: int, working_set_bytes: int) -> None:
        self._most_bytes = max(self._most_bytes, working_set_bytes)
        seconds = at - self._at
        if seconds > 0 and cpu_us >= self._cpu_us:
            self._counts[_bucket((cpu_us - self._cpu_us) / seconds / 1000)] += 1
        self._at, self._cpu_us = at, cpu_us

    @property
    def use(self) -> UseOverTime:
        return UseOverTime(self._at - self._since, self._most_bytes, self._mostly())

    def _mostly(self) -> int:
        total, seen = sum(self._counts), 0
        for index, count in enumerate(self._counts):
            seen += count
            if count and seen >= total * _MOSTLY:
                return round(_GROWTH**index) if index else 0
        return 0


class History:
    def __init__(self, node: NodeView, since: float) -> None:
        self._node = node
        self._since = self._at = since
        self._watched: dict[str, Watched] = {}  # by path; daemons by name

    async def run(self, sweeper: Sweeper) -> None:
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                self.note(await sweeper.sweep(is_shown=False))
            except (EvenkeelError, OSError):
                continue  # it is there again in a while, or others tell of it

    def note(self, sweep: Sweep) -> None:
        self._at = sweep.at
        seen: dict[str, tuple[int, int]] = {
            cgroup.path: _figures(sample)
            for cgroup in sweep.tree.cgroups
            if cgroup.kind == Kind.CONTAINER and (sample := sweep.samples.get(cgroup.path)) is not None
        }
        seen |= {f"daemon {name}": _figures(one.sample) for name, one in sweep.daemons.items()}
        root = next((one.path for one in sweep.tree.cgroups if one.kind == Kind.ROOT), "")
        pods = sweep.samples.get(root)
        if pods is not None:
            cpu_us, used = _figures(pods)
            machine = sweep.machine
            beside = max(machine.memory_working_set_bytes - used, 0)
            seen[_BESIDE_PODS] = (max(machine.cpu_usage_us - cpu_us, 0), beside)
        for path in self._watched.keys() - seen.keys():
            del self._watched[path]
        for path, (cpu_us, used) in seen.items():
            watched = self._watched.get(path)
            if watched is None:
                if len(self._watched) >= _MOST_WATCHED:
                    continue
                watched = self._watched[path] = Watched(sweep.at, cpu_us)
            watched.note(sweep.at, cpu_us, used)

    def advice(self, pods: Iterable[Pod], paths: Iterable[tuple[str, str, str]]) -> Advice:
        """`paths` are those of containers, each after its pod's key and its name."""
        requests = {
            (pod.key, container.name): container.resources.requests
            for pod in pods
            for container in pod.spec.every_container
        }
        containers = [
            ContainerUse(pod, container, requests[pod, container], self._watched[path].use)
            for pod, container, path in paths
            if path in self._watched and (pod, container) in requests
        ]
        daemons = {
            name.removeprefix("daemon "): one.use
            for name, one in self._watched.items()
            if name.startswith("daemon ")
        }
        beside = self._watched.get(_BESIDE_PODS)
        return Advice(
            self._since,
            self._at,
            request_suggestions(containers),
            reservation_findings(
                reserved_of(self._node.config), daemons, beside.use if beside is not None else None
            ),
        )


def _figures(sample: Sample) -> tuple[int, int]:
    return sample.statistics.cpu_usage_us, sample.statistics.memory_working_set_bytes


def _bucket(millicpu: float) -> int:
    """The first whose bound is not below."""
    bound, index = 1.0, 0
    while bound < millicpu and index < _BUCKETS - 1:
        bound *= _GROWTH
        index += 1
    return index if millicpu > 0.5 else 0
