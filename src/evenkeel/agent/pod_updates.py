"""Updates the records of pods after an event: admission, a start, a failure, an exit, an eviction, or a new start.

This module does not act on containers. It changes a record in memory and requests a step. The step then decides.
"""

import asyncio
from collections.abc import Callable

from evenkeel.agent.admission import AdmissionResult
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.node.oom_kills import NOT_KNOWN, OomKills, OomVerdict
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.pod_worker import POST_START_FAILED, PodWorker
from evenkeel.agent.step_requests import (
    Cleaned,
    Emptied,
    Exited,
    HookFailed,
    NotStarted,
    OomKilled,
    Outcome,
    PostStarted,
    Started,
    StepRequests,
)
from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod
from evenkeel.api.resources import EPHEMERAL_STORAGE
from evenkeel.journal.records import NORMAL, WARNING, PodRecord
from evenkeel.policy.admission import Refusal
from evenkeel.policy.eviction.decide import EVICTED
from evenkeel.policy.lifecycle import changes, stops
from evenkeel.policy.lifecycle.actions import ERR_IMAGE_PULL
from evenkeel.policy.lifecycle.pod_state import LifecycleSettings, PodState, TerminalStatus
from evenkeel.policy.lifecycle.restarts import grace_seconds
from evenkeel.policy.pod_resources import pod_limits
from evenkeel.policy.preemption import PREEMPTED
from evenkeel.policy.qos import is_critical, pod_class
from evenkeel.pressure.protocol import PodObserver
from evenkeel.runtime.interface import Attempt, Exit, Record


class PodUpdates:
    """Updates records for the pod loop."""

    def __init__(
        self,
        profile: Profile,
        settings: LifecycleSettings,
        pod_store: PodStore,
        oom_kills: OomKills,
        event_recorder: EventRecorder,
        steps: StepRequests,
        observers: tuple[PodObserver, ...],
        evictions: "Evictions",
        clock: Callable[[], float],
    ) -> None:
        self._profile = profile
        self._evictions = evictions
        self._settings = settings
        self._pod_store = pod_store
        self._oom_kills = oom_kills
        self._event_recorder = event_recorder
        self._steps = steps
        self._observers = observers
        self._clock = clock
        self._ended: list[Attempt] = []
        self._waiting: set[str] = set()  # UIDs of critical pods whose wait for room is recorded

    def judged(self, result: AdmissionResult, now: float) -> None:
        """Pods are admitted, refused, wait for room, or have to end."""
        for record, shared_port in result.admitted:
            self._admitted(record, shared_port, now)
        for victim, critical in result.preemptions:
            self._preempted(victim, critical, now)
        for record, message in result.waiting:
            self._waits(record, message)
        if result.is_last:
            self._waiting = {record.uid for record, _ in result.waiting}
        for record, refusal in result.refused:
            self._refused(record, refusal, now)

    def _admitted(self, record: PodRecord, shared_port: str, now: float) -> None:
        """`shared_port` is a warning that another pod has the same port."""
        self._pod_store.put(record._replace(is_admitted=True, state=PodState(accepted_at=now)))
        self._event_recorder.admitted(record.pod, pod_class(record.pod, self._profile))
        if shared_port:
            self._event_recorder.record(WARNING, "SharedPort", shared_port, record.pod)
        self._steps.want_step(record.uid)

    def _refused(self, record: PodRecord, refusal: Refusal, now: float) -> None:
        """The node, or its runtime, does not take the pod. An event is recorded for each new reason."""
        before = record.state.verdict
        if before is not None and (before.reason, before.message) == (refusal.reason, refusal.message):
            return
        status = TerminalStatus("Failed", refusal.reason, refusal.message, now)
        self._pod_store.put(record._replace(state=record.state._replace(verdict=status)))
        if before is None or before.reason != refusal.reason:
            self._event_recorder.record(WARNING, refusal.reason, refusal.message, record.pod)
        if before is None and is_critical(record.pod, self._profile):
            self._steps.room_appeared()  # resizes waited because of this pod, and it is refused now

    def _waits(self, record: PodRecord, message: str) -> None:
        """A critical pod gets the room of pods that end. An earlier refusal of it is no longer true."""
        if record.state.verdict is not None:
            self._pod_store.put(record._replace(state=record.state._replace(verdict=None)))
        if record.uid not in self._waiting:
            self._waiting.add(record.uid)
            self._event_recorder.record(NORMAL, "WaitingForRoom", message, record.pod)

    def _preempted(self, record: PodRecord, critical: Pod, now: float) -> None:
        """The pod ends within its own grace period, and a critical pod takes its room."""
        message = f"Preempted in order to admit critical pod {critical.key}"
        grace = grace_seconds(record.pod)
        status = TerminalStatus("Failed", PREEMPTED, message, now, grace, is_disruption=True)
        self._event_recorder.verdict(record.pod, status)
        self._evictions.evict(record.uid, status)

    def take_ended(self) -> list[Attempt]:
        """Returns the attempts that the runtime may forget once the records are committed."""
        ended, self._ended = self._ended, []
        return ended

    def apply(self, outcome: Outcome) -> None:
        """Updates a record after an outcome of a container, or of work beside the loop. The pod loop itself handles the
        removal of a pod."""
        if isinstance(outcome, Started):
            self.started(outcome.record, runs_hook=outcome.runs_hook, image=outcome.image)
        elif isinstance(outcome, NotStarted):
            self.not_started(outcome)
        elif isinstance(outcome, Exited):
            self.exited(outcome.attempt, outcome.exit)
        elif isinstance(outcome, OomKilled):
            self.oom_killed(outcome.attempt)
        elif isinstance(outcome, PostStarted):
            self.post_started(outcome.attempt)
        elif isinstance(outcome, HookFailed):
            self.hook_failed(outcome)
        elif isinstance(outcome, Emptied):
            for observer in self._observers:
                observer.emptied(outcome.uid)
        elif isinstance(outcome, Cleaned):
            for observer in self._observers:
                observer.cleaned(outcome.uid)

    def started(self, started: Record, *, runs_hook: bool = False, image: str = "") -> None:
        """Records the start of a container. Nothing changes if its start or its end is already known. `runs_hook` says
        whether its postStart hook runs now. `image` is the image that it was started with, if that is known. If the
        container has got another image meanwhile, it is started again."""
        record = self._pod_store.of_attempt(started.attempt)
        if record is None or not record.state.container(started.attempt.container).is_asked_for:
            return
        name = started.attempt.container
        pid, ticks = started.process or (0, 0)
        container = next(one for one in record.pod.spec.every_container if one.name == name)
        state = changes.started(
            record.state,
            container,
            started.started_at,
            pid=pid,
            pid_start_ticks=ticks,
            id_=started.id,
            image_id=started.image_id,
            oom_kills_at_start=record.state.container(name).oom_kills_at_start,
            resources=container.resources,
            in_post_start=runs_hook,
        )
        if image and image != container.image:
            state = stops.asked_to_stop(state, stops.image_stop(record.pod, container), self._clock())
        self._pod_store.put_state(record.uid, state)
        self._event_recorder.record(NORMAL, "Started", f"started container {name}", record.pod, name)
        self._steps.want_step(record.uid)
        if started.exit is not None:
            self.exited(started.attempt, started.exit)

    def not_started(self, outcome: NotStarted) -> None:
        record = self._pod_store.of_attempt(outcome.attempt)
        if record is None:
            return
        name, message, now = outcome.attempt.container, outcome.message, self._clock()
        container = next(one for one in record.pod.spec.every_container if one.name == name)
        if outcome.image and outcome.image != container.image:
            # The container has got another image meanwhile. That one is tried at once.
            self._pod_store.put_state(record.uid, changes.not_started(record.state, name))
            self._steps.want_step(record.uid)
            return
        if outcome.no_image == changes.CONFIG_ERROR and not outcome.image:
            # The change of an object asks for the next try. A file of a volume is looked at again after a while.
            state = changes.without_data(changes.not_started(record.state, name), name, message)
        elif outcome.no_image:
            state = changes.no_image(record.state, name, outcome.no_image, message, now, self._settings)
        else:
            record = self._after_observers(record)
            if record.state.verdict is not None:
                # The pod was killed while the container was being set up. The runtime can only guess the reason.
                message = f"the pod was stopped while it was being set up: {record.state.verdict.reason}"
            is_oom_killed = self._oom_kills.has_killed(record, outcome.attempt)
            state = changes.start_failed(
                record.pod, record.state, name, message, now, self._settings, is_oom_killed=is_oom_killed
            )
        self._pod_store.put_state(record.uid, state)
        self._steps.want_step(record.uid)
        if outcome.no_image and (record.state.deleted_at is not None or record.state.verdict is not None):
            return  # the pod ends, so the image is not needed
        self._event_recorder.record(
            WARNING, outcome.event, f"cannot start container {name}: {message}", record.pod, name
        )
        self._record_end_of_pod(record, state)
        if outcome.no_image == ERR_IMAGE_PULL:
            text = f'Back-off pulling image "{container.image}"'
            self._event_recorder.record(NORMAL, "BackOff", text, record.pod, name)

    def _after_observers(self, record: PodRecord) -> PodRecord:
        """The record after the observers have heard that a container has ended: it may have been evicted."""
        for observer in self._observers:
            observer.exited(record.uid)
        return self._pod_store.get(record.uid) or record

    def exited(self, attempt: Attempt, exit_: Exit) -> None:
        """Records the end of an attempt. Nothing changes if the end is already known, or if the attempt is not the
        container's last."""
        for observer in self._observers:
            observer.exited(attempt.uid)
        record = self._pod_store.of_attempt(attempt)
        if record is None or not record.state.container(attempt.container).is_alive:
            self._ended.append(attempt)
            return
        name = attempt.container
        was_asked = bool(record.state.container(name).stopping)
        verdict = self._oom_kills.verdict(record, attempt, exit_, self._clock())
        if verdict is OomVerdict.WAIT:
            return
        self._ended.append(attempt)
        is_oom_killed = verdict is OomVerdict.KILLED
        state = changes.ended(
            record.pod,
            record.state,
            name,
            exit_code=exit_.exit_code,
            signal=exit_.signal,
            message=exit_.message if verdict is not OomVerdict.UNKNOWN else NOT_KNOWN,
            started_at=exit_.started_at,
            finished_at=exit_.finished_at,
            is_known=exit_.is_known and verdict is not OomVerdict.UNKNOWN,
            is_oom_killed=is_oom_killed,
            settings=self._settings,
        )
        self._pod_store.put_state(attempt.uid, state)
        self._event_recorder.ended(
            record.pod,
            name,
            state.container(name).ended,
            is_oom_killed=is_oom_killed,
            was_asked=was_asked,
        )
        self._record_end_of_pod(record, state)
        self._steps.want_step(attempt.uid)

    def _record_end_of_pod(self, before: PodRecord, state: PodState) -> None:
        """Records that the end of a container has ended the pod."""
        if state.verdict is not None and before.state.verdict is None:
            self._event_recorder.verdict(before.pod, state.verdict)
            if state.verdict.reason == EVICTED:  # A17: too many OOM kills
                self._event_recorder.count_eviction("oom")

    def post_started(self, attempt: Attempt) -> None:
        record = self._pod_store.of_attempt(attempt)
        if record is None:
            return
        container = next(one for one in record.pod.spec.every_container if one.name == attempt.container)
        self._pod_store.put_state(record.uid, changes.post_started(record.state, container, self._clock()))
        self._steps.want_step(record.uid)

    def hook_failed(self, outcome: HookFailed) -> None:
        """Records a failed hook. After a failed postStart hook the container is stopped."""
        record = self._pod_store.of_attempt(outcome.attempt)
        if record is None:
            return
        name = outcome.attempt.container
        is_after_start = outcome.reason == POST_START_FAILED
        message = (
            f"{'postStart' if is_after_start else 'preStop'} hook of container {name}: {outcome.message}"
        )
        self._event_recorder.record(WARNING, outcome.reason, message, record.pod, name)
        if is_after_start:
            container = next(one for one in record.pod.spec.every_container if one.name == name)
            stop = stops.hook_stop(record.pod, container, outcome.message)
            self._event_recorder.stopping(record.pod, record.state, stop)
            self._pod_store.put_state(record.uid, stops.asked_to_stop(record.state, stop, self._clock()))
        self._steps.want_step(record.uid)

    def oom_killed(self, attempt: Attempt) -> None:
        self._oom_kills.saw(attempt)
        exit_ = self._oom_kills.waiting(attempt)
        if exit_ is not None:
            self.exited(attempt, exit_)

    def take_late_exits(self, now: float) -> None:
        """Records the exits that have waited long enough for a report of an OOM kill."""
        for attempt, exit_ in self._oom_kills.due(now):
            self.exited(attempt, exit_)


class Evictions:
    """Evicts pods, and starts them again later. `evicted` is set after each eviction."""

    def __init__(
        self, pod_store: PodStore, worker: PodWorker, steps: StepRequests, evicted: asyncio.Event
    ) -> None:
        self._pod_store = pod_store
        self._worker = worker
        self._steps = steps
        self._evicted = evicted

    def evict(self, uid: str, status: TerminalStatus) -> None:
        """Ends all containers of the pod, within the grace period in `status` (A20). A pod that was already evicted, or
        has ended, stays as it is."""
        record = self._pod_store.get(uid)
        if record is not None and record.is_admitted:
            self._pod_store.put_state(uid, changes.with_terminal_status(record.state, status))
            if not status.grace_seconds and record.pod.spec.has_memory_volume:
                self._worker.empty_memory(uid)
            self._steps.want_step(uid)
            self._evicted.set()

    def start_anew(self, uid: str) -> bool:
        """Lets an ended pod be admitted and started again, like a new pod (E16). Returns False if a part of the old pod
        is still left."""
        record = self._pod_store.get(uid)
        if record is None or record.state.is_alive or not self._worker.is_clean(uid):
            return False
        if pod_limits(record.pod).get(EPHEMERAL_STORAGE) is not None and not self._worker.clean_logs(uid):
            return False  # B12: its old logs would count, and it would be evicted again at once
        self._worker.forget(uid)
        self._pod_store.put(record._replace(is_admitted=False, state=PodState()))
        self._steps.want_step(uid)
        self._steps.room_appeared()
        return True
