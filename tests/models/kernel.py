"""A model of the kernel's cgroups, in memory: what drivers do to real ones, they do to this."""

from collections.abc import Callable, Mapping, Sequence

from evenkeel.cgroup.driver import CgroupError, Statistics
from evenkeel.cgroup.kernel_files import default_value
from evenkeel.cgroup.tree import Cgroup, Naming, Tree, Version

Refuse = Callable[[str, str, str], CgroupError | None]


class Kernel:
    """Cgroups as dictionaries. `refuse` is asked before each change, with action, path and file."""

    naming = Naming.CGROUPFS

    def __init__(self, version: Version = Version.V2) -> None:
        self.version = version
        self.cgroups: dict[str, dict[str, str]] = {}
        self.absent: dict[str, CgroupError] = {}
        self.refuse: Refuse = lambda action, path, file: None
        self.changes = 0
        self.memory_bytes: dict[str, int] = {}  # what each cgroup holds

    def lacking(self, file: str) -> CgroupError | None:
        return self.absent.get(file)

    def observe(self, tree: Tree) -> Mapping[str, Mapping[str, str]]:
        files = {cgroup.path: {setting.file for setting in cgroup.settings} for cgroup in tree.cgroups}
        return {
            path: {
                file: values.get(file, default_value(file, self.version) or "")
                for file in files.get(path, ())
                if file not in self.absent
            }
            for path, values in self.cgroups.items()
        }

    def observe_only(self, cgroups: Sequence[Cgroup]) -> Mapping[str, Mapping[str, str]]:
        whole = self.observe(Tree(self.version, self.naming, tuple(cgroups)))
        return {one.path: whole[one.path] for one in cgroups if one.path in whole}

    def create(self, path: str) -> None:
        self._change("create", path, "")
        self.cgroups.setdefault(path, {})

    def write(self, path: str, file: str, value: str) -> None:
        self._change("write", path, file)
        if path not in self.cgroups:
            raise CgroupError("gone", path=path, file=file, reason="ENOENT")
        self.cgroups[path][file] = value

    def remove(self, path: str) -> None:
        self._change("remove", path, "")
        self.cgroups = {
            one: values for one, values in self.cgroups.items() if not f"{one}/".startswith(f"{path}/")
        }

    def _change(self, action: str, path: str, file: str) -> None:
        error = self.refuse(action, path, file)
        if error is not None:
            raise error
        self.changes += 1

    def processes(self, path: str) -> tuple[int, ...]:
        return ()

    def add_process(self, path: str, pid: int) -> None: ...
    def kill(self, path: str) -> None: ...
    def send_kill(self, path: str) -> None: ...
    def freeze(self, path: str, *, frozen: bool) -> None: ...
    def send_freeze(self, path: str, *, frozen: bool) -> None: ...
    def allow_reading(self, path: str) -> None: ...
    def thaw_write(self, path: str) -> tuple[str, str]:
        return f"{path}/cgroup.freeze", "0"

    def statistics(self, path: str) -> Statistics:
        held = self.memory_bytes.get(path, 0)
        return Statistics(held, held, 0, held, 0, 0, 0)

    def contents(self, path: str, files: Sequence[str]) -> Sequence[bytes]:
        return [b""] * len(files)

    def files(self, path: str) -> Mapping[str, str]:
        return {}

    def close(self) -> None: ...


class CountingKernel(Kernel):
    """A kernel with a count of OOM kills for each cgroup. Cgroups in `gone` were removed with their counts."""

    def __init__(self) -> None:
        super().__init__()
        self.oom_kills: dict[str, int] = {}
        self.gone: set[str] = set()

    def statistics(self, path: str) -> Statistics:
        if path in self.gone:
            raise CgroupError(f"there is no cgroup {path}", path=path, reason="ENOENT")
        return super().statistics(path)._replace(oom_kills=self.oom_kills.get(path, 0))
