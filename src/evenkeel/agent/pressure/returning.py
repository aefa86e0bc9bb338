"""Evicted pods come back when the pressure is over, each after a while of its own that grows if it was not over (E16).

A pod that the node had no room for is not broken: what its restart policy says of a failure holds for it too. It starts
anew, through admission, as if it had just come.
"""

import asyncio
import logging

from evenkeel.agent.journal import JournalError
from evenkeel.agent.parts import Parts
from evenkeel.agent.records import NORMAL, HeldPod
from evenkeel.policy.eviction.back_off import NO_BACK_OFF, BackOff, after_eviction
from evenkeel.policy.eviction.decide import EVICTED

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0  # while something of the pod is still being removed
_KEPT = "returning"  # in the journal: back-offs by UID


class Returning:
    def __init__(self, parts: Parts) -> None:
        self._journal = parts.journal
        self._holdings = parts.holdings
        self._sync = parts.sync
        self._telling = parts.telling
        self._clock = parts.clock
        self._changed = asyncio.Event()
        self._of: dict[str, BackOff] = self._kept()

    def look_again(self) -> None:
        """Somebody was evicted, or the node's conditions have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._changed.clear()
            wait = self._turn()
            try:
                await asyncio.wait_for(self._changed.wait(), wait)
            except TimeoutError:
                pass

    def _turn(self) -> float | None:
        """Brings back whose time has come; in how many seconds that of the next will have, None if there is none."""
        now = self._clock()
        soonest: float | None = None
        for held in self._holdings:
            if not comes_back(held):
                continue
            back_off = self._noted(held)
            left = back_off.not_before - now
            if left > 0:
                soonest = left if soonest is None else min(soonest, left)
            elif self._sync.pressures:
                continue  # their end is told
            elif self._sync.start_anew(held.pod.metadata.uid):
                message = f"the pressure is over: the pod starts anew after {_times(back_off)}"
                self._telling.tell(NORMAL, "Returning", message, held.pod)
            else:
                soonest = _AGAIN_SECONDS if soonest is None else min(soonest, _AGAIN_SECONDS)
        return soonest

    def _noted(self, held: HeldPod) -> BackOff:
        """How long it has to wait; told, and kept, when its eviction is first seen."""
        uid, verdict = held.pod.metadata.uid, held.life.verdict
        assert verdict is not None
        before = self._of.get(uid, NO_BACK_OFF)
        if before.evicted_at == verdict.at:
            return before
        back_off = self._of[uid] = after_eviction(before, verdict.at)
        message = (
            f"after {_times(back_off)} the pod comes back when the pressure is over,"
            f" and not before {back_off.seconds:g} s have passed"
        )
        self._telling.tell(NORMAL, "BackOff", message, held.pod)
        self._sync.want_step()
        self._keep()
        return back_off

    def _keep(self) -> None:
        known = {held.pod.metadata.uid for held in self._holdings}
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


def comes_back(held: HeldPod) -> bool:
    verdict = held.life.verdict
    return (
        verdict is not None
        and verdict.reason == EVICTED
        and held.life.deleted_at is None
        and held.is_admitted
        and held.pod.spec.restart_policy != "Never"
    )


def _times(back_off: BackOff) -> str:
    return "one eviction" if back_off.times == 1 else f"{back_off.times} evictions"
