"""Freezes a pod while its disk is counted, so that it cannot move a directory away from the walk.

A pod that renames a directory all the time hides it: the walk reads a name that no directory has any more when it is
opened. Only a pod whose walk missed something is frozen, for two seconds at most. A guard thaws it if the agent is
killed meanwhile (`pressure.watch.guard`). It runs only for that moment, since such pods are rare.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.pressure.watch.guard_client import GuardClient


@contextmanager
def frozen(driver: Driver, path: str, noted: Callable[[str], None]) -> Iterator[bool]:
    """Freezes the cgroup at `path`. Yields False if it cannot be frozen. It may take a moment until all its processes
    are. The watch over memory may thaw it before, which does no harm."""
    guard = GuardClient(_NoWaiter(), noted)
    is_frozen, file = False, ""
    try:
        with suppress(CgroupError):  # the cgroup is gone, or the machine cannot freeze
            file, thawed = driver.thaw_write(path)
            guard.start()
            if guard.pid is not None:
                guard.hold({file: thawed})  # before the freeze: this process may be killed at any moment
                driver.send_freeze(path, frozen=True)
                is_frozen = True
        yield is_frozen
    finally:
        if is_frozen:
            with suppress(CgroupError):
                driver.send_freeze(path, frozen=False)
                guard.free((file,))
        guard.close()  # it writes what was not freed


class _NoWaiter:
    """The guard lives for a moment. If it ends before that, nothing needs to be done."""

    def call_when_ready(self, descriptor: int, call: Callable[[], None]) -> None: ...
    def forget(self, descriptor: int) -> None: ...
