"""cgroup v2: one hierarchy, in which each cgroup hands controllers on to those below it.

A cgroup that does so may hold no processes itself (but for the root), so only the cgroups at the ends of the tree are
given any: containers and the pods' infrastructure.
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
        self._refused: dict[tuple[str, str], CgroupError] = {}  # why a cgroup could not hand a controller on

    def freeze(self, path: str, *, frozen: bool) -> None:
        self._bounds.to_set(path)
        self.write(path, "cgroup.freeze", str(int(frozen)))
        self._wait_frozen(path, frozen=frozen)

    def send_freeze(self, path: str, *, frozen: bool) -> None:
        self._bounds.to_set(path)
        self._set_frozen(path, frozen=frozen)

    def thawing(self, path: str) -> tuple[str, str]:
        self._bounds.to_set(path)
        return f"{self._fs.directory(path)}/cgroup.freeze", "0"

    def statistics(self, path: str) -> Statistics:
        if not self._kept.keeps(path):
            self._bounds.to_read(path)
        contents = self._kept.figures(path, V2_FILES)
        if contents is None:
            raise CgroupError(f"there is no cgroup {path}", path=path, reason="ENOENT")
        if not contents[0]:
            raise self._why_absent(path, next(iter(V2_FILES)))
        return self._figures(path, contents, v2_statistics)

    def files(self, path: str) -> Mapping[str, str]:
        self._bounds.to_read(path)
        return dict.fromkeys(V2_CONTROLLERS, self._fs.directory(path))

    def _make(self, path: str) -> None:
        self._hand_on(path.rpartition("/")[0] or "/")
        self._fs.make(path)

    def _hierarchy_of(self, path: str, file: str) -> Cgroupfs:  # noqa: ARG002
        return self._fs

    def _open(self, path: str, file: str) -> int:
        return self._fs.open(path, file)

    def _has(self, path: str, file: str) -> bool:  # noqa: ARG002
        return self._fs.exists(path)

    def _inherit_cpus(self, path: str) -> None:
        """None of its own means those above it. Some kernels (6.1 is one) refuse that while somebody runs in it."""
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

    def _let_go(self, path: str) -> None:
        pass

    def _await_event(self, path: str, has_come: Callable[[bytes], bool], seconds: float) -> bool:
        """Whether cgroup.events is as wanted, or the cgroup is gone, before `seconds` have passed."""
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
            self._hand_on(path.rpartition("/")[0] or "/")
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
        for one in _line(path)[:-1]:
            if controller not in self._handed_on(one):
                cause = self._refused.get((one, controller))
                if cause is not None:
                    return without_controller(path, file, cause.message, where=one, hint=cause.hint)
                why = f"cgroup {one} does not hand on controller {controller}"
                by_hand = f"echo +{controller} > {self._fs.directory(one)}/cgroup.subtree_control"
                return without_controller(path, file, why, where=one, hint=by_hand)
        return not_available(path, file)

    def _hand_on(self, path: str) -> None:
        """Gives the cgroup's children every controller of ours that the hierarchy has, as far as that goes: what does
        not go is an error when a setting needs it."""
        offered = self._controllers("/").intersection(V2_CONTROLLERS)
        if offered <= self._handed_on(path):
            return
        self._refused.clear()
        for one in _line(path):
            missing = sorted(offered.intersection(self._controllers(one)) - self._handed_on(one))
            if missing:
                self._enable(one, missing)
                self._kept.forget_absences()

    def _enable(self, path: str, controllers: list[str]) -> None:
        """All at once, or else each that can be. Not so where processes are in the way: the cgroup would then take some
        controllers, become threaded, and take no others."""
        words = [f"+{controller}" for controller in controllers]
        refused = self._hand_on_words(path, " ".join(words))
        if refused is None:
            return
        for controller, word in zip(controllers, words, strict=True):
            alone = refused if refused.reason == "EBUSY" else self._hand_on_words(path, word)
            if alone is not None:
                self._refused[path, controller] = alone

    def _hand_on_words(self, path: str, words: str) -> CgroupError | None:
        try:
            self._fs.write(path, "cgroup.subtree_control", words)
        except OSError as error:
            return refusal(error, "write", path, "cgroup.subtree_control", words)
        return None

    def _controllers(self, path: str) -> set[str]:
        return self._words(path, "cgroup.controllers")

    def _handed_on(self, path: str) -> set[str]:
        return self._words(path, "cgroup.subtree_control")

    def _words(self, path: str, file: str) -> set[str]:
        contents = self._kept.contents(path, (file,), MOST_BYTES)
        return set(contents[0].decode().split()) if contents else set()


def _line(path: str) -> list[str]:
    """The cgroups from the root to `path`."""
    parts = path.split("/")[1:]
    return ["/", *("/" + "/".join(parts[: depth + 1]) for depth in range(len(parts)) if parts[depth])]
