"""Usage history of cgroups, for advice about requests and reservations. It needs little memory. It is saved regularly,
so a new agent continues it."""

import asyncio
import logging
from collections.abc import Iterable

from evenkeel.agent.observe import history_file
from evenkeel.agent.observe.history_file import LONGEST_SECONDS, MOST_WATCHED, Kept, Span, Watched
from evenkeel.agent.observe.sweep import Sweep, Sweeper
from evenkeel.api.pod import Pod
from evenkeel.cgroup.tree import Kind
from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.node_figures import Sample
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.advice import (
    ContainerUse,
    ReservationFinding,
    Suggestion,
    request_suggestions,
    reservation_findings,
)
from evenkeel.policy.allocatable import reserved_of
from evenkeel.policy.node_view import NodeView

log = logging.getLogger(__name__)

_EVERY_SECONDS = 60.0
_LOOKS_A_SAVE = 10
_RETURN_SECONDS = 600.0  # how long a cgroup of a former agent may be missing, as after a reboot
_PERIOD_SECONDS = 7 * 86400.0  # the present period and the previous one count
_BESIDE_PODS = ""  # the name of all usage outside pods


class Advice(NamedTuple):
    since: float  # start of the usage that counts; the agent may have been down in between
    at: float
    watched_seconds: float
    requests: tuple[Suggestion, ...]
    reservations: tuple[ReservationFinding, ...]


class History:
    """`path` is the file in which it is kept. If `path` is empty, it is not kept."""

    def __init__(self, node: NodeView, since: float, path: str = "") -> None:
        self._node = node
        self._path = path
        self._began = self._at = since
        self._now = Span(since)
        self._before: Span | None = None
        self.watched: dict[str, Watched] = {}  # by path; daemons by name
        self._saving: asyncio.Task[None] | None = None
        self._trouble = ""

    def take_up(self) -> None:
        """Reads the history that former agents have saved."""
        kept = history_file.take_up(self._path) if self._path else None
        if kept is None:
            return
        self._now, self._before, self.watched = kept.now, kept.before, dict(kept.watched)
        self._begin_by(self._began)

    async def run(self, sweeper: Sweeper) -> None:
        looks = 0
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                self.note(await sweeper.sweep(is_shown=False))
            except (EvenkeelError, OSError):
                continue  # the next sweep may succeed; other parts report the error
            looks += 1
            if looks % _LOOKS_A_SAVE == 0:
                await self.save()

    async def save(self) -> None:
        """Writes the history in a thread, so a full or slow disk does not block the agent."""
        if self._saving is not None:
            await asyncio.shield(self._saving)
        if not self._path:
            return
        watched = {path: one.copy() for path, one in self.watched.items()}
        kept = Kept(self._now, self._before, watched)
        self._saving = asyncio.create_task(asyncio.to_thread(self._write, kept))
        await asyncio.shield(self._saving)  # one write at a time, even if a caller is cancelled

    def _write(self, kept: Kept) -> None:
        try:
            history_file.write(self._path, kept)
        except OSError as error:
            why = reason(error)
            if why != self._trouble:
                log.warning("%s cannot be written: %s", self._path, why)
            self._trouble = why
        else:
            self._trouble = ""

    def note(self, sweep: Sweep) -> None:
        seconds = sweep.at - self._at
        if 0 < seconds <= LONGEST_SECONDS:
            self._now = self._now._replace(seconds=self._now.seconds + seconds)
        self._at = sweep.at
        self._begin_by(sweep.at)
        if sweep.at - self._now.since > _PERIOD_SECONDS:
            self._turn(sweep.at)
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
        is_early = sweep.at - self._began < _RETURN_SECONDS
        for path in self.watched.keys() - seen.keys():
            if self.watched[path].is_seen or not is_early:
                del self.watched[path]
        for path, (cpu_us, used) in seen.items():
            watched = self.watched.get(path)
            if watched is None:
                if len(self.watched) >= MOST_WATCHED:
                    continue
                watched = self.watched[path] = Watched()
            watched.note(sweep.at, cpu_us, used)

    def _begin_by(self, at: float) -> None:
        """Corrects periods that seem to begin in the future, because the clock was set back."""
        if self._now.since > at:
            self._now = self._now._replace(since=at)
        if self._before is not None and self._before.since > at:
            self._before = self._before._replace(since=at)

    def _turn(self, at: float) -> None:
        self._before, self._now = self._now, Span(at)
        for watched in self.watched.values():
            watched.turn()

    def advice(self, pods: Iterable[Pod], paths: Iterable[tuple[str, str, str]]) -> Advice:
        """Advice for these pods. Each of `paths` is a pod's key, a container's name, and the path of its cgroup."""
        requests = {
            (pod.key, container.name): container.resources.requests
            for pod in pods
            for container in pod.spec.every_container
        }
        containers = [
            ContainerUse(pod, container, requests[pod, container], self.watched[path].use)
            for pod, container, path in paths
            if path in self.watched and (pod, container) in requests
        ]
        daemons = {
            name.removeprefix("daemon "): one.use
            for name, one in self.watched.items()
            if name.startswith("daemon ")
        }
        beside = self.watched.get(_BESIDE_PODS)
        spans = [one for one in (self._before, self._now) if one is not None]
        return Advice(
            spans[0].since,
            self._at,
            sum(one.seconds for one in spans),
            request_suggestions(containers),
            reservation_findings(
                reserved_of(self._node.config), daemons, beside.use if beside is not None else None
            ),
        )


def _figures(sample: Sample) -> tuple[int, int]:
    return sample.statistics.cpu_usage_us, sample.statistics.memory_working_set_bytes
