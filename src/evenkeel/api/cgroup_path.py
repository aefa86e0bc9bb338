"""Cgroups as people name them: by their path below the cgroup filesystem (B5)."""

import re

# What systemd takes in a unit's name, and so what a cgroup is called in practice.
_ODD_CHARACTER = re.compile(r"[^A-Za-z0-9_.:@\\/-]")


def path_fault(path: str) -> str:
    """What is wrong with `path` and what would be right, after "it"; nothing if it can be used.

    Systemd's own way of naming cgroups (`slice:prefix:name`, or a unit without its path) is not understood,
    as document B says.
    """
    if not path.startswith("/"):
        if ":" in path or path.endswith((".slice", ".scope", ".service")):
            slice_name = path.partition(":")[0][:60]
            return (
                f'must be an absolute path, not a name of systemd such as "{path[:60]}": write /{slice_name}'
            )
        mend = "" if path_fault(f"/{path}") else f": write /{path[:60]}"
        return f'must be an absolute path, not "{path[:60]}"{mend}'
    if any(part in (".", "..") for part in path.split("/")):
        return f'must be a plain path without . and .., not "{path[:60]}"'
    if "//" in path:
        return f'must be a plain path without //, not "{path[:60]}"'
    if odd := _ODD_CHARACTER.search(path):
        return f"must hold letters, digits and - _ . : @ only, not {odd[0]!r}"
    return ""


def is_within(path: str, other: str) -> bool:
    """Whether the cgroup at `path` is the one at `other`, or below it."""
    return f"{path.rstrip('/')}/".startswith(f"{other.rstrip('/')}/")
