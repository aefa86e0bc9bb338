"""Whether the container runtime is there: hello, a look at what it has every few seconds, and both again after it was
away, with back-off. It goes away when a call is not answered in time, when the connection breaks, or when it says so
itself."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from evenkeel.cgroup.tree import Naming
from evenkeel.errors import EvenkeelError
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.agreement import Said, disagreement, hear
from evenkeel.runtime.cri.connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.interface import Readiness

LOOK_SECONDS = 5.0  # between two listings, when nothing tells
FIRST_HELLO_SECONDS = 15.0  # a runtime that is just being started
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.2, 10.0


class Presence:
    """`look` looks at what the runtime has; `on_change` is told, in a sentence, that it went away or is back."""

    def __init__(
        self,
        endpoint: str,
        naming: Naming,
        look: Callable[[], Awaitable[None]],
        on_change: Callable[[str], None],
    ) -> None:
        self.connection = Connection(endpoint, self.nudge)
        self.said: Said | None = None
        self.images_path = "/"
        self._endpoint = endpoint
        self._naming = naming
        self._look = look
        self._on_change = on_change
        self._nudged = asyncio.Event()
        self._ready = asyncio.Event()
        self._why_away = "it has not been spoken to yet"

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    @property
    def readiness(self) -> Readiness:
        title = f"{self.said.title} at {self._endpoint}" if self.said is not None else self._endpoint
        if self.is_ready:
            return Readiness(True, f"pods are containers of {title}")
        return Readiness(False, f"{title} is away: {self._why_away}")

    @property
    def why_away(self) -> str:
        return self._why_away

    async def available(self) -> None:
        """Returns when it is there."""
        if not self.is_ready:
            self.nudge()
            await self._ready.wait()

    def nudge(self) -> None:
        """There may be something new to see."""
        self._nudged.set()

    async def first_hello(self, *, may_be_away: Callable[[], bool]) -> None:
        """Raises EvenkeelError if it does not answer, unless that may be so."""
        deadline = time.monotonic() + FIRST_HELLO_SECONDS
        wait = _FIRST_RETRY_SECONDS
        while True:
            try:
                await self._greet()
                await self._look()
            except CallFailed as error:
                if time.monotonic() < deadline:
                    await asyncio.sleep(wait)
                    wait = min(2 * wait, 1.0)
                    continue
                if not may_be_away():
                    raise EvenkeelError(
                        f"no container runtime answers: {error.message}",
                        hint="start it (systemctl start containerd), or name its socket with --runtime-endpoint",
                    ) from None
                self._why_away = str(error)
            else:
                self._ready.set()
            return

    async def run(self) -> None:
        """Until cancelled."""
        wait = _FIRST_RETRY_SECONDS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS if self.is_ready else wait):
                    await self._nudged.wait()
            self._nudged.clear()
            try:
                if not self.is_ready:
                    await self._greet()
                await self._look()
            except EvenkeelError as error:
                self._went_away(error)
                await asyncio.sleep(_FIRST_RETRY_SECONDS)
                self._nudged.clear()  # our own failure tells nothing new
                wait = min(2 * wait, _LONGEST_RETRY_SECONDS)
            else:
                wait = _FIRST_RETRY_SECONDS
                self._came_back()

    async def _greet(self) -> None:
        """Another one may be there by now: an upgraded one, or one with another cgroup driver."""
        said = await hear(self.connection)
        wrong = disagreement(said, self._naming)
        if wrong is not None:
            raise wrong
        if said.not_ready:
            raise RuntimeAway(f"{said.title} is not ready: {said.not_ready}", "UNAVAILABLE")
        self.said = said
        info = await self.connection.ask(pb.ImageFsInfoRequest(), pb.ImageFsInfoResponse)
        self.images_path = next((one.fs_id.mountpoint for one in info.image_filesystems), "/")

    def _went_away(self, error: EvenkeelError) -> None:
        self._why_away = str(error)
        if self.is_ready:
            self._ready.clear()
            self._on_change(f"{error}; containers run on, and none is started")

    def _came_back(self) -> None:
        if not self.is_ready:
            self._ready.set()
            self._on_change(f"{self.said.title if self.said is not None else self._endpoint} answers again")
