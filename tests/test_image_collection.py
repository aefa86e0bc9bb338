"""Unused images are removed by kubelet's two thresholds: never one in use, the longest unused first, and no more than
needed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.node.image_collection import ImageCollection, Room
from evenkeel.agent.step_requests import StepRequests
from evenkeel.journal.store import Journal
from evenkeel.policy.image_garbage import GarbageSettings, ImageAge, garbage
from evenkeel.runtime.interface import Image

SETTINGS = GarbageSettings()
GI = 1 << 30


def age(id_: str, last_used: float = 0.0, first_seen: float = 0.0, size: int = GI) -> ImageAge:
    return ImageAge(id_, size, first_seen, last_used)


def test_below_the_high_mark_nothing_is_removed() -> None:
    assert garbage([age("a")], 100 * GI, 16 * GI, 1000.0, SETTINGS) == ((), (), 0)
    assert garbage([age("a")], 100 * GI, 0, 1000.0, SETTINGS._replace(high_percent=100)) == ((), (), 0)


def test_from_the_high_mark_on_the_longest_unused_go_first_and_new_ones_stay() -> None:
    images = [age("new", first_seen=950.0), age("late", 900.0), age("early", 100.0), age("never", 0.0, 5.0)]
    found = garbage(images, 100 * GI, 15 * GI, 1000.0, SETTINGS)
    assert [one.id for one in found.candidates] == ["never", "early", "late"]
    assert found.wanted_bytes == 5 * GI


def test_images_above_the_greatest_age_go_whatever_the_disk_says() -> None:
    settings = SETTINGS._replace(maximum_age_seconds=600.0)
    found = garbage([age("old", 300.0), age("young", 500.0)], 100 * GI, 50 * GI, 1000.0, settings)
    assert found == (("old",), (), 0)


class FakeImages:
    def __init__(self, *images: Image) -> None:
        self.known = list(images)
        self.removed: list[str] = []

    async def images(self) -> tuple[Image, ...]:
        return tuple(self.known)

    async def remove_image(self, id_: str) -> None:
        self.removed.append(id_)
        self.known = [one for one in self.known if one.id != id_]


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    with Journal.open(str(tmp_path / "journal.db")) as opened:
        yield opened


def test_images_are_removed_until_the_low_mark_and_the_rest_is_reported(journal: Journal) -> None:
    async def story() -> None:
        runtime = FakeImages(
            Image("used", (), 10 * GI, is_in_use=True),
            Image("pinned", (), 10 * GI, is_in_use=False, is_pinned=True),
            *(Image(f"unused{number}", (), 2 * GI, is_in_use=False) for number in range(4)),
        )
        now, available = [0.0], [50 * GI]
        events = EventRecorder(journal, lambda: now[0])
        collection = ImageCollection(
            runtime, lambda: Room(100 * GI, available[0]), SETTINGS, events, StepRequests(), lambda: now[0]
        )
        await collection.collect()  # it sees them for the first time
        now[0], available[0] = 60.0, 14 * GI
        await collection.collect()
        assert runtime.removed == []  # they are younger than two minutes
        now[0] = 300.0
        await collection.collect()
        assert runtime.removed == ["unused0", "unused1", "unused2"]
        available[0] = 1 * GI
        await collection.collect()
        assert runtime.removed[3:] == ["unused3"]
        events.commit()
        reasons = [event.reason for event in journal.events()]
        assert reasons == ["FreeDiskSpaceFailed", "Collected", "Collected", "FreeDiskSpaceFailed"]

    asyncio.run(story())
