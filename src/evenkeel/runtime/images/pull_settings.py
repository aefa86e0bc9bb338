"""How images are pulled: how many at once and per second, by the settings of kubelet; the starts that wait for them;
and how long a pull took."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Generic, TypeVar

from evenkeel.api.config import KubeletConfiguration
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.lifecycle.restarts import backoff_text
from evenkeel.runtime.interface import Attempt
from evenkeel.runtime.start_errors import NoImage

NEVER_VERIFY = "NeverVerify"

_Image = TypeVar("_Image")


class PullSettings(NamedTuple):
    """How many images are pulled at once, and how many may begin per second."""

    at_once: int = 1  # 0: any number
    per_second: float = 5.0  # 0: any number
    burst: int = 10
    verifies_access: bool = True  # imagePullCredentialsVerificationPolicy is not NeverVerify


def pull_settings(config: KubeletConfiguration) -> PullSettings:
    most = config.max_parallel_image_pulls or 0
    return PullSettings(
        1 if config.serialize_image_pulls else most,
        float(config.registry_pull_qps),
        max(config.registry_burst, 1),
        config.image_pull_credentials_verification_policy != NEVER_VERIFY,
    )


class PullTurns:
    """Lets pulls begin when it is their turn."""

    def __init__(self, settings: PullSettings) -> None:
        self._room = asyncio.Semaphore(settings.at_once) if settings.at_once else None
        self._rate = _Rate(settings.per_second, settings.burst)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        async with self._room or contextlib.nullcontext():
            await self._rate.wait()
            yield


class AwaitedPulls(Generic[_Image]):
    """The pulls that starts of containers wait for. Each can be given up."""

    def __init__(self) -> None:
        self._pulls: dict[Attempt, asyncio.Task[_Image]] = {}

    @property
    def attempts(self) -> frozenset[Attempt]:
        return frozenset(self._pulls)

    async def wait(self, attempt: Attempt, image: str, pull: Coroutine[Any, Any, _Image]) -> _Image:
        """Returns what `pull` returns. Raises NoImage if it is given up."""
        task = self._pulls[attempt] = asyncio.ensure_future(pull)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise NoImage(f"image {image} is not needed any more", "ErrImagePull") from None
        finally:
            task.cancel()
            self._pulls.pop(attempt, None)

    def give_up(self, attempt: Attempt) -> None:
        if (task := self._pulls.get(attempt)) is not None:
            task.cancel()


def pulled_text(image: str, took_seconds: float, whole_seconds: float, size_bytes: int) -> str:
    """As kubelet writes it."""
    spans = f"{_span(took_seconds)} ({_span(whole_seconds)} including waiting)"
    return f'Successfully pulled image "{image}" in {spans}. Image size: {size_bytes} bytes.'


def _span(seconds: float) -> str:
    return (
        f"{seconds * 1000:.0f}ms"
        if seconds < 1
        else f"{seconds:.3f}s"
        if seconds < 60
        else backoff_text(seconds)
    )


class _Rate:
    """A token bucket: `burst` at once, and then `per_second`. A pull that is too early waits."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = float(burst)
        self._at: float | None = None

    async def wait(self) -> None:
        if not self._per_second:
            return
        now = asyncio.get_running_loop().time()
        before = now if self._at is None else self._at
        self._tokens = min(self._tokens + (now - before) * self._per_second, float(self._burst)) - 1.0
        self._at = now
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._per_second)
