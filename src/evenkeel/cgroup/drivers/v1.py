"""The driver for cgroup v1: a hierarchy for each controller, or for several that are mounted together.

A cgroup is a directory in each of them. On hybrid hosts it is in the unified hierarchy too, which has no controllers
there, but pressure figures and cgroup.kill. `cgroup.kernel_files` has the files and their values.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from evenkeel.api.scalars import is_within
from evenkeel.cgroup.driver import CgroupError, Statistics
from evenkeel.cgroup.drivers.base_driver import PATIENCE_SECONDS, CgroupfsDriver
from evenkeel.cgroup.drivers.cgroupfs import Bounds, Cgroupfs
from evenkeel.cgroup.drivers.kernel_refusals import not_available, refusal, without_controller
from evenkeel.cgroup.drivers.mounts import Mounts
from evenkeel.cgroup.drivers.processes import kill_process, waits
from evenkeel.cgroup.kernel_files import CPUS
from evenkeel.cgroup.statistics import V1_FILES, v1_statistics
from evenkeel.cgroup.tree import Naming, Version

UNIFIED = "unified"  # a key in `files`, beside the controllers


class V1Driver(CgroupfsDriver):
    version = Version.V1
    _cpus_file = CPUS

    def __init__(
        self,
        mounts: Mounts,
        bounds: Bounds,
        naming: Naming = Naming.CGROUPFS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        points = list(dict.fromkeys([*mounts.v1.values(), *([mounts.v2] if mounts.v2 else [])]))
        super().__init__(points, bounds, naming, patience_seconds)
        of_mount = dict(zip(points, self._hierarchies, strict=True))
        self._of_controller = {controller: of_mount[mount] for controller, mount in mounts.v1.items()}
        self._unified = of_mount[mounts.v2] if mounts.v2 else None
        self._others = [Cgroupfs(mount) for mount in mounts.others]

    def close(self) -> None:
        super().close()
        for hierarchy in self._others:
            hierarchy.close()

    def send_kill(self, path: str) -> None:
        """On a hybrid host the unified hierarchy kills its processes in one step. Processes that a container runtime
        left out of it are found in the memory hierarchy."""
        self._bounds.to_remove(path)
        memory = self._of_controller.get("memory")
        try:
            if self._unified is None or memory is None:
                raise FileNotFoundError("cgroup.kill")
            self._unified.write(path, "cgroup.kill", "1")
        except OSError:
            super().send_kill(path)
            return
        for one in (path, *(f"{path}/{name}" for name in memory.children(path))):
            with suppress(OSError):
                for pid in map(int, memory.read(one, "cgroup.procs").split()):
                    kill_process(pid, path)

    def freeze(self, path: str, *, frozen: bool) -> None:
        self._bounds.to_set(path)
        if not self._set_frozen(path, frozen=frozen):
            self._hierarchy_of(path, "freezer.state")
        self._wait_frozen(path, frozen=frozen)

    def send_freeze(self, path: str, *, frozen: bool) -> None:
        """A cgroup further down that was frozen separately stays frozen."""
        self._bounds.to_set(path)
        try:
            freezer = self._hierarchy_of(path, "freezer.state")
            freezer.write(path, "freezer.state", "FROZEN" if frozen else "THAWED")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise refusal(error, "freeze" if frozen else "thaw", path, "freezer.state") from None

    def thaw_write(self, path: str) -> tuple[str, str]:
        self._bounds.to_set(path)
        return f"{self._hierarchy_of(path, 'freezer.state').directory(path)}/freezer.state", "THAWED"

    def statistics(self, path: str) -> Statistics:
        if not self._open_files.has_open(path):
            self._bounds.to_read(path)
        contents = self._open_files.figures(path, V1_FILES)
        if contents is None:
            raise CgroupError(f"there is no cgroup {path}", path=path, reason="ENOENT")
        if not contents[0]:
            self._hierarchy_of(path, next(iter(V1_FILES)))
            raise not_available(path, next(iter(V1_FILES)))
        return self._figures(path, contents, v1_statistics)

    def files(self, path: str) -> Mapping[str, str]:
        self._bounds.to_read(path)
        found = {controller: fs.directory(path) for controller, fs in self._of_controller.items()}
        if self._unified is not None:
            found[UNIFIED] = self._unified.directory(path)
        return found

    def _make(self, path: str) -> None:
        cpuset = self._of_controller.get("cpuset")
        is_new = False
        for hierarchy in self._hierarchies:
            is_new = (hierarchy.make(path) and hierarchy is cpuset) or is_new
        if path.count("/") == 1 or is_within(self._bounds.root, path):
            self._count_with_children(path)
        if cpuset is not None:
            # A new cpuset inherits CPUs and memory nodes together: one of them is enough to check.
            self._give_cpus(cpuset, path, ("cpuset.cpus",) if is_new else ("cpuset.mems", "cpuset.cpus"))

    def _hierarchy_of(self, path: str, file: str) -> Cgroupfs:
        hierarchy = self._of_controller.get(file.partition(".")[0])
        if hierarchy is None:
            raise _not_mounted(path, file)
        return hierarchy

    def _open(self, path: str, file: str) -> int:
        # Only the unified hierarchy has pressure files.
        is_pressure = file.endswith(".pressure")
        hierarchy = self._unified if is_pressure else self._of_controller.get(file.partition(".")[0])
        if hierarchy is None:
            raise FileNotFoundError(file)
        return hierarchy.open(path, file)

    def _has(self, path: str, file: str) -> bool:
        hierarchy = self._of_controller.get(file.partition(".")[0])
        return (hierarchy or self._hierarchies[0]).exists(path)

    def _without_controller(self, path: str, file: str) -> CgroupError | None:
        if file.partition(".")[0] in self._of_controller:
            return None
        return _not_mounted(path, file)

    def _write_absent(self, path: str, file: str, value: str) -> None:  # noqa: ARG002
        self._lacking.add(file)
        raise not_available(path, file)

    def _note_absent(self, path: str, file: str) -> None:  # noqa: ARG002
        self._lacking.add(file)

    def _inherit_cpus(self, path: str) -> None:
        self._hierarchy_of(path, CPUS).write(path, CPUS, self._cpus_above(path))

    def _count_with_children(self, path: str) -> None:
        """Old kernels charge a cgroup for those below it only with this setting. It must be made before there are any,
        and they inherit it."""
        memory = self._of_controller.get("memory")
        try:
            if memory is not None and memory.read(path, "memory.use_hierarchy").strip() == b"0":
                memory.write(path, "memory.use_hierarchy", "1")
        except FileNotFoundError:
            pass  # a kernel that always does

    def _give_cpus(self, cpuset: Cgroupfs, path: str, checked: Sequence[str]) -> None:
        """A new cpuset is empty, and nothing can run in it. It gets the values of the nearest cgroup above that has
        some. Cgroups that are made below it then inherit them."""
        if all(cpuset.read(path, file).strip() for file in checked):
            return
        for file in ("cpuset.mems", "cpuset.cpus"):
            empty = []
            above = path
            while not (value := cpuset.read(above or "/", file).strip()) and above:
                empty.append(above)
                above = above.rpartition("/")[0]
            for one in reversed(empty):
                cpuset.write(one, file, value.decode())
                cpuset.write(one, "cgroup.clone_children", "1")

    def _kill_at_once(self, path: str) -> bool:  # noqa: ARG002
        """False: the unified hierarchy could do it, but a container runtime may have left processes out of it."""
        return False

    def _set_frozen(self, path: str, *, frozen: bool) -> bool:
        """A cgroup below that was frozen separately must be thawed separately."""
        freezer = self._of_controller.get("freezer")
        if freezer is None:
            return False
        for one in [path] if frozen else self._below(path):
            try:
                freezer.write(one, "freezer.state", "FROZEN" if frozen else "THAWED")
            except FileNotFoundError:
                continue
            except OSError as error:
                raise refusal(error, "freeze" if frozen else "thaw", one, "freezer.state") from None
        return True

    def _await_frozen(self, path: str, *, frozen: bool, seconds: float) -> bool:
        """By polling: v1 does not notify."""
        freezer = self._of_controller.get("freezer")
        for _ in waits(seconds):
            try:
                is_frozen = freezer is not None and freezer.read(path, "freezer.state").strip() == b"FROZEN"
            except OSError:
                is_frozen = False
            if is_frozen == frozen:
                return True
        return False

    def _await_empty(self, path: str, seconds: float) -> None:
        """v1 does not notify. But a dead process has left its cgroups before, so there is nothing to wait for."""

    def _before_removal(self, path: str) -> None:
        """Removes the quota. A removed cgroup exists in the kernel for some time, and while it has a quota, no cgroup
        above it can get a smaller one. In hierarchies that we do not use, removes the empty directories that a
        container runtime left."""
        cpu = self._of_controller.get("cpu")
        if cpu is not None:
            with suppress(OSError):  # it has none, or is gone
                cpu.write(path, "cpu.cfs_quota_us", "-1")
        self._remove_from_others(path)

    def _after_removal(self, path: str) -> None:
        """A process that was about to end when we tried has left all hierarchies at once."""
        self._remove_from_others(path)

    def _remove_from_others(self, path: str) -> None:
        for hierarchy in self._others:
            with suppress(OSError):  # it is in use
                hierarchy.remove(path)


def _not_mounted(path: str, file: str) -> CgroupError:
    controller = file.partition(".")[0]
    return without_controller(
        path,
        file,
        f"controller {controller} of cgroup v1 is not mounted",
        hint=f"mkdir /sys/fs/cgroup/{controller}; mount -t cgroup -o {controller} {controller} "
        f"/sys/fs/cgroup/{controller}; /proc/cgroups says whether the kernel has it",
    )
