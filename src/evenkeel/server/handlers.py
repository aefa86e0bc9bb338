"""Handlers of the HTTP interface: one method for each route.

Pods and the node are answered as Kubernetes objects, everything else as plain values that docs/api.md describes.
"""

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence

from evenkeel.agent.front import Front
from evenkeel.api.encode import encode
from evenkeel.api.manifests import read_manifests
from evenkeel.api.pod import Pod
from evenkeel.api.reading import Reading
from evenkeel.errors import EvenkeelError, InvalidInput, Problem
from evenkeel.journal.records import Event
from evenkeel.runtime.interface import Image, Pull
from evenkeel.server.answers import PodTexts, SnapshotAnswers, fields_of, history_answer
from evenkeel.server.http import (
    EVENT_STREAM,
    LINES,
    Answer,
    Refused,
    Request,
    Stream,
    close_source,
    next_item,
    server_sent_event,
    to_json,
)
from evenkeel.server.metrics_cgroups import CONTENT_TYPE as PROMETHEUS
from evenkeel.server.view_stream import ViewStream

SOURCES = ("api", "run")
FOLLOW = ("0", "1", "false", "true")
MOST_EVENTS = 10_000
PLAIN_TEXT = "text/plain"
_USAGE_SECONDS = 0.25  # requests within that time share one reading
_PODS_AT_A_TIME = 20  # are encoded before other tasks have their turn
_READ_AT_ONCE_BYTES = 16 * 1024  # a larger text is read in a thread
_PAGE_DIRECTORY = os.path.join(os.path.dirname(__file__), "page")
_PAGE_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# The page loads nothing from other sites and sends nothing to them. No text can become script.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_PAGE_HEADERS = (
    ("Content-Security-Policy", _PAGE_POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


class Handlers:
    def __init__(self, front: Front) -> None:
        self._failure = ""
        self._front = front
        self._texts = PodTexts(front.pods)
        self._usage = (-math.inf, b"")
        self._views = ViewStream(front)
        self._reading = asyncio.Lock()  # one large text at a time
        self._answers = SnapshotAnswers(front)

    @property
    def failure(self) -> str:
        """A failure that the server itself has found, beside those that the agent reports."""
        return self._failure

    def report_failure(self, failure: str) -> None:
        """An empty text: there is none."""
        self._failure = failure

    async def close(self) -> None:
        await self._views.close()

    async def healthz(self, request: Request) -> Answer:  # noqa: ARG002
        return Answer(b"ok", content_type=PLAIN_TEXT)

    async def readyz(self, request: Request) -> Answer:  # noqa: ARG002
        if failure := self._failure or self._front.not_ready():
            raise Refused(500, failure)
        return Answer(b"ok", content_type=PLAIN_TEXT)

    async def pods(self, request: Request) -> Answer:
        namespace = request.parameters.get("namespace", "")
        pods = self._front.pods()
        return await self.pod_list([pod for pod in pods if namespace in ("", pod.metadata.namespace)])

    async def pod_list(self, pods: Sequence[Pod]) -> Answer:
        texts: list[bytes] = []
        for number, pod in enumerate(pods, start=1):
            texts += (b",", self._texts.of(pod)) if texts else (self._texts.of(pod),)
            if number % _PODS_AT_A_TIME == 0:
                await asyncio.sleep(0)
        head = b'{"apiVersion":"v1","kind":"PodList","metadata":{},"items":['
        return Answer(head, more=(*texts, b"]}\n"))

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
        if not problems and not (reading.pods or reading.objects or reading.workloads):
            words = "holds no pod, workload, ConfigMap, Secret, Service or PersistentVolumeClaim"
            problems = (Problem("", words, "FieldValueRequired", "the request"),)
        if problems:
            raise _invalid(problems)
        workloads = [one.workload for one in reading.workloads]
        try:
            applied = await self._front.apply(reading.pods, source, reading.objects, workloads=workloads)
        except InvalidInput as error:
            raise _invalid(error.problems) from None
        except EvenkeelError as error:
            raise Refused(409, error.message, hint=error.hint) from None
        pods = [{"pod": one.pod, "outcome": one.outcome} for one in applied if one.kind == "Pod"]
        objects = [
            {"kind": one.kind, "name": one.pod, "outcome": one.outcome}
            for one in applied
            if one.kind != "Pod"
        ]
        return Answer(to_json({"pods": pods, "objects": objects, "warnings": encode(reading.warnings)}))

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
        grace = grace_seconds(request)
        try:
            exists = await self._front.delete(_key(request), grace)
        except EvenkeelError as error:  # a file holds the pod
            raise Refused(409, error.message, hint=error.hint) from None
        if not exists:
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
            await close_source(changes)

    async def events(self, request: Request) -> Answer | Stream:
        pod, follow = request.parameters.get("pod", ""), request.parameters.get("follow", "")
        most = _whole_number(request, "most", 1000, MOST_EVENTS)
        if follow not in ("", *FOLLOW):
            raise Refused(400, f'follow: "{follow[:40]}" is not one of 1 or 0')
        if EVENT_STREAM in request.headers.get("accept", ""):
            last = request.headers.get("last-event-id", "")
            after = int(last) if last.isascii() and last.isdigit() and len(last) < 19 else 0
            return Stream(self._server_sent_events(pod, most, after), EVENT_STREAM)
        if follow in ("1", "true"):
            return Stream(self._lines_of(pod, most))
        lines = [to_json(encode(event)) for event in self._front.events(pod, most)]
        return Answer(b"".join(lines), content_type=LINES)

    async def _lines_of(self, pod: str, most: int) -> AsyncIterator[bytes]:
        events = self._events(pod, most)
        try:
            async for event in events:
                yield to_json(encode(event))
        finally:
            await close_source(events)

    async def _server_sent_events(self, pod: str, most: int, after: int) -> AsyncIterator[bytes]:
        """A client that connects again sends the number of its last event, and gets the events after it."""
        events = self._events(pod, most)
        try:
            async for event in events:
                if event.number > after or not event.number:
                    yield server_sent_event("happening", to_json(encode(event)).strip(), event.number)
        finally:
            await close_source(events)

    async def _events(self, pod: str, most: int) -> AsyncIterator[Event]:
        """The recorded events, then those to come, each of them once."""
        coming = self._front.follow()
        first = asyncio.ensure_future(next_item(coming))
        try:
            await asyncio.sleep(0)  # `coming` is subscribed from here on
            last = 0
            for recorded in self._front.events(pod, most):
                last = max(last, recorded.number)
                yield recorded
            event = await first
            while event is not None:
                if pod in ("", event.pod) and (event.number > last or not event.number):
                    yield event
                event = await next_item(coming)
        finally:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await close_source(coming)

    async def node(self, request: Request) -> Answer:  # noqa: ARG002
        return Answer(to_json({"apiVersion": "v1", "kind": "Node", **fields_of(self._front.node())}))

    async def usage(self, request: Request) -> Answer:  # noqa: ARG002
        at, text = self._usage
        if time.monotonic() - at > _USAGE_SECONDS:
            text = to_json(encode(self._front.usage()))
            self._usage = (time.monotonic(), text)
        return Answer(text)

    async def images(self, request: Request) -> Answer:  # noqa: ARG002
        images, pulls = await self._front.images()
        return Answer(
            to_json({"images": [_image(one) for one in images], "pulls": [_pull(one) for one in pulls]})
        )

    async def view(self, request: Request) -> Answer:  # noqa: ARG002
        return Answer((await self._views.now()).whole + b"\n")

    async def view_watch(self, request: Request) -> Stream:  # noqa: ARG002
        return Stream(self._views.events(), EVENT_STREAM)

    async def snapshot(self, request: Request) -> Answer:  # noqa: ARG002
        return Answer(to_json(await self._front.snapshot()))

    async def explain(self, request: Request) -> Answer:
        text = await self._answers.explanation(_key(request))
        if text is None:
            raise _no_such_pod(request)
        return Answer(text)

    async def summary(self, request: Request) -> Answer:
        only = request.parameters.get("only_cpu_and_memory", "false")
        if only not in ("true", "false"):
            raise Refused(400, f'only_cpu_and_memory: "{only[:40]}" is not one of true or false')
        return Answer(await self._answers.summary(only_cpu_and_memory=only == "true"))

    async def metrics(self, request: Request) -> Answer:
        text = await self._answers.metrics(request.path[1] if len(request.path) > 1 else "")
        return Answer(text, content_type=PROMETHEUS)

    async def advice(self, request: Request) -> Answer:  # noqa: ARG002
        return Answer(to_json(encode(self._front.advice())))

    async def configz(self, request: Request) -> Answer:  # noqa: ARG002
        return Answer(to_json({"kubeletconfig": encode(self._front.config)}))

    async def why(self, request: Request) -> Answer:
        history = await self._front.pod_history(_key(request))
        if history is None:
            raise _no_such_pod(request)
        return Answer(to_json(history_answer(history)))

    async def page(self, request: Request) -> Answer:
        name = request.path[1] if len(request.path) == 2 else "index.html"
        content_type = _PAGE_TYPES.get(os.path.splitext(name)[1])
        # Only names that the directory lists: a name never becomes another path.
        if content_type is None or name not in os.listdir(_PAGE_DIRECTORY):
            raise Refused(404, f'the page has no file "{name[:80]}"')
        with open(os.path.join(_PAGE_DIRECTORY, name), "rb") as file:
            return Answer(file.read(), content_type=content_type, headers=_PAGE_HEADERS)


def _key(request: Request) -> str:
    return f"{request.path[1]}/{request.path[2]}"


def _no_such_pod(request: Request) -> Refused:
    _, namespace, name = request.path
    return Refused(404, f'there is no pod "{name[:253]}" in namespace {namespace[:63]}')


def _invalid(problems: Iterable[Problem]) -> Refused:
    listed = tuple(problems)
    what = "the pod is not valid" if len(listed) == 1 else f"there are {len(listed)} mistakes"
    return Refused(422, what, more={"problems": encode(listed)})


def grace_seconds(request: Request) -> float | None:
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


def _image(one: Image) -> dict[str, object]:
    return {"id": one.id, "names": list(one.names), "sizeBytes": one.size_bytes, "isInUse": one.is_in_use}


def _pull(one: Pull) -> dict[str, object]:
    return {"image": one.reference, "receivedBytes": one.received_bytes, "seconds": round(one.seconds, 1)}
