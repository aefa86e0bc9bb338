"""Where things are in the state directory. Every name from outside is checked here before it becomes part of a path:
a UID, a container's or a volume's name can never lead out of the directory it belongs to.

    pods/<uid>/volumes/<volume>/                      emptyDir volumes on disk
    pods/<uid>/<container>.<attempt>/                 what the keeper needs and leaves behind
    memory/<uid>/<volume>/                            emptyDir volumes in memory, mounted there
    logs/<namespace>_<pod>_<uid>/<container>/<attempt>.log
    images/<sha256>/                                  root filesystems, unpacked
"""

import os
from typing import NamedTuple

from evenkeel.errors import EvenkeelError

_LONGEST_NAME_BYTES = 255
# No "_", which separates the parts of a log directory's name; no "/", no zero byte, nothing a terminal would act on.
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-")


class UnsafeName(EvenkeelError):
    """A name that cannot be part of a path."""


class StatePaths(NamedTuple):
    """The layout below `root`, an absolute path."""

    root: str

    @property
    def lock(self) -> str:
        return f"{self.root}/lock"

    @property
    def agent_socket(self) -> str:
        return f"{self.root}/agent.sock"

    @property
    def keeper_socket(self) -> str:
        return f"{self.root}/keeper.sock"

    @property
    def journal(self) -> str:
        return f"{self.root}/journal.db"

    @property
    def pods(self) -> str:
        return f"{self.root}/pods"

    @property
    def logs(self) -> str:
        return f"{self.root}/logs"

    @property
    def images(self) -> str:
        return f"{self.root}/images"

    @property
    def memory(self) -> str:
        """A small tmpfs below which the memory-backed volumes of all pods are mounted, so that a container lets go of
        all of them with one unmount."""
        return f"{self.root}/memory"

    def pod(self, uid: str) -> str:
        return f"{self.pods}/{checked(uid, 'pod UID')}"

    def pod_memory(self, uid: str) -> str:
        return f"{self.memory}/{checked(uid, 'pod UID')}"

    def volume(self, uid: str, volume: str) -> str:
        return f"{self.pod(uid)}/volumes/{checked(volume, 'volume name')}"

    def memory_volume(self, uid: str, volume: str) -> str:
        return f"{self.pod_memory(uid)}/{checked(volume, 'volume name')}"

    def attempt(self, uid: str, container: str, number: int) -> str:
        """Not a directory for each container as well: a start makes every directory that it needs."""
        return f"{self.pod(uid)}/{checked(container, 'container name')}.{int(number)}"

    def pod_logs(self, namespace: str, pod: str, uid: str) -> str:
        names = (
            checked(namespace or "default", "namespace"),
            checked(pod, "pod name"),
            checked(uid, "pod UID"),
        )
        return f"{self.logs}/{'_'.join(names)}"

    def container_logs(self, namespace: str, pod: str, uid: str, container: str) -> str:
        return f"{self.pod_logs(namespace, pod, uid)}/{checked(container, 'container name')}"

    def log(self, namespace: str, pod: str, uid: str, container: str, number: int) -> str:
        return f"{self.container_logs(namespace, pod, uid, container)}/{int(number)}.log"

    def image(self, digest: str) -> str:
        return f"{self.images}/{checked(digest, 'image digest')}"


def state_paths(directory: str) -> StatePaths:
    """Of a state directory as the user gave it: absolute and without symlinks, as the kernel's mount table has it."""
    return StatePaths(os.path.realpath(directory))


def checked(name: str, what: str) -> str:
    """`name`, if it can be one component of a path and nothing else. Raises UnsafeName."""
    if not name or name.startswith(".") or not _LETTERS.issuperset(name):
        raise UnsafeName(
            f"{what} {name[:80]!r} cannot name a directory: it has letters, digits, - and . only, and no . first"
        )
    if len(name) > _LONGEST_NAME_BYTES:
        raise UnsafeName(
            f"{what} {name[:40]}… cannot name a directory: it is longer than {_LONGEST_NAME_BYTES} bytes"
        )
    return name


def is_name(value: object) -> bool:
    """Whether it can be the name of one file, and nothing else."""
    if not isinstance(value, str) or not value or value in (".", "..") or "/" in value or "\0" in value:
        return False
    try:
        return len(value.encode()) <= 255
    except UnicodeEncodeError:
        return False
