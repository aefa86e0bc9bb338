"""The freezer of a pod as one file in a directory, in place of a cgroup driver."""

from pathlib import Path

from evenkeel.cgroup.driver import CgroupError


class FreezerFile:
    """As much of a driver as a freeze needs, for the pod `/pod`. It refuses as a machine without a freezer does."""

    def __init__(self, directory: object, *, refuses: bool = False) -> None:
        self._file = f"{directory}/cgroup.freeze"
        self._refuses = refuses

    def thaw_write(self, path: str) -> tuple[str, str]:
        assert path == "/pod"
        if self._refuses:
            raise CgroupError("there is no freezer", path=path, reason="ENOENT")
        return self._file, "0"

    def send_freeze(self, path: str, *, frozen: bool) -> None:
        assert path == "/pod"
        Path(self._file).write_text(str(int(frozen)))
