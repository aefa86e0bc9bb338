"""The thread of a watch. It takes a turn, waits for the time that the turn returned or until it is woken, and repeats.

An error in a turn is reported. The next turn follows after a pause. Only `stop` ends the thread.
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
    """The agent is stopping in the middle of a turn."""


class Latest(Generic[T]):
    """Passes values from one thread to another that needs only the latest. Each method is one operation on a deque, so
    no value is lost and no thread waits for a lock."""

    def __init__(self) -> None:
        self._values: deque[T] = deque(maxlen=1)

    def put(self, value: T) -> None:
        """Replaces a value that was not taken yet."""
        self._values.append(value)

    def take(self) -> T | None:
        """Returns the latest value, or None if there is no new one since the last call."""
        try:
            return self._values.pop()
        except IndexError:
            return None


class LoopCalls:
    """Calls from other threads into the agent's event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self, function: Callable[..., None], *arguments: object) -> None:
        """Returns at once. The loop calls the function soon. After the loop has ended, nothing is called."""
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
        """`begin` is called first. It returns sentences about anything that makes the watch less effective. `turn`
        returns the seconds to `wait` before the next turn; a call of `wake` ends the wait. `end` is called last. `what`
        is the start of each error message."""
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
        """Stops the thread, and returns after its last turn."""
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
