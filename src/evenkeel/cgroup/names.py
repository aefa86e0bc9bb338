"""The names of cgroups, as cgroupfs paths and as systemd slices (A24, B10).

A name is a tuple of components, `("kubepods", "burstable", "pod<uid>")`. Under systemd each level repeats the levels
above it, joined by dashes. A dash inside a component therefore becomes an underscore.
"""

import posixpath

from evenkeel.cgroup.tree import Version
from evenkeel.errors import EvenkeelError
from evenkeel.policy.qos import QoSClass

CgroupName = tuple[str, ...]

PODS_ROOT = "kubepods"
POD_PREFIX = "pod"

_SLICE = ".slice"
_BRANCH = {QoSClass.GUARANTEED: (), QoSClass.BURSTABLE: ("burstable",), QoSClass.BEST_EFFORT: ("besteffort",)}
_LONGEST_COMPONENT = 255
_FORBIDDEN = frozenset("/_\0")
# Files of the kernel in every cgroup of v1 whose name is also a valid name of a container. All other files have a dot
# or an underscore in their name, on v2 every one of them.
_V1_KERNEL_FILES = frozenset({"tasks"})
_NOT_A_FILE = ".container"


def pods_root(cgroup_root: str, *, per_qos: bool = True) -> CgroupName:
    """The cgroup that holds all pods: `kubepods` below the root, or the root itself without classes (B6)."""
    root = parse_cgroupfs(posixpath.normpath(f"/{cgroup_root.lstrip('/')}"))
    return child(root, PODS_ROOT) if per_qos else root


def branch(root: CgroupName, qos: QoSClass) -> CgroupName:
    """Guaranteed pods are directly in the pods' root, the others in a branch of their class (B10)."""
    return child(root, *_BRANCH[qos])


def pod_cgroup(root: CgroupName, qos: QoSClass | None, uid: str) -> CgroupName:
    """The cgroup of a pod in the branch of its class; `qos` is None where the node has no classes (B6)."""
    return child(branch(root, qos) if qos is not None else root, f"{POD_PREFIX}{uid}")


def container_directory(container: str, version: Version) -> str:
    """The directory of a container's cgroup in that of its pod: the name of the container.

    A container may be called `tasks`, and on cgroup v1 every cgroup has a file of that name. Its directory is then
    `tasks.container`, which cannot be another container: their names have no dot.
    """
    is_kernel_file = version == Version.V1 and container in _V1_KERNEL_FILES
    (directory,) = child((), f"{container}{_NOT_A_FILE}" if is_kernel_file else container)
    return directory


def child(parent: CgroupName, *components: str) -> CgroupName:
    """`parent` with components below it. Each must be safe as a directory and as part of a slice."""
    for component in components:
        if not component or component in (".", "..") or not _FORBIDDEN.isdisjoint(component):
            raise EvenkeelError(
                f'"{component[:80]}" cannot name a cgroup: a name has no "/" and no "_", and is not empty, "." or ".."'
            )
        if len(component.encode()) > _LONGEST_COMPONENT:
            raise EvenkeelError(
                f'"{component[:40]}…" cannot name a cgroup: it is longer than {_LONGEST_COMPONENT} bytes'
            )
    return (*parent, *components)


def to_cgroupfs(name: CgroupName) -> str:
    return "/" + "/".join(component for component in name if component)


def to_systemd(name: CgroupName) -> str:
    """The path of the slice: `/kubepods.slice/kubepods-burstable.slice/…`."""
    if not any(name):
        return "/"
    escaped = [component.replace("-", "_") for component in name]
    return "/" + "/".join("-".join(escaped[: depth + 1]) + _SLICE for depth in range(len(escaped)))


def parse_cgroupfs(path: str) -> CgroupName:
    stripped = path.removeprefix("/")
    return tuple(stripped.split("/")) if stripped else ()
