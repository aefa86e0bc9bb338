"""The steps from what the kernel has to what the plan wants, in an order that breaks no promise on the way.

First everything that takes: removals and lowered values, children before parents. Then cores that are changed for
others. Then everything that gives: new cgroups and raised values, parents before children. So at every moment

- a parent holds at least what its children are promised: its own value sinks only after theirs, and rises before;
- no cgroup is allowed more than the larger of its old and new limit, nor protected by less than the smaller of the two;
- the sum of the children's protection never exceeds the parent's (in between it is the sum of the smaller values).
"""

from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum, StrEnum
from typing import NamedTuple

from evenkeel.api.scalars import format_cpuset, parse_cpuset
from evenkeel.cgroup.kernel_files import CPUS, INHERITED, default_value, direction, same_value
from evenkeel.cgroup.names import POD_PREFIX
from evenkeel.cgroup.tree import Cgroup, Kind, Setting, Tree, Version
from evenkeel.errors import EvenkeelError

Observed = Mapping[str, Mapping[str, str]]  # path → file → value as read


class Action(StrEnum):
    REMOVE = "remove"
    CREATE = "create"
    WRITE = "write"


class Step(NamedTuple):
    """One thing to do. `before` is the value that the kernel has, where a file is written."""

    action: Action
    path: str
    setting: Setting | None = None
    before: str = ""


def diff(
    desired: Tree, observed: Observed, hands_off: Collection[str] = (), ours: str | None = None
) -> tuple[Step, ...]:
    """The steps that make `observed` equal to `desired`; none where it already is. Below a path in `hands_off` nothing
    is touched (E9). A cgroup of daemons is set, but made only where we are asked to (E7), and never removed: what is
    not below the pods' root is not ours to remove, nor is what a container runtime has made in a pod's cgroup. `ours`
    is how the paths there begin, where `desired` does not tell because it is only part of a plan."""
    wanted = {cgroup.path for cgroup in desired.cgroups}
    theirs = {cgroup.path for cgroup in desired.cgroups if not cgroup.holds_only_ours}
    ours = pods_prefix(desired) if ours is None else ours
    steps: dict[_Phase, list[tuple[int, Step]]] = {phase: [] for phase in _Phase}
    steps[_Phase.TAKE] = [
        (_depth(path), Step(Action.REMOVE, path))
        for path in observed
        if path not in wanted
        and path.startswith(ours)
        and path.rpartition("/")[0] not in theirs
        and not _is_below(path, hands_off)
    ]
    for cgroup in desired.cgroups:
        if _is_below(cgroup.path, hands_off):
            continue
        depth = _depth(cgroup.path)
        has = observed.get(cgroup.path)
        if has is None:
            if not cgroup.is_ours_to_make:
                continue
            steps[_Phase.GIVE].append((depth, Step(Action.CREATE, cgroup.path)))
            steps[_Phase.GIVE] += [(depth, step) for step in _first_writes(cgroup, desired.version)]
        else:
            for step, phase in _writes(cgroup, has):
                steps[phase].append((depth, step))
    steps[_Phase.TAKE].sort(key=lambda entry: (-entry[0], _rank(entry[1], _TAKE_ORDER)))
    # Sorting is stable: a cgroup is made before its files are written.
    created = {step.path for _, step in steps[_Phase.GIVE] if step.action == Action.CREATE}
    steps[_Phase.GIVE].sort(
        key=lambda entry: (entry[0], 0 if entry[1].path in created else _rank(entry[1], _GIVE_ORDER))
    )
    return tuple(step for phase in _Phase for _, step in steps[phase])


class _Phase(IntEnum):
    """When a step is due."""

    TAKE = 0
    MOVE = 1  # other cores than before: when everybody has let go what they lose, and before anybody gains
    GIVE = 2


_V1_QUOTA, _V1_PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"
# Within one cgroup, where the kernel ties two files together: burst ≤ quota (v2 and v1), memory ≤ memory+swap (v1).
_TAKE_ORDER = {
    "cpu.max.burst": 0,
    "cpu.cfs_burst_us": 0,
    "memory.limit_in_bytes": 1,
    "memory.memsw.limit_in_bytes": 2,
}
_GIVE_ORDER = {
    "memory.memsw.limit_in_bytes": 0,
    "memory.limit_in_bytes": 1,
    "cpu.max": 1,
    _V1_QUOTA: 1,
    _V1_PERIOD: 1,
    "cpu.max.burst": 2,
    "cpu.cfs_burst_us": 2,
}
_UNTIED = 3


def _first_writes(cgroup: Cgroup, version: Version) -> Iterator[Step]:
    """What a cgroup that has just been made needs beyond the kernel's defaults. Nothing runs in it yet, so only the
    ties between files matter: memory before memory+swap, quota before burst."""
    for setting in cgroup.settings:
        default = default_value(setting.file, version)
        if default is None or not same_value(setting.file, setting.value, default):
            yield Step(Action.WRITE, cgroup.path, setting, default or "")


def _writes(cgroup: Cgroup, has: Mapping[str, str]) -> Iterator[tuple[Step, _Phase]]:
    """Each write that `cgroup` needs, and when it is due."""
    quota_pair: list[Setting] = []
    for setting in cgroup.settings:
        before = has.get(setting.file)
        if before is not None and same_value(setting.file, setting.value, before):
            continue
        if setting.file in (_V1_QUOTA, _V1_PERIOD):
            quota_pair.append(setting)
            continue
        step = Step(Action.WRITE, cgroup.path, setting, before or "")
        if setting.file == CPUS and before and setting.value != INHERITED:
            yield from _cpuset_writes(step, setting, before)
        else:
            is_taking = before is not None and direction(setting.file, before, setting.value) < 0
            yield step, _Phase.TAKE if is_taking else _Phase.GIVE
    if quota_pair:
        yield from _quota_writes(cgroup, quota_pair, has)


def _cpuset_writes(step: Step, setting: Setting, before: str) -> Iterator[tuple[Step, _Phase]]:
    """Cores are let go before others are taken, so that nobody has a core that is promised to another."""
    try:
        old, new = set(parse_cpuset(before)), set(parse_cpuset(setting.value))
    except EvenkeelError:
        old, new = set(), {0}
    kept = old & new
    if not kept:
        yield step, _Phase.MOVE
    elif kept != old and kept != new:
        yield step._replace(setting=setting._replace(value=format_cpuset(kept))), _Phase.TAKE
        yield step._replace(before=format_cpuset(kept)), _Phase.GIVE
    else:
        yield step, _Phase.TAKE if new < old else _Phase.GIVE


def _quota_writes(
    cgroup: Cgroup, pair: list[Setting], has: Mapping[str, str]
) -> Iterator[tuple[Step, _Phase]]:
    """v1 keeps quota and period in two files, and lets no cgroup have a larger ratio than the one above it.

    A cgroup without a quota may always be there: who gets one gets it when those above have theirs, and who loses it
    does so before those above change. Else, of the two ways from the old ratio to the new one, that with the smaller
    ratio in between allows nobody more than before or after. Where it is less than both, every cgroup goes down to it
    before any goes up from it.
    """
    wanted = {s.file: s.value for s in cgroup.settings if s.file in (_V1_QUOTA, _V1_PERIOD)}
    had = {_V1_QUOTA: has.get(_V1_QUOTA, "-1"), _V1_PERIOD: has.get(_V1_PERIOD, "100000")}
    will = had | wanted
    between = {file: _ratio(had | {file: will[file]}) for file in had}
    first = _V1_QUOTA if direction("cpu.max", between[_V1_PERIOD], between[_V1_QUOTA]) <= 0 else _V1_PERIOD
    if had[_V1_QUOTA] == "-1":
        first, phases = _V1_PERIOD, [_Phase.GIVE] * 2
    elif will[_V1_QUOTA] == "-1":
        first, phases = _V1_QUOTA, [_Phase.TAKE] * 2
    elif len(pair) == 2 and all(direction("cpu.max", _ratio(end), between[first]) < 0 for end in (had, will)):
        phases = [_Phase.TAKE, _Phase.GIVE]
    else:
        phases = [_Phase.TAKE if direction("cpu.max", _ratio(had), _ratio(will)) < 0 else _Phase.GIVE] * 2
    pair.sort(key=lambda setting: setting.file != first)
    for setting, phase in zip(pair, phases, strict=False):
        yield Step(Action.WRITE, cgroup.path, setting, has.get(setting.file, "")), phase


def _ratio(of_v1: Mapping[str, str]) -> str:
    """As v2 writes it."""
    return f"{of_v1[_V1_QUOTA]} {of_v1[_V1_PERIOD]}"


def _rank(step: Step, order: Mapping[str, int]) -> int:
    """Removals of a level come after its writes: a cgroup can only go when nothing is left in it."""
    return _UNTIED + 1 if step.setting is None else order.get(step.setting.file, _UNTIED)


def pods_prefix(desired: Tree) -> str:
    """How the paths of everything below the pods' root begin; where that is the hierarchy's own, of the pods in it."""
    for cgroup in desired.cgroups:
        if cgroup.kind == Kind.ROOT:
            return f"{cgroup.path}/"
    return f"/{POD_PREFIX}"


def _depth(path: str) -> int:
    return path.count("/")


def _is_below(path: str, tops: Collection[str]) -> bool:
    return any(path == top or path.startswith(f"{top.rstrip('/')}/") for top in tops)
