"""The driver for cgroups that systemd makes: pods as slices, containers as scopes, on cgroup v2 (A24, B10).

Three things differ from a cgroup filesystem of our own:

- systemd writes the files of its units again when it is reloaded, when one of their properties changes, and when a
  neighbouring unit needs another controller. So a value is set as a property wherever a property can hold it, and then
  a reload keeps it (E9). The other values are written to the file beside systemd, and again after each call that may
  have undone them. What a reload undoes is drift: the next pass repairs and reports it.
- A scope exists only while it holds a process. But the cgroup of a container must exist with all its limits before the
  first instruction of the container (A17). So `create` starts a placeholder: a process that only sleeps, in a cgroup of
  its own below the scope, apart from the container's processes. `add_process` kills it once the first real process is
  there. The placeholder survives the agent, as everything in a scope does, and `remove` kills it. Starting the scope
  with the container's own process instead would let that process run without limits until they are set.
- systemd removes a scope when its last process ends. To restart the container, the scope is created again. What must
  outlive it, such as the number of OOM kills, is counted in the slice of the pod too.
"""

import errno
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from evenkeel.cgroup.diff import Observed
from evenkeel.cgroup.driver import CgroupError, Statistics
from evenkeel.cgroup.drivers.base_driver import PATIENCE_SECONDS
from evenkeel.cgroup.drivers.cgroupfs import Bounds, Cgroupfs
from evenkeel.cgroup.drivers.dbus import NO_SUCH_UNIT, UNIT_EXISTS, Systemd, SystemdError
from evenkeel.cgroup.drivers.kernel_refusals import refusal
from evenkeel.cgroup.drivers.processes import PLACEHOLDER, reap, start_placeholder
from evenkeel.cgroup.drivers.systemd_units import (
    SCOPE,
    SLICE,
    Property,
    can_hold,
    first_properties,
    properties,
    unit_of,
)
from evenkeel.cgroup.drivers.v2 import V2Driver, path_from_root
from evenkeel.cgroup.kernel_files import same_value
from evenkeel.cgroup.tree import Cgroup, Naming, Tree, Version


class SystemdDriver:
    version = Version.V2
    naming = Naming.SYSTEMD

    def __init__(
        self,
        mount: str,
        bounds: Bounds,
        systemd: Systemd | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._systemd = Systemd() if systemd is None else systemd
        self._bounds = bounds
        self._cgroupfs = V2Driver(mount, bounds, Naming.SYSTEMD, patience_seconds)
        self._fs = Cgroupfs(mount)
        self._running: set[str] = set()  # paths whose units were seen to run in this pass
        self._beside: dict[str, dict[str, str]] = {}  # path: file: value that no property of systemd holds

    def close(self) -> None:
        self._systemd.close()
        self._cgroupfs.close()
        self._fs.close()

    def lacking(self, file: str) -> CgroupError | None:
        return self._cgroupfs.lacking(file)

    def observe(self, tree: Tree) -> Observed:
        self._running.clear()
        self._fs.close()
        observed = self._cgroupfs.observe(tree)
        self._beside = {}
        self._note_beside(tree.cgroups, observed)
        return observed

    def observe_only(self, cgroups: Sequence[Cgroup]) -> Observed:
        for cgroup in cgroups:
            self._running.discard(cgroup.path)
        observed = self._cgroupfs.observe_only(cgroups)
        self._note_beside(cgroups, observed)
        return observed

    def create(self, path: str) -> None:
        self._bounds.to_set(path)
        unit = unit_of(path)
        if unit is None:
            self._cgroupfs.create(path)
            return
        parent = path.rpartition("/")[0]
        if parent and not self._fs.exists(parent):
            self.create(parent)
        if not self._fs.exists(path):
            self._running.discard(path)
        elif self._runs(path, unit):
            return
        with self._restoring(path):
            self._start(path, unit)

    def write(self, path: str, file: str, value: str) -> None:
        self._bounds.to_set(path)
        unit = unit_of(path)
        wanted = properties(file, value) if unit is not None else ()
        if unit is None or not wanted or not self._fs.exists(path) or not self._adopted(path, unit):
            self._write_beside(path, file, value)
            return
        with self._restoring(path), _about(path, file):
            self._beside.get(path, {}).pop(file, None)
            self._systemd.set_properties(unit, wanted)
        if not same_value(file, value, self._read(path, file)):
            self._write_beside(path, file, value)

    def remove(self, path: str) -> None:
        self._bounds.to_remove(path)
        self._cgroupfs.kill(path)
        unit = self._unit_at(path)
        if unit is not None:
            with self._restoring(path):
                self._stop(path, unit)
        self._cgroupfs.remove(path)  # what no unit has made
        self._running = {one for one in self._running if not f"{one}/".startswith(f"{path}/")}
        self._beside = {
            one: files for one, files in self._beside.items() if not f"{one}/".startswith(f"{path}/")
        }

    def processes(self, path: str) -> tuple[int, ...]:
        every = self._cgroupfs.processes(path)
        ours = {pid for one in self._placeholders(path) for pid in self._cgroupfs.processes(one)}
        return tuple(pid for pid in every if pid not in ours)

    def add_process(self, path: str, pid: int) -> None:
        """Moves a process into the cgroup. A process that was cloned into it must be added too: only then the scope
        ends with the container."""
        self._cgroupfs.add_process(path, pid)
        if path.endswith(SCOPE):
            place = f"{path}/{PLACEHOLDER}"
            holding = self._cgroupfs.processes(place) if self._fs.exists(place) else ()
            self._cgroupfs.remove(place)
            reap(holding)

    def kill(self, path: str) -> None:
        self._cgroupfs.kill(path)

    def send_kill(self, path: str) -> None:
        self._cgroupfs.send_kill(path)

    def freeze(self, path: str, *, frozen: bool) -> None:
        self._cgroupfs.freeze(path, frozen=frozen)

    def send_freeze(self, path: str, *, frozen: bool) -> None:
        self._cgroupfs.send_freeze(path, frozen=frozen)

    def allow_reading(self, path: str) -> None:
        self._cgroupfs.allow_reading(path)

    def thaw_write(self, path: str) -> tuple[str, str]:
        return self._cgroupfs.thaw_write(path)

    def statistics(self, path: str) -> Statistics:
        return self._cgroupfs.statistics(path)

    def contents(self, path: str, files: Sequence[str]) -> Sequence[bytes]:
        return self._cgroupfs.contents(path, files)

    def files(self, path: str) -> Mapping[str, str]:
        return self._cgroupfs.files(path)

    # Units

    def _unit_at(self, path: str) -> str | None:
        """The unit that runs at `path`. The name alone proves nothing: any process can make a directory
        `ssh.service`."""
        try:
            unit = unit_of(path)
        except CgroupError:
            return None
        with _about(path):
            return unit if unit is not None and self._systemd.cgroup_of(unit) == path else None

    def _runs(self, path: str, unit: str) -> bool:
        if path not in self._running:
            with _about(path):
                place = self._systemd.cgroup_of(unit)
            if place and place != path:
                raise CgroupError(
                    f"{unit} runs at {place}, not at {path}",
                    path=path,
                    hint="two agents with one pod? Names of units are one for the whole machine; "
                    f"systemctl stop '{unit}' ends the other",
                )
            if not place:
                return False
            self._running.add(path)
        return True

    def _adopted(self, path: str, unit: str) -> bool:
        """Whether the unit runs. A slice whose cgroup was made without systemd is started."""
        if not self._runs(path, unit):
            if not unit.endswith(SLICE):
                return False
            self._start(path, unit)
        return True

    def _start(self, path: str, unit: str) -> None:
        if not unit.endswith((SLICE, SCOPE)):
            raise CgroupError(
                f"cgroup {path} is that of a unit of systemd which does not run",
                path=path,
                reason="ENOENT",
                hint=f"systemctl start '{unit}'",
            )
        if self._runs(path, unit):  # the cgroup of an idle unit was removed by others
            self._stop(path, unit)
        if unit.endswith(SLICE):
            self._start_slice(path, unit)
        else:
            self._start_scope(path, unit)
        self._running.add(path)

    def _stop(self, path: str, unit: str) -> None:
        with _about(path):
            try:
                self._systemd.stop(unit)
            except SystemdError as error:
                if error.name != NO_SUCH_UNIT:
                    raise

    def _start_slice(self, path: str, unit: str) -> None:
        with _about(path):
            try:
                self._systemd.start_transient(unit, first_properties(path))
            except SystemdError as error:
                if error.name != UNIT_EXISTS:
                    raise
                self._systemd.start(unit)  # it has a unit file, with settings of its owner

    def _start_scope(self, path: str, unit: str) -> None:
        pid = start_placeholder(path)
        wanted = (*first_properties(path), Property("PIDs", "au", (pid,)))
        place = f"{path}/{PLACEHOLDER}"
        try:
            with _about(path):
                try:
                    self._systemd.start_transient(unit, wanted)
                except SystemdError as error:
                    if error.name != UNIT_EXISTS:
                        raise
                    if pid not in self._cgroupfs.processes(path):  # otherwise only the answer was lost
                        self._stop(path, unit)  # an earlier one still runs
                        self._systemd.start_transient(unit, wanted)
            try:
                self._fs.make(place)
                self._fs.write(place, "cgroup.procs", str(pid))
            except OSError as error:
                raise refusal(error, "make", place) from None
        except CgroupError:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            reap((pid,))
            raise

    def _placeholders(self, path: str) -> Iterator[str]:
        if path.endswith(SCOPE):
            if self._fs.exists(f"{path}/{PLACEHOLDER}"):
                yield f"{path}/{PLACEHOLDER}"
            return
        for name in self._fs.children(path):
            if name.endswith((SLICE, SCOPE)):
                yield from self._placeholders(f"{path.rstrip('/')}/{name}")

    # Values beside systemd

    def _note_beside(self, cgroups: Sequence[Cgroup], observed: Observed) -> None:
        """Records the values that are as wanted and that no property of systemd holds."""
        for path, _, settings, *_ in cgroups:
            found = observed.get(path, {})
            for file, value, _, _ in settings:
                if file in found and not can_hold(file, value) and same_value(file, value, found[file]):
                    self._beside.setdefault(path, {})[file] = value

    def _write_beside(self, path: str, file: str, value: str) -> None:
        self._cgroupfs.write(path, file, value)
        self._beside.setdefault(path, {})[file] = value

    @contextmanager
    def _restoring(self, path: str) -> Iterator[None]:
        """Restores what systemd changes besides what it is asked for. It applies all settings of a unit again when one
        of them changes, and when the controllers of the unit or of its children change."""
        line = path_from_root(path)
        before = [self._read(one, "cgroup.subtree_control") for one in line]
        yield
        changed = {
            one
            for one, had in zip(line, before, strict=True)
            if self._read(one, "cgroup.subtree_control") != had
        }
        for other, files in self._beside.items():
            if other == path or other in changed or (other.rpartition("/")[0] or "/") in changed:
                for file, value in files.items():
                    now = self._read(other, file)
                    if now and not same_value(file, value, now):
                        with suppress(CgroupError):  # the next pass repairs it
                            self._cgroupfs.write(other, file, value)

    def _read(self, path: str, file: str) -> str:
        """The content of the file; empty if there is no such file or cgroup."""
        try:
            return self._fs.read(path, file).decode("latin-1").rstrip("\n")
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return ""
            raise refusal(error, "read", path, file) from None


@contextmanager
def _about(path: str, file: str = "") -> Iterator[None]:
    """Errors of systemd get the path of the cgroup that they are about."""
    try:
        yield
    except SystemdError as error:
        error.path, error.file = path, file
        error.reason = "ENOENT" if error.name == NO_SUCH_UNIT else ""
        raise
