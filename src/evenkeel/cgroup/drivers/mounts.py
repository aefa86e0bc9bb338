"""The mount points of the cgroup hierarchies, from the text of /proc/self/mountinfo.

v1 has a hierarchy for each controller, or for several together (`cpu,cpuacct`). v2 has one for all other controllers.
Hybrid hosts have both.
"""

import re
from collections.abc import Mapping

from evenkeel.named_tuples import NamedTuple

# The controllers that Evenkeel sets or reads. v2 needs no cpuacct (cpu.stat has it) and no freezer (cgroup.freeze).
V1_CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb", "freezer")
V2_CONTROLLERS = ("cpu", "cpuset", "memory", "pids", "hugetlb")

_OTHER_CONTROLLERS = ("blkio", "devices", "misc", "net_cls", "net_prio", "perf_event", "rdma")
_NAMED = "name="

_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mounts(NamedTuple):
    """`v1` has the mount point of each controller, `v2` that of the unified hierarchy; empty if there is none. `others`
    are hierarchies of v1 that container runtimes use and we do not."""

    v1: Mapping[str, str]
    v2: str = ""
    others: tuple[str, ...] = ()


def parse_mountinfo(text: str) -> Mounts:
    """Parses mountinfo. If a hierarchy is mounted several times, the first mount that shows all of it counts, or else
    the first."""
    hierarchies: dict[tuple[str, str], tuple[bool, str]] = {}
    for kind, root, point, options in _visible(text):
        for name in [""] if kind == "cgroup2" else options.split(","):
            earlier = hierarchies.get((kind, name))
            is_whole = root == "/"
            if earlier is None or (is_whole and not earlier[0]):
                hierarchies[kind, name] = (is_whole, point)
    v1 = {name: hierarchies["cgroup", name][1] for name in V1_CONTROLLERS if ("cgroup", name) in hierarchies}
    others = {
        point
        for (kind, name), (_, point) in hierarchies.items()
        if kind == "cgroup" and (name in _OTHER_CONTROLLERS or name.startswith(_NAMED))
    }
    return Mounts(
        v1, hierarchies.get(("cgroup2", ""), (True, ""))[1], tuple(sorted(others.difference(v1.values())))
    )


def _visible(text: str) -> list[tuple[str, str, str, str]]:
    """Type, root, mount point and options of the cgroup mounts that no later mount at the same point covers."""
    at_point: dict[str, tuple[str, str, str, str]] = {}
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if not dash or len(fields) < 6 or len(kinds) < 3:
            continue
        point = _unescaped(fields[4])
        at_point.pop(point, None)
        at_point[point] = (kinds[0], _unescaped(fields[3]), point, kinds[2])
    return [mount for mount in at_point.values() if mount[0] in ("cgroup", "cgroup2")]


def _unescaped(text: str) -> str:
    """The kernel writes blanks and the like as three octal digits."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text) if "\\" in text else text
