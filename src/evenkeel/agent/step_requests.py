"""Requests for steps of the pod loop: the pods to look at, and the outcomes of work that ran beside the loop.

This object is constructed before all other parts. A part that changes a pod asks here for a step, and does not need to
know the loop. So the loop can be constructed last, with all that it needs.
"""

import asyncio
from collections.abc import Iterable

from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.interface import Attempt, Exit, Record


class Started(NamedTuple):
    record: Record
    runs_hook: bool = False  # its postStart hook begins now
    image: str = ""  # with which it was started; empty if a former agent has started it


class NotStarted(NamedTuple):
    attempt: Attempt
    message: str
    no_image: str = ""  # the reason, if the image or an object with its data was missing
    image: str = ""  # with which it should have been started; empty if no start was tried
    event: str = "Failed"


class Exited(NamedTuple):
    attempt: Attempt
    exit: Exit


class OomKilled(NamedTuple):
    """The kernel has counted or logged an OOM kill of this attempt. The attempt may already have ended."""

    attempt: Attempt


class PostStarted(NamedTuple):
    """The postStart hook of this attempt has ended well."""

    attempt: Attempt


class HookFailed(NamedTuple):
    """A lifecycle hook of this attempt has failed."""

    attempt: Attempt
    reason: str  # FailedPostStartHook or FailedPreStopHook
    message: str


class Emptied(NamedTuple):
    """The pod's memory volumes are empty."""

    uid: str


class Cleaned(NamedTuple):
    """Only the pod's logs are left on disk, or nothing."""

    uid: str


class Removed(NamedTuple):
    """Nothing of the pod is left."""

    uid: str


Outcome = Started | NotStarted | Exited | OomKilled | PostStarted | HookFailed | Emptied | Cleaned | Removed


class StepRequests:
    """For the agent's event loop only. Several requests before a step lead to one step."""

    def __init__(self, uids: Iterable[str] = ()) -> None:
        """The first step looks at the pods of `uids`."""
        self._requested = asyncio.Event()
        self._uids = set(uids)
        self._outcomes: list[Outcome] = []
        self._has_room = True

    def want_step(self, uid: str = "") -> None:
        """Requests a step. The next step also looks at this pod."""
        if uid:
            self._uids.add(uid)
        self._requested.set()

    def room_appeared(self) -> None:
        """Requests a step. The next step tries to admit the waiting pods."""
        self._has_room = True
        self._requested.set()

    def report(self, outcome: Outcome) -> None:
        """Reports an outcome. Outcomes are processed in the order of the calls: a container's start before its end."""
        self._outcomes.append(outcome)
        self._requested.set()

    # For the pod loop

    async def wait(self) -> None:
        """Returns when a step has been requested since the last call."""
        await self._requested.wait()
        self._requested.clear()

    def take_uids(self) -> set[str]:
        """Returns the pods to look at. This includes pods that the present step has requested: no other step is needed
        for them."""
        if not self._outcomes and not self._has_room:
            self._requested.clear()
        uids, self._uids = self._uids, set()
        return uids

    def put_back(self, uids: Iterable[str]) -> None:
        """Keeps these pods for a later step, because the step failed. Does not request a step: the cause must pass
        first."""
        self._uids.update(uids)

    def take_outcomes(self) -> list[Outcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def take_room(self) -> bool:
        """Whether room may have appeared since the last call."""
        has_room, self._has_room = self._has_room, False
        return has_room
