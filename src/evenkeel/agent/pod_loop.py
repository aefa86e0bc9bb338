"""The pod loop: looks at pods that have changed, decides, commits to the journal, and acts.

An event only changes records in memory and requests a step (`StepRequests`). A step decides and commits. Then it acts,
but only on committed records. So the first step after a restart finds the work that was unfinished when the agent was
killed, and finishes it. Work that takes time runs beside the loop (`PodWorker`) and reports its outcome to the loop.
"""

import asyncio
import logging

from evenkeel.agent.admission import Admission
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.launches import Launches
from evenkeel.agent.node.oom_kills import OomKills
from evenkeel.agent.pod_cgroups import PodCgroups
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.pod_updates import PodUpdates
from evenkeel.agent.pod_worker import PodWorker
from evenkeel.agent.step_requests import NotStarted, Removed, StepRequests
from evenkeel.agent.workload_controller import WorkloadController
from evenkeel.host.node_figures import NodeClock
from evenkeel.journal.records import PodRecord
from evenkeel.journal.store import JournalError
from evenkeel.policy.lifecycle import changes, stops
from evenkeel.policy.lifecycle.actions import Actions, actions
from evenkeel.policy.lifecycle.pod_state import LifecycleSettings, PodState
from evenkeel.pressure.eviction_recorder import NodeConditions
from evenkeel.pressure.protocol import PodObserver
from evenkeel.runtime.interface import Attempt, Runtime

log = logging.getLogger(__name__)

_JOURNAL_RETRY_SECONDS = 1.0
# Pods that one step admits at most, if many arrive together. So the first are started while the next are prepared.
_MOST_ADMITTED = 16


class PodLoop:
    """For the agent's event loop. It keeps the last decision for each pod, and the timer for the next decision."""

    def __init__(
        self,
        settings: LifecycleSettings,
        runtime: Runtime,
        admission: Admission,
        conditions: NodeConditions,
        pod_store: PodStore,
        oom_kills: OomKills,
        pod_cgroups: PodCgroups,
        launches: Launches,
        event_recorder: EventRecorder,
        worker: PodWorker,
        updates: PodUpdates,
        workload_controller: WorkloadController,
        steps: StepRequests,
        observers: tuple[PodObserver, ...],
        clock: NodeClock,
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._admission = admission
        self._conditions = conditions
        self._pod_store = pod_store
        self._oom_kills = oom_kills
        self._pod_cgroups = pod_cgroups
        self._launches = launches
        self._event_recorder = event_recorder
        self._worker = worker
        self._updates = updates
        self._workload_controller = workload_controller
        self._steps = steps
        self._observers = observers
        self._node_clock = clock
        self._clock = clock.now
        self._actions: dict[str, Actions] = {}  # by UID: the last decision
        self._wake_at: dict[str, float] = {}  # by UID: when to look at the pod again
        self._timer: asyncio.TimerHandle | None = None
        self._closing_since: float | None = None  # from then on containers are stopped, and none is started
        self._closing_grace_seconds: float | None = None  # None: each pod has its own
        self._stepped = asyncio.Event()
        self._journal_fails = ""

    @property
    def journal_fails(self) -> str:
        """The reason why the journal cannot be written; empty if it can."""
        return self._journal_fails

    # Steps

    async def run(self) -> None:
        """Runs steps until it is cancelled."""
        while True:
            await self._steps.wait()
            try:
                self.step()
            except JournalError as error:  # a write outside the records failed: decide all again
                self._steps.put_back(record.uid for record in self._pod_store)
                self._not_written(error)
            await asyncio.sleep(0)  # tasks that the step has started run before the next step

    async def stepped(self) -> None:
        """Returns after the next step."""
        await self._stepped.wait()

    def first_pass(self) -> None:
        """Decides for every pod, and makes the cgroups. Does not act on pods yet."""
        now = self._clock()
        self.take_outcomes()
        for record in self._pod_store:
            state = changes.hooks_left(record.pod, record.state, now)
            if state is not record.state:
                self._pod_store.put_state(record.uid, state)
        for record in self._pod_store:
            self._decide(record, now)
        self._pod_cgroups.first_pass()
        self._steps.want_step()

    def step(self) -> None:
        self._follow_clock()
        now = self._clock()
        self.take_outcomes()
        self._updates.take_late_exits(now)
        due = [uid for uid, at in self._wake_at.items() if at <= now]
        for uid in due:
            del self._wake_at[uid]
        self._admit(now)
        uids = self._steps.take_uids() | set(due)
        records = [record for uid in uids if (record := self._pod_store.get(uid)) is not None]
        records.sort(key=lambda record: record.order)
        for record in records:
            self._decide(record, now)
        if self._closing_since is None:
            self._workload_controller.follow(records, now)
        if not self._commit():
            self._steps.put_back(record.uid for record in records)
            return
        self._pod_cgroups.follow()
        for record in records:
            self._act(record.uid)
        self._set_timer(now)
        self._stepped.set()
        self._stepped = asyncio.Event()

    def _follow_clock(self) -> None:
        """A clock that is set must neither end a grace period or a back-off, nor make it longer. The timer that brings
        the next step does not depend on the clock."""
        moved = self._node_clock.follow()
        if not moved:
            return
        log.warning(
            "the machine's clock was set %s by %.0f s", "forward" if moved > 0 else "back", abs(moved)
        )
        for record in self._pod_store:
            self._pod_store.put_state(record.uid, changes.clock_moved(record.state, moved))
            self._steps.want_step(record.uid)
        self._workload_controller.clock_moved(moved)
        self._wake_at = {uid: at + moved for uid, at in self._wake_at.items()}
        if self._closing_since is not None:
            self._closing_since += moved

    def take_outcomes(self) -> None:
        """Updates the records with the reported outcomes of containers, and of work beside the loop."""
        for outcome in self._steps.take_outcomes():
            if isinstance(outcome, Removed):
                self._removed(outcome.uid)
            else:
                self._updates.apply(outcome)

    def _commit(self) -> bool:
        """Commits all changes. Returns False if that fails; the loop must not act then."""
        try:
            self._pod_store.commit_with(self._event_recorder)
        except JournalError as error:
            self._not_written(error)
            return False
        if self._journal_fails:
            self._journal_fails = ""
            log.warning("the journal can be written again")
        for attempt in self._updates.take_ended():
            self._worker.forget_attempt(attempt)
        return True

    def _not_written(self, error: JournalError) -> None:
        """Logs the error once. A step tries again soon."""
        if str(error) != self._journal_fails:
            self._journal_fails = str(error)
            log.error("%s", error)
        asyncio.get_running_loop().call_later(_JOURNAL_RETRY_SECONDS, self._steps.want_step)

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        others = (self._oom_kills.wake_at, self._workload_controller.wake_at)
        wake_at = [*self._wake_at.values(), *filter(None, others)]
        if wake_at:
            wait = max(min(wake_at) - now, 0.0)
            self._timer = asyncio.get_running_loop().call_later(wait, self._steps.want_step)

    # Deciding

    def _admit(self, now: float) -> None:
        if self._closing_since is not None or not self._steps.take_room():
            return
        for observer in self._observers:
            observer.room()
        result = self._admission.judge(self._pod_store, self._conditions.current, _MOST_ADMITTED)
        if not result.is_last:
            self._steps.room_appeared()
        self._updates.judged(result, now)

    def _decide(self, record: PodRecord, now: float) -> None:
        uid = record.uid
        if not record.is_admitted:
            self._forget_decision(uid)  # made before the pod was started again
            return
        if self._closing_since is not None:
            record = record._replace(state=self._closing(record, self._closing_since, now))
        todo = actions(record.pod, record.state, now, self._settings)
        if todo.all_again:
            record = record._replace(state=changes.all_again(record.pod, record.state))
            todo = actions(record.pod, record.state, now, self._settings)
        self._actions[uid] = todo
        state = record.state
        if todo.verdict is not None and state.verdict is None:
            state = state._replace(verdict=todo.verdict)
            if state.deleted_at is None:
                self._event_recorder.verdict(record.pod, todo.verdict)
        may_start = self._closing_since is None and not (todo.start and self._launches.wait_for_files(record))
        for name in todo.start if may_start else ():
            waiting = self._launches.waiting_for_data(record, state, name)
            if waiting is not None:
                state = waiting
                continue
            state = changes.asked_to_start(state, name)
            counted = self._oom_kills.begins(record, Attempt(uid, name, state.container(name).attempt))
            state = state.with_container(name, state.container(name)._replace(oom_kills_at_start=counted))
        for stop in todo.stop:
            self._event_recorder.stopping(record.pod, state, stop)
            state = stops.asked_to_stop(state, stop, now)
        self._pod_store.put_state(uid, state)
        self._pod_store.touch(uid)
        if todo.wake_at is None:
            self._wake_at.pop(uid, None)
        else:
            self._wake_at[uid] = todo.wake_at
        if todo.is_over or not record._replace(state=state).takes_room:
            if self._pod_cgroups.drop(uid):
                self._steps.room_appeared()
        else:
            self._pod_cgroups.put(record._replace(state=state), todo.init_container)

    def _forget_decision(self, uid: str) -> None:
        self._launches.forget(uid)
        self._actions.pop(uid, None)
        self._wake_at.pop(uid, None)
        self._pod_cgroups.drop(uid)

    # Acting on committed records

    def _act(self, uid: str) -> None:
        record = self._pod_store.get(uid)
        for observer in self._observers:
            observer.settled(uid, record)
        if record is None:
            return
        todo = self._actions.get(uid)
        if self._is_ending(record):
            for name, state in record.state.containers.items():
                if state.is_asked_for:
                    self._runtime.give_up(Attempt(uid, name, state.attempt))
        for launch in self._launches.of_pod(record, is_wanted=not self._is_ending(record)):
            if isinstance(launch, NotStarted):
                self._updates.not_started(launch)
            else:
                self._worker.start(launch)
        for stop in todo.stop if todo is not None else ():
            number = record.state.container(stop.container).attempt
            container = next(each for each in record.pod.spec.every_container if each.name == stop.container)
            self._worker.stop(Attempt(uid, stop.container, number), stop, record.pod, container)
        is_over = not record.is_admitted or (todo is not None and todo.is_over)
        if is_over and record.state.deleted_at is not None:
            self._worker.remove(uid)
        elif is_over and record.is_admitted and not record.state.is_alive:
            self._worker.clean(uid)

    def _is_ending(self, record: PodRecord) -> bool:
        state = record.state
        return state.deleted_at is not None or state.verdict is not None or self._closing_since is not None

    def _removed(self, uid: str) -> None:
        """Forgets a pod of which nothing is left. If another pod replaces it, that pod is added now."""
        record = self._pod_store.get(uid)
        if record is None:
            return
        self._forget_decision(uid)
        self._worker.forget(uid)
        self._admission.forget(uid)
        for observer in self._observers:
            observer.settled(uid, None)
        self._pod_store.remove(uid)
        for observer in self._observers:
            observer.gone(record)
        self._steps.room_appeared()

    # The end of the agent, or of the machine

    def stop_all(self, grace_seconds: float | None = None) -> None:
        """Stops every container within the grace period of its pod, or within the given one, which stays if this is
        called again. This agent then starts no container again."""
        self._closing_since = self._closing_since or self._clock()
        if grace_seconds is not None:
            self._closing_grace_seconds = grace_seconds
        for record in self._pod_store:
            self._steps.want_step(record.uid)

    def _closing(self, record: PodRecord, since: float, now: float) -> PodState:
        state = record.state
        for name, container in record.state.containers.items():
            attempt = Attempt(record.uid, name, container.attempt)
            if container.is_asked_for and not self._worker.is_starting(attempt):
                state = changes.not_started(state, name)
        grace_seconds = self._closing_grace_seconds
        return stops.agent_ends(record.pod, state, since, grace_seconds, now, self._settings)

    def is_at_rest(self) -> bool:
        """Whether no container runs, and no work on pods is under way."""
        return self._worker.is_idle and not any(record.state.is_alive for record in self._pod_store)

    def begin_anew(self) -> None:
        """Called when no container runs. Pods that continue start from their init containers, with new volumes."""
        self.take_outcomes()
        for record in self._pod_store:
            is_running = any(it.is_running for it in record.state.containers.values())
            if record.is_admitted and record.state.verdict is None and not is_running:
                self._pod_store.put_state(record.uid, changes.begun_anew(record.state))
        self._commit()

    async def abandon(self) -> None:
        """Cancels the work that is under way. The next agent finds it unfinished, and finishes it."""
        if self._timer is not None:
            self._timer.cancel()
        await self._worker.abandon()
