"""A pod's volumes on the host: made before its first container starts, removed when it is gone.

All functions block (run them in a thread) except `refusal`, `memory_volume_bytes` and `source_path`, which are pure.
"""

from evenkeel.api.pod import Pod, Volume
from evenkeel.errors import EvenkeelError
from evenkeel.runtime.process.paths import StatePaths


class VolumeRefused(EvenkeelError):
    """A volume cannot be had as it is written, or the host refused it."""


def refusal(pod: Pod, *, is_root: bool = True) -> str:
    """Why the pod's volumes and mounts cannot be honoured; empty if they can. Pure."""
    raise NotImplementedError


def prepare(pod: Pod, paths: StatePaths, *, allocatable_memory_bytes: int) -> None:
    """Makes the pod's directory and volumes; what is there already is left as it is. Raises VolumeRefused."""
    raise NotImplementedError


def remove(uid: str, paths: StatePaths) -> None:
    """Unmounts and removes everything of the pod but its logs; again is fine. Raises VolumeRefused where something
    resists, with its path."""
    raise NotImplementedError


def remove_logs(uid: str, paths: StatePaths) -> None:
    """Removes the pod's log directories, whatever its name was."""
    raise NotImplementedError


def pods(paths: StatePaths) -> frozenset[str]:
    """UIDs of pods of which directories, mounts or logs are left."""
    raise NotImplementedError


def memory_volume_bytes(pod: Pod, volume: Volume, allocatable_memory_bytes: int) -> int:
    """D9: the size of a memory-backed emptyDir: the smallest of its own limit, the pod's and what the node allocates.
    Pure."""
    raise NotImplementedError


def source_path(pod: Pod, volume: Volume, paths: StatePaths) -> str:
    """Where the volume is on the host. Pure."""
    raise NotImplementedError


def remove_tree(path: str) -> None:
    """Removes a directory and all in it; follows no symlink, crosses into no mount (raises VolumeRefused), and stands
    names, depths and flags of all kinds. One that is not there is fine."""
    raise NotImplementedError
