"""The common part of the drivers for cgroup v1 and v2: making and removing cgroups, and killing their processes.

A driver has one or more hierarchies, and a cgroup of the plan is in all of them. v2 has one hierarchy, v1 one for each
mount.
"""

import errno
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from evenkeel.cgroup.diff import Observed
from evenkeel.cgroup.driver import CgroupError, Statistics
from evenkeel.cgroup.drivers.cgroupfs import GONE, Bounds, Cgroupfs, check_file
from evenkeel.cgroup.drivers.kernel_refusals import not_available, refusal
from evenkeel.cgroup.drivers.observation import Observer
from evenkeel.cgroup.drivers.open_files import OpenFiles
from evenkeel.cgroup.drivers.processes import await_deaths, is_dead, kill_process, listed, waits
from evenkeel.cgroup.kernel_files import CPUS, INHERITED
from evenkeel.cgroup.statistics import MOST_BYTES
from evenkeel.cgroup.tree import Cgroup, Naming, Tree, Version

PATIENCE_SECONDS = 10.0

_ROUND_SECONDS = 1.0  # after which the processes are listed again
_FREEZE_SECONDS = 0.2  # a round of killing does not wait longer for processes to freeze


class CgroupfsDriver(ABC):
    """Cgroups as directories. `patience_seconds` is how long processes may take to freeze or to die. For one thread at
    a time: one thread must not close a file that another reads."""

    version: Version
    _cpus_file: str  # the file with the CPUs that a cgroup gives to its children

    def __init__(
        self,
        mounts: Sequence[str],
        bounds: Bounds,
        naming: Naming = Naming.CGROUPFS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.naming = naming
        self._bounds = bounds
        self._patience_seconds = patience_seconds
        self._open_files = OpenFiles(self._open, self._has)
        self._hierarchies = [Cgroupfs(mount, self._open_files.make_room) for mount in mounts]
        self._observer = Observer(
            self._open_files, self._hierarchies, bounds, lambda path: self._has(path, ""), self._note_absent
        )
        self._parsed: dict[str, tuple[list[bytes], Statistics]] = {}
        self._last_tree: Tree | None = None
        self._inheriting: list[str] = []
        self._lacking: set[str] = set()  # files that this kernel does not have

    def close(self) -> None:
        """Closes all files that stay open between calls."""
        self._observer.close()
        self._open_files.close()
        for hierarchy in self._hierarchies:
            hierarchy.close()

    def observe(self, tree: Tree) -> Observed:
        if tree is not self._last_tree:
            self._last_tree, self._inheriting = tree, _inheriting(tree.cgroups)
        return self._with_inherited(self._observer.observe(tree), self._inheriting)

    def observe_only(self, cgroups: Sequence[Cgroup]) -> Observed:
        return self._with_inherited(self._observer.observe_only(cgroups), _inheriting(cgroups))

    def lacking(self, file: str) -> CgroupError | None:
        """Why no cgroup of this machine can have the file; None if one can, as far as is known."""
        if file in self._lacking:
            return not_available(self._bounds.root, file)
        return self._without_controller(self._bounds.root, file)

    def contents(self, path: str, files: Sequence[str]) -> Sequence[bytes]:
        if not self._open_files.has_open(path):
            self._bounds.to_read(path)
        for file in files:
            check_file(path, file)
        contents = self._open_files.contents(path, files, MOST_BYTES)
        if contents is None:
            raise CgroupError(f"there is no cgroup {path}", path=path, reason="ENOENT")
        return contents

    def create(self, path: str) -> None:
        self._bounds.to_set(path)
        missing = [path]
        try:
            while missing:
                try:
                    self._make(missing[-1])
                    missing.pop()
                except FileNotFoundError:
                    if len(missing) == path.count("/"):
                        raise
                    missing.append(missing[-1].rpartition("/")[0])
        except OSError as error:
            raise refusal(error, "make", missing[-1]) from None

    def write(self, path: str, file: str, value: str) -> None:
        self._bounds.to_set(path)
        hierarchy = self._hierarchy_of(path, file)
        try:
            if file == CPUS and value == INHERITED:
                self._inherit_cpus(path)
            else:
                hierarchy.write(path, file, value)
        except FileNotFoundError as error:
            if not hierarchy.exists(path):
                raise refusal(error, "write", path, file, value) from None
            self._write_absent(path, file, value)
        except OSError as error:
            raise refusal(error, "write", path, file, value) from None

    def remove(self, path: str) -> None:
        self._bounds.to_remove(path)
        refused: CgroupError | None = None
        for _ in waits(self._patience_seconds):
            below = self._below(path)
            if any(self._pids(one) for one in below):
                self.kill(path)
            refused = self._remove_directories(below)
            if refused is None:
                return
            self._await_empty(path, self._patience_seconds)
        assert refused is not None
        raise refused

    def processes(self, path: str) -> tuple[int, ...]:
        self._bounds.to_read(path)
        return tuple(sorted({pid for one in self._below(path) for pid in self._pids(one)}))

    def add_process(self, path: str, pid: int) -> None:
        self._bounds.to_set(path)
        for hierarchy in self._hierarchies:
            try:
                hierarchy.write(path, "cgroup.procs", str(pid))
            except OSError as error:
                raise refusal(error, "move", path, "cgroup.procs", f"process {pid}") from None

    def kill(self, path: str) -> None:
        self._bounds.to_remove(path)
        left = self._alive(path)
        if not left:
            return
        if os.getpid() in left:
            raise CgroupError(f"cannot end the processes of cgroup {path}: this one is in it", path=path)
        deadline = time.monotonic() + self._patience_seconds
        is_sent = self._kill_at_once(path)
        while left and time.monotonic() < deadline:
            if not is_sent:
                self._kill_frozen(path)
            await_deaths(left, min(deadline - time.monotonic(), _ROUND_SECONDS))
            left = self._alive(path)
        if not left:
            return
        raise CgroupError(
            f"cgroup {path} could not be emptied: {listed(left)} did not die in {self._patience_seconds:g} s",
            path=path,
            hint="they wait for a device or a network filesystem, or are of another PID namespace",
        )

    def send_kill(self, path: str) -> None:
        self._bounds.to_remove(path)
        if not self._kill_at_once(path):
            for pid in self.processes(path):
                kill_process(pid, path)

    @abstractmethod
    def freeze(self, path: str, *, frozen: bool) -> None: ...

    @abstractmethod
    def send_freeze(self, path: str, *, frozen: bool) -> None: ...

    def allow_reading(self, path: str) -> None:
        if path not in self._bounds.readable:
            self._bounds = self._bounds._replace(readable=(*self._bounds.readable, path))

    @abstractmethod
    def thaw_write(self, path: str) -> tuple[str, str]: ...

    @abstractmethod
    def statistics(self, path: str) -> Statistics: ...

    @abstractmethod
    def files(self, path: str) -> Mapping[str, str]: ...

    # What v1 and v2 do differently

    @abstractmethod
    def _make(self, path: str) -> None:
        """Makes the cgroup in an existing one, ready for processes. It may exist already. Raises OSError."""

    @abstractmethod
    def _hierarchy_of(self, path: str, file: str) -> Cgroupfs:
        """The hierarchy that has the file. Raises CgroupError, which says why none has it."""

    @abstractmethod
    def _open(self, path: str, file: str) -> int:
        """A descriptor to read the file with. Raises OSError."""

    @abstractmethod
    def _has(self, path: str, file: str) -> bool:
        """Whether the cgroup exists in the hierarchy of `file`."""

    @abstractmethod
    def _inherit_cpus(self, path: str) -> None:
        """Gives the cgroup the CPUs of the cgroup above it. Raises OSError."""

    @abstractmethod
    def _kill_at_once(self, path: str) -> bool:
        """Makes the kernel kill everything in one step; False if it cannot."""

    @abstractmethod
    def _set_frozen(self, path: str, *, frozen: bool) -> bool:
        """Freezes or thaws the cgroup and all below it; False if that is not possible."""

    @abstractmethod
    def _await_frozen(self, path: str, *, frozen: bool, seconds: float) -> bool:
        """Waits until the cgroup is frozen, or thawed; False if it takes longer."""

    @abstractmethod
    def _await_empty(self, path: str, seconds: float) -> None:
        """Waits until no process is left in the cgroup and below it, if the kernel notifies of that."""

    @abstractmethod
    def _without_controller(self, path: str, file: str) -> CgroupError | None:
        """The error if the machine does not have the controller of the file."""

    @abstractmethod
    def _write_absent(self, path: str, file: str, value: str) -> None:
        """An existing cgroup has no such file: finds another way to set it, or raises CgroupError."""

    @abstractmethod
    def _note_absent(self, path: str, file: str) -> None:
        """The cgroup has no such file: records it if the kernel does not have it at all."""

    @abstractmethod
    def _before_removal(self, path: str) -> None:
        """Called before a cgroup is removed."""

    @abstractmethod
    def _after_removal(self, path: str) -> None:
        """Called after a cgroup was removed from every hierarchy that we use."""

    # What v1 and v2 share

    def _with_inherited(self, observed: Observed, paths: Sequence[str]) -> Observed:
        """For cgroups that should have the CPUs of the cgroup above: the value INHERITED if they have the same CPUs."""
        same = {
            path: {**observed[path], CPUS: INHERITED}
            for path in paths
            if observed.get(path, {}).get(CPUS) and observed[path][CPUS] == self._cpus_above(path)
        }
        return {**observed, **same} if same else observed

    def _cpus_above(self, path: str) -> str:
        above = path.rpartition("/")[0] or "/"
        try:
            return self._hierarchy_of(path, CPUS).read(above, self._cpus_file).decode("latin-1").rstrip("\n")
        except OSError as error:
            raise refusal(error, "read", above, self._cpus_file) from None

    def _figures(
        self, path: str, contents: list[bytes], parse: Callable[[Sequence[bytes]], Statistics]
    ) -> Statistics:
        """The statistics. If no file has changed, the same object as last time."""
        last = self._parsed.get(path)
        if last is not None and last[0] == contents:
            return last[1]
        try:
            figures = parse(contents)
        except ValueError:
            raise CgroupError(f"the figures of cgroup {path} cannot be read", path=path) from None
        self._parsed[path] = (contents, figures)
        return figures

    def _below(self, path: str) -> list[str]:
        """The cgroup and all below it, in any hierarchy, children before parents."""
        found = [path]
        for one in found:  # which grows meanwhile
            names = {name for hierarchy in self._hierarchies for name in hierarchy.children(one)}
            found += [f"{one.rstrip('/')}/{name}" for name in sorted(names)]
        return found[::-1]

    def _pids(self, path: str) -> set[int]:
        pids: set[int] = set()
        for hierarchy in self._hierarchies:
            try:
                pids.update(map(int, hierarchy.read(path, "cgroup.procs").split()))
            except OSError as error:
                if error.errno not in GONE:
                    raise refusal(error, "read", path, "cgroup.procs") from None
        return pids

    def _alive(self, path: str) -> list[int]:
        return [pid for pid in self.processes(path) if not is_dead(pid)]

    def _remove_directories(self, paths: Sequence[str]) -> CgroupError | None:
        """Removes them; returns an error if one is still busy, because the kernel may need a moment."""
        for path in paths:
            self._open_files.forget(path)
            self._parsed.pop(path, None)
            self._before_removal(path)
            for hierarchy in self._hierarchies:
                try:
                    hierarchy.remove(path)
                except OSError as error:
                    refused = refusal(error, "remove", path)
                    if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
                        return refused
                    raise refused from None
            self._after_removal(path)
        return None

    def _kill_frozen(self, path: str) -> None:
        """Freezes the processes, so that none can fork meanwhile, sends SIGKILL, and thaws them, so that they can
        die."""
        if self._set_frozen(path, frozen=True):
            self._await_frozen(path, frozen=True, seconds=_FREEZE_SECONDS)
        for pid in self.processes(path):
            kill_process(pid, path)
        self._set_frozen(path, frozen=False)

    def _wait_frozen(self, path: str, *, frozen: bool) -> None:
        if self._await_frozen(path, frozen=frozen, seconds=self._patience_seconds):
            return
        raise CgroupError(
            f"cgroup {path} did not {'freeze' if frozen else 'thaw'} in {self._patience_seconds:g} s",
            path=path,
            hint="a process in it waits for a device or a network filesystem, or a cgroup above it is frozen",
        )


def _inheriting(cgroups: Sequence[Cgroup]) -> list[str]:
    return [cgroup.path for cgroup in cgroups if cgroup.value(CPUS) == INHERITED]
