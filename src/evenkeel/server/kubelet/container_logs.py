"""The logs of containers for `kubectl logs`: read from their files in parts, and followed by the event loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from datetime import datetime

from evenkeel.api.pod import ContainerStatus, Pod
from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.log_files import attempts, present_attempt, previous_attempt
from evenkeel.runtime.log_reading import GrowingLog, LogLine
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.sessions import readable
from evenkeel.server.http import Refused, Request, Stream
from evenkeel.server.kubelet.node_pods import NodePods

_PART_BYTES = 64 << 10  # is read at a time, in a thread
_LOOK_SECONDS = 1.0  # between two looks at whether the container has ended
_POLL_SECONDS = 0.25  # where the kernel gives no notice, and until there is a log
_TRUE = ("1", "true", "True")
_LARGEST_NUMBER = 1 << 53
_STREAMS = {"All": "", "Stdout": "stdout", "Stderr": "stderr"}
_ENDED = ("Succeeded", "Failed")


class LogOptions(NamedTuple):
    """What of a log is wanted. `since_seconds` is since the epoch."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since_seconds: float | None = None
    limit_bytes: int | None = None
    stream: str = ""  # stdout or stderr; empty: both


def log_options(request: Request, now: float) -> LogOptions:
    """Raises Refused."""
    given = request.parameters
    since = _number(request, "sinceSeconds", 1)
    since_time = given.get("sinceTime", "")
    if since is not None and since_time:
        raise Refused(400, "sinceSeconds and sinceTime contradict each other: give one of them")
    stream = given.get("stream") or "All"
    if stream not in _STREAMS:
        raise Refused(400, f'stream: "{stream[:40]}" is not one of {", ".join(_STREAMS)}')
    return LogOptions(
        given.get("follow") in _TRUE,
        given.get("previous") in _TRUE,
        given.get("timestamps") in _TRUE,
        _number(request, "tailLines", 0),
        now - since if since is not None else _instant(since_time),
        _number(request, "limitBytes", 1),
        _STREAMS[stream],
    )


class ContainerLogs:
    def __init__(self, pods: NodePods, paths: StatePaths) -> None:
        self._pods = pods
        self._paths = paths

    async def handle(self, request: Request) -> Stream:
        """`/containerLogs/{namespace}/{pod}/{container}`."""
        options = log_options(request, time.time())
        _, namespace, name, container = request.path
        pod = self._pods.found(namespace, name)
        if container not in [one.name for one in pod.spec.every_container]:
            raise Refused(404, f'container "{container[:63]}" not found in pod "{name}"')
        meta, number = pod.metadata, self._attempt(pod, container, options)
        path = self._paths.log(meta.namespace, meta.name, meta.uid, container, number)

        def is_over() -> bool:
            now = self._pods.present(pod)
            return now is None or attempt_is_over(now, container, number)

        return Stream(_text(path, options, is_over), "text/plain")

    def _attempt(self, pod: Pod, container: str, options: LogOptions) -> int:
        """Which run of the container is meant. Raises Refused if it has no log."""
        meta = pod.metadata
        known = attempts(self._paths.container_logs(meta.namespace, meta.name, meta.uid, container))
        status = _status(pod, container)
        waiting = status.state.waiting if status is not None and status.state is not None else None
        if options.previous:
            is_waiting = status is None or waiting is not None
            status = status or ContainerStatus()
            last = status.last_state.terminated if status.last_state is not None else None
            number = previous_attempt(
                known,
                is_waiting=is_waiting,
                restarts=status.restart_count,
                id_=status.container_id,
                ended_id=None if last is None else last.container_id,
            )
            if number is None:
                raise Refused(
                    400, f'previous terminated container "{container}" in pod "{meta.name}" not found'
                )
            return number
        has_begun = status is not None and waiting is None
        restarts = status.restart_count if status is not None else 0
        if number := present_attempt(known, has_begun=has_begun, restarts=restarts):
            return number
        why = waiting.reason if waiting is not None else "ContainerCreating"
        raise Refused(400, f'container "{container}" in pod "{meta.name}" is waiting to start: {why}')


def attempt_is_over(pod: Pod, container: str, attempt: int) -> bool:
    """True if the status says so, a later attempt has begun or the pod has ended."""
    status = _status(pod, container)
    if pod.status.phase in _ENDED or status is None or status.state is None:
        return pod.status.phase in _ENDED
    last, state = status.restart_count + 1, status.state
    if last != attempt:
        return last > attempt
    ended = status.last_state.terminated if status.last_state is not None else None
    # A container that runs its postStart hook waits, too, and has another id than the run that has ended.
    waits_again = (
        state.waiting is not None and ended is not None and ended.container_id == status.container_id
    )
    return state.terminated is not None or waits_again


def _status(pod: Pod, container: str) -> ContainerStatus | None:
    statuses = pod.status.every_container_status
    return next((one for one in statuses if one.name == container), None)


async def _text(path: str, options: LogOptions, is_over: Callable[[], bool]) -> AsyncIterator[bytes]:
    left = options.limit_bytes
    log = await _opened(path, options, is_over)
    if log is None:
        return
    with closing(log):
        while True:
            was_over = not options.follow or is_over()
            parts = _parts(log.lines(), options)
            while part := await asyncio.to_thread(next, parts, b""):
                yield part if left is None else part[:left]
                if left is not None and (left := left - len(part)) <= 0:
                    return
            if was_over:
                break
            await _changed(log, is_over)
        rest = b"".join(_parts(log.rest(), options))
        if rest:
            yield rest if left is None else rest[:left]


async def _opened(path: str, options: LogOptions, is_over: Callable[[], bool]) -> GrowingLog | None:
    """The log, which is made with its first line; None if the container has written nothing, or its log was removed."""
    while True:
        was_over = not options.follow or is_over()
        with suppress(EvenkeelError):
            return GrowingLog(
                path,
                tail=options.tail_lines,
                since_seconds=options.since_seconds,
                is_watched=options.follow,
            )
        if was_over:
            return None
        await asyncio.sleep(_POLL_SECONDS)


async def _changed(log: GrowingLog, is_over: Callable[[], bool]) -> None:
    """Returns when there may be something new, or the container has ended."""
    if log.descriptor < 0:
        await asyncio.sleep(_POLL_SECONDS)
        return
    while not is_over():
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await readable(log.descriptor)
        except TimeoutError:
            continue
        log.forget_changes()
        return


def _parts(lines: Iterator[LogLine], options: LogOptions) -> Iterator[bytes]:
    """The lines as text, put together to parts."""
    held: list[bytes] = []
    size = 0
    for line in lines:
        if options.stream not in ("", line.stream):
            continue
        stamp = f"{line.timestamp} ".encode() if options.timestamps else b""
        text = stamp + line.text + (b"\n" if line.is_whole else b"")
        held.append(text)
        size += len(text)
        if size >= _PART_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def _number(request: Request, name: str, least: int) -> int | None:
    text = request.parameters.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 17 and least <= int(text) <= _LARGEST_NUMBER):
        raise Refused(400, f'{name}: "{text[:40]}" is not a whole number of at least {least}')
    return int(text)


def _instant(text: str) -> float | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise Refused(400, f'sinceTime: "{text[:40]}" is not a time such as 2026-01-01T12:00:00Z')
    return moment.timestamp()
