"""Which cgroups are in which: what is there that the plan does not have, and what one hierarchy lacks.

Found by counting: a directory's links tell how many cgroups are in it. Only where there are more or fewer than the plan
has are they listed, which costs thirty times as much. Who counts again and again has the kernel tell whether there is
anything new to count.
"""

import os
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from evenkeel.cgroup.drivers.cgroupfs import Cgroupfs
from evenkeel.cgroup.drivers.watch import DirectoryWatch
from evenkeel.cgroup.names import POD_PREFIX
from evenkeel.cgroup.tree import Kind, Tree

_PARENTS = (Kind.ROOT, Kind.BRANCH, Kind.POD)  # whose children are all ours
_OWN_LINKS = 2  # of a directory without any in it


class Differences(NamedTuple):
    extra: list[str]
    partial: list[str]


NONE = Differences([], [])


class Families:
    """The parents of a plan with their children; `there` are the paths of the plan that were found. `watch` is nobody
    else's meanwhile."""

    def __init__(
        self,
        hierarchies: Sequence[Cgroupfs],
        tree: Tree,
        there: AbstractSet[str],
        watch: DirectoryWatch | None = None,
    ) -> None:
        self._hierarchies = hierarchies
        self._pairs = [(family, hierarchy) for family in _families(tree, there) for hierarchy in hierarchies]
        self._expected = [family.present + _OWN_LINKS for family, _ in self._pairs]
        self._directories: list[int] = []
        self._closings = -1
        self._watch = watch
        self._is_watched = False
        self._are_as_planned = False

    def differences(self) -> Differences:
        if self._closings != sum(hierarchy.closings for hierarchy in self._hierarchies):
            self._enter()
        elif self._are_as_planned and self._watch is not None:
            if not self._is_watched:  # a second time: it will not be the last
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
            for (family, hierarchy), seen, expected in zip(self._pairs, links, self._expected, strict=True):
                if seen != expected:
                    found = hierarchy.children(family.parent)
                    extra += [f"{family.parent}/{name}" for name in found if family.is_extra(name)]
                    partial += [f"{family.parent}/{name}" for name in family.names.difference(found)]
        return Differences(extra, partial)

    def _enter(self) -> None:
        self._is_watched = False
        self._closings = sum(hierarchy.closings for hierarchy in self._hierarchies)
        self._directories = [hierarchy.entered(family.parent) for family, hierarchy in self._pairs]


class _Family(NamedTuple):
    """A cgroup with the names that the plan has in it, and how many of these were found."""

    parent: str
    names: frozenset[str]
    present: int

    def is_extra(self, name: str) -> bool:
        # In the hierarchy's own root others live too, beside our pods if these are there (B6): pods go by their prefix.
        return name not in self.names and (bool(self.parent) or name.startswith(POD_PREFIX))


def _families(tree: Tree, there: AbstractSet[str]) -> list[_Family]:
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
    return [_Family(parent, frozenset(children), present[parent]) for parent, children in names.items()]
