"""The thread of a watch: it takes a turn, waits for as long as the turn said or until it is woken, and takes the next.

An error in a turn is reported, and the next turn comes after a while. Nothing ends the thread but `stop`.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from evenkeel.cgroup.driver import Driver
from evenkeel.errors import EvenkeelError
from evenkeel.host.protection import name_thread

log = logging.getLogger(__name__)

T = TypeVar("T")


class Stopped(Exception):
    """The agent ends in the middle of a turn."""


class Latest(Generic[T]):
    """Hands values from one thread to another, which wants the latest only. Each method is one operation on a deque, so
    no value is lost and nobody waits for a lock."""

    def __init__(self) -> None:
        self._values: deque[T] = deque(maxlen=1)

    def put(self, value: T) -> None:
        """Replaces a value that was not taken."""
        self._values.append(value)

    def take(self) -> T | None:
        """None if there is none since the last time."""
        try:
            return self._values.pop()
        except IndexError:
            return None


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
    """Owns the thread and its driver, which no other thread may use."""

    def __init__(
        self,
        thread_name: str,
        what: str,
        *,
        begin: Callable[[], Iterable[str]],
        turn: Callable[[Driver], float],
        end: Callable[[Driver], None],
        wait: Callable[[float], object],
        wake: Callable[[], None],
        make_driver: Callable[[], Driver],
        noted: Callable[[str], None],
        after_failure_seconds: float,
    ) -> None:
        """`begin` is called first, and returns sentences on what makes the watch worse than it could be. `turn` returns
        how many seconds to `wait` for the next, unless somebody calls `wake`. `end` is called last. `what` begins the
        sentence of an error."""
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
        driver = self._make_driver()
        try:
            for note in self._begin():
                if note:
                    self._noted(note)
            while not self.is_stopping:
                self._wait(self._turned(driver))
        except Stopped:
            pass
        finally:
            self._end(driver)
            driver.close()

    def _turned(self, driver: Driver) -> float:
        try:
            return self._turn(driver)
        except Stopped:
            raise
        except (OSError, EvenkeelError) as error:
            self._noted(f"{self._what}: {error}")
        except Exception:
            log.exception("%s", self._what)
        return self._after_failure_seconds
