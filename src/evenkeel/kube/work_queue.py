"""A queue of keys whose state must be delivered to the API server. Only the newest state of a key is delivered.

One worker at a time has a key. If the key is added again meanwhile, it is delivered once more. A delivery that failed
is tried again, after a wait that doubles."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from evenkeel.errors import EvenkeelError
from evenkeel.kube.api_client import Backoff

log = logging.getLogger(__name__)

_WORKERS = 4
_BACKOFF_SECONDS = (0.5, 30.0)


class WorkQueue:
    """For one event loop. `deliver` brings one key up to date, or raises EvenkeelError. `what` names the things in
    messages."""

    def __init__(self, deliver: Callable[[str], Awaitable[None]], what: str) -> None:
        self._deliver = deliver
        self._what = what
        self._due: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()
        self._busy: set[str] = set()
        self._backoffs: dict[str, Backoff] = {}
        self._failure = ""
        self._idle = asyncio.Event()
        self._idle.set()

    def want(self, key: str) -> None:
        if key not in self._queued:
            self._queued.add(key)
            self._idle.clear()
            if key not in self._busy:
                self._due.put_nowait(key)

    def forget(self, key: str) -> None:
        """The next failure of this key is its first."""
        self._backoffs.pop(key, None)

    async def run(self) -> None:
        """Delivers keys, until it is cancelled."""
        await asyncio.gather(*(self._work() for _ in range(_WORKERS)))

    async def idle(self) -> None:
        """Waits until no key is waiting. A key that failed counts again when it is tried again."""
        await self._idle.wait()

    async def _work(self) -> None:
        while True:
            key = await self._due.get()
            self._queued.discard(key)
            self._busy.add(key)
            try:
                await self._deliver(key)
                self._backoffs.pop(key, None)
            except EvenkeelError as error:
                self._note(error)
                backoff = self._backoffs.setdefault(key, Backoff(*_BACKOFF_SECONDS))
                asyncio.get_running_loop().call_later(backoff.next_seconds(), self.want, key)
            else:
                self._note_well()
            finally:
                self._busy.discard(key)
                if key in self._queued:
                    self._due.put_nowait(key)
                elif not self._queued and not self._busy:
                    self._idle.set()

    def _note(self, error: EvenkeelError) -> None:
        if error.message != self._failure:
            self._failure = error.message
            log.warning("cluster: %s cannot be delivered: %s", self._what, error)

    def _note_well(self) -> None:
        if self._failure:
            self._failure = ""
            log.info("cluster: %s is delivered again", self._what)
