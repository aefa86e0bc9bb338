"""The images of containers in the process runtime: root filesystems of this machine, and images of registries.

A container that starts must find its image, and unused images may be removed at the same time. So a start waits for a
removal that is under way. A removal does not wait for starts.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any

from evenkeel.api.config import KubeletConfiguration
from evenkeel.errors import EvenkeelError
from evenkeel.host.disk_usage import Usage, usage_below
from evenkeel.runtime.images.credentials import HostCredentials, pod_keyrings
from evenkeel.runtime.images.pull_settings import pull_settings
from evenkeel.runtime.images.references import is_of_registry
from evenkeel.runtime.interface import Attempt, Image, Launch, Pull, RuntimeEvent
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.process import process_images
from evenkeel.runtime.process.image_store import ImageStore, StoredImage, list_images
from evenkeel.runtime.process.process_images import Images
from evenkeel.runtime.process.pulls import Pulls
from evenkeel.runtime.process.skopeo import Skopeo
from evenkeel.runtime.start_errors import NoImage


class ContainerImages:
    """`starting` returns the attempts that are being started: they may use an image and not have recorded it yet."""

    def __init__(
        self,
        paths: StatePaths,
        config: KubeletConfiguration,
        record: Callable[[RuntimeEvent], None],
        in_thread: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]],
        starting: Callable[[], Collection[Attempt]],
    ) -> None:
        self._paths = paths
        self._in_thread = in_thread
        self._starting = starting
        self._of_machine = Images(paths)
        self._store = ImageStore(paths)
        self._pulls = Pulls(
            self._store, Skopeo(), HostCredentials(), pull_settings(config), record, in_thread, time.time
        )
        self._removing: asyncio.Task[None] | None = None  # the task that removes images, while it runs

    async def open(self) -> None:
        await self._in_thread(self._store.open)

    async def close(self) -> None:
        await self._pulls.close()

    async def root_of(self, launch: Launch) -> tuple[str, StoredImage | None]:
        """Returns the root filesystem, and the image if it is one of a registry. Raises EvenkeelError."""
        image = launch.container.image
        while is_of_registry(image):
            keyrings = pod_keyrings(launch.pod, launch.data)
            stored = self._pulls.present(launch.attempt, launch.container, keyrings)
            if stored is None and not launch.is_wanted:
                raise NoImage(f"image {image} is not needed any more", "ErrImagePull")
            if stored is None:
                stored = await self._pulls.ensure(launch.attempt, launch.container, keyrings)
            directory = self._store.directory(stored)
            if self._removing is None:
                return directory, stored
            await asyncio.wait([self._removing])  # it may remove the image: then it is pulled again
            if self._store.find(stored.reference) == stored:
                return directory, stored
        if self._removing is not None:
            await asyncio.wait([self._removing])
        if self._of_machine.is_ready(image):
            return self._of_machine.directory(image), None
        return await self._in_thread(partial(self._of_machine.directory, image)), None

    def give_up(self, attempt: Attempt) -> None:
        self._pulls.give_up(attempt)

    def pulls(self) -> tuple[Pull, ...]:
        return self._pulls.under_way()

    async def usage(self) -> Usage | None:
        usage: Usage | None = await self._in_thread(partial(usage_below, self._paths.images))
        return usage

    async def listed(self) -> tuple[Image, ...]:
        found: tuple[Image, ...] = await self._in_thread(self._list)
        return found

    def _list(self) -> tuple[Image, ...]:
        return list_images(self._store, self._paths, process_images.images_in_use(self._paths))

    async def remove(self, id_: str) -> None:
        if self._is_in_the_way():
            raise EvenkeelError("a container is being started, and may need it", hint="try again")
        await self._run(partial(self._remove, id_))

    def _remove(self, id_: str) -> None:
        if self._paths.image(id_) not in process_images.images_in_use(self._paths):
            self._store.remove(id_)

    async def remove_unused(self) -> None:
        if not self._is_in_the_way():
            await self._run(self._remove_unused)

    def _remove_unused(self) -> None:
        self._store.remove_unused(process_images.images_in_use(self._paths), self._of_machine.remove_unused)

    def _is_in_the_way(self) -> bool:
        """Whether a removal cannot begin now, because a start or another removal is under way."""
        return bool({*self._starting()} - self._pulls.awaited) or self._removing is not None

    async def _run(self, remove: Callable[[], None]) -> None:
        self._removing = asyncio.ensure_future(self._in_thread(remove))
        try:
            await asyncio.wait([self._removing])
            self._removing.result()
        finally:
            self._removing = None
