"""The agent's own cgroup, beside the pods' cgroup. Its CPU weight is high, so the agent and the supervisor get CPU time
even under load from pods. It also lets both survive the end of the session in which they were started.

The agent enters this cgroup before it starts any process. So all processes that it starts are in the cgroup too. The
cgroup has processes but no child cgroups, as cgroup v2 requires. Only in the freezer hierarchy of v1 it has one, which
is always empty (`pressure.memory.freezer.Standby`). It is removed only when the pods are ended as well.
Under systemd a unit already has its own cgroup.
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
from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.files import read_text
from evenkeel.pressure.memory.cgroup_writes import AGENT, STANDBY

_WEIGHT = {Version.V1: ("cpu.shares", "10240"), Version.V2: ("cpu.weight", "1000")}  # ten times the default
_LEAVE_SECONDS = 10.0
_PAUSE_SECONDS = 0.005


class OwnCgroup:
    """The cgroup in which this process is, and the cgroup from which it came."""

    def __init__(self, path: str, directories: tuple[str, ...], origins: tuple[str, ...]) -> None:
        self.path = path
        self.made: tuple[str, ...] = ()  # cgroups above it that did not exist before
        self.claim = -1  # a lock: keeps other agents out while this process lives
        self._directories = directories
        self._origins = origins  # one for each directory

    def step_out(self) -> None:
        """Moves only this process out of the cgroup, if the kernel allows it. Then removes the cgroup if it is empty,
        and the cgroups above it that did not exist before."""
        for directory, origin in zip(self._directories, self._origins, strict=True):
            top = directory.removesuffix(self.path)
            _move(os.getpid(), (origin, top))
            _remove_standby(directory)
            with suppress(OSError):
                os.rmdir(directory)
                for above in reversed(self.made):
                    os.rmdir(top + above)
        self._let_go()

    def leave(self) -> str:
        """Moves all processes of the cgroup back to where the agent was started, and removes the cgroup. Returns a
        message if it cannot be removed, else an empty string."""
        deadline = time.monotonic() + _LEAVE_SECONDS
        while True:
            for directory, origin in zip(self._directories, self._origins, strict=True):
                _empty(directory, (origin, directory.removesuffix(self.path)))
            try:
                for directory in self._directories:
                    if os.path.isdir(directory):
                        _remove_standby(directory)
                        os.rmdir(directory)
            except OSError as error:
                if time.monotonic() > deadline:
                    return f"the agent's cgroup {self.path} stays: {reason(error)}"
                time.sleep(_PAUSE_SECONDS)  # a process was just started, or is just ending
            else:
                self._let_go()
                return ""

    def _let_go(self) -> None:
        if self.claim >= 0:
            os.close(self.claim)
            self.claim = -1


def path_for(config: KubeletConfiguration, driver: Driver, own: str) -> str | None:
    """The path of the agent's cgroup; None if it has none. `own` is the content of /proc/self/cgroup."""
    root = names.pods_root(config.cgroup_root, per_qos=False)
    if driver.naming == Naming.SYSTEMD or not config.cgroups_per_qos or not root:
        return None
    if driver.version == Version.V2 and parse_own(own).get("", "").endswith(".service"):
        return None  # it is the cgroup of a unit, and belongs to systemd
    return names.to_cgroupfs(names.child(root, AGENT))


def not_the_pods(config: KubeletConfiguration) -> tuple[str, ...]:
    """The path that the agent's cgroup has, or had with another configuration. A plan for pods must not remove it."""
    root = names.pods_root(config.cgroup_root, per_qos=False)
    return (names.to_cgroupfs(names.child(root, AGENT)),) if root else ()


def enter(config: KubeletConfiguration, driver: Driver) -> OwnCgroup | None:
    """Moves this process into the agent's cgroup. Returns None if the process stays where it is. Raises CgroupError."""
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
    claim = claimed(config.cgroup_root, directories)
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
        entered.step_out()  # of the hierarchies that it has entered
        raise
    try:
        driver.write(path, *_WEIGHT[driver.version])
    except CgroupError:
        pass  # without the cpu controller there are no weights
    if driver.version == Version.V1 and "freezer" in directories:
        with suppress(OSError):  # one of an earlier agent is there; or a kill takes 0.1 ms longer
            os.mkdir(f"{directories['freezer']}/{STANDBY}")
    return entered


def parse_own(text: str) -> Mapping[str, str]:
    """The cgroup of a process, by controller. The name of the cgroup v2 hierarchy is empty."""
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


def claimed(cgroup_root: str, directories: Mapping[str, str]) -> int:
    """Locks the cgroup root for this agent. Two agents below one root would each end the other's pods as unknown pods.
    The kernel releases the lock when its holder ends, for any reason."""
    directory = next(iter(sorted(directories.values())), "")
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CgroupError(reason(error), path=directory) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise EvenkeelError(
            f"another agent has its pods below {cgroup_root}, with another state directory",
            hint="stop it first, or give another --cgroup-root",
        ) from None
    except OSError:
        pass  # locks are not supported: other agents are not kept out
    return descriptor


def _remove_standby(directory: str) -> None:
    with suppress(OSError):  # only the freezer hierarchy has it
        os.rmdir(f"{directory}/{STANDBY}")


def _empty(directory: str, goals: tuple[str, ...]) -> None:
    """Moves each process in the directory to the first goal that accepts it."""
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
