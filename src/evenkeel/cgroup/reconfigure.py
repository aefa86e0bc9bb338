"""Turning a feature off restores the kernel files that it wrote (B13).

A plan names only the files that its configuration has an opinion on. Another configuration, before the last restart,
may have written more: for the first pass after a start the plan is completed with what was there before. On cgroups
that are only ours that is the kernel's default. On those that we only set, such as the daemons', it is what we found
there first, and whoever applies plans has to remember it: `found_before` says what, before anything is written, and
`still_needed` what of that is of use after a pass without failures. Both are plain values, path → file → value.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup import names
from evenkeel.cgroup.diff import Observed
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.kernel_files import CPUS, DEFAULTS, INHERITED, default_value
from evenkeel.cgroup.reconcile import reconcile_changed
from evenkeel.cgroup.tree import Cgroup, Kind, Naming, Setting, Tree, Version
from evenkeel.policy.qos import QoSClass

Found = dict[str, dict[str, str]]

_RULE = "B13"
_AS_MADE = "not set here: as the kernel makes it"
_AS_FOUND = "not set here any more: as it was found"
# Others may have set something on these, before us or beside us.
_NOT_ONLY_OURS = (Kind.RESERVED, Kind.ANCESTOR)


def restoring(tree: Tree, before: Mapping[str, Mapping[str, str]] | None = None) -> Tree:
    """`tree` with every file that we might have written and it does not name: as the kernel makes it, or as it is
    remembered in `before`."""
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
    """The cgroups of which `found_before` needs to know what the kernel has."""
    return tuple(cgroup for cgroup in tree.cgroups if cgroup.kind in _NOT_ONLY_OURS)


def found_before(tree: Tree, observed: Observed, before: Mapping[str, Mapping[str, str]]) -> Found:
    """What to remember when `tree` is about to be applied: what is remembered already, and of the files that are
    written for the first time what is in them now."""
    found = {path: dict(files) for path, files in before.items()}
    for cgroup in not_only_ours(tree):
        now, first = observed.get(cgroup.path), found.setdefault(cgroup.path, {})
        for setting in cgroup.settings:
            value = default_value(setting.file, tree.version) if now is None else now.get(setting.file)
            if value is not None:
                first.setdefault(setting.file, value)
    return {path: files for path, files in found.items() if files}


def still_needed(tree: Tree, before: Mapping[str, Mapping[str, str]]) -> Found:
    """What of `before` must be remembered when `restoring(tree, before)` has been applied: what `tree` sets now."""
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
    """The files of every page size that the plan knows of."""
    of_plan = {s.file for cgroup in tree.cgroups for s in cgroup.settings if s.file.startswith("hugetlb.")}
    sizes = sorted({file.split(".")[1] for file in of_plan})
    last = "max" if tree.version == Version.V2 else "limit_in_bytes"
    files = (f"hugetlb.{size}.{middle}{last}" for size in sizes for middle in ("", "rsvd."))
    return {file: default_value(file, tree.version) or "" for file in files}


# Of moving what is still there; who forks meanwhile does so into the new cgroup, once it is moved.
_ROUNDS = 100


class Relocation(NamedTuple):
    """Pods that were moved, as pairs of paths, and what could not be done."""

    moved: tuple[tuple[str, str], ...] = ()
    failures: tuple[CgroupError, ...] = ()


def former_place(config: KubeletConfiguration, pod: Cgroup) -> str:
    """Where a pod of the plan would be if `cgroupsPerQOS` were otherwise."""
    was_per_qos = not config.cgroups_per_qos
    root = names.pods_root(config.cgroup_root, per_qos=was_per_qos)
    parent = names.branch(root, QoSClass(pod.qos)) if was_per_qos else root
    return names.to_cgroupfs((*parent, pod.path.rpartition("/")[2]))


def relocate(
    driver: Driver, config: KubeletConfiguration, tree: Tree, hands_off: Collection[str] = ()
) -> Relocation:
    """Moves the pods of `tree` from where they were with `cgroupsPerQOS` otherwise; to be done before the first pass
    after a start. Pods that are not in the plan are left for `reconcile` to end, if they are below the pods' root, and
    are ended here if they are not. Under systemd a unit stays where it was started: there, nothing is done."""
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
    there = _there(driver, config, tree, pods)
    moving = {old: new for old, new in pods.items() if old in there}
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
    for stray in there - moving.keys():
        try:
            driver.remove(stray)
        except CgroupError as error:
            failures.append(error)
    return Relocation(tuple(moved), tuple(failures))


def _there(driver: Driver, config: KubeletConfiguration, tree: Tree, pods: Collection[str]) -> set[str]:
    """The former places at which there is a pod; where they are not below the pods' root, those of strays too."""
    if not config.cgroups_per_qos:
        return set(driver.observe_only([Cgroup(path, Kind.POD, ()) for path in pods]))
    above = names.to_cgroupfs(names.pods_root(config.cgroup_root, per_qos=False))
    if above == "/":  # only what is in the pods' root is ours then
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
                if error.reason != "ESRCH":  # else it has ended meanwhile
                    raise
