"""Pods whose containers hold a lock as long as one of their processes lives. The lock shows if a container runs twice
or does not end."""

from pathlib import Path
from typing import Any

from tests.kernel.crashes import is_locked
from tests.machines.programs import programs


class Held:
    """`directory` is of the host, and all nodes of the tests see it."""

    def __init__(self, directory: Path) -> None:
        self._locks = directory / "locks"
        self._doubles = directory / "doubles"
        self._runs = directory / "runs"
        for each in (self._locks, self._doubles, self._runs):
            each.mkdir(mode=0o777)

    @property
    def spec(self) -> dict[str, Any]:
        """More of a pod's spec (tests/cluster/workspaces.py): its one container sleeps with its pod's lock."""
        return self._spec("exec sleep infinity")

    def ending(self, exit_code: int) -> dict[str, Any]:
        """The same with a container that ends soon."""
        return self._spec(f"exit {exit_code}")

    def runs(self, uid: str) -> int:
        """How often a container of that pod has begun."""
        path = self._runs / uid
        return path.read_text().count("\n") if path.exists() else 0

    def _spec(self, act: str) -> dict[str, Any]:
        mounted = (self._locks, self._doubles, self._runs)
        held = [str(programs() / "hold"), f"{self._locks}/$(UID)", f"{self._doubles}/$(UID)"]
        return {
            "volumes": [{"name": path.name, "hostPath": {"path": str(path)}} for path in mounted],
            "container": {
                "env": [{"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
                "volumeMounts": [{"name": path.name, "mountPath": str(path)} for path in mounted],
                "command": [*held, "sh", "-c", f"echo run >> {self._runs}/$UID; {act}"],
            },
        }

    def living(self) -> set[str]:
        """The UIDs of the pods of which something lives."""
        return {path.name for path in self._locks.iterdir() if is_locked(path)}

    def check(self) -> None:
        doubled = sorted(path.name for path in self._doubles.iterdir())
        assert not doubled, f"of these pods a second container ran beside the first: {doubled}"
