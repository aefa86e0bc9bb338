"""Probes of containers. They decide whether a container is ready and has started up, and restart a container that does
not answer."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.grpc_health import ask_grpc
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.probe_requests import DEFAULT_HOST, Answer, ask_http, ask_tcp, printable
from evenkeel.agent.step_requests import StepRequests
from evenkeel.api.container import Container, Probe
from evenkeel.api.pod import Pod
from evenkeel.errors import EvenkeelError
from evenkeel.journal.records import WARNING, PodRecord
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.lifecycle import changes, stops
from evenkeel.policy.lifecycle.probe_results import (
    ProbeKind,
    ProbeOutcome,
    ProbeState,
    after_no_result,
    after_result,
    due_probes,
    first_state,
    period_seconds,
    timeout_seconds,
)
from evenkeel.pressure.protocol import PodObserver
from evenkeel.runtime.interface import Attempt, ExecResult

log = logging.getLogger(__name__)

_EXEC_SLACK_SECONDS = 10.0  # time for the runtime to end a command after its timeout


class Probed(NamedTuple):
    """A reported probe result. Every change of the outcome is reported. Every failure is reported too, as the event
    Unhealthy in Kubernetes, but one failure alone changes nothing."""

    attempt: Attempt
    kind: ProbeKind
    outcome: ProbeOutcome
    has_changed: bool  # whether this answer changed the outcome
    answer: Answer


Execute = Callable[[Attempt, tuple[str, ...], float], Awaitable[ExecResult]]


class Probes:
    """Runs the probes of containers. `execute` is the method of the runtime. `host_of` returns the address at which
    the container can be reached, or "" if that is not known now. `report` is called in the event loop. It
    may call `watch` and `unwatch`."""

    def __init__(
        self,
        execute: Execute,
        report: Callable[[Probed], None],
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
        host_of: Callable[[Attempt], str] = lambda _: DEFAULT_HOST,
    ) -> None:
        self._execute = execute
        self._host_of = host_of
        self._report = report
        self._clock = clock
        self._jitter = jitter
        self._began_at = clock()
        self._tasks: dict[Attempt, dict[ProbeKind, asyncio.Task[None]]] = {}

    def watch(self, attempt: Attempt, container: Container, started_at: float, *, is_started: bool) -> None:
        """Probes a running container until `unwatch`. It may be called again for the same container. When the startup
        probe has passed, the other probes begin by themselves."""
        for kind, probe in due_probes(container, is_started=is_started):
            running = self._tasks.setdefault(attempt, {})
            if kind not in running:
                task = asyncio.get_running_loop().create_task(
                    self._run(attempt, container, kind, probe, started_at)
                )
                task.add_done_callback(_log_failure)
                running[kind] = task

    def unwatch(self, attempt: Attempt) -> None:
        """Stops probing the attempt: no more results of it are reported. The attempt need not be watched."""
        for task in self._tasks.pop(attempt, {}).values():
            task.cancel()

    async def close(self) -> None:
        tasks = [task for each in self._tasks.values() for task in each.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(
        self, attempt: Attempt, container: Container, kind: ProbeKind, probe: Probe, started_at: float
    ) -> None:
        state = first_state(kind, probe, started_at, self._clock(), self._first_jitter(probe))
        while not state.is_done:
            # Never longer than the probe's delay or period: the machine's clock may have been set back.
            longest = max(probe.initial_delay_seconds, period_seconds(probe))
            await asyncio.sleep(min(max(state.next_at - self._clock(), 0.0), longest))
            began_at = self._clock()
            answer = await self._ask(attempt, container, probe)
            before = state
            state = _after(kind, probe, state, answer, began_at)
            has_changed = state.outcome is not before.outcome
            if has_changed or not answer.is_success or answer.message:
                self._report(Probed(attempt, kind, state.outcome, has_changed, answer))
        if kind is ProbeKind.STARTUP and state.outcome is ProbeOutcome.PASSED and attempt in self._tasks:
            self.watch(attempt, container, started_at, is_started=True)

    def _first_jitter(self, probe: Probe) -> float:
        """As kubelet: after the agent's start, the first probes of running pods are spread over the probe's period."""
        return self._jitter() if self._clock() - self._began_at < period_seconds(probe) else 0.0

    async def _ask(self, attempt: Attempt, container: Container, probe: Probe) -> Answer:
        timeout = timeout_seconds(probe)
        if probe.exec is not None:
            return await self._ask_command(attempt, probe.exec.command, timeout)
        host = self._host_of(attempt)
        if not host:
            return Answer(None, "the pod's address is not known")
        if probe.http_get is not None:
            return await ask_http(probe.http_get, container, timeout, host)
        if probe.tcp_socket is not None:
            return await ask_tcp(probe.tcp_socket, container, timeout, host)
        if probe.grpc is not None:
            return await ask_grpc(probe.grpc, timeout, host)
        return Answer(None, "the probe has no handler")

    async def _ask_command(self, attempt: Attempt, command: tuple[str, ...], timeout: float) -> Answer:
        try:
            async with asyncio.timeout(timeout + _EXEC_SLACK_SECONDS):
                result = await self._execute(attempt, command, timeout)
        except (EvenkeelError, OSError, TimeoutError) as error:
            return Answer(None, printable(str(error)) or "the command could not be run")
        if result.exit_code is None:
            return Answer(False, f"the command did not end within {timeout:g}s")
        if result.exit_code:
            output = printable(result.output)
            return Answer(False, f"the command ended with {result.exit_code}{': ' if output else ''}{output}")
        return Answer(True)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a probe ended with %s: %s", type(error).__name__, error)


def _after(kind: ProbeKind, probe: Probe, state: ProbeState, answer: Answer, began_at: float) -> ProbeState:
    # The period is the time from one request to the next. The time to the answer does not matter.
    if answer.is_success is None:
        return after_no_result(probe, state, began_at)
    return after_result(kind, probe, state, is_success=answer.is_success, now=began_at)


class Prober(PodObserver):
    """Probes the containers of pods, and updates the pods' records with the results."""

    def __init__(
        self,
        execute: Execute,
        addresses: Callable[[Pod], tuple[str, ...] | None],
        pod_store: PodStore,
        event_recorder: EventRecorder,
        steps: StepRequests,
        clock: Callable[[], float],
    ) -> None:
        self._pod_store = pod_store
        self._event_recorder = event_recorder
        self._steps = steps
        self._clock = clock
        self._addresses = addresses
        self._probes = Probes(execute, self._probed, clock, host_of=self._host_of)
        self._watched: dict[str, set[Attempt]] = {}  # by the pod's UID

    async def close(self) -> None:
        await self._probes.close()

    def settled(self, uid: str, record: PodRecord | None) -> None:
        """Probes the running containers of the pod, and no others."""
        wanted = set()
        for container in record.pod.spec.every_container if record is not None else ():
            if container.startup_probe or container.liveness_probe or container.readiness_probe:
                assert record is not None
                state = record.state.container(container.name)
                if state.started_at is not None and not state.in_post_start and not state.stopping:
                    attempt = Attempt(uid, container.name, state.attempt)
                    wanted.add(attempt)
                    self._probes.watch(attempt, container, state.started_at, is_started=state.is_started)
        for attempt in self._watched.get(uid, set()) - wanted:
            self._probes.unwatch(attempt)
        if wanted:
            self._watched[uid] = wanted
        else:
            self._watched.pop(uid, None)

    def _host_of(self, attempt: Attempt) -> str:
        record = self._pod_store.get(attempt.uid)
        own = self._addresses(record.pod) if record is not None else None
        return DEFAULT_HOST if own is None else next(iter(own), "")

    def _probed(self, probed: Probed) -> None:
        uid, name, _ = probed.attempt
        record = self._pod_store.of_attempt(probed.attempt)
        if record is None:
            return
        container = next(each for each in record.pod.spec.every_container if each.name == name)
        if not probed.answer.is_success or probed.answer.message:
            message = f"{probed.kind} probe of container {name}: {probed.answer.message}"
            reason = "ProbeWarning" if probed.answer.is_success else "Unhealthy"
            self._event_recorder.record(WARNING, reason, message, record.pod, name)
        state, now = record.state, self._clock()
        if probed.has_changed and probed.kind is ProbeKind.READINESS:
            state = changes.with_readiness(
                state, name, is_ready=probed.outcome is ProbeOutcome.PASSED, now=now
            )
        elif probed.has_changed and probed.outcome is ProbeOutcome.FAILED:
            stop = stops.probe_stop(record.pod, container, probed.kind, probed.answer.message)
            self._event_recorder.stopping(record.pod, state, stop)
            state = stops.asked_to_stop(state, stop, now)
        elif probed.has_changed and probed.kind is ProbeKind.STARTUP:
            state = changes.started_up(state, container, now)
        self._pod_store.put_state(uid, state)
        self._steps.want_step(uid)
