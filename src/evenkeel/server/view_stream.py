"""The view of the node as text: encoded once a sweep for all readers, and sent to watchers as changes.

What rarely changes (pods, requests, kernel settings, E17) is encoded apart from the figures. A watcher gets the whole
view first, and then only figures for as long as nothing else changes.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from evenkeel.agent.event_recorder import Broadcast
from evenkeel.agent.front import Front
from evenkeel.agent.observe.node_snapshot import NodeSnapshot, is_notable
from evenkeel.api.encode import encode
from evenkeel.cgroup.tree import Cgroup, Kind
from evenkeel.errors import EvenkeelError
from evenkeel.host.node_figures import Sample
from evenkeel.named_tuples import NamedTuple
from evenkeel.server.http import close_source, next_item, server_sent_event, to_json
from evenkeel.server.view import Amounts, cgroup_view, figures, node_view, pod_view, storage_bytes

_PERIOD_SECONDS = 1.0
_WATCHER_SECONDS = 0.003  # ten times what sending a view to one watcher takes
_CGROUPS_AT_A_TIME = 20  # are encoded before other tasks have their turn


class View(NamedTuple):
    """`changes` is the difference from the view `since`; it is empty if more than figures has changed."""

    number: int
    whole: bytes
    changes: bytes
    since: int


class ViewStream:
    """Views for all readers. Every watcher gets the same bytes."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._encoder = ViewEncoder()
        self._next: asyncio.Future[View] | None = None
        self._taking: asyncio.Task[None] | None = None
        self._taken_at = 0.0
        self._latest: View | None = None
        self._sent: dict[str, tuple[int, bytes]] = {}
        self._notable: Broadcast[bytes] = Broadcast()
        self._watchers = 0
        self._following: asyncio.Task[None] | None = None

    @property
    def watchers(self) -> int:
        return self._watchers

    @property
    def is_taking(self) -> bool:
        """Whether a view is being taken for watchers, or will be soon."""
        return self._next is not None

    async def now(self) -> View:
        return await self._encoder.view(await self._front.node_snapshot())

    async def events(self) -> AsyncIterator[bytes]:
        """The whole view first, and again when more than figures has changed or this watcher has missed a view. Notable
        events come between views, at once."""
        notable = self._notable.subscribe()
        self._watchers += 1
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow())
        reported: asyncio.Future[bytes | None] = asyncio.ensure_future(next_item(notable))
        later: asyncio.Future[View] | None = None
        try:
            view = await self.now()
            yield self._event(view, "view")
            last = view.number
            while True:
                later = later or asyncio.ensure_future(self._after(last))
                await asyncio.wait((reported, later), return_when=asyncio.FIRST_COMPLETED)
                if reported.done():
                    if (text := reported.result()) is None:
                        return  # the agent ends, or this watcher did not keep up
                    yield text
                    reported = asyncio.ensure_future(next_item(notable))
                if later.done():
                    view, later = later.result(), None
                    yield self._event(view, "figures" if view.changes and view.since == last else "view")
                    last = view.number
        finally:
            self._watchers -= 1
            waiting: list[asyncio.Future[Any]] = [one for one in (reported, later) if one is not None]
            if self._watchers == 0 and self._following is not None:
                waiting.append(self._following)
                self._following = None
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await close_source(notable)

    async def close(self) -> None:
        ending = [task for task in (self._taking, self._following) if task is not None]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _follow(self) -> None:
        """Encodes each notable event once, for all watchers."""
        events = self._front.follow()
        try:
            async for event in events:
                if is_notable(event):
                    self._notable.publish(server_sent_event("happening", to_json(encode(event)).strip()))
        finally:
            await close_source(events)

    def _event(self, view: View, name: str) -> bytes:
        number, text = self._sent.get(name, (0, b""))
        if number != view.number:
            text = server_sent_event(name, view.changes if name == "figures" else view.whole)
            self._sent[name] = (view.number, text)
        return text

    async def _after(self, number: int) -> View:
        """The next view after that number."""
        while True:
            if self._latest is not None and self._latest.number > number:
                return self._latest  # it was taken while the watcher was busy
            if self._next is None:
                self._next = asyncio.get_running_loop().create_future()
                self._next.add_done_callback(_retrieve)
                self._taking = asyncio.create_task(self._take(self._next))
            await asyncio.shield(self._next)

    async def _take(self, result: "asyncio.Future[View]") -> None:
        """Takes one view for all watchers that wait for it."""
        try:
            # Sending costs most. Many watchers get views more rarely, so that they never take much of the agent's time.
            period = max(_PERIOD_SECONDS, self._watchers * _WATCHER_SECONDS)
            await asyncio.sleep(max(self._taken_at + period - time.monotonic(), 0))
            self._taken_at = time.monotonic()
            view = await self.now()
        except asyncio.CancelledError:
            result.cancel()
            raise
        except EvenkeelError as error:
            result.set_exception(error)
        else:
            self._latest = view
            result.set_result(view)
        finally:
            self._next = None


class ViewEncoder:
    """One view for each snapshot. Text of the last view is used again where nothing has changed."""

    def __init__(self) -> None:
        self._last: tuple[NodeSnapshot, View] | None = None
        self._static: dict[str, tuple[object, bytes]] = {}  # of a cgroup, all but its figures
        self._figures: dict[str, tuple[Sample | None, bytes]] = {}
        self._pods: dict[str, tuple[object, bytes]] = {}
        self._amounts: Amounts | None = None
        self._encoding = asyncio.Lock()

    async def view(self, snapshot: NodeSnapshot) -> View:
        async with self._encoding:
            if self._last is not None and self._last[0].sweep.number == snapshot.sweep.number:
                return self._last[1]
            view = await self._encode(snapshot)
            self._last = (snapshot, view)
            return view

    async def _encode(self, snapshot: NodeSnapshot) -> View:
        before = self._last[0] if self._last is not None else None
        amounts = self._amounts
        if amounts is None or before is None or before.pods != snapshot.pods:
            amounts = self._amounts = Amounts(snapshot)
        static: dict[str, tuple[object, bytes]] = {}
        measured: dict[str, tuple[Sample | None, bytes]] = {}
        moved: list[bytes] = []
        for number, cgroup in enumerate(snapshot.sweep.tree.cgroups, start=1):
            path = cgroup.path
            static[path] = self._static_of(snapshot, cgroup, amounts)
            measured[path] = self._figures_of(snapshot, path)
            if measured[path] is not self._figures.get(path):
                moved.append(b"%b:%b" % (to_json(path).strip(), measured[path][1]))
            if number % _CGROUPS_AT_A_TIME == 0:
                await asyncio.sleep(0)
        pods = self._pods_of(snapshot, amounts)
        only_figures_changed = (
            before is not None
            and pods == self._pods
            and len(self._static) == len(static)
            and all(known is self._static.get(path) for path, known in static.items())
        )
        self._static, self._figures, self._pods = static, measured, pods
        top = to_json(node_view(snapshot, amounts)).strip()
        cgroups = b",".join(
            b'%b,"figures":%b}' % (text[:-1], measured[path][1]) for path, (_, text) in static.items()
        )
        listed = b",".join(text for _, text in pods.values())
        whole = b'%b,"pods":[%b],"cgroups":[%b]}' % (top[:-1], listed, cgroups)
        changes = b'%b,"figures":{%b}}' % (top[:-1], b",".join(moved)) if only_figures_changed else b""
        since = before.sweep.number if before is not None else 0
        return View(snapshot.sweep.number, whole, changes, since)

    def _pods_of(self, snapshot: NodeSnapshot, amounts: Amounts) -> dict[str, tuple[object, bytes]]:
        paths = {one.pod: one.path for one in snapshot.sweep.tree.cgroups if one.kind == Kind.POD}
        pods = {}
        for pod in snapshot.pods:
            key = (pod, paths.get(pod.key, ""), storage_bytes(pod, snapshot))
            known = self._pods.get(pod.metadata.uid)
            if known is None or known[0] != key:
                known = (key, to_json(pod_view(*key, amounts.of_pod(pod))).strip())
            pods[pod.metadata.uid] = known
        return pods

    def _static_of(self, snapshot: NodeSnapshot, cgroup: Cgroup, amounts: Amounts) -> tuple[object, bytes]:
        applied = snapshot.sweep.applied.get(cgroup.path)
        key = (cgroup, applied, amounts.of_cgroup(cgroup))
        known = self._static.get(cgroup.path)
        if known is not None and known[0] == key:
            return known
        return key, to_json(cgroup_view(cgroup, applied, amounts)).strip()

    def _figures_of(self, snapshot: NodeSnapshot, path: str) -> tuple[Sample | None, bytes]:
        sample = snapshot.sweep.samples.get(path)
        known = self._figures.get(path)
        if known is not None and known[0] == sample:
            return known
        return sample, to_json(figures(sample) if sample is not None else None).strip()


def _retrieve(result: "asyncio.Future[View]") -> None:
    """Every watcher may be gone: asyncio complains about an error that was never retrieved."""
    if not result.cancelled():
        result.exception()
