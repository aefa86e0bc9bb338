"""The layout of the state directory, and the small JSON files in it.

Every name from outside is checked here before it becomes part of a path: the UID of a pod, or the name of a container
or volume, can never lead out of its directory.

    pods/<uid>/volumes/<volume>/                      volumes on disk
    pods/<uid>/<container>.<attempt>/                 files of one attempt: its status, its termination log
    pods/<uid>/users                                  the pod's own range of users (hostUsers: false)
    memory/<uid>/.termination-logs/<container>.<attempt>    of containers of a container runtime
    memory/<uid>/<volume>/                            volumes in memory, mounted there
    memory/<uid>/.users, .network                     the pod's own user and network namespaces, mounted there
    memory/<uid>/.subpaths/<container>.<attempt>.<n>  parts of volumes for a container runtime, mounted there
    memory/<uid>/.private/<container>.<attempt>       arguments and variables of an attempt that has a Secret's values
    memory/<uid>/.private/cluster-data                what a pod of a cluster has of ConfigMaps, Secrets and tokens
    objects/<kind>_<namespace>_<name>.json            ConfigMaps, Secrets and Services that were applied; all claims
    claims/<namespace>_<name>/                        the directories of claims, which outlive pods
    logs/<namespace>_<pod>_<uid>/<container>/<attempt>.log
    images/<sha256>/                                  root filesystems, unpacked
    copies/<uid>.json                                 accepted pods, for the case that the journal is lost
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from evenkeel.errors import EvenkeelError, raise_shortage
from evenkeel.host.files import write_own
from evenkeel.named_tuples import NamedTuple

_LONGEST_NAME_BYTES = 255
# Not allowed: "_", which separates the parts of a log directory's name; "/", a zero byte, and control characters.
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-")


class UnsafeName(EvenkeelError):
    """A name that cannot be part of a path."""


class StatePaths(NamedTuple):
    """The layout below `root`, an absolute path."""

    root: str

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
    def copies(self) -> str:
        return f"{self.root}/copies"

    @property
    def memory(self) -> str:
        """A small tmpfs with the mount points of all memory-backed volumes.

        A container drops all of them with one unmount.
        """
        return f"{self.root}/memory"

    @property
    def objects(self) -> str:
        return f"{self.root}/objects"

    @property
    def claims(self) -> str:
        return f"{self.root}/claims"

    def claim(self, namespace: str, name: str) -> str:
        return (
            f"{self.claims}/{checked(namespace or 'default', 'namespace')}_{checked(name, 'name of a claim')}"
        )

    def pod(self, uid: str) -> str:
        return f"{self.pods}/{checked(uid, 'pod UID')}"

    def pod_memory(self, uid: str) -> str:
        return f"{self.memory}/{checked(uid, 'pod UID')}"

    def volume(self, uid: str, volume: str) -> str:
        return f"{self.pod(uid)}/volumes/{checked(volume, 'volume name')}"

    def memory_volume(self, uid: str, volume: str) -> str:
        return f"{self.pod_memory(uid)}/{checked(volume, 'volume name')}"

    def termination_logs(self, uid: str) -> str:
        """A small tmpfs for the termination logs of a pod's containers. No volume can have this name."""
        return f"{self.pod_memory(uid)}/.termination-logs"

    def termination_log(self, uid: str, container: str, number: int) -> str:
        return f"{self.termination_logs(uid)}/{checked(container, 'container name')}.{int(number)}"

    def private(self, uid: str, container: str, number: int) -> str:
        """The file of an attempt that must not be on disk, in a directory in memory."""
        return f"{self.pod_memory(uid)}/.private/{checked(container, 'container name')}.{int(number)}"

    def cluster_data(self, uid: str) -> str:
        """The file with the pod's data of a cluster. No attempt's file has this name: it has no dot."""
        return f"{self.pod_memory(uid)}/.private/cluster-data"

    def sub_path(self, uid: str, container: str, number: int, index: int) -> str:
        """Where the part of a volume is mounted that the mount `index` of the container has."""
        name = f"{checked(container, 'container name')}.{int(number)}.{int(index)}"
        return f"{self.pod_memory(uid)}/.subpaths/{name}"

    def attempt(self, uid: str, container: str, number: int) -> str:
        """The directory of an attempt. Container and number share one level, so that a start makes fewer of them."""
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
    """Returns the layout of a state directory.

    Its path is absolute and without symlinks, as in the kernel's mount table.
    """
    return StatePaths(os.path.realpath(directory))


def checked(name: str, what: str) -> str:
    """Returns `name` if it is safe as one component of a path. Raises UnsafeName."""
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
    """Returns whether the value is safe as the name of a file."""
    if not isinstance(value, str) or not value or value in (".", "..") or "/" in value or "\0" in value:
        return False
    try:
        return len(value.encode()) <= 255
    except UnicodeEncodeError:
        return False


AttemptKey = tuple[str, str, int]  # the same as `interface.Attempt`, for processes that must import little

TERMINATION_LOG = "termination-log"  # the termination log of a container, in the directory of its attempt

_MOST_BYTES = 64 << 20
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


def every_attempt(paths: StatePaths) -> Iterator[AttemptKey]:
    """Yields all attempts that have a directory. Raises OSError if no descriptor is left to look."""
    for uid in _names_in(paths.pods):
        for container, number in attempts_of(uid, paths):
            yield uid, container, number


def attempts_of(uid: str, paths: StatePaths) -> Iterator[tuple[str, int]]:
    """Yields the attempts of one pod: container and number. Raises OSError as `every_attempt` does."""
    for name in _names_in(f"{paths.pods}/{uid}"):
        container, _, number = name.rpartition(".")
        if container and number.isascii() and number.isdecimal() and str(int(number)) == number:
            yield container, int(number)


def write_json(directory: str, name: str, value: object) -> None:
    """Writes a JSON file. Raises OSError."""
    temporary = f"{directory}/.{name}"
    write_own(temporary, json.dumps(value, separators=(",", ":")).encode("ascii"))
    os.rename(temporary, f"{directory}/{name}")


def read_json(directory: str, name: str) -> dict[str, Any] | None:
    """Reads a JSON file; None if it does not exist or is damaged. Raises OSError if no descriptor is left to look."""
    try:
        descriptor = os.open(f"{directory}/{name}", _READ)
    except OSError as error:
        raise_shortage(error)
        return None
    try:
        parts = []
        left = _MOST_BYTES
        while left > 0 and (part := os.read(descriptor, min(left, 1 << 16))):
            parts.append(part)
            left -= len(part)
        value = json.loads(b"".join(parts))
    except OSError as error:
        raise_shortage(error)
        return None
    except (ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)
    return value if isinstance(value, dict) else None


def _names_in(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if is_name(name))
    except OSError as error:
        raise_shortage(error)
        return []


def make_directory(path: str) -> None:
    """Makes a directory and its parents, readable only by root.

    Other threads may make the same ones. Raises OSError.
    """
    with suppress(FileExistsError):
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:
            make_directory(os.path.dirname(path))
            os.mkdir(path, 0o700)


def names_in(directory: str) -> list[str]:
    """Returns the names in the directory; none if there is no such directory."""
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def is_uid(name: str) -> bool:
    """Whether the name can be the UID of a pod."""
    try:
        checked(name, "pod UID")
    except UnsafeName:
        return False
    return True
