"""Pulls: policies, one pull for all starts that wait, credentials in turn, and which pods may use another pod's
image."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from evenkeel.api.container import Container
from evenkeel.runtime.images.credentials import Credential, ImageAccess, Keyring
from evenkeel.runtime.images.pull_settings import PullSettings
from evenkeel.runtime.images.references import ImageReference
from evenkeel.runtime.interface import Attempt, ImageNoted
from evenkeel.runtime.process.image_config import NO_CONFIG, Manifest
from evenkeel.runtime.process.image_store import StoredImage
from evenkeel.runtime.process.pulls import Pulls
from evenkeel.runtime.process.skopeo import PullFailed
from evenkeel.runtime.start_errors import NoImage
from tests.models.agents import until

APP = "registry.example/app:1"
MINE, YOURS = Credential("me", "1"), Credential("you", "2")


class FakeStore:
    """The names of images, without files."""

    def __init__(self) -> None:
        self.known: dict[str, StoredImage] = {}
        self.staged = 0

    def find(self, reference: str) -> StoredImage | None:
        return self.known.get(reference)

    def make_staging(self) -> str:
        self.staged += 1
        return f"staging{self.staged}"

    def remove_staging(self, staging: str) -> None:
        self.staged -= 1

    def adopt(
        self, staging: str, image: ImageReference, digest: str, at: float, access: ImageAccess
    ) -> StoredImage:
        stored = StoredImage(str(image), digest, "0" * 64, Manifest(digest, ()), NO_CONFIG, 7, at, access)
        self.put(stored)
        return stored

    def put(self, stored: StoredImage) -> None:
        self.known[stored.reference] = stored


class FakeRegistry:
    """A stand-in for skopeo. It accepts some credentials, and answers when the test allows it."""

    def __init__(self, *accepted: Credential | None) -> None:
        self.accepted = accepted
        self.digests = {APP: "sha256:" + "a" * 64}
        self.copies: list[str] = []
        self.under_way = self.most_under_way = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def digest(self, image: ImageReference, credential: Credential | None, staging: str) -> str:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.may_answer.wait()
        finally:
            self.under_way -= 1
        if credential not in self.accepted:
            raise PullFailed("unauthorized", is_denied=True)
        return self.digests.get(str(image), "sha256:" + "b" * 64)

    async def copy(
        self,
        image: ImageReference,
        credential: Credential | None,
        staging: str,
        progress: Callable[[int], None],
    ) -> None:
        self.copies.append(str(image))
        progress(5)


class FakeHost:
    def __init__(self, *known: Credential) -> None:
        self.known = known

    def matching(self, image: ImageReference) -> tuple[Credential, ...]:
        return self.known


class Node:
    def __init__(
        self, registry: FakeRegistry, *host: Credential, settings: PullSettings | None = None
    ) -> None:
        self.registry = registry
        self.store = FakeStore()
        self.noted: list[ImageNoted] = []
        self.pulls = Pulls(
            self.store,  # type: ignore[arg-type]
            registry,  # type: ignore[arg-type]
            FakeHost(*host),  # type: ignore[arg-type]
            settings or PullSettings(),
            self.noted.append,
            in_thread,
            lambda: 1.0,
        )

    async def run(
        self,
        number: int = 1,
        image: str = APP,
        policy: str = "IfNotPresent",
        secrets: tuple[Credential, ...] = (),
    ) -> StoredImage:
        attempt, container = Attempt("u", "main", number), Container(image=image, image_pull_policy=policy)
        keyrings = (Keyring(tuple(("registry.example", one) for one in secrets)),)
        found = self.pulls.present(attempt, container, keyrings)
        return found or await self.pulls.ensure(attempt, container, keyrings)

    def reasons(self) -> list[str]:
        return [noted.reason for noted in self.noted]


async def in_thread(work: Callable[[], Any]) -> Any:
    return work()


Story = Callable[[], Coroutine[Any, Any, None]]


def run_story(story: Story) -> None:
    asyncio.run(story())


def test_a_present_image_is_used_without_asking_unless_the_policy_is_always() -> None:
    async def story() -> None:
        node = Node(FakeRegistry(None))
        await node.run(1)
        assert node.reasons() == ["Pulling", "Pulled"]
        await node.run(2)
        assert node.reasons()[2:] == ["Pulled"]
        assert "already present" in node.noted[-1].message
        await node.run(3, policy="Always")
        assert len(node.registry.copies) == 1  # the tag has not moved
        node.registry.digests[APP] = "sha256:" + "c" * 64
        moved = await node.run(4, policy="Always")
        assert moved.digest == "sha256:" + "c" * 64
        assert len(node.registry.copies) == 2
        assert node.store.staged == 0

    run_story(story)


def test_never_is_never() -> None:
    async def story() -> None:
        node = Node(FakeRegistry(None))
        with pytest.raises(NoImage) as missing:
            await node.run(policy="Never")
        assert missing.value.reason == "ErrImageNeverPull"
        with pytest.raises(NoImage) as misspelt:
            await node.run(image="App:1:2")
        assert misspelt.value.reason == "InvalidImageName"
        assert node.noted == []

    run_story(story)


def test_credentials_are_tried_in_turn_the_pods_own_first() -> None:
    async def story() -> None:
        node = Node(FakeRegistry(YOURS), YOURS)
        await node.run(secrets=(MINE,))
        with pytest.raises(NoImage) as denied:
            await Node(FakeRegistry(YOURS)).run(secrets=(MINE,))
        assert denied.value.reason == "ErrImagePull"
        assert "unauthorized" in str(denied.value)

    run_story(story)


def test_a_pod_without_the_password_cannot_use_what_another_pod_pulled_with_it() -> None:
    async def story() -> None:
        node = Node(FakeRegistry(MINE))
        await node.run(1, secrets=(MINE,))
        with pytest.raises(NoImage) as denied:
            await node.run(2)
        assert denied.value.reason == "ErrImagePull"
        with pytest.raises(NoImage) as never:
            await node.run(3, policy="Never")
        assert "a password that this pod does not have" in str(never.value)
        assert await node.run(4, secrets=(MINE,))
        node.registry.accepted = (MINE, YOURS)
        assert await node.run(5, secrets=(YOURS,))
        node.registry.accepted = ()
        assert await node.run(6, secrets=(YOURS,))  # the registry has accepted it before
        trusting = Node(FakeRegistry(MINE), settings=PullSettings(verifies_access=False))
        await trusting.run(1, secrets=(MINE,))
        assert await trusting.run(2)

    run_story(story)


def test_all_starts_that_wait_for_an_image_share_one_pull_and_it_ends_with_the_last_of_them() -> None:
    async def story() -> None:
        node = Node(FakeRegistry(None))
        node.registry.may_answer.clear()
        first, second = (asyncio.ensure_future(node.run(number)) for number in (1, 2))
        both = {Attempt("u", "main", 1), Attempt("u", "main", 2)}
        await until(lambda: node.pulls.awaited == both and node.registry.under_way > 0)
        assert len(node.pulls.under_way()) == 1
        node.pulls.give_up(Attempt("u", "main", 1))
        with pytest.raises(NoImage):
            await first
        assert node.registry.under_way == 1
        node.pulls.give_up(Attempt("u", "main", 2))
        with pytest.raises(NoImage):
            await second
        assert (node.registry.under_way, node.pulls.under_way(), node.store.staged) == (0, (), 0)
        node.registry.may_answer.set()
        assert await node.run(3)

    run_story(story)


@pytest.mark.parametrize("at_once, most", [(1, 1), (2, 2), (0, 4)])
def test_so_many_images_are_pulled_at_once_as_the_settings_say(at_once: int, most: int) -> None:
    async def story() -> None:
        node = Node(FakeRegistry(None), settings=PullSettings(at_once, per_second=0))
        node.registry.may_answer.clear()
        images = [f"registry.example/app:{number}" for number in range(4)]
        running = [asyncio.ensure_future(node.run(number, image)) for number, image in enumerate(images)]
        await until(lambda: len(node.pulls.awaited) == 4 and node.registry.under_way >= most)
        node.registry.may_answer.set()
        await asyncio.gather(*running)
        assert node.registry.most_under_way == most

    run_story(story)
