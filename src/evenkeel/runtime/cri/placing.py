"""Where a container runtime has put a container: its first process, its cgroup, the layer that it writes to."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

_SLICE, _SCOPE = ".slice", ".scope"
_UPPER = "upperdir="


class Whereabouts(NamedTuple):
    """`cgroup` is its path from the hierarchy's root; empty where the runtime does not tell."""

    pid: int
    cgroup: str


def whereabouts(info: Mapping[str, str]) -> Whereabouts:
    """From the verbose part of a status, which containerd and CRI-O both fill with JSON. Pure."""
    try:
        told: Any = json.loads(info.get("info", "{}"))
    except ValueError:
        return Whereabouts(0, "")
    path = _member(_member(_member(told, "runtimeSpec"), "linux"), "cgroupsPath")
    pid = _member(told, "pid")
    return Whereabouts(pid if isinstance(pid, int) else 0, cgroup_path(path) if isinstance(path, str) else "")


def cgroup_path(cgroups_path: str) -> str:
    """Of an OCI `cgroupsPath`: a path, or `slice:prefix:name` for a scope of systemd's. Pure."""
    if cgroups_path.count(":") == 2 and "/" not in cgroups_path:
        parent, prefix, name = cgroups_path.split(":")
        return (
            f"{_slice_path(parent)}/{prefix}-{name}{_SCOPE}"
            if prefix
            else f"{_slice_path(parent)}/{name}{_SCOPE}"
        )
    return cgroups_path.rstrip("/") if cgroups_path.startswith("/") else ""


def _slice_path(name: str) -> str:
    """A slice lies in those that its name begins with."""
    parts = name.removesuffix(_SLICE).split("-")
    return "".join(f"/{'-'.join(parts[: depth + 1])}{_SLICE}" for depth in range(len(parts)))


def written_layer(pid: int) -> str:
    """The directory that a container's root filesystem writes to, of an overlay; empty where that cannot be seen."""
    try:
        with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields, _, rest = line.partition(" - ")
                if fields.split()[4] == "/" and rest.startswith("overlay "):
                    options = rest.split()[2].split(",")
                    return next((one.removeprefix(_UPPER) for one in options if one.startswith(_UPPER)), "")
    except (OSError, IndexError):
        pass
    return ""


def _member(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None
