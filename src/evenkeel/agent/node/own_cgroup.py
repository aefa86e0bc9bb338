"""A cgroup of the agent's own, beside that of the pods: whatever these do, the agent and the keeper have their turn,
and the end of the session in which they were started is not theirs.

The agent enters it before it starts anything, so that all it starts is in it too. It holds processes and nothing below
it, as cgroup v2 demands. Only what ends the pods as well takes it away again. Under systemd a unit has a cgroup of its
own already.
"""

import fcntl
import os
import time
from collections.abc import Mapping
from contextlib import suppress

from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup import names
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.tree import Naming, Version
from evenkeel.errors import EvenkeelError
from evenkeel.host.files import read_text

NAME = "agent"
_WEIGHT = {Version.V1: ("cpu.shares", "10240"), Version.V2: ("cpu.weight", "1000")}  # ten times the default
_LEAVE_SECONDS = 10.0
_PAUSE_SECONDS = 0.005


class OwnCgroup:
    """Where this process is, and where it came from."""

    def __init__(self, path: str, directories: tuple[str, ...], origins: tuple[str, ...]) -> None:
        self.path = path
        self.made: tuple[str, ...] = ()  # cgroups above it that were not there before
        self.claim = -1  # keeps other agents away as long as this process lives
        self._directories = directories
        self._origins = origins  # one for each

    def step_out(self) -> None:
        """This process alone, as far as that goes; the cgroup goes if nobody else is in it, and so do those above it
        that were not there before."""
        for directory, origin in zip(self._directories, self._origins, strict=True):
            top = directory.removesuffix(self.path)
            _move(os.getpid(), (origin, top))
            with suppress(OSError):
                os.rmdir(directory)
                for above in reversed(self.made):
                    os.rmdir(top + above)
        self._let_go()

    def leave(self) -> str:
        """Back to where the agent was started, with all that is here, and away with the cgroup. A sentence if it cannot
        be removed."""
        deadline = time.monotonic() + _LEAVE_SECONDS
        while True:
            for directory, origin in zip(self._directories, self._origins, strict=True):
                _empty(directory, (origin, directory.removesuffix(self.path)))
            try:
                for directory in self._directories:
                    if os.path.isdir(directory):
                        os.rmdir(directory)
            except OSError as error:
                if time.monotonic() > deadline:
                    return f"the agent's cgroup {self.path} stays: {(error.strerror or str(error)).lower()}"
                time.sleep(_PAUSE_SECONDS)  # somebody was started meanwhile, or is on its way out
            else:
                self._let_go()
                return ""

    def _let_go(self) -> None:
        if self.claim >= 0:
            os.close(self.claim)
            self.claim = -1


def path_for(config: KubeletConfiguration, driver: Driver, own: str) -> str | None:
    """The path of the agent's cgroup; None where it has none: `own` is /proc/self/cgroup."""
    root = names.pods_root(config.cgroup_root, per_qos=False)
    if driver.naming == Naming.SYSTEMD or not config.cgroups_per_qos or not root:
        return None
    if driver.version == Version.V2 and parse_own(own).get("", "").endswith(".service"):
        return None  # a unit's, and systemd's
    return names.to_cgroupfs(names.child(root, NAME))


def not_the_pods(config: KubeletConfiguration) -> tuple[str, ...]:
    """Where the agent's cgroup is, or was with another configuration: nothing that a plan for pods may remove."""
    root = names.pods_root(config.cgroup_root, per_qos=False)
    return (names.to_cgroupfs(names.child(root, NAME)),) if root else ()


def enter(config: KubeletConfiguration, driver: Driver) -> OwnCgroup | None:
    """Moves this process. None where it stays where it is. Raises CgroupError."""
    try:
        own = read_text("/proc/self/cgroup")
    except EvenkeelError:
        return None
    path = path_for(config, driver, own)
    if path is None:
        return None
    at = parse_own(own)
    directories = driver.files(path)
    missing = _missing_above(path, tuple(directories.values()))
    driver.create(path)
    claim = _claimed(config.cgroup_root, directories)
    by_directory = {
        directory: directory.removesuffix(path) + at.get(controller, at.get("", "/"))
        for controller, directory in directories.items()
    }
    entered = OwnCgroup(path, tuple(by_directory), tuple(by_directory.values()))
    entered.made = missing
    entered.claim = claim
    try:
        driver.add_process(path, os.getpid())
    except CgroupError:
        entered.step_out()  # of those hierarchies that let it in
        raise
    try:
        driver.write(path, *_WEIGHT[driver.version])
    except CgroupError:
        pass  # without the controller nobody has a weight
    return entered


def parse_own(text: str) -> Mapping[str, str]:
    """Where a process is, by controller; that of cgroup v2 has no name."""
    found = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _missing_above(path: str, directories: tuple[str, ...]) -> tuple[str, ...]:
    parts = path.split("/")[1:-1]
    above = ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]
    top = directories[0].removesuffix(path) if directories else ""
    return tuple(one for one in above if not os.path.isdir(top + one))


def _claimed(cgroup_root: str, directories: Mapping[str, str]) -> int:
    """Two agents below one root would each take the other's pods for strays, and end them. The kernel lets go of the
    lock when its holder ends, however it ends."""
    directory = next(iter(sorted(directories.values())), "")
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CgroupError((error.strerror or str(error)).lower(), path=directory) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise EvenkeelError(
            f"another agent has its pods below {cgroup_root}, with another state directory",
            hint="stop it first, or give another --cgroup-root",
        ) from None
    except OSError:
        pass  # no locks here: then nobody is kept away
    return descriptor


def _empty(directory: str, goals: tuple[str, ...]) -> None:
    """Moves everything in it to the first of the goals that takes it."""
    for pid in _pids(directory):
        _move(pid, goals)


def _move(pid: int, goals: tuple[str, ...]) -> None:
    for goal in goals:
        try:
            with open(f"{goal}/cgroup.procs", "w", encoding="ascii") as file:
                file.write(str(pid))
        except OSError:
            continue
        return


def _pids(directory: str) -> list[int]:
    try:
        with open(f"{directory}/cgroup.procs", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []
