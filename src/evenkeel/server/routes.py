"""What each address answers. Pods and the node are Kubernetes' own objects; the rest are plain values of ours."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from evenkeel import __version__
from evenkeel.agent.front import Front
from evenkeel.api.encode import encode
from evenkeel.api.manifests import Reading, read_manifests
from evenkeel.api.pod import Pod
from evenkeel.errors import EvenkeelError, InvalidInput, Problem
from evenkeel.journal.records import Event
from evenkeel.server.addresses import FOLLOW, MOST_EVENTS, PLAIN_TEXT, SOURCES, addresses, description
from evenkeel.server.http import EVENT_STREAM, LINES, Answer, Refused, Request, Route, Stream, event, to_json
from evenkeel.server.metrics_cgroups import CONTENT_TYPE as PROMETHEUS
from evenkeel.server.readings import Readings, ViewFeed, page_file, plain_story

_USAGE_SECONDS = 0.25  # figures so fresh are good enough for the next who asks
_PODS_AT_A_TIME = 20  # are encoded before others have their turn
_SPARE_TEXTS = 256  # of pods that are gone
_READ_AT_ONCE_BYTES = 16 * 1024  # a larger text is read in a thread


class FrontRoutes:
    """The agent's front as HTTP."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._texts = _PodTexts(front.pods)
        self._usage = (-math.inf, b"")
        self._views = ViewFeed(front)
        self._reading = asyncio.Lock()  # one large text at a time
        self._readings = Readings(front)
        self._table = addresses(self)
        self._description = to_json(description(self._table, __version__))

    async def close(self) -> None:
        await self._views.close()

    def find(self, request: Request) -> Route:
        here = [entry for entry in self._table if entry.is_at(request.path)]
        if not here:
            there_are = ", ".join(sorted({"/" + entry.path[0] for entry in self._table}))
            raise Refused(
                404, f"there is nothing at /{'/'.join(request.path)[:200]}", hint=f"there are {there_are}"
            )
        for entry in here:
            if entry.method == request.method:
                known = [one.name for one in entry.parameters]
                for name in request.parameters:
                    if name not in known:
                        allowed = ", ".join(known) or "none"
                        raise Refused(
                            400, f'there is no parameter "{name[:40]}" here', hint=f"there are: {allowed}"
                        )
                return entry.route
        allow = ", ".join(entry.method for entry in here)
        raise Refused(405, f"{request.method} is not done here", hint=f"there is {allow}", allow=allow)

    async def healthz(self, request: Request) -> Answer:  # noqa: ARG002
        return Answer(b"ok", content_type=PLAIN_TEXT)

    async def readyz(self, request: Request) -> Answer:  # noqa: ARG002
        if why := self._front.not_ready():
            raise Refused(500, why)
        return Answer(b"ok", content_type=PLAIN_TEXT)

    async def pods(self, request: Request) -> Answer:
        namespace = request.parameters.get("namespace", "")
        pods = self._front.pods()
        texts: list[bytes] = []
        for number, pod in enumerate(pods, start=1):
            if not namespace or pod.metadata.namespace == namespace:
                texts.append(self._texts.of(pod))
            if number % _PODS_AT_A_TIME == 0:
                await asyncio.sleep(0)
        head = b'{"apiVersion":"v1","kind":"PodList","metadata":{},"items":['
        return Answer(b"".join((head, b",".join(texts), b"]}\n")))

    async def pod(self, request: Request) -> Answer:
        pod = self._front.pod(_key(request))
        if pod is None:
            raise _no_such_pod(request)
        return Answer(self._texts.of(pod) + b"\n")

    async def apply(self, request: Request) -> Answer:
        source = request.parameters.get("source", SOURCES[0])
        if source not in SOURCES:
            raise Refused(400, f'source: "{source[:40]}" is not one of {", ".join(SOURCES)}')
        reading = await self._read(request.body)
        problems = reading.problems
        if not problems and not reading.pods:
            problems = (Problem("", "holds no pod", "FieldValueRequired", "the request"),)
        if problems:
            raise _invalid(problems)
        try:
            applied = await self._front.apply(reading.pods, source)
        except InvalidInput as error:
            raise _invalid(error.problems) from None
        except EvenkeelError as error:
            raise Refused(409, error.message, hint=error.hint) from None
        return Answer(to_json({"pods": encode(applied), "warnings": encode(reading.warnings)}))

    async def _read(self, body: bytes) -> Reading:
        try:
            text = body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = body.count(b"\n", 0, error.start) + 1
            raise _invalid([Problem("", "is not text in UTF-8", "Decode", "the request", line)]) from None
        profile = self._front.config.rulebook
        if len(body) <= _READ_AT_ONCE_BYTES:
            return read_manifests(text, "the request", profile).without_duplicates()
        async with self._reading:
            return await asyncio.to_thread(
                lambda: read_manifests(text, "the request", profile).without_duplicates()
            )

    async def delete(self, request: Request) -> Answer:
        grace_seconds = _grace(request)
        try:
            is_there = await self._front.delete(_key(request), grace_seconds)
        except EvenkeelError as error:  # it is of a file
            raise Refused(409, error.message, hint=error.hint) from None
        if not is_there:
            raise _no_such_pod(request)
        return Answer(to_json({"pod": _key(request), "outcome": "deleted"}), 202)

    async def watch(self, request: Request) -> Stream:
        return Stream(
            self._changes(request.parameters.get("pod", ""), request.parameters.get("namespace", ""))
        )

    async def _changes(self, key: str, namespace: str) -> AsyncIterator[bytes]:
        changes = self._front.watch()
        try:
            async for change in changes:
                if (not key or change.pod.key == key) and namespace in ("", change.pod.metadata.namespace):
                    yield b'{"type":"%b","object":%b}\n' % (change.type.encode(), self._texts.of(change.pod))
        finally:
            await _end(changes)

    async def events(self, request: Request) -> Answer | Stream:
        pod, follow = request.parameters.get("pod", ""), request.parameters.get("follow", "")
        most = _whole_number(request, "most", 1000, MOST_EVENTS)
        if follow not in ("", *FOLLOW):
            raise Refused(400, f'follow: "{follow[:40]}" is not one of 1 or 0')
        if EVENT_STREAM in request.headers.get("accept", ""):
            last = request.headers.get("last-event-id", "")
            after = int(last) if last.isascii() and last.isdigit() and len(last) < 19 else 0
            return Stream(self._sent_events(pod, most, after), EVENT_STREAM)
        if follow in ("1", "true"):
            return Stream(self._lines_of(pod, most))
        lines = [to_json(encode(happening)) for happening in self._front.happenings(pod, most)]
        return Answer(b"".join(lines), content_type=LINES)

    async def _lines_of(self, pod: str, most: int) -> AsyncIterator[bytes]:
        happenings = self._happenings(pod, most)
        try:
            async for happening in happenings:
                yield to_json(encode(happening))
        finally:
            await _end(happenings)

    async def _sent_events(self, pod: str, most: int, after: int) -> AsyncIterator[bytes]:
        """Who comes back says which was the last, and gets those after it."""
        happenings = self._happenings(pod, most)
        try:
            async for happening in happenings:
                if happening.number > after or not happening.number:
                    yield event("happening", to_json(encode(happening)).strip(), happening.number)
        finally:
            await _end(happenings)

    async def _happenings(self, pod: str, most: int) -> AsyncIterator[Event]:
        """Those that were, and then those to come, none of them twice and none left out."""
        coming = self._front.follow()
        first = asyncio.ensure_future(_next(coming))
        try:
            await asyncio.sleep(0)  # `coming` is subscribed from here on
            last = 0
            for past in self._front.happenings(pod, most):
                last = max(last, past.number)
                yield past
            happening = await first
            while happening is not None:
                if pod in ("", happening.pod) and (happening.number > last or not happening.number):
                    yield happening
                happening = await _next(coming)
        finally:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await _end(coming)

    async def node(self, request: Request) -> Answer:  # noqa: ARG002
        return Answer(to_json({"apiVersion": "v1", "kind": "Node", **_fields(self._front.node())}))

    async def usage(self, request: Request) -> Answer:  # noqa: ARG002
        at, text = self._usage
        if time.monotonic() - at > _USAGE_SECONDS:
            text = to_json(encode(self._front.usage()))
            self._usage = (time.monotonic(), text)
        return Answer(text)

    async def view(self, request: Request) -> Answer:  # noqa: ARG002
        return Answer((await self._views.now()).whole + b"\n")

    async def view_watch(self, request: Request) -> Stream:  # noqa: ARG002
        return Stream(self._views.events(), EVENT_STREAM)

    async def snapshot(self, request: Request) -> Answer:  # noqa: ARG002
        return Answer(to_json(await self._front.snapshot()))

    async def explain(self, request: Request) -> Answer:
        text = await self._readings.explanation(_key(request))
        if text is None:
            raise _no_such_pod(request)
        return Answer(text)

    async def summary(self, request: Request) -> Answer:
        only = request.parameters.get("only_cpu_and_memory", "false")
        if only not in ("true", "false"):
            raise Refused(400, f'only_cpu_and_memory: "{only[:40]}" is not one of true or false')
        return Answer(await self._readings.summary(only_cpu_and_memory=only == "true"))

    async def metrics(self, request: Request) -> Answer:
        text = await self._readings.metrics(request.path[1] if len(request.path) > 1 else "")
        return Answer(text, content_type=PROMETHEUS)

    async def openapi(self, request: Request) -> Answer:  # noqa: ARG002
        return Answer(self._description)

    async def advice(self, request: Request) -> Answer:  # noqa: ARG002
        return Answer(to_json(encode(self._front.advice())))

    async def configz(self, request: Request) -> Answer:  # noqa: ARG002
        return Answer(to_json({"kubeletconfig": encode(self._front.config)}))

    async def why(self, request: Request) -> Answer:
        story = await self._front.story(_key(request))
        if story is None:
            raise _no_such_pod(request)
        return Answer(to_json(plain_story(story)))

    async def page(self, request: Request) -> Answer:
        return page_file(request.path[1] if len(request.path) == 2 else "index.html")


class _PodTexts:
    """Pods as JSON, each made once for all who ask while it does not change. Those that are gone are forgotten now and
    then, as some may still have to be told of their end."""

    def __init__(self, pods: Callable[[], tuple[Pod, ...]]) -> None:
        self._pods = pods
        self._texts: dict[str, tuple[Pod, bytes]] = {}

    def of(self, pod: Pod) -> bytes:
        known = self._texts.get(pod.key)
        if known is None or known[0] is not pod:
            text = to_json({"apiVersion": "v1", "kind": "Pod", **_fields(pod)}).rstrip()
            known = self._texts[pod.key] = (pod, text)
            if len(self._texts) > _SPARE_TEXTS:
                self._forget_some()
        return known[1]

    def _forget_some(self) -> None:
        pods = self._pods()
        if len(self._texts) > len(pods) + _SPARE_TEXTS:
            keys = {pod.key for pod in pods}
            self._texts = {key: known for key, known in self._texts.items() if key in keys}


def _fields(value: object) -> Mapping[str, object]:
    fields = encode(value)
    assert isinstance(fields, dict)
    return fields


def _key(request: Request) -> str:
    return f"{request.path[1]}/{request.path[2]}"


def _no_such_pod(request: Request) -> Refused:
    _, namespace, name = request.path
    return Refused(404, f'there is no pod "{name[:253]}" in namespace {namespace[:63]}')


def _invalid(problems: Iterable[Problem]) -> Refused:
    listed = tuple(problems)
    what = "the pod is not valid" if len(listed) == 1 else f"there are {len(listed)} mistakes"
    return Refused(422, what, more={"problems": encode(listed)})


def _grace(request: Request) -> float | None:
    text = request.parameters.get("gracePeriodSeconds")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= 2**31:
        raise Refused(400, f'gracePeriodSeconds: "{text[:40]}" is not a number of seconds, 0 or more')
    return seconds


def _whole_number(request: Request, name: str, default: int, most: int) -> int:
    text = request.parameters.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise Refused(400, f'{name}: "{text[:40]}" is not a whole number from 1 to {most}')
    return int(text)


async def _next(happenings: AsyncIterator[Event]) -> Event | None:
    async for happening in happenings:
        return happening
    return None


async def _end(iterator: AsyncIterator[object]) -> None:
    """Lets a source of changes know that nobody listens any more, if it wants to know."""
    close = getattr(iterator, "aclose", None)
    if close is not None:
        await close()
