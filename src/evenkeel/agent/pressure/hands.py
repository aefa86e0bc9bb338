"""What relieves memory without ending anybody: taking back what can be written out or made again.

The kernel does it in the time of whoever asks, which may be long: a thread of its own asks, and the watch goes on
watching. cgroup v2 has a file for it; v1 can be told to take back all that it can.
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping

from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.tree import Version
from evenkeel.host.protection import run_soon

log = logging.getLogger(__name__)

_RECLAIM, _EMPTY = "memory.reclaim", "memory.force_empty"


class Hands:
    """For one thread; the work is done by another. Paths are those of cgroups, as planned."""

    def __init__(self, make_driver: Callable[[], Driver]) -> None:
        self._make_driver = make_driver
        self._work: queue.SimpleQueue[tuple[str, Mapping[str, int]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="evenkeel-hands", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join(timeout=2.0)

    def reclaim(self, version: Version, bytes_of: Mapping[str, int]) -> None:
        """Takes up to that much from each: never by ending a process."""
        self._work.put((_RECLAIM if version == Version.V2 else _EMPTY, bytes_of))

    def _run(self) -> None:
        run_soon()
        driver = self._make_driver()
        try:
            while (work := self._work.get()) is not None:
                file, bytes_of = work
                for path, amount in bytes_of.items():
                    self._write(driver, path, file, amount)
        finally:
            driver.close()

    def _write(self, driver: Driver, path: str, file: str, amount: int) -> None:
        value = "0" if file == _EMPTY else str(amount)
        try:
            driver.write(path, file, value)
        except CgroupError as error:
            # Less was there to take than was asked for, or the cgroup is gone: both are fine.
            if error.reason not in ("EAGAIN", "ENOENT", "ENODEV", "EBUSY"):
                log.warning("%s", error)
