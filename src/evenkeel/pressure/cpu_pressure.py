"""CPU pressure (A22, `cpuKills`): measures the CPU time that pods get and wait for, decides per window, and acts.

Every pod's counters are read a few times per window. Nothing is read if the setting is off. On cgroup v2 a pod's
waiting time is its `cpu.pressure`. On v1 it is the sum of the waiting times of its tasks. Time that a pod waits because
of its own limit does not count. BestEffort pods get the least weight as part of the plan, so it does not count as
drift.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from evenkeel.cgroup.tree import Cgroup, Kind, Setting, Version
from evenkeel.errors import EvenkeelError
from evenkeel.host.node_figures import boot_id
from evenkeel.host.psi import TaskWaits, waited_some_us
from evenkeel.journal.codec import Unreadable, from_text, plain_of, plain_text, to_text
from evenkeel.journal.records import NORMAL, WARNING, PodRecord
from evenkeel.journal.store import Journal, JournalError
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.amounts import MIN_SHARES, MIN_WEIGHT
from evenkeel.policy.cpu_shortage import (
    CPU_PRESSURE,
    CpuDecision,
    CpuSettings,
    CpuState,
    CpuWindow,
    PodCpu,
    decide_cpu,
    short_sentence,
)
from evenkeel.policy.eviction.decide import EVICTED, settings_from
from evenkeel.policy.lifecycle.pod_state import TerminalStatus
from evenkeel.policy.node_view import NodeView
from evenkeel.policy.qos import QoSClass
from evenkeel.pressure.decision_records import CPU_KIND, cpu_given, cpu_said
from evenkeel.pressure.eviction_recorder import NodeConditions
from evenkeel.pressure.protocol import Cgroups, Events, Evictions, PodRecords, Steps

log = logging.getLogger(__name__)

SOURCE = "cpu"
_KEPT = "cpuPressure"  # key in the journal's values: the state between two windows
_LOOKS = 6  # readings per window
_LEAST = {"cpu.shares": str(MIN_SHARES), "cpu.weight": str(MIN_WEIGHT)}


class _Counters(NamedTuple):
    """One pod's counters. Each time is that of the reading before it: the agent may not run between two readings, least
    of all where CPU is short."""

    used_us: int
    used_at: float
    throttled_us: int  # by its own limits
    waited_us: int | None  # None on v1
    waited_at: float


class _Begun:
    """One pod's counters at the start of the window, and the waiting time of its tasks since then."""

    def __init__(self, path: str, counters: _Counters) -> None:
        self.path = path
        self.counters = counters
        self.tasks = TaskWaits()


class CpuPressure:
    """For the agent's loop. Call `run` only if `is_on`."""

    def __init__(
        self,
        node: NodeView,
        journal: Journal,
        cgroups: Cgroups,
        pods: PodRecords,
        evictions: Evictions,
        conditions: NodeConditions,
        events: Events,
        steps: Steps,
        clock: Callable[[], float],
    ) -> None:
        self.is_on = node.config.cpu_kills
        self._journal = journal
        self._cgroups = cgroups
        self._pods = pods
        self._evictions = evictions
        self._conditions = conditions
        self._events = events
        self._steps = steps
        self._clock = clock
        self._window_seconds = node.config.cpu_kills_window.seconds
        of_eviction = settings_from(node.config)
        self._settings = CpuSettings(
            of_eviction.profile,
            of_eviction.max_pod_grace_period_seconds,
            of_eviction.pressure_transition_period_seconds,
        )
        self._state = CpuState()
        self._is_pressure = False
        self._begun_at = 0.0
        self._begun: dict[str, _Begun] = {}  # by UID

    def take_up(self) -> None:
        """Restores the state of a former agent. It is not restored after a reboot, because the clock has restarted. It
        is not restored either if `cpuKills` is off now."""
        kept = self._journal.value(_KEPT)
        if not self.is_on or not isinstance(kept, dict) or kept.get("boot") != boot_id():
            return
        try:
            self._state = from_text(CpuState, plain_text(kept.get("state")))
        except Unreadable:
            return
        self._is_pressure = bool(kept.get("isPressure"))
        self._conditions.set(SOURCE, (CPU_PRESSURE,) if self._is_pressure else ())

    def _keep(self) -> None:
        state = plain_of(to_text(self._state))
        kept = {"boot": boot_id(), "state": state, "isPressure": self._is_pressure}
        try:
            self._journal.set_value(_KEPT, kept)
        except JournalError as error:
            log.error("%s", error)  # noqa: TRY400

    async def run(self) -> None:
        """Runs until it is cancelled."""
        self._lower()
        self._begin(time.monotonic())
        while True:
            await asyncio.sleep(self._window_seconds / _LOOKS)
            now = time.monotonic()
            if now - self._begun_at < self._window_seconds:
                self._look_at_tasks()
                self._lower()
                continue
            self._decide(self._window(now))
            self._begin(time.monotonic())

    # Reading counters

    def _begin(self, now: float) -> None:
        self._begun_at = now
        before, self._begun = self._begun, {}
        for record, cgroup in self._watched():
            counters = self._counters(cgroup)
            if counters is not None:
                begun = self._begun[record.pod.metadata.uid] = _Begun(cgroup.path, counters)
                known = before.get(record.pod.metadata.uid)
                if known is not None:
                    begun.tasks = known.tasks
                    begun.tasks.waited_us = 0
        self._look_at_tasks()

    def _watched(self) -> list[tuple[PodRecord, Cgroup]]:
        tree = self._cgroups.tree
        found = []
        for cgroup in tree.cgroups if tree is not None else ():
            record = self._pods.by_key(cgroup.pod) if cgroup.kind == Kind.POD else None
            if record is not None and record.state.verdict is None and record.state.deleted_at is None:
                found.append((record, cgroup))
        return found

    def _counters(self, cgroup: Cgroup) -> _Counters | None:
        statistics = self._cgroups.statistics(cgroup)
        used_at = time.monotonic()
        if statistics is None:
            return None
        throttled = statistics.cpu_throttled_us
        for container in self._containers(cgroup):
            inner = self._cgroups.statistics(container)
            throttled += inner.cpu_throttled_us if inner is not None else 0
        is_v2 = self._cgroups.driver.version == Version.V2
        waited = waited_some_us(self._directory(cgroup)) if is_v2 else None
        return _Counters(statistics.cpu_usage_us, used_at, throttled, waited, time.monotonic())

    def _containers(self, pod: Cgroup) -> list[Cgroup]:
        record = self._pods.by_key(pod.pod)
        names = [one.name for one in record.pod.spec.every_container] if record is not None else []
        found = [self._cgroups.of_container(pod.pod, name) for name in names]
        return [one for one in found if one is not None]

    def _directory(self, cgroup: Cgroup) -> str:
        try:
            return self._cgroups.driver.files(cgroup.path).get("cpu", "")
        except EvenkeelError:
            return ""

    def _look_at_tasks(self) -> None:
        if self._cgroups.driver.version == Version.V2:
            return
        for record, cgroup in self._watched():
            begun = self._begun.get(record.pod.metadata.uid)
            if begun is not None:
                begun.tasks.sample(tuple(map(self._directory, self._containers(cgroup))))

    def _window(self, now: float) -> CpuWindow:
        """What pods used and waited, as in the seconds of the window."""
        seconds = now - self._begun_at
        self._look_at_tasks()
        is_v2 = self._cgroups.driver.version == Version.V2
        pods = []
        for record, cgroup in self._watched():
            begun = self._begun.get(record.pod.metadata.uid)
            after = self._counters(cgroup)
            if begun is None or after is None or begun.path != cgroup.path:
                continue  # the pod did not exist for the whole window
            before = begun.counters
            if after.used_us < before.used_us:
                continue
            own = max(after.throttled_us - before.throttled_us, 0)
            if not is_v2:
                known: float | None = begun.tasks.waited_us
            elif after.waited_us is None or before.waited_us is None:
                known = None
            else:
                known = (after.waited_us - before.waited_us) * seconds / (after.waited_at - before.waited_at)
            used = (after.used_us - before.used_us) * seconds / (after.used_at - before.used_at)
            by_others = None if known is None else max(round(known) - own, 0)
            pods.append(PodCpu(record.pod, round(used), by_others, is_wait_of_tasks=not is_v2))
        return CpuWindow(now, seconds, tuple(pods))

    # Deciding and acting

    def _decide(self, window: CpuWindow) -> None:
        before = self._state
        self._state, decision = decide_cpu(before, window, self._settings)
        if decision.is_pressure != self._is_pressure or decision.short:
            self._events.decided(CPU_KIND, cpu_given(before, window, self._settings), cpu_said(decision))
        self._tell(decision, window)
        is_news = (self._state, decision.is_pressure) != (before, self._is_pressure)
        self._is_pressure = decision.is_pressure
        if is_news:
            self._keep()
        self._lower()
        self._conditions.set(SOURCE, (CPU_PRESSURE,) if decision.is_pressure else ())
        if decision.victim is not None:
            uid = decision.victim.metadata.uid
            grace = decision.grace_seconds
            verdict = TerminalStatus(
                "Failed", EVICTED, decision.message, self._clock(), grace, is_disruption=True
            )
            self._evictions.evict(uid, verdict)
            figures = plain_of(to_text(decision.reason))
            self._events.record(WARNING, EVICTED, decision.message, decision.victim, figures=figures)
            self._events.count_eviction("cpu")
        self._steps.want_step()

    def _tell(self, decision: CpuDecision, window: CpuWindow) -> None:
        for one in decision.short:
            record = self._pods.by_key(one.pod)
            message = short_sentence(one, window.seconds)
            if not self._is_pressure:
                message += ": BestEffort pods get the least weight"
            elif decision.victim is None and self._state.short_windows > 1:
                message += ", and no other pod could be evicted for it"
            figures = {**one._asdict(), "seconds": window.seconds}
            pod = record.pod if record is not None else None
            self._events.record(WARNING, "CPUShortage", message, pod, figures=figures)
        if self._is_pressure and not decision.is_pressure:
            self._events.record(
                NORMAL,
                "CPUShortageOver",
                "every pod gets its cpu again: BestEffort pods get their weight back",
            )

    def _lower(self) -> None:
        """Sets the least weight (cpu.shares 2, cpu.weight 1) for BestEffort pods and for their branch. Restores the
        planned weight when the pressure is over."""
        wanted: dict[str, tuple[Setting, ...]] = {}
        tree = self._cgroups.planned
        for cgroup in tree.cgroups if tree is not None and self._is_pressure else ():
            if cgroup.qos == QoSClass.BEST_EFFORT and cgroup.kind in (Kind.BRANCH, Kind.POD):
                wanted[cgroup.path] = tuple(
                    Setting(
                        one.file, _LEAST[one.file], "A22", "the least weight: other pods are short of cpu"
                    )
                    for one in cgroup.settings
                    if one.file in _LEAST
                )
        self._cgroups.override(SOURCE, wanted)
