"""hostPath volumes: where they lead, and what may be there. Pods cannot change where they lead.

A container that may write to a directory of the host may make symlinks there. So a hostPath below such a directory is
resolved like a subPath: by the kernel, and never out of that directory. kubelet follows such symlinks. Everywhere else
symlinks are followed, because pods cannot make them.

A path may be on a filesystem that does not answer, such as that of a server which is away. So each pod's paths are
examined in a thread of their own, and the wait for it is bounded.
"""

import asyncio
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from evenkeel.api.pod import Pod
from evenkeel.api.volume_types import HostPathVolumeSource
from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.memory_mounts import VolumeRefused
from evenkeel.runtime.procfs import is_below, other_ways, read_mounts
from evenkeel.runtime.sub_paths import made_below, open_below

HUNG_SECONDS = 10.0  # a filesystem that takes longer to answer does not answer
_MOST_HUNG = 64
_MOST_LINKS = 40  # as many as the kernel follows
_DIRECTORY_MODE, _FILE_MODE = 0o755, 0o644  # of directories and files that a hostPath volume makes
_KINDS = {"Directory": stat.S_ISDIR, "DirectoryOrCreate": stat.S_ISDIR, "File": stat.S_ISREG,
          "FileOrCreate": stat.S_ISREG, "Socket": stat.S_ISSOCK}  # fmt: skip
_WORDS = {"Directory": "directory", "DirectoryOrCreate": "directory", "File": "file", "FileOrCreate": "file",
          "Socket": "socket"}  # fmt: skip


class HostPlace(NamedTuple):
    """Where a hostPath leads. No pod can change where `base` leads. It has no symlinks."""

    base: str
    below: str = ""  # the rest of the path, if `base` is a directory that a pod may write to


Identity = tuple[int, int]  # device and inode
NO_PLACES: Mapping[str, HostPlace] = {}


class HostPaths:
    """The hostPath volumes of all pods. `prepare` blocks; `prepared` does not."""

    def __init__(self, state_directory: str) -> None:
        self._state_directory = state_directory
        self._writable: dict[str, tuple[str, ...]] = {}  # by UID: the paths that the pod may write to
        self._identities: dict[str, Identity] = {}  # of these paths, by the path
        self._places: dict[str, dict[str, HostPlace]] = {}  # by UID and volume
        self._under_way: dict[str, asyncio.Future[None]] = {}

    def take_note(self, pods: Iterable[Pod]) -> None:
        """Remembers the paths to which these pods, which may already run, may write. Does not block."""
        for pod in pods:
            self._note(pod)
        if self._writable:
            threading.Thread(target=self._identify, name="host-paths", daemon=True).start()

    async def prepared(self, pod: Pod) -> None:
        """Does `prepare` in a thread, within `HUNG_SECONDS`. Raises VolumeRefused."""
        paths = [volume.host_path.path for volume in pod.spec.volumes if volume.host_path is not None]
        if not paths:
            return
        uid = pod.metadata.uid
        try:
            async with asyncio.timeout(HUNG_SECONDS):
                await asyncio.shield(self._under_way.get(uid) or self._begun(uid, lambda: self.prepare(pod)))
        except TimeoutError:
            raise VolumeRefused(
                f"hostPath {', '.join(paths)}: the filesystem does not answer within {HUNG_SECONDS:g} s"
            ) from None

    def prepare(self, pod: Pod) -> None:
        """Finds the places of the pod's hostPath volumes, and makes the files and directories that their types demand.
        Raises VolumeRefused."""
        self._note(pod)
        found = {}
        for volume in pod.spec.volumes:
            if volume.host_path is not None:
                try:
                    found[volume.name] = self._prepared(volume.host_path)
                except VolumeRefused as refused:
                    raise VolumeRefused(f'volume "{volume.name}": {refused.message}') from None
                except OSError as error:
                    where = error.filename or volume.host_path.path
                    raise VolumeRefused(
                        f'volume "{volume.name}" cannot be made at {where}: {reason(error)}'
                    ) from None
        self._places[pod.metadata.uid] = found
        self._identify(self._writable.get(pod.metadata.uid, ()))

    def places(self, uid: str) -> Mapping[str, HostPlace]:
        """Returns the places of a pod's hostPath volumes by the volumes' names."""
        return self._places.get(uid, {})

    def forget(self, uid: str) -> None:
        for path in self._writable.pop(uid, ()):
            self._identities.pop(path, None)
        self._places.pop(uid, None)

    def _note(self, pod: Pod) -> None:
        mounts = [mount for container in pod.spec.every_container for mount in container.volume_mounts]
        written = {mount.name for mount in mounts if not mount.read_only}
        paths = [volume.host_path.path for volume in pod.spec.volumes
                 if volume.host_path is not None and volume.name in written]  # fmt: skip
        if paths:
            self._writable[pod.metadata.uid] = tuple(paths)

    def _identify(self, paths: Iterable[str] = ()) -> None:
        """Reads device and inode of the directories at these paths. A directory may have other paths too."""
        for path in paths or {one for every in list(self._writable.values()) for one in every}:
            with suppress(OSError):
                self._identities[path] = _identity(path)

    def _is_written(self, path: str) -> bool:
        """Whether a pod may write to this directory. Other pods' paths are not looked at: they may not answer."""
        written = {one for every in list(self._writable.values()) for one in every}
        if path in written:
            return True
        try:
            found = _identity(path)
        except OSError:
            return False
        return any(self._identities.get(one) == found for one in written)

    def _begun(self, uid: str, work: Callable[[], None]) -> asyncio.Future[None]:
        if len(self._under_way) >= _MOST_HUNG:
            raise VolumeRefused(f"hostPath volumes of {_MOST_HUNG} other pods do not answer")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def finish(error: EvenkeelError | None) -> None:
            self._under_way.pop(uid, None)
            if done.cancelled():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
                done.exception()  # so asyncio logs no error if no caller waits any more

        def run() -> None:
            problem: EvenkeelError | None = None
            try:
                work()
            except EvenkeelError as error:
                problem = error
            except Exception as error:  # noqa: BLE001 it belongs to the one that waits
                problem = VolumeRefused(f"hostPath: {error!r}")
            with suppress(RuntimeError):  # the agent has ended
                loop.call_soon_threadsafe(finish, problem)

        self._under_way[uid] = done
        threading.Thread(target=run, name="host-paths", daemon=True).start()
        return done

    def _prepared(self, source: HostPathVolumeSource) -> HostPlace:
        place = self._located(source.path)
        self._check_outside(os.path.normpath(os.path.join(place.base, place.below)), source.path)
        try:
            opened = _opened(place, source)
        except OSError as error:
            if error.errno == errno.EXDEV and place.below:
                raise VolumeRefused(
                    f"hostPath {source.path} leads out of {place.base} by a symlink, and pods may write there",
                    hint="name the path that it leads to",
                ) from None
            raise
        try:
            is_right, wanted = _KINDS.get(source.type or ""), source.type or ""
            if is_right and not is_right(os.fstat(opened).st_mode):
                raise VolumeRefused(
                    f"hostPath {source.path} is no {_WORDS[wanted]}, as type {wanted} says it must be"
                )
            self._check_outside(os.readlink(f"/proc/self/fd/{opened}"), source.path)
        finally:
            os.close(opened)
        return place

    def _check_outside(self, real: str, path: str) -> None:
        ways = (self._state_directory, *other_ways(self._state_directory, read_mounts()))
        if any(is_below(real, way) for way in ways):
            raise VolumeRefused(f"hostPath {path} lies in the agent's state directory, which is no pod's")

    def _located(self, path: str) -> HostPlace:
        """Resolves the path up to the first directory that a pod may write to. The symlinks up to there are not a
        pod's."""
        at, names, links = "/", _names(path), 0
        while names:
            # A pod that may write to everything has no need of symlinks.
            if at != "/" and self._is_written(at):
                return HostPlace(at, "/".join(names))
            name = names.pop(0)
            if name == "..":
                at = os.path.dirname(at)
                continue
            here = os.path.join(at, name)
            try:
                leads_to = os.readlink(here)
            except OSError:  # it is no symlink, or it is not there yet
                at = here
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            at = "/" if leads_to.startswith("/") else at
            names = _names(leads_to) + names
        return HostPlace(at)


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _identity(path: str) -> Identity:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _opened(place: HostPlace, source: HostPathVolumeSource) -> int:
    """Opens the place, and makes it first if it is missing and the volume's type says so."""
    try:
        return open_place(place)
    except FileNotFoundError:
        kind = source.type or ""
        if kind not in ("", "DirectoryOrCreate", "FileOrCreate"):
            raise VolumeRefused(
                f"hostPath {source.path} is not there; start what listens there first"
                if kind == "Socket"
                else f"hostPath {source.path} is not there, and type {kind} says it must be; make it, or write "
                f"{kind}OrCreate"
            ) from None
        _make(place, is_file=kind == "FileOrCreate")
    return open_place(place)


def open_place(place: HostPlace) -> int:
    """Returns a descriptor of the place. Raises OSError, with EXDEV if it leads out of the base."""
    base = os.open(place.base, os.O_PATH | os.O_CLOEXEC)
    if not place.below:
        return base
    try:
        return open_below(base, place.below)
    finally:
        os.close(base)


def _make(place: HostPlace, *, is_file: bool) -> None:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    if not place.below:
        if is_file:
            os.close(os.open(place.base, flags, _FILE_MODE))
        else:
            os.makedirs(place.base, _DIRECTORY_MODE, exist_ok=True)
        return
    above, name = os.path.split(place.below) if is_file else (place.below, "")
    base = os.open(place.base, os.O_PATH | os.O_CLOEXEC)
    try:
        # The directory of a file is not made: the type is about the file.
        parent = open_below(base, above or ".") if is_file else made_below(base, above, _DIRECTORY_MODE)
    finally:
        os.close(base)
    try:
        if is_file:
            os.close(os.open(name, flags, _FILE_MODE, dir_fd=parent))
    finally:
        os.close(parent)
