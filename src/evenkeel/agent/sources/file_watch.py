"""Waits for changes of manifest files. It uses inotify on the relevant directories, and polls if inotify fails."""

import asyncio
import errno
import os
from collections.abc import Iterator, Mapping
from itertools import islice

from evenkeel.host.files import is_manifest_name
from evenkeel.host.inotify import (
    DELETED,
    IGNORED,
    MOVED_FROM,
    OVERFLOW,
    SELF_DELETED,
    SELF_MOVED,
    Inotify,
    watch_refusal,
)

# Changes come in bursts: an editor writes, renames and removes. A removed file may be created again at once.
_QUIET_SECONDS = 0.01
_MOST_SECONDS = 0.05
# inotify does not report every change, such as a renamed parent directory, or a change by another machine on NFS.
_RESCAN_SECONDS = 60.0
_RESCAN_WITHOUT_SECONDS = 5.0
_MAX_DIRECTORIES = 256
_MAX_LINKS = 40

Interests = Mapping[str, set[str]]


class FileWatch:
    """Watches names in real directories. The name `""` means every manifest in the directory."""

    def __init__(self) -> None:
        self.note = ""  # the reason if changes are noticed late
        self._inotify: Inotify | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watches: dict[int, str] = {}
        self._interests: Interests = {}
        self._changed = asyncio.Event()
        self._has_removal = False
        self._is_closed = False

    def aim(self, interests: Interests) -> bool:
        """Watches these names from now on. Returns True if a directory is newly watched."""
        self.note = ""
        if not self._start():
            return False
        assert self._inotify is not None
        if len(interests) > _MAX_DIRECTORIES:
            self._is_late(f"links lead to more than {_MAX_DIRECTORIES} directories")
            interests = dict(islice(interests.items(), _MAX_DIRECTORIES))
        self._interests = interests
        for watch, directory in list(self._watches.items()):
            if directory not in interests:
                self._drop(watch)
        is_new = False
        watched = set(self._watches.values())
        for directory in [directory for directory in interests if directory not in watched][
            :_MAX_DIRECTORIES
        ]:
            try:
                self._watches[self._inotify.watch_entries(directory)] = directory
                is_new = True
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    self._is_late(watch_refusal(error))
        return is_new

    async def changed(self, within_seconds: float = _RESCAN_SECONDS) -> bool:
        """Returns when a file has changed and the burst is over, or after `within_seconds`. Returns False if closed."""
        if self.note:
            within_seconds = min(within_seconds, _RESCAN_WITHOUT_SECONDS)
        if await self._event(within_seconds):
            loop = asyncio.get_running_loop()
            end = loop.time() + _MOST_SECONDS
            while (left := end - loop.time()) > 0:
                self._changed.clear()
                if not await self._event(left if self._has_removal else min(left, _QUIET_SECONDS)):
                    break
        self._has_removal = False
        if not self._is_closed:
            self._changed.clear()
        return not self._is_closed

    def close(self) -> None:
        self._is_closed = True
        self._changed.set()
        if self._inotify is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None

    def _start(self) -> bool:
        if self._inotify is None and not self._is_closed:
            try:
                self._inotify = Inotify()
            except OSError as error:
                self._is_late(watch_refusal(error))
                return False
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._inotify.fileno(), self._take)
        return self._inotify is not None

    async def _event(self, within_seconds: float) -> bool:
        try:
            async with asyncio.timeout(within_seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _take(self) -> None:
        assert self._inotify is not None
        for happened in self._inotify.read():
            directory = self._watches.get(happened.watch)
            if happened.mask & OVERFLOW:
                self._has_removal = True
                self._changed.set()
            elif directory is None:
                continue
            elif happened.mask & (IGNORED | SELF_DELETED | SELF_MOVED):
                self._drop(happened.watch)
                self._has_removal = True
                self._changed.set()
            elif self._matters(directory, happened.name):
                self._has_removal = self._has_removal or bool(happened.mask & (DELETED | MOVED_FROM))
                self._changed.set()

    def _matters(self, directory: str, name: str) -> bool:
        names = self._interests.get(directory, set())
        return name in names or ("" in names and is_manifest_name(name))

    def _drop(self, watch: int) -> None:
        if self._watches.pop(watch, None) is not None and self._inotify is not None:
            self._inotify.unwatch(watch)

    def _is_late(self, why: str) -> None:
        seconds = _RESCAN_WITHOUT_SECONDS
        self.note = f"changes of manifests are noticed after up to {seconds:g} s, not at once: {why}"


def interests_of(paths: Mapping[str, bool]) -> dict[str, set[str]]:
    """The directory entries on which `paths` depend, by real directory. A path with True is a directory: its manifests
    are included."""
    found: dict[str, set[str]] = {}
    for path, is_directory in paths.items():
        for directory, name in _steps(path):
            found.setdefault(directory, set()).add(name)
        if is_directory:
            found.setdefault(os.path.realpath(path), set()).add("")
    return found


def _steps(path: str) -> Iterator[tuple[str, str]]:
    """Each symbolic link on the way to `path` (absolute), and its last entry, as directory and name. If an entry on the
    way is missing, that entry is the last one."""
    here = "/"
    ahead = path.split("/")[::-1]
    links = 0
    while ahead:
        name = ahead.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        entry = os.path.join(here, name)
        try:
            target = os.readlink(entry)
        except OSError as error:
            is_there = error.errno == errno.EINVAL  # it exists, and is not a link
            if not is_there or not any(part not in ("", ".") for part in ahead):
                yield here, name
            if not is_there:
                return
            here = entry
            continue
        yield here, name
        links += 1
        if links > _MAX_LINKS:
            return
        here = "/" if target.startswith("/") else here
        ahead += target.split("/")[::-1]
