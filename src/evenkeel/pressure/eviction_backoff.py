"""Eviction back-off: an evicted pod comes back when the pressure is over and its waiting time has passed (E16).

The waiting time doubles with each eviction.
"""

import asyncio
import logging
from collections.abc import Callable

from evenkeel.journal.records import NORMAL, PodRecord
from evenkeel.journal.store import Journal, JournalError
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.decide import EVICTED
from evenkeel.policy.preemption import PREEMPTED
from evenkeel.pressure.eviction_recorder import NodeConditions
from evenkeel.pressure.protocol import Events, Evictions, PodRecords, Steps

FIRST_SECONDS = 10.0
GREATEST_SECONDS = 300.0
QUIET_SECONDS = 600.0


class BackOff(NamedTuple):
    times: int = 0  # evictions without a quiet period between them
    seconds: float = 0.0
    evicted_at: float = 0.0  # the last eviction

    @property
    def not_before(self) -> float:
        return self.evicted_at + self.seconds


NO_BACK_OFF = BackOff()


def after_eviction(before: BackOff, at: float) -> BackOff:
    # The time that the pod was away does not count as quiet.
    if not before.times or at - before.not_before >= QUIET_SECONDS:
        return BackOff(1, FIRST_SECONDS, at)
    return BackOff(before.times + 1, min(before.seconds * 2, GREATEST_SECONDS), at)


log = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0  # while the remains of the pod are being removed
_KEPT = "returning"  # key in the journal: back-offs by UID


class EvictionBackoff:
    """`changed` is set when a pod is evicted, and when the node's conditions change."""

    def __init__(
        self,
        changed: asyncio.Event,
        journal: Journal,
        pods: PodRecords,
        evictions: Evictions,
        conditions: NodeConditions,
        events: Events,
        steps: Steps,
        clock: Callable[[], float],
    ) -> None:
        self._changed = changed
        self._journal = journal
        self._pods = pods
        self._evictions = evictions
        self._conditions = conditions
        self._events = events
        self._steps = steps
        self._clock = clock
        self._of: dict[str, BackOff] = self._kept()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            self._changed.clear()
            wait = self._turn()
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _turn(self) -> float | None:
        """Starts the pods again whose back-off is over. Returns the seconds until the next one, or None if there is
        none."""
        now = self._clock()
        soonest: float | None = None
        for record in self._pods:
            if not comes_back(record):
                continue
            back_off = self._noted(record)
            left = back_off.not_before - now
            if left > 0:
                soonest = left if soonest is None else min(soonest, left)
            elif self._conditions.current:
                continue  # `changed` is set when the pressure ends
            elif self._evictions.start_anew(record.pod.metadata.uid):
                what = "its back-off" if _is_preempted(record) else "the pressure"
                message = f"{what} is over: the pod starts anew after {_times(back_off)}"
                self._events.record(NORMAL, "Returning", message, record.pod)
            else:
                soonest = _AGAIN_SECONDS if soonest is None else min(soonest, _AGAIN_SECONDS)
        return soonest

    def _noted(self, record: PodRecord) -> BackOff:
        """The pod's back-off. It is recorded and stored when the eviction is first seen."""
        uid, verdict = record.pod.metadata.uid, record.state.verdict
        assert verdict is not None
        before = self._of.get(uid, NO_BACK_OFF)
        if before.evicted_at == verdict.at:
            return before
        back_off = self._of[uid] = after_eviction(before, verdict.at)
        when = "there is room for it" if _is_preempted(record) else "the pressure is over"
        message = (
            f"after {_times(back_off)} the pod comes back when {when},"
            f" and not before {back_off.seconds:g} s have passed"
        )
        self._events.record(NORMAL, "BackOff", message, record.pod)
        self._steps.want_step()
        self._keep()
        return back_off

    def _keep(self) -> None:
        known = {record.pod.metadata.uid for record in self._pods}
        self._of = {uid: one for uid, one in self._of.items() if uid in known}
        try:
            self._journal.set_value(_KEPT, {uid: list(one) for uid, one in self._of.items()})
        except JournalError as error:
            log.error("%s", error)  # noqa: TRY400

    def _kept(self) -> dict[str, BackOff]:
        kept = self._journal.value(_KEPT)
        if not isinstance(kept, dict):
            return {}
        try:
            return {uid: BackOff(*one) for uid, one in kept.items()}
        except TypeError:
            return {}


def comes_back(record: PodRecord) -> bool:
    verdict = record.state.verdict
    return (
        verdict is not None
        and verdict.reason in (EVICTED, PREEMPTED)
        and record.state.deleted_at is None
        and record.is_admitted
        and record.pod.spec.restart_policy != "Never"
        and not record.is_replaced_by_owner
    )


def _is_preempted(record: PodRecord) -> bool:
    """Whether it has ended for a critical pod. Then it waits for room, as a new pod does."""
    return record.state.verdict is not None and record.state.verdict.reason == PREEMPTED


def _times(back_off: BackOff) -> str:
    return "one eviction" if back_off.times == 1 else f"{back_off.times} evictions"
