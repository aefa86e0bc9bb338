"""The brake: pods that stand still until memory is back (`policy.eviction.headroom`), for a second at the most.

They are frozen by the kernel, and one that is killed meanwhile is thawed, so that it can die. If the agent is killed in
that second, its guard (`guarding`) thaws them; if that was killed too, the next agent does: `thaw` is for the start.
"""

from collections.abc import Iterable

from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.pressure.guard_client import GuardClient

_MOST_SECONDS = 1.0
_PAUSE_SECONDS = 1.0  # after that long, before it is used again


class Freezer:
    """For one thread."""

    def __init__(self, guard: GuardClient | None = None) -> None:
        self._guard = guard
        self.held: set[str] = set()  # paths of cgroups, as planned
        self._since: float | None = None
        self._not_before = 0.0

    def can_hold(self, now: float) -> bool:
        """Not for ever: whoever comes to rely on it is to get on, or to go."""
        if self._since is None:
            return now >= self._not_before
        return now - self._since < _MOST_SECONDS

    def hold(self, driver: Driver, paths: Iterable[str], now: float) -> None:
        if self._since is None:
            self._since = now
        wanted = [path for path in paths if path not in self.held]
        self.held.update(wanted)
        if self._guard is not None:  # before they are frozen: the agent may be killed at any moment
            self._guard.hold(_thawing(driver, wanted))
        for path in wanted:
            _freeze(driver, path, frozen=True)

    def let_go(self, driver: Driver, path: str) -> None:
        """This one was told to end."""
        if path in self.held:
            self.held.discard(path)
            _freeze(driver, path, frozen=False)
            self._free(driver, (path,))

    def release(self, driver: Driver, now: float) -> None:
        """All of them."""
        if self._since is None:
            return
        if now - self._since >= _MOST_SECONDS:
            self._not_before = now + _PAUSE_SECONDS
        self._since = None
        thaw(driver, self.held)
        self._free(driver, self.held)
        self.held.clear()

    def _free(self, driver: Driver, paths: Iterable[str]) -> None:
        if self._guard is not None:
            self._guard.free(_thawing(driver, paths))

    @property
    def is_holding(self) -> bool:
        return self._since is not None


def thaw(driver: Driver, paths: Iterable[str]) -> None:
    for path in paths:
        _freeze(driver, path, frozen=False)


def _thawing(driver: Driver, paths: Iterable[str]) -> dict[str, str]:
    """What thaws them, by the file."""
    try:
        return dict(driver.thaw_write(path) for path in paths)
    except CgroupError:
        return {}  # the machine has nothing to freeze with


def _freeze(driver: Driver, path: str, *, frozen: bool) -> None:
    try:
        driver.send_freeze(path, frozen=frozen)
    except CgroupError:
        pass  # it is gone, or the machine has nothing to freeze with: then the kernel's killer is what is left
