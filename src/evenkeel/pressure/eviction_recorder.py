"""Records evictions and decisions of a watch: in the pods' records, in the journal, and in the node's conditions."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from evenkeel.host.node_figures import boot_id
from evenkeel.journal.codec import Unreadable, plain_of, to_text
from evenkeel.journal.records import NORMAL, WARNING
from evenkeel.journal.store import Journal, JournalError
from evenkeel.policy.eviction.conditions import Pressure
from evenkeel.policy.eviction.decide import EVICTED, Eviction, State, of_thresholds
from evenkeel.policy.eviction.thresholds import Threshold
from evenkeel.policy.lifecycle.pod_state import TerminalStatus
from evenkeel.pressure.decision_records import EVICTION_KIND, eviction_given, eviction_said
from evenkeel.pressure.eviction_steps import Step, state_from, state_plain
from evenkeel.pressure.protocol import Events, Evictions, PodRecords, Steps


class NodeConditions:
    """The node's current conditions, such as MemoryPressure. `changed` is set after each change."""

    def __init__(self, events: Events, steps: Steps, changed: asyncio.Event) -> None:
        self._events = events
        self._steps = steps
        self._changed = changed
        self._of: dict[str, tuple[str, ...]] = {}
        self._current: tuple[str, ...] = ()

    @property
    def current(self) -> tuple[str, ...]:
        return self._current

    def set(self, source: str, conditions: Sequence[str]) -> None:
        """Sets the conditions that `source`, a watch, finds now."""
        self._of[source] = tuple(conditions)
        before = self._current
        holding = {condition for found in self._of.values() for condition in found}
        now = tuple(str(one) for one in Pressure if one in holding)
        now += tuple(sorted(holding.difference(Pressure)))
        if now == before:
            return
        self._current = now
        for condition in now:
            if condition not in before:
                self._events.record(WARNING, f"NodeHas{condition}", f"the node is under {condition}")
        for condition in before:
            if condition not in now:
                self._events.record(NORMAL, f"NodeHasNo{condition}", f"{condition} is over")
        self._steps.room_appeared()
        self._changed.set()


log = logging.getLogger(__name__)


class EvictionRecorder:
    """For one watch, in the agent's loop only. `source` is the name of the watch, also in the journal. `taken_up` gets
    the UID of each pod whose eviction is in the journal: its intent is no longer needed."""

    def __init__(
        self,
        source: str,
        journal: Journal,
        taken_up: Callable[[str], None],
        pods: PodRecords,
        evictions: Evictions,
        conditions: NodeConditions,
        events: Events,
        steps: Steps,
    ) -> None:
        self._source = source
        self._key = f"evictionState:{source}"
        self._journal = journal
        self.taken_up = taken_up
        self._pods = pods
        self._evictions = evictions
        self._conditions = conditions
        self._events = events
        self._steps = steps
        self._notes: set[str] = set()

    def evicting(self, uid: str, eviction: Eviction, at: float) -> None:
        """Records that a whole pod is evicted (A20). A pod that is killed in the grace period of its eviction is not
        evicted a second time."""
        grace = float(eviction.grace_period_seconds)
        record = self._pods.get(uid)
        earlier = record.state.verdict if record is not None else None
        self.evict(uid, eviction.message, at, grace, is_disruption=eviction.is_disruption)
        if earlier is not None and earlier.reason == EVICTED and earlier.at < at:
            message = f"killed before its grace period is over: {eviction.message}"
            self._events.record(WARNING, "Killing", message, eviction.pod)
            return
        reason = eviction.shortage or eviction.limit
        figures = plain_of(to_text(reason)) if reason is not None else {}
        self._events.record(WARNING, EVICTED, eviction.message, eviction.pod, figures=figures)
        crossed = eviction.shortage.crossed if eviction.shortage is not None else None
        self._events.count_eviction(str(crossed.signal) if crossed is not None else "limit")

    def evict(
        self, uid: str, message: str, at: float, grace_seconds: float = 0.0, *, is_disruption: bool = True
    ) -> None:
        """Ends the pod with this terminal status, and commits it now."""
        self._evictions.evict(
            uid, TerminalStatus("Failed", EVICTED, message, at, grace_seconds, is_disruption)
        )
        try:
            self._pods.commit()
        except JournalError as error:
            log.error("%s", error)  # noqa: TRY400 - the next step tries again
        else:
            self.taken_up(uid)

    def stepped(self, step: Step, after: State, more: Mapping[str, object]) -> None:
        """Records a decision that changed something, after it was carried out."""
        decision = step.decision
        took = more.get("tookSeconds")
        if isinstance(took, float):
            self._events.observe_decision(took)
        crossed = [str(threshold) for threshold in decision.crossed]
        before = [str(threshold) for threshold in step.state.first_crossed]
        for name in crossed:
            if name not in before:
                figures = {str(signal): list(seen) for signal, seen in decision.observations.items()}
                self._events.record(
                    WARNING, "EvictionThresholdMet", f"the node has crossed {name}", figures=figures
                )
        for name in before:
            if name not in crossed:
                self._events.record(NORMAL, "EvictionThresholdOver", f"{name} is no longer the case")
        self._conditions.set(self._source, decision.conditions)
        outcome = {**eviction_said(decision), "isDone": step.is_done, "source": self._source, **more}
        self._events.decided(EVICTION_KIND, eviction_given(step), outcome)
        try:
            self._journal.set_value(self._key, {"boot": boot_id(), "state": state_plain(after)})
        except JournalError as error:
            log.error("%s", error)  # noqa: TRY400
        self._steps.want_step()

    def record(self, type_: str, reason: str, message: str, figures: Mapping[str, object]) -> None:
        self._events.record(type_, reason, message, figures=figures)
        self._steps.want_step()

    def noted(self, text: str) -> None:
        """Records, once, a problem that makes the watch less effective."""
        if text not in self._notes:
            self._notes.add(text)
            log.warning("%s", text)

    def state_before(self, thresholds: Collection[Threshold]) -> State:
        """Restores the state of a former agent. It is not restored after a reboot, because the clock has restarted.
        State of thresholds that are no longer configured is dropped."""
        kept = self._journal.value(self._key)
        if not isinstance(kept, dict) or kept.get("boot") != boot_id():
            return State()
        try:
            state = of_thresholds(state_from(kept.get("state")), thresholds)
        except Unreadable:
            return State()
        self._conditions.set(self._source, state.conditions)
        return state
