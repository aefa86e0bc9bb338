"""The thread of one who watches: it takes a turn, waits for as long as that said or until it is woken, and takes the
next. What goes wrong in a turn is told, and tried again after a while; nothing ends the thread but `stop`."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable

from evenkeel.cgroup.driver import Driver
from evenkeel.errors import EvenkeelError
from evenkeel.host.protection import name_thread

log = logging.getLogger(__name__)


class Stopped(Exception):
    """The agent ends in the middle of a turn."""


class LoopCalls:
    """Calls from other threads into the agent's event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self, function: Callable[..., None], *arguments: object) -> None:
        """Returns at once; the loop calls it soon. Nothing is called after the end of the loop."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            pass  # the loop has ended; the next agent finds the intents


class WatchThread:
    """`driver` is for the turns alone: it is of their thread."""

    def __init__(
        self,
        thread_name: str,
        what: str,
        *,
        begin: Callable[[], Iterable[str]],
        end: Callable[[], None] = lambda: None,
        turn: Callable[[], float],
        wait: Callable[[float], object],
        wake: Callable[[], None],
        make_driver: Callable[[], Driver],
        noted: Callable[[str], None],
        after_failure_seconds: float,
    ) -> None:
        """`begin` is called first, and returns sentences on what is worse than it could be, `end` is called last;
        `turn` returns how many seconds to `wait`, unless somebody calls `wake`; `what` stands before the words of an
        error."""
        self.driver: Driver
        self.is_stopping = False
        self._thread_name = thread_name
        self._what = what
        self._begin = begin
        self._end = end
        self._turn = turn
        self._wait = wait
        self._wake = wake
        self._make_driver = make_driver
        self._noted = noted
        self._after_failure_seconds = after_failure_seconds
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the last turn is over."""
        self.is_stopping = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        name_thread(self._thread_name)
        self.driver = self._make_driver()
        try:
            for note in self._begin():
                if note:
                    self._noted(note)
            while not self.is_stopping:
                self._wait(self._turned())
        except Stopped:
            pass
        finally:
            self._end()
            self.driver.close()

    def _turned(self) -> float:
        try:
            return self._turn()
        except Stopped:
            raise
        except (OSError, EvenkeelError) as error:
            self._noted(f"{self._what}: {error}")
        except Exception:
            log.exception("%s", self._what)
        return self._after_failure_seconds
