"""The loop that keeps pods as they should be: look at those that something happened to, decide, write down, act.

Everything that happens only changes what is held in memory and asks for a step. A step decides, commits to the journal,
and acts after that, on nothing but what is now written: so whatever was half done when the agent was killed is found
again, and done, by the first step after a restart. What takes time (starting, stopping, removing) runs beside the loop
and reports back the same way.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator

from evenkeel.agent import admission
from evenkeel.agent.admission import Admission
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.node.node_cgroups import FOUND_BEFORE, NodeCgroups, PlannedPods, sharing, with_cores
from evenkeel.agent.node.oom_kills import NOT_KNOWN, OomKills, Verdict
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.pod_worker import PodWorker
from evenkeel.api.resources import EPHEMERAL_STORAGE
from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.overrides import Wanted
from evenkeel.cgroup.plan import INFRASTRUCTURE
from evenkeel.cgroup.reconcile import Report
from evenkeel.cgroup.reconfigure import Found
from evenkeel.cgroup.tree import Cgroup, Kind
from evenkeel.journal.records import NORMAL, WARNING, PodRecord
from evenkeel.journal.store import Journal, JournalError
from evenkeel.policy.exclusive_cores import ContainerKey
from evenkeel.policy.lifecycle import changes
from evenkeel.policy.lifecycle.actions import Actions, actions
from evenkeel.policy.lifecycle.pod_state import AS_RESTART, LifecycleSettings, PodState, TerminalStatus
from evenkeel.policy.node_view import NodeView
from evenkeel.policy.pod_resources import pod_limits
from evenkeel.policy.provision import PlannedPod
from evenkeel.policy.qos import pod_class
from evenkeel.runtime.interface import Attempt, Exit, Launch, Planned, Record, Runtime

log = logging.getLogger(__name__)

_JOURNAL_RETRY_SECONDS = 1.0
# Of pods that come together, so many are taken in one step: the first are being started while the next are prepared.
_MOST_ADMITTED = 16
CGROUPS_MADE = "cgroupsMade"  # above the pods' root, by us


class PodLoop:
    def __init__(
        self,
        node: NodeView,
        settings: LifecycleSettings,
        runtime: Runtime,
        journal: Journal,
        pod_store: PodStore,
        cgroups: NodeCgroups,
        oom_kills: OomKills,
        event_recorder: EventRecorder,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.admission = Admission(node)
        self._closing_since: float | None = None  # then every container is to stop and none to start
        self.on_gone: Callable[[PodRecord], None] = lambda _: (
            None
        )  # whoever has a successor for it puts it in
        self.on_room: Callable[[], None] = lambda: None  # before admission looks at those that wait
        self.on_settled: Callable[[str, PodRecord | None], None] = lambda *_: (
            None
        )  # after a pod was looked at
        # Nothing is left but logs; with the pod's UID.
        self.on_emptied: Callable[[str], None] = lambda _: None
        self.on_cleaned: Callable[[str], None] = lambda _: None
        self.on_evicted: Callable[[], None] = lambda: None
        self.on_exit: Callable[[str], None] = lambda _: None  # before an end is looked at; with the pod's UID
        self.pressures: tuple[str, ...] = ()  # conditions of the node that admission asks about
        self._node = node
        self._settings = settings
        self._runtime = runtime
        self._journal = journal
        self._pod_store = pod_store
        self._cgroups = cgroups
        self._oom_kills = oom_kills
        self._event_recorder = event_recorder
        self._clock = clock
        self._wanted = asyncio.Event()  # a step
        self._stepped = asyncio.Event()
        self._look_at: set[str] = {held.pod.metadata.uid for held in pod_store}
        self._wake_at: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._actions: dict[str, Actions] = {}
        self._moments = PlannedPods()
        self._planned: tuple[PlannedPod, ...] | None = None
        self._worker = PodWorker(runtime, self)
        self._ended: list[Attempt] = []  # to be forgotten by the runtime once that is written down
        # Containers without the cores of their own that they are due.
        self._sharing: set[ContainerKey] = set()
        self._has_room = True  # somebody left since admission last looked
        self.journal_fails = ""

    # What happens

    def want_step(self, uid: str = "") -> None:
        if uid:
            self._look_at.add(uid)
        self._wanted.set()

    def settled(self, uid: str) -> None:
        self.want_step(uid)

    def room_appeared(self) -> None:
        self._has_room = True
        self._wanted.set()

    def started(self, record: Record) -> None:
        """A start that was told of before, or whose end was, changes nothing."""
        held = self.held_of(record.attempt)
        if held is None or not held.life.container(record.attempt.container).is_asked_for:
            return
        name = record.attempt.container
        pid, ticks = record.process or (0, 0)
        container = next(one for one in held.pod.spec.every_container if one.name == name)
        life = changes.started(
            held.life,
            container,
            record.started_at,
            pid=pid,
            pid_start_ticks=ticks,
            id_=record.id,
            oom_kills_at_start=held.life.container(name).oom_kills_at_start,
            resources=container.resources,
        )
        self._pod_store.put_life(held.pod.metadata.uid, life)
        self._event_recorder.record(NORMAL, "Started", f"started container {name}", held.pod, name)
        self.want_step(held.pod.metadata.uid)
        if record.exit is not None:
            self.exited(record.attempt, record.exit)

    def start_failed(self, attempt: Attempt, message: str) -> None:
        held = self.held_of(attempt)
        if held is None:
            return
        name = attempt.container
        if held.life.verdict is not None:
            # It was killed as a whole meanwhile: what the runtime makes of that is a guess.
            message = f"the pod was stopped while it was being set up: {held.life.verdict.reason}"
        life = changes.start_failed(held.life, name, message, self._clock(), self._settings)
        self._not_started(held, name, life, message)

    def no_image(self, attempt: Attempt, reason: str, message: str) -> None:
        held = self.held_of(attempt)
        if held is None:
            return
        name = attempt.container
        life = changes.no_image(held.life, name, reason, message, self._clock(), self._settings)
        self._not_started(held, name, life, message)

    def _not_started(self, held: PodRecord, name: str, life: PodState, message: str) -> None:
        uid = held.pod.metadata.uid
        self._pod_store.put_life(uid, life)
        self._event_recorder.record(
            WARNING, "Failed", f"cannot start container {name}: {message}", held.pod, name
        )
        self.want_step(uid)

    def exited(self, attempt: Attempt, exit_: Exit) -> None:
        """An end that was told of before, or of an attempt that is not the last, changes nothing."""
        self.on_exit(attempt.uid)
        self._wanted.set()
        held = self.held_of(attempt)
        if held is None or not held.life.container(attempt.container).is_alive:
            self._ended.append(attempt)
            return
        name = attempt.container
        was_asked = bool(held.life.container(name).stopping)
        verdict = self._oom_kills.verdict(held, attempt, exit_, self._clock())
        if verdict is Verdict.WAIT:
            return
        self._ended.append(attempt)
        is_known = exit_.is_known and verdict is not Verdict.UNKNOWN
        is_oom_killed = verdict is Verdict.KILLED
        life = changes.ended(
            held.pod,
            held.life,
            name,
            exit_code=exit_.exit_code,
            signal=exit_.signal,
            message=exit_.message if verdict is not Verdict.UNKNOWN else NOT_KNOWN,
            started_at=exit_.started_at,
            finished_at=exit_.finished_at,
            is_known=is_known,
            is_oom_killed=is_oom_killed,
            settings=self._settings,
        )
        self._pod_store.put_life(attempt.uid, life)
        self._event_recorder.ended(
            held.pod,
            name,
            life.container(name).ended,
            is_oom_killed=is_oom_killed,
            was_asked=was_asked,
        )
        if life.verdict is not None and held.life.verdict is None:
            self._event_recorder.verdict(held.pod, life.verdict)
            if life.verdict.reason == changes.EVICTED:  # A17: one OOM kill too many
                self._event_recorder.counts.evicted("oom")
        self.want_step(attempt.uid)

    def oom_killed(self, attempt: Attempt) -> None:
        """The kernel has counted or logged an OOM kill of this attempt, which may have ended before."""
        self._oom_kills.saw(attempt)
        exit_ = self._oom_kills.waiting(attempt)
        if exit_ is not None:
            self.exited(attempt, exit_)

    def evict(self, uid: str, verdict: TerminalStatus) -> None:
        """The node needs what the pod holds: it ends, whole, within the grace that the verdict gives it (A20). A pod
        that was evicted before, or has ended otherwise, is what it is."""
        held = self._pod_store.get(uid)
        if held is not None and held.is_admitted:
            self._pod_store.put_life(uid, changes.with_terminal_status(held.life, verdict))
            if not verdict.grace_seconds and held.pod.spec.has_memory_volume:
                self._worker.empty_memory(uid)
            self.want_step(uid)
            self.on_evicted()

    def start_anew(self, uid: str) -> bool:
        """A pod that is over is judged and started again, as one that has just come (E16). False if something of it is
        still left."""
        held = self._pod_store.get(uid)
        if held is None or held.life.is_alive or not self.is_clean(uid):
            return False
        if pod_limits(held.pod).get(EPHEMERAL_STORAGE) is not None and not self._worker.clean_logs(uid):
            return False  # B12: what it wrote before would count, and it would go again at once
        self.forget_life(held)
        self._pod_store.put(held._replace(is_admitted=False, life=PodState()))
        self.want_step(uid)
        self.room_appeared()
        return True

    def is_clean(self, uid: str) -> bool:
        """Whether nothing of a pod that was taken is left but its logs: its attempts may be counted anew."""
        return self._worker.is_clean(uid)

    def held_of(self, attempt: Attempt) -> PodRecord | None:
        """The pod, if the attempt is its container's last."""
        held = self._pod_store.get(attempt.uid)
        if held is None or held.life.container(attempt.container).attempt != attempt.number:
            return None
        return held

    # Steps

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                self.step()
            except JournalError as error:  # of what is written beside the pods: all of it is decided again
                self._look_at.update(held.pod.metadata.uid for held in self._pod_store)
                self._not_written(error)
            await asyncio.sleep(0)  # what the step has begun goes before the next one

    def step(self) -> None:
        now = self._clock()
        for attempt, exit_ in self._oom_kills.due(now):
            self.exited(attempt, exit_)
        for uid in [uid for uid, at in self._wake_at.items() if at <= now]:
            self._look_at.add(uid)
            del self._wake_at[uid]
        self._admit(now)
        looked_at = [held for uid in self._look_at if (held := self._pod_store.get(uid)) is not None]
        looked_at.sort(key=lambda held: held.order)
        self._look_at.clear()
        for held in looked_at:
            self._decide(held, now)
        if not self._commit():
            self._look_at.update(held.pod.metadata.uid for held in looked_at)
            return
        self._follow()
        for held in looked_at:
            self._act(held.pod.metadata.uid)
        self._set_timer(now)
        self._stepped.set()
        self._stepped = asyncio.Event()

    def _admit(self, now: float) -> None:
        if not self._has_room or self._closing_since is not None:
            return
        self._has_room = False
        self.on_room()
        verdicts = self.admission.judge(self._pod_store, self.pressures, _MOST_ADMITTED)
        if not verdicts.is_last:
            self.room_appeared()
        for held in verdicts.admitted:
            uid = held.pod.metadata.uid
            refusal = self._runtime.refusal(held.pod)
            if refusal is not None:
                self._refuse(held, refusal.reason, refusal.message, now)
                continue
            self._pod_store.put(held._replace(is_admitted=True, life=PodState(accepted_at=now)))
            self._event_recorder.admitted(held.pod, pod_class(held.pod, self._node.profile))
            self._look_at.add(uid)
        for held, refusal in verdicts.refused:
            self._refuse(held, refusal.reason, refusal.message, now)

    def _refuse(self, held: PodRecord, reason: str, message: str, now: float) -> None:
        before = held.life.verdict
        if before is not None and (before.reason, before.message) == (reason, message):
            return
        verdict = TerminalStatus("Failed", reason, message, now)
        self._pod_store.put(held._replace(life=held.life._replace(verdict=verdict)))
        if before is None or before.reason != reason:
            self._event_recorder.record(WARNING, reason, message, held.pod)

    def _decide(self, held: PodRecord, now: float) -> None:
        uid = held.pod.metadata.uid
        if not held.is_admitted:
            return
        if self._closing_since is not None:
            held = held._replace(life=self._closing(held, self._closing_since, now))
        todo = actions(held.pod, held.life, now, self._settings)
        self._actions[uid] = todo
        life = held.life
        if todo.verdict is not None and life.verdict is None:
            life = life._replace(verdict=todo.verdict)
            if life.deleted_at is None:
                self._event_recorder.verdict(held.pod, todo.verdict)
        for name in todo.start if self._closing_since is None else ():
            life = changes.asked_to_start(life, name)
            counted = self._oom_kills.begins(held, Attempt(uid, name, life.container(name).attempt))
            life = life.with_container(name, life.container(name)._replace(oom_kills_at_start=counted))
        for stop in todo.stop:
            if not life.container(stop.container).stop_by:
                message = f"stopping container {stop.container}: {stop.reason}"
                self._event_recorder.record(NORMAL, "Killing", message, held.pod, stop.container)
            life = changes.asked_to_stop(life, stop, now)
        self._pod_store.put_life(uid, life)
        self._pod_store.touch(uid)
        if todo.wake_at is None:
            self._wake_at.pop(uid, None)
        else:
            self._wake_at[uid] = todo.wake_at
        after = self._pod_store.get(uid)
        assert after is not None
        if todo.is_over or not admission.takes_room(after):
            if self._moments.drop(uid):
                self.room_appeared()
        else:
            moment = PlannedPod(held.pod, todo.init_container, placed=self._runtime.placed(uid))
            self._moments.put(uid, held.order, moment)

    def _commit(self) -> bool:
        """Whether everything is written down; if not, nothing may be done about it yet."""
        try:
            self._pod_store.commit()
            self._event_recorder.commit()
        except JournalError as error:
            self._not_written(error)
            return False
        if self.journal_fails:
            self.journal_fails = ""
            log.warning("the journal can be written again")
        ended, self._ended = self._ended, []
        for attempt in ended:
            self._worker.forget_attempt(attempt)
        return True

    def _not_written(self, error: JournalError) -> None:
        """Told once; a step tries again soon."""
        if str(error) != self.journal_fails:
            self.journal_fails = str(error)
            log.error("%s", error)
        asyncio.get_running_loop().call_later(_JOURNAL_RETRY_SECONDS, self._wanted.set)

    # Cgroups

    def moments(self) -> tuple[PlannedPod, ...]:
        """The pods that have cgroups, in order of admission."""
        moments = self._moments.ordered()
        if self._node.config.cpu_manager_policy == "static":
            moments = tuple(with_cores(self._node, list(moments), self._journal))
            self._tell_sharing(sharing(self._node, list(moments)))
        return moments

    def _tell_sharing(self, now: set[ContainerKey]) -> None:
        for uid, name in sorted(now - self._sharing):
            held = self._pod_store.get(uid)
            message = f"container {name} shares its cores: too few are left that could be its own"
            self._event_recorder.record(
                WARNING, "CoresShared", message, held.pod if held is not None else None, name
            )
            self._wanted.set()  # a step writes it down
        self._sharing = now

    def _follow(self) -> None:
        moments = self.moments()
        if moments != self._planned:
            self._planned = moments
            self._reported(self._cgroups.follow(moments))
            for cgroup in self._cgroups.rescored:
                self._worker.spawn(self._rescore(cgroup))
            self._tell_runtime(self._cgroups.resettled)

    async def _rescore(self, cgroup: Cgroup) -> None:
        scored = await self._cgroups.set_score(cgroup)
        if scored is not None and scored.message:
            self._event_recorder.record(WARNING, "OOMScoreRefused", f"{cgroup.path}: {scored.message}")

    def _tell_runtime(self, cgroups: Iterable[Cgroup]) -> None:
        """What containers have been given, so that the runtime does not put back what it gave them (C6)."""
        for cgroup in cgroups:
            held = self._pod_store.by_key(cgroup.pod) if cgroup.kind == Kind.CONTAINER else None
            if held is not None and held.life.container(cgroup.container).is_running:
                number = held.life.container(cgroup.container).attempt
                attempt = Attempt(held.pod.metadata.uid, cgroup.container, number)
                self._worker.update(attempt, cgroup.settings)

    def first_pass(self) -> None:
        """Decides for every pod that is held, without acting on it, and makes the tree for them."""
        now = self._clock()
        for held in self._pod_store:
            self._decide(held, now)
        self._planned = self.moments()
        before = self._journal.value(FOUND_BEFORE)
        report = self._cgroups.first_pass(
            self._planned, before if isinstance(before, dict) else {}, self._remember_found
        )
        if made := self._cgroups.ancestors_made(report):
            self._journal.set_value(CGROUPS_MADE, sorted({*self._made(), *made}))
        self._reported(report)
        self._tell_runtime(cgroup for cgroup in report.tree.cgroups if not cgroup.is_ours_to_make)
        self._wanted.set()

    def _made(self) -> list[str]:
        made = self._journal.value(CGROUPS_MADE)
        return made if isinstance(made, list) else []

    def remove_cgroups(self) -> None:
        """All of ours; nothing runs in them any more."""
        try:
            self._cgroups.remove_all(self._made())
        except CgroupError as error:
            log.error("%s", error)  # noqa: TRY400
        else:
            self._journal.set_value(CGROUPS_MADE, None)

    def _remember_found(self, found: Found) -> None:
        if found != (self._journal.value(FOUND_BEFORE) or {}):
            self._journal.set_value(FOUND_BEFORE, found or None)

    def override(self, source: str, wanted: Wanted) -> None:
        """Settings in place of planned ones, for as long as `source` wants them: they are all that it wants now."""
        report = self._cgroups.override(source, wanted)
        if report is not None:
            self._reported(report)

    def heal(self) -> None:
        report = self._cgroups.heal()
        if report is not None:
            self._reported(report)

    def _reported(self, report: Report) -> None:
        self._event_recorder.reconciled(report)

    # Acts: each on what is written down

    def _act(self, uid: str) -> None:
        held = self._pod_store.get(uid)
        self.on_settled(uid, held)
        if held is None:
            return
        todo = self._actions.get(uid)
        for launch in self._launches(held):
            self._worker.start(launch)
        for stop in todo.stop if todo is not None else ():
            number = held.life.container(stop.container).attempt
            self._worker.stop(Attempt(uid, stop.container, number), stop)
        is_over = not held.is_admitted or (todo is not None and todo.is_over)
        if is_over and held.life.deleted_at is not None:
            self._worker.remove(uid)
        elif is_over and held.is_admitted and not admission.is_running(held):
            self._worker.clean(uid)

    def _launches(self, held: PodRecord) -> Iterator[Launch]:
        for container in held.pod.spec.every_container:
            life = held.life.container(container.name)
            if not life.is_asked_for:
                continue
            attempt = Attempt(held.pod.metadata.uid, container.name, life.attempt)
            cgroup = self._cgroups.of_container(held.pod.key, container.name)
            if cgroup is None:
                self.start_failed(attempt, "its cgroup is not in the plan")
                continue
            if cgroup.path in self._cgroups.killing:
                continue  # the rest of the attempt before is being ended in there; a step follows
            pod = self._cgroups.of_container(held.pod.key, "")
            infrastructure = self._cgroups.of_container(held.pod.key, INFRASTRUCTURE)
            assert pod is not None
            assert infrastructure is not None
            if not self._cgroups.is_there(cgroup if cgroup.is_ours_to_make else pod):
                self.heal()
            score = int(cgroup.oom_score_adj.value) if cgroup.oom_score_adj is not None else None
            planned = Planned(self._cgroups.driver.version, cgroup, pod, infrastructure)
            yield Launch(attempt, held.pod, container, cgroup.path, score, planned)

    def emptied(self, uid: str) -> None:
        self.on_emptied(uid)

    def cleaned(self, uid: str) -> None:
        self.on_cleaned(uid)

    def removed(self, uid: str) -> None:
        """Nothing of the pod is left; if another was to take its place, it comes now."""
        held = self._pod_store.get(uid)
        if held is None:
            return
        self.forget_life(held)
        self._pod_store.remove(held.pod.metadata.uid)
        self.on_gone(held)
        self.room_appeared()

    def forget_life(self, held: PodRecord) -> None:
        uid = held.pod.metadata.uid
        self._actions.pop(uid, None)
        self._wake_at.pop(uid, None)
        self._moments.drop(uid)
        self._worker.forget(uid)
        self.admission.forget(uid)
        self.on_settled(uid, None)

    def actions_of(self, uid: str) -> Actions | None:
        return self._actions.get(uid)

    async def stepped(self) -> None:
        """Returns after the next step."""
        await self._stepped.wait()

    def stop_all(self) -> None:
        """Every container ends, within its pod's grace, and none is started again by this agent."""
        self._closing_since = self._clock()
        for held in self._pod_store:
            self.want_step(held.pod.metadata.uid)

    def _closing(self, held: PodRecord, since: float, now: float) -> PodState:
        life = held.life
        for name, container in held.life.containers.items():
            attempt = Attempt(held.pod.metadata.uid, name, container.attempt)
            if container.is_asked_for and not self._worker.is_starting(attempt):
                life = changes.not_started(life, name)
        ending = changes.deleted(held.pod, life, since)  # in the order of a deleted pod: sidecars last
        for stop in actions(held.pod, ending, now, self._settings).stop:
            why = stop._replace(reason="the agent is shutting down", stopped_as=AS_RESTART)
            life = changes.asked_to_stop(life, why, now)
        return life

    def begin_anew(self) -> None:
        """Nothing runs: pods that go on do so from their init containers, in volumes that are new."""
        for held in tuple(self._pod_store):
            is_running = any(it.is_running for it in held.life.containers.values())
            if held.is_admitted and held.life.verdict is None and not is_running:
                self._pod_store.put_life(held.pod.metadata.uid, changes.begun_anew(held.life))
        self._commit()

    def is_at_rest(self) -> bool:
        """Whether nothing runs, nor is being started, stopped or removed."""
        return self._worker.is_idle and not any(held.life.is_alive for held in self._pod_store)

    # Time, and work beside the loop

    def _set_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_at = [*self._wake_at.values(), *filter(None, [self._oom_kills.wake_at])]
        if wake_at:
            wait = max(min(wake_at) - now, 0.0)
            self._timer = asyncio.get_running_loop().call_later(wait, self._wanted.set)

    async def abandon(self) -> None:
        """Drops what is being done: the next agent finds it half done, and finishes it."""
        if self._timer is not None:
            self._timer.cancel()
        await self._worker.abandon()
