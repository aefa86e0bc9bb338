"""The steps from what the kernel has to what the plan wants, in an order that breaks no promise on the way.

First everything that takes: removals and lower values, children before parents. Then cores that are exchanged for other
cores. Then everything that gives: new cgroups and higher values, parents before children. So at every moment

- a parent has at least what its children are promised: its value is lowered after theirs and raised before theirs;
- no cgroup may use more than the larger of its old and new limit, nor is protected by less than the smaller of the two;
- the sum of the children's protection is never above that of the parent: meanwhile it is the sum of the smaller values.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum, StrEnum

from evenkeel.api.scalars import format_cpuset, parse_cpuset
from evenkeel.cgroup.kernel_files import CPUS, INHERITED, default_value, direction, same_value
from evenkeel.cgroup.names import POD_PREFIX
from evenkeel.cgroup.tree import Cgroup, Kind, Setting, Tree, Version
from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple

Observed = Mapping[str, Mapping[str, str]]  # path → file → value as read


class Action(StrEnum):
    REMOVE = "remove"
    CREATE = "create"
    WRITE = "write"


class Step(NamedTuple):
    """One step. `before` is the value that the kernel has, where a file is written."""

    action: Action
    path: str
    setting: Setting | None = None
    before: str = ""


def diff(
    desired: Tree, observed: Observed, hands_off: Collection[str] = (), ours: str | None = None
) -> tuple[Step, ...]:
    """The steps that make `observed` equal to `desired`; none if it is equal already.

    Nothing is done below a path in `hands_off` (E9). A reserved cgroup of daemons is set, made only if the node is
    configured so (E7), and never removed. Only cgroups below the pods' root are removed, and not those that a container
    runtime has made in a pod's cgroup. `ours` is the prefix of the paths below the pods' root; it is given where
    `desired` is only part of a plan.
    """
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
    ordered = [step for phase in _Phase for _, step in steps[phase]]
    # The kernel charges its own memory for a cgroup to the cgroup above it. So a new cgroup, in which nothing runs yet,
    # gets its memory limits only after everything below it is made.
    ordered.sort(key=lambda step: step.path in created and _is_memory_limit(step))
    return tuple(ordered)


class _Phase(IntEnum):
    """The phase in which a step is done."""

    TAKE = 0
    MOVE = 1  # other cores than before: after all cgroups have lost cores, and before any gains one
    GIVE = 2


_V1_QUOTA, _V1_PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"
# The order within one cgroup, for files that the kernel ties together: burst ≤ quota, and on v1 memory ≤ memory+swap.
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
_MEMORY_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")


def _is_memory_limit(step: Step) -> bool:
    return step.setting is not None and step.setting.file in _MEMORY_LIMITS


def _first_writes(cgroup: Cgroup, version: Version) -> Iterator[Step]:
    """The settings of a new cgroup that differ from the kernel's defaults. Nothing runs in it yet, so only the files
    that the kernel ties together need an order: memory before memory+swap, quota before burst."""
    for setting in cgroup.settings:
        default = default_value(setting.file, version)
        if default is None or not same_value(setting.file, setting.value, default):
            yield Step(Action.WRITE, cgroup.path, setting, default or "")


def _writes(cgroup: Cgroup, has: Mapping[str, str]) -> Iterator[tuple[Step, _Phase]]:
    """Each write that `cgroup` needs, and its phase."""
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
    """Cores are taken away before others are given, so that no cgroup has a core that is promised to another."""
    try:
        old, new = set(parse_cpuset(before)), set(parse_cpuset(setting.value))
    except EvenkeelError:
        old, new = set(), {0}
    common = old & new
    if not common:
        yield step, _Phase.MOVE
    elif common not in (old, new):
        yield step._replace(setting=setting._replace(value=format_cpuset(common))), _Phase.TAKE
        yield step._replace(before=format_cpuset(common)), _Phase.GIVE
    else:
        yield step, _Phase.TAKE if new < old else _Phase.GIVE


def _quota_writes(
    cgroup: Cgroup, pair: list[Setting], has: Mapping[str, str]
) -> Iterator[tuple[Step, _Phase]]:
    """v1 has quota and period in two files, and allows no cgroup a larger ratio than the cgroup above it has.

    No quota is always allowed. So a cgroup gets its first quota after the cgroups above have theirs, and loses it
    before they change. Otherwise there are two ways from the old ratio to the new one, and the one with the smaller
    ratio in between never allows more than before or after. If that ratio is below both, all cgroups go down to it
    before one goes up again.
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
    """In the format of cpu.max on v2."""
    return f"{of_v1[_V1_QUOTA]} {of_v1[_V1_PERIOD]}"


def _rank(step: Step, order: Mapping[str, int]) -> int:
    """Within a level, removals come after writes: a cgroup can be removed only when it is empty."""
    return _UNTIED + 1 if step.setting is None else order.get(step.setting.file, _UNTIED)


def pods_prefix(desired: Tree) -> str:
    """The prefix of all paths below the pods' root. If that is the root of the hierarchy, the prefix of its pods."""
    for cgroup in desired.cgroups:
        if cgroup.kind == Kind.ROOT:
            return f"{cgroup.path}/"
    return f"/{POD_PREFIX}"


def _depth(path: str) -> int:
    return path.count("/")


def _is_below(path: str, tops: Collection[str]) -> bool:
    return any(path == top or path.startswith(f"{top.rstrip('/')}/") for top in tops)
