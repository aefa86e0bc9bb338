"""Pulls images for containers: policies, credentials, and the number of pulls at a time. All starts that wait for the
same image share one pull.

For the agent's event loop. skopeo runs beside it, and unpacking runs in threads. A pull that no start waits for any
more is ended.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from evenkeel.api.container import Container
from evenkeel.errors import EvenkeelError
from evenkeel.runtime.images import references
from evenkeel.runtime.images.credentials import (
    Credential,
    Credentials,
    HostCredentials,
    Keyring,
    all_matching,
    first_access,
)
from evenkeel.runtime.images.pull_settings import AwaitedPulls, PullSettings, PullTurns, pulled_text
from evenkeel.runtime.images.references import ImageReference, InvalidReference
from evenkeel.runtime.interface import Attempt, ImageNoted, Pull
from evenkeel.runtime.process.image_store import ImageStore, StoredImage
from evenkeel.runtime.process.skopeo import PullFailed, Skopeo
from evenkeel.runtime.start_errors import NoImage

_ALWAYS, _NEVER = "Always", "Never"  # the third policy is IfNotPresent
T = TypeVar("T")


class _Running:
    def __init__(self, task: "asyncio.Task[StoredImage]", reference: str, at: float) -> None:
        self.task = task
        self.reference = reference
        self.at = at
        self.waiting = 0
        self.received_bytes = 0


class Pulls:
    """`record` gets each event of a pull, for the events of the pod. `in_thread` runs a blocking function."""

    def __init__(
        self,
        store: ImageStore,
        skopeo: Skopeo,
        host: HostCredentials,
        settings: PullSettings,
        record: Callable[[ImageNoted], None],
        in_thread: Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._skopeo = skopeo
        self._host = host
        self._record = record
        self._in_thread = in_thread
        self._clock = clock
        self._turns = PullTurns(settings)
        self._verifies = settings.verifies_access
        self._running: dict[tuple[str, Credentials], _Running] = {}
        self._awaited: AwaitedPulls[StoredImage] = AwaitedPulls()

    @property
    def awaited(self) -> frozenset[Attempt]:
        """The attempts whose image is being pulled now."""
        return self._awaited.attempts

    def present(
        self, attempt: Attempt, container: Container, keyrings: Sequence[Keyring]
    ) -> StoredImage | None:
        """Returns the image if the container may use it at once. Does not block."""
        if container.image_pull_policy == _ALWAYS:
            return None
        try:
            image = references.parse(container.image)
        except InvalidReference:
            return None
        stored = self._store.find(str(image))
        if stored is None or not self._may_use(stored, all_matching(keyrings, image)):
            return None
        self._note(attempt, "Pulled", f'Container image "{container.image}" already present on machine')
        return stored

    async def ensure(
        self, attempt: Attempt, container: Container, keyrings: Sequence[Keyring]
    ) -> StoredImage:
        """Returns the image of a container, and pulls it if the policy says so. Raises NoImage."""
        try:
            image = references.parse(container.image)
        except InvalidReference as error:
            raise NoImage(error.message, "InvalidImageName", hint=error.hint) from None
        of_pod = all_matching(keyrings, image)
        stored = self._store.find(str(image))
        if container.image_pull_policy == _NEVER:
            if stored is not None and self._may_use(stored, of_pod):
                return stored
            why = "was pulled with a password that this pod does not have" if stored else "is not there"
            raise NoImage(
                f"image {container.image} {why}, and imagePullPolicy Never says not to pull it",
                "ErrImageNeverPull",
                hint="take another policy",
            )
        pull = self._pulled(attempt, container, image, of_pod)
        return await self._awaited.wait(attempt, container.image, pull)

    def give_up(self, attempt: Attempt) -> None:
        """The attempt will not be started: `ensure` raises NoImage."""
        self._awaited.give_up(attempt)

    def under_way(self) -> tuple[Pull, ...]:
        now = self._clock()
        return tuple(
            Pull(running.reference, running.received_bytes, now - running.at)
            for running in self._running.values()
        )

    async def close(self) -> None:
        tasks = [running.task for running in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # One pull

    async def _pulled(
        self, attempt: Attempt, container: Container, image: ImageReference, of_pod: tuple[Credential, ...]
    ) -> StoredImage:
        asked_at = self._clock()
        self._note(attempt, "Pulling", f'Pulling image "{container.image}"')
        of_host = await self._in_thread(partial(self._host.matching, image))
        began_at: list[float] = []
        try:
            stored = await self._shared(image, Credentials(of_pod, of_host), began_at.append)
        except PullFailed as error:
            raise NoImage(
                f'image "{container.image}" cannot be pulled from {image.domain}: {error.message}',
                "ErrImagePull",
                hint=error.hint,
            ) from None
        except EvenkeelError as error:
            raise NoImage(error.message, "ErrImagePull", hint=error.hint) from None
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise NoImage(f'image "{container.image}" cannot be pulled: {why}', "ErrImagePull") from None
        now = self._clock()
        took, whole = now - (began_at[0] if began_at else asked_at), now - asked_at
        self._note(
            attempt,
            "Pulled",
            pulled_text(container.image, took, whole, stored.size_bytes),
        )
        return stored

    async def _shared(
        self, image: ImageReference, access: Credentials, begins: Callable[[float], None]
    ) -> StoredImage:
        """Waits for the pull of this image with these credentials, and begins it if there is none."""
        key = (str(image), access)
        running = self._running.get(key)
        if running is None:
            task = asyncio.ensure_future(self._pull(image, access, begins))
            running = self._running[key] = _Running(task, str(image), self._clock())
            task.add_done_callback(lambda _: self._running.pop(key, None))
        running.waiting += 1
        try:
            return await asyncio.shield(running.task)
        finally:
            running.waiting -= 1
            if not running.waiting:
                running.task.cancel()  # no start waits for it any more
                with contextlib.suppress(asyncio.CancelledError, EvenkeelError, OSError):
                    await running.task

    async def _pull(
        self, image: ImageReference, access: Credentials, begins: Callable[[float], None]
    ) -> StoredImage:
        async with self._turns.turn():
            begins(self._clock())
            staging: str = await _to_its_end(self._in_thread(self._store.make_staging))
            try:
                return await self._with_any(image, access, staging)
            finally:
                await _to_its_end(self._in_thread(partial(self._store.remove_staging, staging)))

    async def _with_any(self, image: ImageReference, access: Credentials, staging: str) -> StoredImage:
        failure: PullFailed | None = None
        for credential in access.in_order:
            try:
                digest = await self._skopeo.digest(image, credential, staging)
                return await self._with(image, credential, digest, access, staging)
            except PullFailed as error:
                failure = error
                if not error.is_denied:
                    raise
        assert failure is not None
        raise failure

    async def _with(
        self,
        image: ImageReference,
        credential: Credential | None,
        digest: str,
        access: Credentials,
        staging: str,
    ) -> StoredImage:
        before = self._store.find(str(image))
        same = before if before is not None and before.digest == digest else None
        granted = (
            first_access(credential, access)
            if same is None
            else same.access.with_accepted(credential, access)
        )
        if same is not None and not image.digest:  # the registry was asked just now
            if granted != same.access:
                await self._in_thread(partial(self._store.put, same._replace(access=granted)))
            return same._replace(access=granted)
        key = (str(image), access)

        def progress(received_bytes: int) -> None:
            if (running := self._running.get(key)) is not None:
                running.received_bytes = received_bytes

        await self._skopeo.copy(image.at(digest), credential, staging, progress)
        adopt = partial(self._store.adopt, staging, image, digest, self._clock(), granted)
        found: StoredImage = await _to_its_end(self._in_thread(adopt))
        return found

    def _may_use(self, stored: StoredImage, of_pod: tuple[Credential, ...]) -> bool:
        return not self._verifies or stored.access.allows(of_pod)

    def _note(self, attempt: Attempt, reason: str, message: str) -> None:
        self._record(ImageNoted(attempt, reason, message))


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Waits until work in a thread has ended, even if the caller is cancelled: meanwhile nothing else may touch its
    files."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
