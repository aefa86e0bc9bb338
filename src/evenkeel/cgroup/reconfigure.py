"""Cleans up after a change of configuration (B13): files of a feature that is off now, and pods in their former
place.

A plan names only the files that its configuration sets. The configuration before the last restart may have set more. So
the plan of the first pass is completed with the value that each of these files had before. In our own cgroups that is
the kernel's default. In cgroups that we only set, such as those of daemons, it is what we found there first, and the
caller has to store it: `found_before` says what to store before anything is written, and `still_needed` what to keep
after a pass without failures. Both are plain values, path → file → value.
"""

from collections.abc import Collection, Mapping

from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup import names
from evenkeel.cgroup.diff import Observed
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.kernel_files import CPUS, DEFAULTS, INHERITED, default_value
from evenkeel.cgroup.reconcile import reconcile_changed
from evenkeel.cgroup.tree import Cgroup, Kind, Naming, Setting, Tree, Version
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.qos import QoSClass

Found = dict[str, dict[str, str]]

_RULE = "B13"
_AS_MADE = "not set here: as the kernel makes it"
_AS_FOUND = "not set here any more: as it was found"
# Other programs may set files of these cgroups too.
_NOT_ONLY_OURS = (Kind.RESERVED, Kind.ANCESTOR)


def restoring(tree: Tree, before: Mapping[str, Mapping[str, str]] | None = None) -> Tree:
    """`tree` with every file that we may have written and that it does not set: with the kernel's default, or with the
    value in `before`."""
    before = before or {}
    defaults = {**DEFAULTS[tree.version], **_hugepages(tree)}
    cgroups = [
        _as_found(cgroup, before.get(cgroup.path, {}))
        if cgroup.kind in _NOT_ONLY_OURS
        else _as_made(cgroup, defaults)
        for cgroup in tree.cgroups
    ]
    planned = {cgroup.path for cgroup in tree.cgroups}
    cgroups += [
        _as_found(Cgroup(path, Kind.RESERVED, (), is_ours_to_make=False), files)
        for path, files in sorted(before.items())
        if path not in planned
    ]
    return tree._replace(cgroups=tuple(cgroups))


def not_only_ours(tree: Tree) -> tuple[Cgroup, ...]:
    """The cgroups whose present values `found_before` needs."""
    return tuple(cgroup for cgroup in tree.cgroups if cgroup.kind in _NOT_ONLY_OURS)


def found_before(tree: Tree, observed: Observed, before: Mapping[str, Mapping[str, str]]) -> Found:
    """The values to store before `tree` is applied: `before`, and the present value of each file that is written for
    the first time."""
    found = {path: dict(files) for path, files in before.items()}
    for cgroup in not_only_ours(tree):
        now, first = observed.get(cgroup.path), found.setdefault(cgroup.path, {})
        for setting in cgroup.settings:
            value = default_value(setting.file, tree.version) if now is None else now.get(setting.file)
            if value is not None:
                first.setdefault(setting.file, value)
    return {path: files for path, files in found.items() if files}


def still_needed(tree: Tree, before: Mapping[str, Mapping[str, str]]) -> Found:
    """The part of `before` to keep after `restoring(tree, before)` was applied: the files that `tree` sets."""
    named = {cgroup.path: {setting.file for setting in cgroup.settings} for cgroup in not_only_ours(tree)}
    kept = {
        path: {file: value for file, value in files.items() if file in named.get(path, ())}
        for path, files in before.items()
    }
    return {path: files for path, files in kept.items() if files}


def _as_found(cgroup: Cgroup, files: Mapping[str, str]) -> Cgroup:
    named = {setting.file for setting in cgroup.settings}
    more = [Setting(file, value, _RULE, _AS_FOUND) for file, value in files.items() if file not in named]
    return cgroup._replace(settings=(*cgroup.settings, *more)) if more else cgroup


def _as_made(cgroup: Cgroup, defaults: Mapping[str, str]) -> Cgroup:
    named = {setting.file for setting in cgroup.settings}
    more = [Setting(file, value, _RULE, _AS_MADE) for file, value in defaults.items() if file not in named]
    if cgroup.kind == Kind.CONTAINER and CPUS not in named:
        more.append(Setting(CPUS, INHERITED, _RULE, _AS_MADE))
    return cgroup._replace(settings=(*cgroup.settings, *more))


def _hugepages(tree: Tree) -> dict[str, str]:
    """The files of every page size in the plan."""
    of_plan = {s.file for cgroup in tree.cgroups for s in cgroup.settings if s.file.startswith("hugetlb.")}
    sizes = sorted({file.split(".")[1] for file in of_plan})
    last = "max" if tree.version == Version.V2 else "limit_in_bytes"
    files = (f"hugetlb.{size}.{middle}{last}" for size in sizes for middle in ("", "rsvd."))
    return {file: default_value(file, tree.version) or "" for file in files}


# A process that forks before it is moved leaves a child behind. So each round moves the processes that are still there.
_ROUNDS = 100


class Relocation(NamedTuple):
    """Pods that were moved, as pairs of old and new path, and what failed."""

    moved: tuple[tuple[str, str], ...] = ()
    failures: tuple[CgroupError, ...] = ()


def former_place(config: KubeletConfiguration, pod: Cgroup) -> str:
    """The path of a pod with the other value of `cgroupsPerQOS`."""
    was_per_qos = not config.cgroups_per_qos
    root = names.pods_root(config.cgroup_root, per_qos=was_per_qos)
    parent = names.branch(root, QoSClass(pod.qos)) if was_per_qos else root
    return names.to_cgroupfs((*parent, pod.path.rpartition("/")[2]))


def relocate(
    driver: Driver, config: KubeletConfiguration, tree: Tree, hands_off: Collection[str] = ()
) -> Relocation:
    """Moves the pods of `tree` from the place that the other value of `cgroupsPerQOS` gave them. To be called before
    the first pass after a start. Pods that are not in the plan are removed by `reconcile` if they are below the pods'
    root, else here. Under systemd a unit cannot be moved, and nothing is done."""
    if tree.naming == Naming.SYSTEMD:
        return Relocation()
    try:
        return _relocated(driver, config, tree, hands_off)
    except CgroupError as error:
        return Relocation(failures=(error,))


def _relocated(
    driver: Driver, config: KubeletConfiguration, tree: Tree, hands_off: Collection[str]
) -> Relocation:
    pods = {former_place(config, cgroup): cgroup.path for cgroup in tree.cgroups if cgroup.kind == Kind.POD}
    found = _found(driver, config, tree, pods)
    moving = {old: new for old, new in pods.items() if old in found}
    failures: list[CgroupError] = []
    if moving:
        failures += reconcile_changed(driver, tree._replace(cgroups=()), tree, hands_off).failures
    children = [c.path for c in tree.cgroups if c.kind in (Kind.CONTAINER, Kind.INFRASTRUCTURE)]
    moved = []
    for old, new in moving.items():
        try:
            for child in children:
                if child.startswith(f"{new}/"):
                    _move(driver, old + child.removeprefix(new), child)
            driver.remove(old)
            moved.append((old, new))
        except CgroupError as error:
            failures.append(error)
    for stray in found - moving.keys():
        try:
            driver.remove(stray)
        except CgroupError as error:
            failures.append(error)
    return Relocation(tuple(moved), tuple(failures))


def _found(driver: Driver, config: KubeletConfiguration, tree: Tree, pods: Collection[str]) -> set[str]:
    """The former places that hold a pod; if they are not below the pods' root, also those of pods without a plan."""
    if not config.cgroups_per_qos:
        return set(driver.observe_only([Cgroup(path, Kind.POD, ()) for path in pods]))
    above = names.to_cgroupfs(names.pods_root(config.cgroup_root, per_qos=False))
    if above == "/":  # then only the pods' root is ours
        return set()
    probe = tree._replace(cgroups=(Cgroup(above, Kind.ROOT, ()),))
    prefix = f"{above}/{names.POD_PREFIX}"
    return {path for path in driver.observe(probe) if path.startswith(prefix)}


def _move(driver: Driver, old: str, new: str) -> None:
    for _ in range(_ROUNDS):
        pids = driver.processes(old)
        if not pids:
            return
        for pid in pids:
            try:
                driver.add_process(new, pid)
            except CgroupError as error:
                if error.reason != "ESRCH":  # the process has ended meanwhile
                    raise
