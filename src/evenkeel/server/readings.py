"""Answers made of the picture: each is encoded once for a sweep, for everybody who asks for it."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from evenkeel.agent.event_recorder import Broadcast
from evenkeel.agent.front import Front
from evenkeel.agent.observe.node_snapshot import NodeSnapshot, is_notable
from evenkeel.agent.observe.story import Chapter, Story, end_sentence, sentence, stayed_sentence
from evenkeel.api.encode import encode
from evenkeel.api.pod import Pod
from evenkeel.errors import EvenkeelError
from evenkeel.policy.pod_resources import pod_limits, pod_requests
from evenkeel.server.http import Answer, Refused, event, to_json
from evenkeel.server.metrics import node_metrics
from evenkeel.server.metrics_cgroups import Labels, cadvisor_metrics, resource_metrics
from evenkeel.server.summary import summary
from evenkeel.server.view import View, Views, plain_amounts, settings

_METRICS = {"": node_metrics, "resource": resource_metrics, "cadvisor": cadvisor_metrics}


class Readings:
    def __init__(self, front: Front) -> None:
        self._front = front
        self._labels = Labels()
        self._made: dict[str, tuple[int, bytes]] = {}
        self._making = asyncio.Lock()

    async def summary(self, *, only_cpu_and_memory: bool) -> bytes:
        async def make(picture: NodeSnapshot) -> bytes:
            return await summary(picture, only_cpu_and_memory=only_cpu_and_memory)

        return await self._once(f"summary {only_cpu_and_memory}", make)

    async def metrics(self, which: str) -> bytes:
        async def make(picture: NodeSnapshot) -> bytes:
            return _METRICS[which](picture, self._labels)

        return await self._once(f"metrics {which}", make)

    async def explanation(self, key: str) -> bytes | None:
        """What the pod has in the kernel and why; None if there is no such pod."""
        picture = await self._front.picture()
        pod = next((one for one in picture.pods if one.key == key), None)
        return None if pod is None else to_json(_explained(picture, pod))

    async def _once(self, name: str, make: Callable[[NodeSnapshot], Awaitable[bytes]]) -> bytes:
        async with self._making:
            picture = await self._front.picture()
            number, text = self._made.get(name, (0, b""))
            if number != picture.sweep.number:
                text = await make(picture)
                self._made[name] = (picture.sweep.number, text)
            return text


def _explained(picture: NodeSnapshot, pod: Pod) -> dict[str, object]:
    status = pod.status
    return {
        "pod": pod.key,
        "uid": pod.metadata.uid,
        "phase": status.phase,
        "reason": status.reason,
        "message": status.message,
        "qosClass": status.qos_class,
        "requests": plain_amounts(pod_requests(pod)),
        "limits": plain_amounts(pod_limits(pod)),
        "cgroups": [
            {
                "path": cgroup.path,
                "parent": cgroup.path.rpartition("/")[0],
                "name": cgroup.container or pod.metadata.name,
                "kind": str(cgroup.kind),
                "qosClass": str(cgroup.qos),
                "container": cgroup.container,
                "memoryQosClass": str(cgroup.memory_qos),
                "cpuQosClass": str(cgroup.cpu_qos),
                "requests": plain_amounts(asked.requests) if asked is not None else {},
                "limits": plain_amounts(asked.limits) if asked is not None else {},
                "settings": settings(cgroup, picture.sweep.applied.get(cgroup.path)),
            }
            for cgroup in picture.sweep.tree.cgroups
            if cgroup.pod == pod.key
            for asked in [
                next(
                    (one.resources for one in pod.spec.every_container if one.name == cgroup.container),
                    None,
                )
            ]
        ],
    }


_PERIOD_SECONDS = 1.0
_READER_SECONDS = 0.003  # ten times what it takes to send somebody a view


class ViewFeed:
    def __init__(self, front: Front) -> None:
        self._front = front
        self._views = Views()
        self._next: asyncio.Future[View] | None = None
        self._taking: asyncio.Task[None] | None = None
        self._taken_at = 0.0
        self._latest: View | None = None
        self._events: dict[str, tuple[int, bytes]] = {}
        self._news: Broadcast[bytes] = Broadcast()
        self._readers = 0
        self._following: asyncio.Task[None] | None = None

    async def now(self) -> View:
        return await self._views.of(await self._front.picture())

    async def events(self) -> AsyncIterator[bytes]:
        """The whole first, and again whenever more than figures has changed, or this reader has missed one; between
        them what happens, at once."""
        news = self._news.listen()
        self._readers += 1
        if self._following is None or self._following.done():
            self._following = asyncio.create_task(self._follow())
        told: asyncio.Future[bytes | None] = asyncio.ensure_future(_next(news))
        seen: asyncio.Future[View] | None = None
        try:
            view = await self.now()
            yield self._event(view, "view")
            last = view.number
            while True:
                seen = seen or asyncio.ensure_future(self._later(last))
                await asyncio.wait((told, seen), return_when=asyncio.FIRST_COMPLETED)
                if told.done():
                    if (text := told.result()) is None:
                        return  # the agent ends, or this reader did not keep up
                    yield text
                    told = asyncio.ensure_future(_next(news))
                if seen.done():
                    view, seen = seen.result(), None
                    yield self._event(view, "figures" if view.changes and view.since == last else "view")
                    last = view.number
        finally:
            self._readers -= 1
            waiting: list[asyncio.Future[Any]] = [one for one in (told, seen) if one is not None]
            if self._readers == 0 and self._following is not None:
                waiting.append(self._following)
                self._following = None
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await _end(news)

    async def _follow(self) -> None:
        """One who listens to what happens, and encodes it, for all."""
        happenings = self._front.follow()
        try:
            async for happening in happenings:
                if is_notable(happening):
                    self._news.tell(event("happening", to_json(encode(happening)).strip()))
        finally:
            await _end(happenings)

    def _event(self, view: View, name: str) -> bytes:
        """The same bytes for everyone."""
        number, text = self._events.get(name, (0, b""))
        if number != view.number:
            text = event(name, view.changes if name == "figures" else view.whole)
            self._events[name] = (view.number, text)
        return text

    async def _later(self, number: int) -> View:
        """The next one after that of `number`."""
        while True:
            if self._latest is not None and self._latest.number > number:
                return self._latest  # it came while the reader was busy
            if self._next is None:
                self._next = asyncio.get_running_loop().create_future()
                self._next.add_done_callback(_seen)
                self._taking = asyncio.create_task(self._take(self._next))
            await asyncio.shield(self._next)

    async def _take(self, result: "asyncio.Future[View]") -> None:
        """Once, for all who wait: who comes back from it asks for the next."""
        try:
            # Sending to very many is what costs: they get it more rarely, so that it never takes much of the agent.
            period = max(_PERIOD_SECONDS, self._readers * _READER_SECONDS)
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

    async def close(self) -> None:
        ending = [task for task in (self._taking, self._following) if task is not None]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


def _seen(result: "asyncio.Future[View]") -> None:
    """There may be nobody left who waits for it."""
    if not result.cancelled():
        result.exception()


async def _next(news: AsyncIterator[bytes]) -> bytes | None:
    async for text in news:
        return text
    return None


async def _end(source: AsyncIterator[object]) -> None:
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


_DIRECTORY = os.path.join(os.path.dirname(__file__), "page")
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing from elsewhere is loaded, nothing goes elsewhere, and no text can become script, whoever wrote it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


def page_file(name: str) -> Answer:
    """One of those that are there; Refused for anything else, so that a name never becomes another path."""
    names = os.listdir(_DIRECTORY)
    content_type = _TYPES.get(os.path.splitext(name)[1])
    if name not in names or content_type is None:
        raise Refused(404, f'the page has no file "{name[:80]}"')
    with open(os.path.join(_DIRECTORY, name), "rb") as file:
        return Answer(file.read(), content_type=content_type, headers=_HEADERS)


def plain_story(story: Story) -> dict[str, object]:
    return {
        **_fields(story),
        "chapters": [_chapter(chapter) for chapter in story.chapters],
        "end": end_sentence(story),
    }


def _chapter(chapter: Chapter) -> dict[str, object]:
    stayed = [
        {**_fields(other), "sentence": stayed_sentence(other, chapter.resource)} for other in chapter.stayed
    ]
    return {**_fields(chapter), "sentence": sentence(chapter), **({"stayed": stayed} if stayed else {})}


def _fields(value: object) -> dict[str, object]:
    fields = encode(value)
    assert isinstance(fields, dict)
    return fields
