"""The steps from what the kernel has to what the plan wants, in an order that breaks no promise on the way.

First everything that takes: removals and lowered values, children before parents. Then everything that gives: new
cgroups and raised values, parents before children. So at every moment

- a parent holds at least what its children are promised: its own value sinks only after theirs, and rises before;
- no cgroup is allowed more than the larger of its old and new limit, nor protected by less than the smaller of the two;
- the sum of the children's protection never exceeds the parent's (in between it is the sum of the smaller values).
"""

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from evenkeel.api.cpuset import format_cpuset, parse_cpuset
from evenkeel.cgroup.tree import Cgroup, Setting, Tree, Version
from evenkeel.cgroup.values import default_value, direction, same_value
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


def diff(desired: Tree, observed: Observed, hands_off: Collection[str] = ()) -> tuple[Step, ...]:
    """The steps that make `observed` equal to `desired`; none where it already is. Below a path in `hands_off` nothing
    is touched (E9). A cgroup of daemons is set, but made only where we are asked to (E7), and never removed."""
    wanted = {cgroup.path for cgroup in desired.cgroups}
    taking = [
        (_depth(path), Step(Action.REMOVE, path))
        for path in observed
        if path not in wanted and not _is_below(path, hands_off)
    ]
    giving: list[tuple[int, Step]] = []
    for cgroup in desired.cgroups:
        if _is_below(cgroup.path, hands_off):
            continue
        depth = _depth(cgroup.path)
        has = observed.get(cgroup.path)
        if has is None:
            if not cgroup.is_ours_to_make:
                continue
            giving.append((depth, Step(Action.CREATE, cgroup.path)))
            giving += [(depth, step) for step in _first_writes(cgroup, desired.version)]
        else:
            for step, is_taking in _writes(cgroup, has):
                (taking if is_taking else giving).append((depth, step))
    taking.sort(key=lambda entry: (-entry[0], _rank(entry[1], _TAKE_ORDER)))
    giving.sort(key=lambda entry: entry[0])  # stable: a cgroup is made before its files are written
    return tuple(step for _, step in (*taking, *_grouped(giving)))


def as_observed(tree: Tree) -> Observed:
    """What would be read if the kernel held `tree`."""
    return {cgroup.path: {s.file: s.value for s in cgroup.settings} for cgroup in tree.cgroups}


# Within one cgroup, where the kernel ties two files together: burst ≤ quota (v2 and v1), memory ≤ memory+swap (v1).
_TAKE_ORDER = ("cpu.max.burst", "cpu.cfs_burst_us", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
_GIVE_ORDER = (
    "memory.memsw.limit_in_bytes",
    "memory.limit_in_bytes",
    "cpu.max",
    "cpu.max.burst",
    "cpu.cfs_burst_us",
)
_V1_QUOTA, _V1_PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"


def _first_writes(cgroup: Cgroup, version: Version) -> Iterator[Step]:
    """What a cgroup that has just been made needs beyond the kernel's defaults. Nothing runs in it yet, so only the
    ties between files matter: memory before memory+swap, quota before burst."""
    for setting in cgroup.settings:
        default = default_value(setting.file, version)
        if default is None or not same_value(setting.file, setting.value, default):
            yield Step(Action.WRITE, cgroup.path, setting, default or "")


def _writes(cgroup: Cgroup, has: Mapping[str, str]) -> Iterator[tuple[Step, bool]]:
    """Each write that `cgroup` needs, and whether it takes (is to be done in the first half)."""
    quota_pair: list[Setting] = []
    for setting in cgroup.settings:
        before = has.get(setting.file)
        if before is not None and same_value(setting.file, setting.value, before):
            continue
        if setting.file in (_V1_QUOTA, _V1_PERIOD):
            quota_pair.append(setting)
            continue
        step = Step(Action.WRITE, cgroup.path, setting, before or "")
        if setting.file == "cpuset.cpus" and before:
            yield from _cpuset_writes(step, setting, before)
        else:
            yield step, before is not None and direction(setting.file, before, setting.value) < 0
    if quota_pair:
        yield from _quota_writes(cgroup, quota_pair, has)


def _cpuset_writes(step: Step, setting: Setting, before: str) -> Iterator[tuple[Step, bool]]:
    """Cores are let go before others are taken, so that nobody has a core that is promised to another."""
    try:
        old, new = set(parse_cpuset(before)), set(parse_cpuset(setting.value))
    except EvenkeelError:
        old, new = set(), {0}
    kept = old & new
    if kept and kept != old and kept != new:
        yield step._replace(setting=setting._replace(value=format_cpuset(kept))), True
        yield step._replace(before=format_cpuset(kept)), False
    else:
        yield step, new < old


def _quota_writes(cgroup: Cgroup, pair: list[Setting], has: Mapping[str, str]) -> Iterator[tuple[Step, bool]]:
    """v1 keeps quota and period in two files: between the two writes the ratio must not pass both limits."""
    wanted = {s.file: s.value for s in cgroup.settings if s.file in (_V1_QUOTA, _V1_PERIOD)}
    old = f"{has.get(_V1_QUOTA, '-1')} {has.get(_V1_PERIOD, '100000')}"
    new = f"{wanted.get(_V1_QUOTA, '-1')} {wanted.get(_V1_PERIOD, '100000')}"
    is_taking = direction("cpu.max", old, new) < 0
    if len(pair) == 2:
        quota_first = f"{wanted[_V1_QUOTA]} {has.get(_V1_PERIOD, '100000')}"
        period_first = f"{has.get(_V1_QUOTA, '-1')} {wanted[_V1_PERIOD]}"
        # Of the two ways through, the one with the smaller ratio in between allows nobody more than before or after.
        first = _V1_QUOTA if direction("cpu.max", period_first, quota_first) <= 0 else _V1_PERIOD
        pair.sort(key=lambda setting: setting.file != first)
    for setting in pair:
        yield Step(Action.WRITE, cgroup.path, setting, has.get(setting.file, "")), is_taking


def _grouped(giving: list[tuple[int, Step]]) -> list[tuple[int, Step]]:
    """Giving steps of existing cgroups in the order the kernel's ties ask for; new cgroups keep their own."""
    created = {step.path for _, step in giving if step.action == Action.CREATE}
    return sorted(
        giving,
        key=lambda entry: (entry[0], 0 if entry[1].path in created else _rank(entry[1], _GIVE_ORDER)),
    )


def _rank(step: Step, order: tuple[str, ...]) -> int:
    """Removals of a level come after its writes: a cgroup can only go when nothing is left in it."""
    if step.setting is None:
        return len(order) + 1
    return order.index(step.setting.file) if step.setting.file in order else len(order)


def _depth(path: str) -> int:
    return path.count("/")


def _is_below(path: str, tops: Collection[str]) -> bool:
    return any(path == top or path.startswith(f"{top.rstrip('/')}/") for top in tops)
