"""Pods that run where another configuration had put them (B6, B13).

With `cgroupsPerQOS` switched on or off the same pods live elsewhere in the tree. Before a pass removes their old
cgroups, what runs in them is moved to the new ones. What processes have in memory stays charged to the pods' root until
they let it go: the kernel moves processes, not pages.
"""

from collections.abc import Collection
from typing import NamedTuple

from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup import names
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.reconcile import reconcile_changed
from evenkeel.cgroup.tree import Cgroup, Kind, Naming, Tree
from evenkeel.policy.qos import QoSClass

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
