"""Reading a whole tree: every file that the plan sets, and whatever is there that the plan does not have.

This is done over and over for a tree in which nothing has changed. So the descriptors of one tree are lined up once and
read in one go, and the answer is the same object as before if every byte is the same.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from evenkeel.cgroup.diff import Observed
from evenkeel.cgroup.drivers.bounds import Bounds
from evenkeel.cgroup.drivers.cgroupfs import GONE, Cgroupfs
from evenkeel.cgroup.drivers.families import Differences, Families
from evenkeel.cgroup.drivers.kept import ABSENT, KeptFiles
from evenkeel.cgroup.drivers.refusals import refusal
from evenkeel.cgroup.drivers.watch import DirectoryWatch
from evenkeel.cgroup.tree import Cgroup, Tree

_FEW_BYTES = 64  # more than almost any setting has
_MOST_BYTES = 4096


class Observer:
    """`exists` says whether there is such a cgroup; `on_absent` is told of each that has not got a file."""

    def __init__(
        self,
        kept: KeptFiles,
        hierarchies: Sequence[Cgroupfs],
        bounds: Bounds,
        exists: Callable[[str], bool],
        on_absent: Callable[[str, str], None],
    ) -> None:
        self._kept = kept
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
        return _corrected(self._observed, reading.families.differences())

    def observe_only(self, cgroups: Sequence[Cgroup]) -> Observed:
        """These alone; what is kept for whole trees stays as it is."""
        observed: dict[str, Mapping[str, str]] = {}
        missing: set[str] = set()
        for cgroup in cgroups:
            path = cgroup.path
            if not self._kept.keeps(path):
                self._bounds.to_read(path)
            values = None if path.rpartition("/")[0] in missing else self._values(cgroup)
            if values is None:
                missing.add(path)
            else:
                observed[path] = values
        return observed

    def _is_good(self, reading: "_Reading", tree: Tree) -> bool:
        return reading.is_whole and reading.generation == self._kept.generation and reading.tree == tree

    def _opened(self, tree: Tree) -> "_Reading":
        wanted = {cgroup.path for cgroup in tree.cgroups}
        self._kept.forget_others(self._bounds.root, wanted)
        for hierarchy in self._hierarchies:
            hierarchy.forget_others(self._bounds.root, wanted)
        generation = self._kept.generation
        descriptors: list[int] = []
        cgroups: list[tuple[str, list[str]]] = []
        missing: set[str] = set()
        for cgroup in tree.cgroups:
            path = cgroup.path
            if path.rpartition("/")[0] in missing:  # nothing is in what is not there
                missing.add(path)
                continue
            files = [setting.file for setting in cgroup.settings]
            if not self._kept.keeps(path):
                self._bounds.to_read(path)
            of_cgroup = self._kept.descriptors(path, files, look_again=True)
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
            families=Families(self._hierarchies, tree, {path for path, _ in cgroups}, self._watch),
            is_whole=len(cgroups) == len(tree.cgroups)
            and len(descriptors) == sum(len(cgroup.settings) for cgroup in tree.cgroups),
        )

    def _contents_of(self, reading: "_Reading") -> list[bytes] | None:
        """None if descriptors were closed since they were lined up, or if one is of a cgroup that is gone."""
        if reading.generation != self._kept.generation:
            return None
        pread = os.pread
        try:
            contents = [pread(descriptor, _FEW_BYTES, 0) for descriptor in reading.descriptors]
            if _FEW_BYTES in map(len, contents):
                contents = [pread(descriptor, _MOST_BYTES, 0) for descriptor in reading.descriptors]
        except OSError as error:
            if error.errno in GONE:
                return None
            raise refusal(error, "read", self._bounds.root) from None
        return contents

    def _one_by_one(self, tree: Tree) -> Observed:
        """Slower, and sure of itself while cgroups vanish, or descriptors are too few to be kept."""
        observed: dict[str, Mapping[str, str]] = {}
        for cgroup in tree.cgroups:
            values = self._values(cgroup)
            if values is not None:
                observed[cgroup.path] = values
        return _corrected(observed, Families(self._hierarchies, tree, observed.keys()).differences())

    def _values(self, cgroup: Cgroup) -> Mapping[str, str] | None:
        """What the cgroup's files hold; None if there is no such cgroup."""
        files = [setting.file for setting in cgroup.settings]
        contents = self._kept.contents(cgroup.path, files, _MOST_BYTES)
        if contents is None or (not files and not self._exists(cgroup.path)):
            return None
        return {file: _text(content) for file, content in zip(files, contents, strict=True) if content}

    def _without_absent(self, path: str, descriptors: Mapping[str, int]) -> dict[str, int]:
        for file, descriptor in descriptors.items():
            if descriptor == ABSENT:
                self._on_absent(path, file)
        return {file: descriptor for file, descriptor in descriptors.items() if descriptor != ABSENT}


class _Reading(NamedTuple):
    """The descriptors of a tree's files in its order; whole if nothing of the tree is missing."""

    tree: Tree
    generation: int
    cgroups: list[tuple[str, list[str]]]
    descriptors: list[int]
    families: Families
    is_whole: bool


def _texts(reading: _Reading, contents: list[bytes]) -> Observed:
    texts = iter([_text(content) for content in contents])
    return {path: {file: next(texts) for file in files} for path, files in reading.cgroups}


def _text(content: bytes) -> str:
    return content.decode("latin-1").rstrip("\n")


def _corrected(observed: Observed, differences: Differences) -> Observed:
    """What was read, with the cgroups that should not be there, and without those that one hierarchy lacks."""
    if not differences.extra and not differences.partial:
        return observed
    partial = set(differences.partial)
    whole = {path: values for path, values in observed.items() if not _is_in(path, partial)}
    return {**whole, **{path: {} for path in differences.extra}}


def _is_in(path: str, tops: set[str]) -> bool:
    return bool(tops) and any(path == top or path.startswith(f"{top}/") for top in tops)
