"""Reading a whole tree: every file that the plan sets, and the cgroups that the plan does not have.

This is done again and again for a tree in which nothing has changed. So the descriptors of a tree are collected once
and read in one loop, and if every byte is the same, the result is the same object as before. `ChildCheck` finds cgroups
that are not planned, by the link counts of directories and with inotify.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from evenkeel.cgroup.diff import Observed
from evenkeel.cgroup.drivers.cgroupfs import Bounds, Cgroupfs
from evenkeel.cgroup.drivers.open_files import ABSENT, OpenFiles
from evenkeel.cgroup.names import POD_PREFIX
from evenkeel.cgroup.tree import Cgroup, Kind, Tree
from evenkeel.named_tuples import NamedTuple

_INTERESTING = 0x40 | 0x80 | 0x100 | 0x200  # moved from and to, created, deleted
_ONLY_DIRECTORY = 0x0100_0000
_BUFFER_BYTES = 1 << 16


class DirectoryWatch:
    """inotify on directories: whether an entry was made, removed or renamed."""

    def __init__(self) -> None:
        self._descriptor = -1

    def watch(self, directories: Iterable[int]) -> bool:
        """Watches the directories behind these descriptors too; False if not all of them can be watched."""
        from ctypes import CDLL  # only a process that runs for long needs it

        libc = CDLL(None)
        if self._descriptor < 0:
            self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            return False
        add, mask = libc.inotify_add_watch, _INTERESTING | _ONLY_DIRECTORY
        return all(
            directory >= 0 and add(self._descriptor, b"/proc/self/fd/%d" % directory, mask) >= 0
            for directory in directories
        )

    def is_quiet(self) -> bool:
        """Whether nothing has changed since the last call."""
        is_quiet = True
        try:
            while os.read(self._descriptor, _BUFFER_BYTES):
                is_quiet = False
        except BlockingIOError:
            pass
        return is_quiet

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_PARENTS = (Kind.ROOT, Kind.BRANCH, Kind.POD)  # all their children are ours
_OWN_LINKS = 2  # link count of a directory without directories in it


class Differences(NamedTuple):
    """`extra` cgroups are not planned; `partial` ones are planned and missing in one of the hierarchies."""

    extra: list[str]
    partial: list[str]


NONE = Differences([], [])


class ChildCheck:
    """Compares the children of each parent in the plan with the kernel. `there` are the planned paths that exist.
    `watch` is used by one check at a time."""

    def __init__(
        self,
        hierarchies: Sequence[Cgroupfs],
        tree: Tree,
        there: AbstractSet[str],
        watch: DirectoryWatch | None = None,
    ) -> None:
        self._hierarchies = hierarchies
        self._pairs = [
            (planned, hierarchy) for planned in _planned_children(tree, there) for hierarchy in hierarchies
        ]
        self._expected = [planned.present + _OWN_LINKS for planned, _ in self._pairs]
        self._directories: list[int] = []
        self._closings = -1
        self._watch = watch
        self._is_watched = False
        self._are_as_planned = False

    def differences(self) -> Differences:
        if self._closings != sum(hierarchy.closings for hierarchy in self._hierarchies):
            self._enter()
        elif self._are_as_planned and self._watch is not None:
            if not self._is_watched:  # from the second check on: there will be more of them
                self._is_watched = self._watch.watch(self._directories)
                self._watch = self._watch if self._is_watched else None
            elif self._watch.is_quiet():
                return NONE
        fstat = os.fstat
        links = [fstat(directory).st_nlink if directory >= 0 else 0 for directory in self._directories]
        self._are_as_planned = links == self._expected
        extra: list[str] = []
        partial: list[str] = []
        if not self._are_as_planned:
            for (planned, hierarchy), seen, expected in zip(self._pairs, links, self._expected, strict=True):
                if seen != expected:
                    found = hierarchy.children(planned.parent)
                    extra += [f"{planned.parent}/{name}" for name in found if planned.is_extra(name)]
                    partial += [f"{planned.parent}/{name}" for name in planned.names.difference(found)]
        return Differences(extra, partial)

    def _enter(self) -> None:
        self._is_watched = False
        self._closings = sum(hierarchy.closings for hierarchy in self._hierarchies)
        self._directories = [hierarchy.entered(planned.parent) for planned, hierarchy in self._pairs]


class _PlannedChildren(NamedTuple):
    """A cgroup, the names of its children in the plan, and how many of these exist."""

    parent: str
    names: frozenset[str]
    present: int

    def is_extra(self, name: str) -> bool:
        # Without classes our pods may be in the root of the hierarchy, beside cgroups of others (B6). The prefix shows
        # which cgroups are ours.
        return name not in self.names and (bool(self.parent) or name.startswith(POD_PREFIX))


def _planned_children(tree: Tree, there: AbstractSet[str]) -> list[_PlannedChildren]:
    names: dict[str, list[str]] = {
        c.path: [] for c in tree.cgroups if c.kind in _PARENTS and c.path in there and c.holds_only_ours
    }
    if all(cgroup.kind != Kind.ROOT for cgroup in tree.cgroups):
        names[""] = []
    present = dict.fromkeys(names, 0)
    for cgroup in tree.cgroups:
        parent, _, name = cgroup.path.rpartition("/")
        if parent in names:
            names[parent].append(name)
            present[parent] += cgroup.path in there
    return [
        _PlannedChildren(parent, frozenset(children), present[parent]) for parent, children in names.items()
    ]


_FEW_BYTES = 64  # more than almost any setting has
_MOST_BYTES = 4096


class Observer:
    """`exists` says whether there is such a cgroup; `on_absent` is called for each file that a cgroup does not have."""

    def __init__(
        self,
        open_files: OpenFiles,
        hierarchies: Sequence[Cgroupfs],
        bounds: Bounds,
        exists: Callable[[str], bool],
        on_absent: Callable[[str, str], None],
    ) -> None:
        self._open_files = open_files
        self._hierarchies = hierarchies
        self._bounds = bounds
        self._exists = exists
        self._on_absent = on_absent
        self._watch = DirectoryWatch()
        self._last: _Reading | None = None
        self._contents: list[bytes] = []
        self._observed: Observed = {}

    def close(self) -> None:
        self._last = None
        self._watch.close()

    def observe(self, tree: Tree) -> Observed:
        last = self._last
        reading = last if last is not None and self._is_good(last, tree) else self._opened(tree)
        contents = self._contents_of(reading)
        if contents is None:
            return self._one_by_one(tree)
        if reading is not last or contents != self._contents:
            self._last, self._contents, self._observed = reading, contents, _texts(reading, contents)
        return _corrected(self._observed, reading.children.differences())

    def observe_only(self, cgroups: Sequence[Cgroup]) -> Observed:
        """These cgroups alone. What is cached for whole trees is not changed."""
        observed: dict[str, Mapping[str, str]] = {}
        missing: set[str] = set()
        for cgroup in cgroups:
            path = cgroup.path
            if not self._open_files.has_open(path):
                self._bounds.to_read(path)
            values = None if path.rpartition("/")[0] in missing else self._values(cgroup)
            if values is None:
                missing.add(path)
            else:
                observed[path] = values
        return observed

    def _is_good(self, reading: "_Reading", tree: Tree) -> bool:
        return reading.is_whole and reading.generation == self._open_files.generation and reading.tree == tree

    def _opened(self, tree: Tree) -> "_Reading":
        wanted = {cgroup.path for cgroup in tree.cgroups}
        self._open_files.forget_others(self._bounds.root, wanted)
        for hierarchy in self._hierarchies:
            hierarchy.forget_others(self._bounds.root, wanted)
        generation = self._open_files.generation
        descriptors: list[int] = []
        cgroups: list[tuple[str, list[str]]] = []
        missing: set[str] = set()
        for cgroup in tree.cgroups:
            path = cgroup.path
            if path.rpartition("/")[0] in missing:  # without its parent it does not exist
                missing.add(path)
                continue
            files = [setting.file for setting in cgroup.settings]
            if not self._open_files.has_open(path):
                self._bounds.to_read(path)
            of_cgroup = self._open_files.descriptors(path, files, retry_absent=True)
            if of_cgroup is None or (not files and not self._exists(path)):
                missing.add(path)
                continue
            if ABSENT in of_cgroup:
                there = self._without_absent(path, dict(zip(files, of_cgroup, strict=True)))
                files, of_cgroup = list(there), list(there.values())
            cgroups.append((path, files))
            descriptors += of_cgroup
        return _Reading(
            tree=tree,
            generation=generation,
            cgroups=cgroups,
            descriptors=descriptors,
            children=ChildCheck(self._hierarchies, tree, {path for path, _ in cgroups}, self._watch),
            is_whole=len(cgroups) == len(tree.cgroups)
            and len(descriptors) == sum(len(cgroup.settings) for cgroup in tree.cgroups),
        )

    def _contents_of(self, reading: "_Reading") -> list[bytes] | None:
        """None if descriptors were closed since they were lined up, or if one of them cannot be read: its cgroup may be
        gone. Reading one by one then finds out which."""
        if reading.generation != self._open_files.generation:
            return None
        pread = os.pread
        try:
            contents = [pread(descriptor, _FEW_BYTES, 0) for descriptor in reading.descriptors]
            if _FEW_BYTES in map(len, contents):
                contents = [pread(descriptor, _MOST_BYTES, 0) for descriptor in reading.descriptors]
        except OSError:
            return None
        return contents

    def _one_by_one(self, tree: Tree) -> Observed:
        """Slower, but right while cgroups are being removed, and when there are too few descriptors."""
        observed: dict[str, Mapping[str, str]] = {}
        for cgroup in tree.cgroups:
            values = self._values(cgroup)
            if values is not None:
                observed[cgroup.path] = values
        return _corrected(observed, ChildCheck(self._hierarchies, tree, observed.keys()).differences())

    def _values(self, cgroup: Cgroup) -> Mapping[str, str] | None:
        """The values of the cgroup's files; None if there is no such cgroup."""
        files = [setting.file for setting in cgroup.settings]
        contents = self._open_files.contents(cgroup.path, files, _MOST_BYTES)
        if contents is None or (not files and not self._exists(cgroup.path)):
            return None
        return {file: _text(content) for file, content in zip(files, contents, strict=True) if content}

    def _without_absent(self, path: str, descriptors: Mapping[str, int]) -> dict[str, int]:
        for file, descriptor in descriptors.items():
            if descriptor == ABSENT:
                self._on_absent(path, file)
        return {file: descriptor for file, descriptor in descriptors.items() if descriptor != ABSENT}


class _Reading(NamedTuple):
    """The descriptors of all files of a tree, in its order. `is_whole`: nothing of the tree is missing."""

    tree: Tree
    generation: int
    cgroups: list[tuple[str, list[str]]]
    descriptors: list[int]
    children: ChildCheck
    is_whole: bool


def _texts(reading: _Reading, contents: list[bytes]) -> Observed:
    texts = iter([_text(content) for content in contents])
    return {path: {file: next(texts) for file in files} for path, files in reading.cgroups}


def _text(content: bytes) -> str:
    return content.decode("latin-1").rstrip("\n")


def _corrected(observed: Observed, differences: Differences) -> Observed:
    """The observed tree, with the cgroups that are not planned, and without those that are missing in one hierarchy."""
    if not differences.extra and not differences.partial:
        return observed
    partial = set(differences.partial)
    whole = {path: values for path, values in observed.items() if not _is_in(path, partial)}
    return {**whole, **{path: {} for path in differences.extra}}


def _is_in(path: str, tops: set[str]) -> bool:
    return bool(tops) and any(path == top or path.startswith(f"{top}/") for top in tops)
