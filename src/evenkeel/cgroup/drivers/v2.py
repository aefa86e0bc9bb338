"""The driver for cgroup v2: one hierarchy, in which each cgroup enables controllers for its children.

A cgroup with enabled controllers may hold no processes itself, except the root. So only the leaves of the tree hold
processes: containers and the infrastructure of pods. `cgroup.kernel_files` has the files and their values.
"""

import errno
import os
import select
import time
from collections.abc import Callable, Mapping

from evenkeel.cgroup.driver import CgroupError, Statistics
from evenkeel.cgroup.drivers.base_driver import PATIENCE_SECONDS, CgroupfsDriver
from evenkeel.cgroup.drivers.cgroupfs import GONE, Bounds, Cgroupfs
from evenkeel.cgroup.drivers.kernel_refusals import not_available, refusal, without_controller
from evenkeel.cgroup.drivers.mounts import V2_CONTROLLERS
from evenkeel.cgroup.kernel_files import CPUS, INHERITED
from evenkeel.cgroup.statistics import MOST_BYTES, V2_FILES, field, v2_statistics
from evenkeel.cgroup.tree import Naming, Version


class V2Driver(CgroupfsDriver):
    version = Version.V2
    _cpus_file = "cpuset.cpus.effective"

    def __init__(
        self,
        mount: str,
        bounds: Bounds,
        naming: Naming = Naming.CGROUPFS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__([mount], bounds, naming, patience_seconds)
        self._fs = self._hierarchies[0]
        self._refused: dict[tuple[str, str], CgroupError] = {}  # why a cgroup could not enable a controller

    def freeze(self, path: str, *, frozen: bool) -> None:
        self._bounds.to_set(path)
        self.write(path, "cgroup.freeze", str(int(frozen)))
        self._wait_frozen(path, frozen=frozen)

    def send_freeze(self, path: str, *, frozen: bool) -> None:
        self._bounds.to_set(path)
        self._set_frozen(path, frozen=frozen)

    def thaw_write(self, path: str) -> tuple[str, str]:
        self._bounds.to_set(path)
        return f"{self._fs.directory(path)}/cgroup.freeze", "0"

    def statistics(self, path: str) -> Statistics:
        if not self._open_files.has_open(path):
            self._bounds.to_read(path)
        contents = self._open_files.figures(path, V2_FILES)
        if contents is None:
            raise CgroupError(f"there is no cgroup {path}", path=path, reason="ENOENT")
        if not contents[0]:
            raise self._why_absent(path, next(iter(V2_FILES)))
        return self._figures(path, contents, v2_statistics)

    def files(self, path: str) -> Mapping[str, str]:
        self._bounds.to_read(path)
        return dict.fromkeys(V2_CONTROLLERS, self._fs.directory(path))

    def _make(self, path: str) -> None:
        self._enable_controllers(path.rpartition("/")[0] or "/")
        self._fs.make(path)

    def _hierarchy_of(self, path: str, file: str) -> Cgroupfs:  # noqa: ARG002
        return self._fs

    def _open(self, path: str, file: str) -> int:
        return self._fs.open(path, file)

    def _has(self, path: str, file: str) -> bool:  # noqa: ARG002
        return self._fs.exists(path)

    def _inherit_cpus(self, path: str) -> None:
        """An empty value means the CPUs of the cgroup above. Some kernels, such as 6.1, refuse it while processes
        run."""
        try:
            self._fs.write(path, CPUS, INHERITED)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._fs.write(path, CPUS, self._cpus_above(path))

    def _kill_at_once(self, path: str) -> bool:
        try:
            self._fs.write(path, "cgroup.kill", "1")
        except FileNotFoundError:
            return not self._fs.exists(path)
        except OSError as error:
            raise refusal(error, "end the processes of", path, "cgroup.kill") from None
        return True

    def _set_frozen(self, path: str, *, frozen: bool) -> bool:
        try:
            self._fs.write(path, "cgroup.freeze", str(int(frozen)))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise refusal(error, "freeze", path, "cgroup.freeze") from None
        return True

    def _await_frozen(self, path: str, *, frozen: bool, seconds: float) -> bool:
        return self._await_event(path, lambda events: bool(field(events, b"\nfrozen ")) == frozen, seconds)

    def _await_empty(self, path: str, seconds: float) -> None:
        self._await_event(path, lambda events: not field(b"\n" + events, b"\npopulated "), seconds)

    def _before_removal(self, path: str) -> None:
        pass

    def _after_removal(self, path: str) -> None:
        pass

    def _await_event(self, path: str, has_come: Callable[[bytes], bool], seconds: float) -> bool:
        """Waits until `has_come` accepts cgroup.events, or the cgroup is gone; False if it takes longer than
        `seconds`."""
        deadline = time.monotonic() + seconds
        try:
            descriptor = self._fs.open(path, "cgroup.events")
            try:
                poll = select.poll()
                poll.register(descriptor, select.POLLPRI)
                while not has_come(os.pread(descriptor, MOST_BYTES, 0)):
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return False
                    poll.poll(left * 1000)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in GONE:
                raise refusal(error, "read", path, "cgroup.events") from None
        return True

    def _write_absent(self, path: str, file: str, value: str) -> None:
        controller = file.partition(".")[0]
        if controller in V2_CONTROLLERS and controller not in self._controllers(path):
            self._enable_controllers(path.rpartition("/")[0] or "/")
            try:
                self._fs.write(path, file, value)
            except FileNotFoundError:
                raise self._why_absent(path, file) from None
            except OSError as error:
                raise refusal(error, "write", path, file, value) from None
            return
        self._lacking.add(file)
        raise not_available(path, file)

    def _note_absent(self, path: str, file: str) -> None:
        if file.partition(".")[0] in self._controllers(path):
            self._lacking.add(file)

    def _without_controller(self, path: str, file: str) -> CgroupError | None:
        controller = file.partition(".")[0]
        if controller not in V2_CONTROLLERS or controller in self._controllers("/"):
            return None
        return without_controller(
            path,
            file,
            f"cgroup v2 at {self._fs.mount} has no controller {controller}",
            hint=f"if cgroup v1 has it, boot with cgroup_no_v1={controller}; if the kernel is told to leave it out, "
            f"without cgroup_disable={controller}",
        )

    def _why_absent(self, path: str, file: str) -> CgroupError:
        missing = self._without_controller(path, file)
        if missing is not None:
            return missing
        controller = file.partition(".")[0]
        for one in path_from_root(path)[:-1]:
            if controller not in self._enabled(one):
                cause = self._refused.get((one, controller))
                if cause is not None:
                    return without_controller(path, file, cause.message, where=one, hint=cause.hint)
                why = f"cgroup {one} does not hand on controller {controller}"
                by_hand = f"echo +{controller} > {self._fs.directory(one)}/cgroup.subtree_control"
                return without_controller(path, file, why, where=one, hint=by_hand)
        return not_available(path, file)

    def _enable_controllers(self, path: str) -> None:
        """Enables, for the children of the cgroup, every controller of ours that the hierarchy has. A failure is
        reported only when a setting needs the controller."""
        offered = self._controllers("/").intersection(V2_CONTROLLERS)
        if offered <= self._enabled(path):
            return
        self._refused.clear()
        for one in path_from_root(path):
            missing = sorted(offered.intersection(self._controllers(one)) - self._enabled(one))
            if missing:
                self._enable(one, missing)
                self._open_files.forget_absences()

    def _enable(self, path: str, controllers: list[str]) -> None:
        """All at once, or else each by itself. Not by itself if processes are in the way (EBUSY): the cgroup would take
        some controllers, become threaded, and refuse the others."""
        words = [f"+{controller}" for controller in controllers]
        refused = self._write_controllers(path, " ".join(words))
        if refused is None:
            return
        for controller, word in zip(controllers, words, strict=True):
            alone = refused if refused.reason == "EBUSY" else self._write_controllers(path, word)
            if alone is not None:
                self._refused[path, controller] = alone

    def _write_controllers(self, path: str, words: str) -> CgroupError | None:
        try:
            self._fs.write(path, "cgroup.subtree_control", words)
        except OSError as error:
            return refusal(error, "write", path, "cgroup.subtree_control", words)
        return None

    def _controllers(self, path: str) -> set[str]:
        return self._words(path, "cgroup.controllers")

    def _enabled(self, path: str) -> set[str]:
        return self._words(path, "cgroup.subtree_control")

    def _words(self, path: str, file: str) -> set[str]:
        contents = self._open_files.contents(path, (file,), MOST_BYTES)
        return set(contents[0].decode().split()) if contents else set()


def path_from_root(path: str) -> list[str]:
    """The cgroups from the root to `path`."""
    parts = path.split("/")[1:]
    return ["/", *("/" + "/".join(parts[: depth + 1]) for depth in range(len(parts)) if parts[depth])]
