"""Pods, ConfigMaps and Secrets from files: reads the given files and directories, again after each change.

If a file cannot be read or has an error, the pods that it had before stay unchanged. A pod is removed only if its file
is gone, or if the file has no error and no longer contains the pod. The same goes for ConfigMaps and Secrets.
"""

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import MappingProxyType

from evenkeel.agent.sources.file_watch import FileWatch, Interests, interests_of
from evenkeel.agent.sources.manifest_file import FileState, PodFile, is_gone, reread, sentence
from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod
from evenkeel.api.stored_objects import StoredObject, key_of_object
from evenkeel.api.workloads import Workload, key_of
from evenkeel.errors import reason
from evenkeel.host.files import is_manifest_name
from evenkeel.named_tuples import NamedTuple

__all__ = ["FileSet", "PodFile", "PodFiles"]

MAX_FILES = 10_000  # in a directory
_BUSY_SECONDS = 0.5  # until a file that is being written is checked again
# Files that change all the time may use at most this share of one CPU in the long run.
_SHARE = 0.2
_BURST_SECONDS = 2.0
_MAX_REST_SECONDS = 5.0


class FileSet(NamedTuple):
    """All present files with their pods and objects. None of them is in it twice."""

    files: tuple[PodFile, ...] = ()  # in the order given, within a directory by name
    notes: tuple[str, ...] = ()  # about no single file, such as that changes are noticed late


class PodFiles:
    """`async for files in PodFiles(…)` yields all files at first, and all files again after each change. `before` comes
    from the journal: by absolute path, what a former agent last read from each file."""

    def __init__(
        self,
        paths: Sequence[str],
        profile: Profile = Profile.DOCUMENTS,
        before: Mapping[str, PodFile] = MappingProxyType({}),
    ) -> None:
        self._paths = tuple(dict.fromkeys(os.path.abspath(path) for path in paths))
        self._profile = profile
        self._states = {path: FileState(file) for path, file in before.items()}
        self._watch: FileWatch | None = None
        self._is_closed = False
        self._one_at_a_time = asyncio.Lock()

    async def scan(self) -> FileSet:
        """Reads all files in a thread. Files that have not changed are not read again."""
        found = await self._look()
        return found.files

    def __aiter__(self) -> AsyncIterator[FileSet]:
        return self._follow()

    def close(self) -> None:
        """Ends the iteration."""
        self._is_closed = True
        if self._watch is not None:
            self._watch.close()

    async def _follow(self) -> AsyncIterator[FileSet]:
        watch = self._watch = FileWatch()
        budget = _Budget()
        last: FileSet | None = None
        try:
            while True:
                look = await self._look()
                if self._is_closed:
                    return
                if watch.aim(look.interests):
                    continue  # a file may have changed before it was watched: read again
                notes = (*look.files.notes, watch.note) if watch.note else look.files.notes
                now = look.files._replace(notes=notes)
                if now != last:
                    last = now
                    yield now
                await asyncio.sleep(budget.rest_seconds(look.cpu_seconds))
                if not await (watch.changed(_BUSY_SECONDS) if look.is_busy else watch.changed()):
                    return
        finally:
            if not self._is_closed:
                self.close()

    async def _look(self) -> "_Look":
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._look_now)

    def _look_now(self) -> "_Look":
        started = time.thread_time()
        states: dict[str, FileState] = {}
        troubles: list[PodFile] = []  # of given paths, not of single files
        follow: dict[str, bool] = {}
        for path in self._paths:
            listing = _list(path)
            follow[path] = listing.is_directory
            names = listing.files
            if names is None:  # the path cannot be listed: its files stay as they are
                below = sorted(known for known in self._states if os.path.dirname(known) == path)
                states.update((name, self._states[name]) for name in below if name not in states)
                names = [] if below or listing.is_directory else [path]
            if listing.trouble and path not in names:
                troubles.append(PodFile(path, (), (sentence(path, listing.trouble),)))
            for name in names:
                state = states.get(name) or reread(name, self._states.get(name), self._profile)
                if state is not None:
                    states[name] = state
            follow.update((link, False) for link in listing.links)
        self._states = states
        files = _without_duplicates(state.file for state in states.values())
        return _Look(
            FileSet((*troubles, *files)),
            interests_of(follow),
            any(state.busy_since is not None for state in states.values()),
            time.thread_time() - started,
        )


class _Budget:
    """Budget of CPU time for reading. Unused time is saved for a burst."""

    def __init__(self) -> None:
        self._left_seconds = _BURST_SECONDS
        self._at = time.monotonic()

    def rest_seconds(self, used_seconds: float) -> float:
        now = time.monotonic()
        earned = (now - self._at) * _SHARE
        self._at = now
        self._left_seconds = min(self._left_seconds + earned, _BURST_SECONDS) - used_seconds
        return min(max(0.0, -self._left_seconds / _SHARE), _MAX_REST_SECONDS)


class _Look(NamedTuple):
    files: FileSet
    interests: Interests
    is_busy: bool
    cpu_seconds: float


class _Listing(NamedTuple):
    """The manifests at a given path. `files` is None if the path cannot be listed now."""

    files: list[str] | None
    links: tuple[str, ...] = ()  # the files that are symbolic links
    is_directory: bool = False
    trouble: str = ""


def _list(path: str) -> _Listing:
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            return _Listing([path])
    except OSError as error:
        if is_gone(path, error):
            return _Listing([], trouble="no such file or directory")
        # If the path was a directory before, its files stay.
        return _Listing(None, trouble=f"cannot be read: {reason(error)}")
    try:
        found, links = [], []
        with os.scandir(path) as entries:
            for entry in entries:
                if is_manifest_name(entry.name):
                    found.append(entry.path)
                    if entry.is_symlink():
                        links.append(entry.path)
                if len(found) > MAX_FILES:
                    much = f"holds more than {MAX_FILES} manifests: none of its changes are taken up"
                    return _Listing(None, is_directory=True, trouble=much)
    except OSError as error:
        if is_gone(path, error):
            return _Listing([], trouble="no such file or directory")
        why = reason(error)
        return _Listing(None, is_directory=True, trouble=f"cannot be read: {why}")
    return _Listing(sorted(found), tuple(links), is_directory=True)


def _without_duplicates(files: Iterable[PodFile]) -> Iterable[PodFile]:
    """If a pod, workload or object is in two files, the first file keeps it. The second file gets a problem."""
    owners: dict[str, str] = {}
    for file in files:
        kept: list[Pod] = []
        objects: list[StoredObject] = []
        problems: list[str] = []
        for one in file.objects:
            first = owners.setdefault(str(key_of_object(one)), file.path)
            if first == file.path:
                objects.append(one)
            else:
                problems.append(
                    sentence(file.path, f"{key_of_object(one)} stands in {first} too: that one is taken")
                )
        for pod in file.pods:
            names = (pod.key, f"uid {pod.metadata.uid}")
            owner = next((owners[name] for name in names if name in owners), None)
            if owner is None:
                kept.append(pod)
                owners.update(dict.fromkeys(names, file.path))
            else:
                problems.append(
                    sentence(file.path, f"pod {pod.key} stands in {owner} too: that one is taken")
                )
        workloads: list[Workload] = []
        for workload in file.workloads:
            first = owners.setdefault(key_of(workload), file.path)
            if first == file.path:
                workloads.append(workload)
            else:
                words = key_of(workload).replace("/", " ", 1)
                problems.append(sentence(file.path, f"{words} stands in {first} too: that one is taken"))
        yield (
            file._replace(
                pods=tuple(kept),
                objects=tuple(objects),
                workloads=tuple(workloads),
                problems=(*file.problems, *problems),
            )
            if problems
            else file
        )
