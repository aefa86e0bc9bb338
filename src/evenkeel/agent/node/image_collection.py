"""Removes unused images when the disk fills up, every five minutes, as kubelet does it.

The ages are counted from the start of the agent, as in kubelet: an image is as old as the agent has known it.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Protocol

from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.step_requests import StepRequests
from evenkeel.errors import EvenkeelError
from evenkeel.journal.records import NORMAL, WARNING
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.amounts import bytes_text
from evenkeel.policy.image_garbage import GarbageSettings, ImageAge, garbage
from evenkeel.runtime.interface import Image

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 300.0
_FIRST_SECONDS = 60.0  # the start of an agent has more urgent work


class Room(NamedTuple):
    """A filesystem."""

    capacity_bytes: int
    available_bytes: int


def room_at(path: str) -> Room | None:
    """Reads the filesystem of a directory, which need not exist yet."""
    while not os.path.exists(path) and path not in ("", "/"):
        path = os.path.dirname(path)
    try:
        found = os.statvfs(path or "/")
    except OSError:
        return None
    return Room(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


class Images(Protocol):
    """The methods of a runtime that this module needs."""

    async def images(self) -> tuple[Image, ...]: ...

    async def remove_image(self, id_: str) -> None: ...


class ImageCollection:
    """`room` reads the filesystem of the images; None if it cannot be read."""

    def __init__(
        self,
        runtime: Images,
        room: Callable[[], Room | None],
        settings: GarbageSettings,
        event_recorder: EventRecorder,
        steps: StepRequests,
        clock: Callable[[], float],
        *,
        period_seconds: float = _PERIOD_SECONDS,
    ) -> None:
        self._runtime = runtime
        self._room = room
        self._settings = settings
        self._event_recorder = event_recorder
        self._steps = steps
        self._clock = clock
        self._period_seconds = period_seconds
        self._ages: dict[str, ImageAge] = {}
        self._failure = ""

    async def run(self) -> None:
        """Runs until it is cancelled."""
        await asyncio.sleep(min(_FIRST_SECONDS, self._period_seconds))
        while True:
            try:
                await self.collect()
            except (EvenkeelError, OSError, TimeoutError) as error:
                self._failed(str(error))
            await asyncio.sleep(self._period_seconds)

    async def collect(self) -> None:
        """Reads the disk once, and removes images as kubelet's two thresholds demand. Raises EvenkeelError."""
        now = self._clock()
        unused = self._seen(await self._runtime.images(), now)
        room = self._room()
        if room is None or not room.capacity_bytes:
            self._record(WARNING, "InvalidDiskCapacity", "the size of the images' filesystem is not known")
            return
        found = garbage(unused, room.capacity_bytes, room.available_bytes, now, self._settings)
        freed = removed = 0
        for id_ in found.aged:
            freed += await self._remove(self._ages[id_])
            removed += 1
        for image in found.candidates:
            if freed >= found.wanted_bytes:
                break
            freed += await self._remove(image)
            removed += 1
        if removed:
            self._record(NORMAL, "Collected", f"removed {removed} unused images of {bytes_text(freed)}")
        if freed < found.wanted_bytes:
            message = (
                "Failed to garbage collect required amount of images. Attempted to free "
                f"{found.wanted_bytes} bytes, but only found {freed} bytes eligible to free."
            )
            if message != self._failure:
                self._record(WARNING, "FreeDiskSpaceFailed", message)
            self._failure = message
        else:
            self._failure = ""

    def _seen(self, images: tuple[Image, ...], now: float) -> list[ImageAge]:
        """Updates the ages. Returns those of images that may be removed."""
        ages = {}
        for image in images:
            before = self._ages.get(image.id) or ImageAge(image.id, image.size_bytes, now, 0.0)
            ages[image.id] = before._replace(last_used=now) if image.is_in_use else before
        self._ages = ages
        return [ages[image.id] for image in images if not image.is_in_use and not image.is_pinned]

    async def _remove(self, image: ImageAge) -> int:
        await self._runtime.remove_image(image.id)
        del self._ages[image.id]
        return image.size_bytes

    def _failed(self, message: str) -> None:
        if message != self._failure:
            log.warning("unused images cannot be removed: %s", message)
            self._record(WARNING, "ImageGCFailed", message)
        self._failure = message

    def _record(self, type_: str, reason: str, message: str) -> None:
        self._event_recorder.record(type_, reason, message)
        self._steps.want_step()  # the step commits the event
