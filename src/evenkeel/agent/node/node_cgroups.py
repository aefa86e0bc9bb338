"""The agent's hands in the cgroup tree: the plan for the pods as they are now, and the passes that make it so.

A change of pods is applied to the cgroups that it concerns; from time to time the whole tree is read and what others
changed is put right (E9). Ending processes may take long, and is done on a thread with a driver of its own: a driver
is for one thread at a time.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Sequence

from evenkeel.agent.node.own_cgroup import not_the_pods
from evenkeel.cgroup.diff import Action
from evenkeel.cgroup.driver import CgroupError, Driver, Statistics
from evenkeel.cgroup.overrides import Overrides, Wanted
from evenkeel.cgroup.plan import INFRASTRUCTURE, Planner
from evenkeel.cgroup.reconcile import Report, reconcile, reconcile_changed
from evenkeel.cgroup.reconfigure import Found, found_before, not_only_ours, relocate, restoring, still_needed
from evenkeel.cgroup.tree import Cgroup, Kind, Naming, Setting, Tree, Version
from evenkeel.host.oom_scores import ScoresSet, frozen, set_oom_scores
from evenkeel.journal.store import Journal
from evenkeel.policy.exclusive_cores import ContainerKey, assign_on, whole_cores
from evenkeel.policy.node_view import NodeView
from evenkeel.policy.provision import PlannedPod

# Where the journal keeps what cgroups of others had in the files that we set (B13).
FOUND_BEFORE = "foundBefore"

_OWN_NAMES = {Kind.INFRASTRUCTURE: INFRASTRUCTURE}


class NodeCgroups:
    """`on_change` is told of each tree that was made."""

    def __init__(
        self, node: NodeView, make_driver: Callable[[], Driver], on_change: Callable[[Tree], None]
    ) -> None:
        self._node = node
        self._hands_off = (*node.config.hands_off, *not_the_pods(node.config))
        self._on_change = on_change
        self._make_driver = make_driver
        self.driver = make_driver()
        self._planner = Planner(node, self.driver.version, self.driver.naming)
        self._overrides = Overrides()
        self._planned: Tree | None = None  # without what is overridden
        self._tree: Tree | None = None
        self._last: Report | None = None
        self._just_made: set[str] = set()  # by the last pass, which a start follows at once
        self._of_container: dict[tuple[str, str], Cgroup] = {}
        self.killing: set[str] = set()  # cgroups in which everything is being ended
        self.rescored: tuple[
            Cgroup, ...
        ] = ()  # containers whose OOM score differs from that of the tree before
        self.resettled: tuple[
            Cgroup, ...
        ] = ()  # made by a container runtime, and with other settings than before

    def follow(self, moments: Sequence[PlannedPod]) -> Report:
        """Makes the kernel as these pods need it, where that differs from what was made last."""
        self._planned = self._planner.tree(moments)
        return self._follow(self._overrides.on(self._planned))

    def override(self, source: str, wanted: Wanted) -> Report | None:
        """Has these settings in place of the planned ones until `source` says otherwise: they are all that it wants.
        None where that changes nothing."""
        if not self._overrides.set(source, wanted) or self._planned is None:
            return None
        return self._follow(self._overrides.on(self._planned))

    def was_overridden(self, path: str, setting: Setting) -> None:
        """By a former agent: the next pass puts back what is planned, or else the kernel's default."""
        self._overrides.was_set(path, setting)

    @property
    def planned(self) -> Tree | None:
        """The tree without what is overridden."""
        return self._planned

    def _follow(self, tree: Tree) -> Report:
        if self._tree is None or self._last is None:
            return self._made(reconcile(self.driver, tree, self._hands_off), tree)
        return self._made(reconcile_changed(self.driver, self._tree, tree, self._hands_off, self._last), tree)

    def first_pass(
        self, moments: Sequence[PlannedPod], before: Found, remember: Callable[[Found], None]
    ) -> Report:
        """As `follow`, and puts back what another configuration may have set before the last restart (B13). `before` is
        what was found then on cgroups that are not only ours; `remember` is told what to keep, before it is changed and
        when it is put back."""
        self._planned = self._planner.tree(moments)
        tree = self._overrides.on(self._planned)
        relocation = relocate(self.driver, self._node.config, tree, self._hands_off)
        found = found_before(tree, self.driver.observe_only(not_only_ours(tree)), before)
        remember(found)
        report = self._made(reconcile(self.driver, restoring(tree, found), self._hands_off), tree)
        if not report.failures and not report.skipped:
            remember(still_needed(tree, found))
        return report._replace(failures=(*relocation.failures, *report.failures))

    def heal(self) -> Report | None:
        """Reads everything again; what differs was changed by others."""
        if self._tree is None:
            return None
        return self._made(reconcile(self.driver, self._tree, self._hands_off, self._last), self._tree)

    def _made(self, report: Report, tree: Tree) -> Report:
        self._last = report
        self._just_made = {step.path for step in report.done if step.action == Action.CREATE}
        if self.driver.naming == Naming.SYSTEMD:
            # A scope goes with its last process: that is nobody's doing, and no drift.
            report = report._replace(
                repairs=tuple(one for one in report.repairs if one.file or not one.path.endswith(".scope"))
            )
        if tree is not self._tree:
            before, self._tree = self._of_container, tree
            self._of_container = {
                (cgroup.pod, cgroup.container or _OWN_NAMES.get(cgroup.kind, "")): cgroup
                for cgroup in tree.cgroups
                if cgroup.kind in (Kind.CONTAINER, Kind.POD, Kind.INFRASTRUCTURE)
            }
            self.rescored = tuple(
                cgroup
                for key, cgroup in self._of_container.items()
                if (was := before.get(key)) is not None
                and was is not cgroup
                and was.path == cgroup.path
                and was.oom_score_adj != cgroup.oom_score_adj
            )
            self.resettled = tuple(
                cgroup
                for key, cgroup in self._of_container.items()
                if not cgroup.is_ours_to_make
                and (was := before.get(key)) is not None
                and was.path == cgroup.path
                and was.settings != cgroup.settings
            )
            self._on_change(tree)
        return report

    @property
    def tree(self) -> Tree | None:
        return self._tree

    def of_container(self, pod: str, container: str) -> Cgroup | None:
        """As planned last; `pod` is namespace/name. Of the pod itself, with an empty name; of its infrastructure, with
        the name that it has in the plan."""
        return self._of_container.get((pod, container))

    def is_there(self, cgroup: Cgroup) -> bool:
        """Whether the kernel has it now: under systemd a container's goes with its last process, and anywhere somebody
        else may have removed it."""
        if cgroup.path in self._just_made:
            self._just_made.discard(cgroup.path)  # only once: it may go with what is started there now
            return True
        directories = dict.fromkeys(self.driver.files(cgroup.path).values())
        return all(os.path.isdir(directory) for directory in directories)

    def oom_kills(self, pod: str, container: str) -> int | None:
        """The kernel's own count for the container. Where a container's cgroup does not outlive it, the pod's, which on
        v2 counts what happens in it; on v1 what the container's cgroup, made for this attempt alone, has counted. None
        if that cgroup is gone, and its count with it."""
        cgroup = self.of_container(pod, container)
        is_lasting = self.driver.naming == Naming.CGROUPFS and (cgroup is None or cgroup.is_ours_to_make)
        if not is_lasting and self.driver.version == Version.V2:
            cgroup = self.of_container(pod, "")
        statistics = self.statistics(cgroup) if cgroup is not None else None
        return statistics.oom_kills if statistics is not None else None

    def statistics(self, cgroup: Cgroup) -> Statistics | None:
        """None if it is gone, or cannot be read."""
        try:
            return self.driver.statistics(cgroup.path)
        except CgroupError:
            return None

    async def kill(self, path: str) -> CgroupError | None:
        self.killing.add(path)
        try:
            return await asyncio.to_thread(self._kill, path)
        finally:
            self.killing.discard(path)

    def _kill(self, path: str) -> CgroupError | None:
        driver = self._make_driver()
        try:
            driver.kill(path)
        except CgroupError as error:
            return error
        finally:
            driver.close()
        return None

    async def set_score(self, cgroup: Cgroup) -> ScoresSet | None:
        """Gives the score that is planned now to everything that runs in the container already (A14)."""
        if cgroup.oom_score_adj is None:
            return None
        return await asyncio.to_thread(self._set_score, cgroup.path, int(cgroup.oom_score_adj.value))

    def _set_score(self, path: str, score: int) -> ScoresSet:
        driver = self._make_driver()
        try:
            return set_oom_scores(
                lambda: driver.processes(path), score, standstill=lambda: frozen(driver, path)
            )
        except CgroupError:
            return ScoresSet(score, 0, 0)  # it has ended
        finally:
            driver.close()

    def ancestors_made(self, report: Report) -> tuple[str, ...]:
        """The cgroups above the pods' root that this pass has made: they are ours to remove."""
        above = {cgroup.path for cgroup in report.tree.cgroups if cgroup.kind == Kind.ANCESTOR}
        return tuple(step.path for step in report.done if step.action == Action.CREATE and step.path in above)

    def remove_all(self, made: Collection[str]) -> None:
        """Every cgroup of ours, and those of `made` above the pods' root in which nobody else has put anything."""
        for cgroup in reversed(self._tree.cgroups if self._tree is not None else ()):
            is_ours = cgroup.kind not in (Kind.RESERVED, Kind.ANCESTOR)
            if is_ours or (cgroup.path in made and not self.driver.processes(cgroup.path)):
                self.driver.remove(cgroup.path)
        self._tree = self._planned = None

    def close(self) -> None:
        self.driver.close()


class PlannedPods:
    def __init__(self) -> None:
        self._moments: dict[str, tuple[int, PlannedPod]] = {}
        self._ordered: tuple[PlannedPod, ...] | None = ()  # None: to be put in order again

    def put(self, uid: str, order: int, moment: PlannedPod) -> None:
        if self._moments.get(uid) != (order, moment):
            self._moments[uid] = (order, moment)
            self._ordered = None

    def drop(self, uid: str) -> bool:
        """Whether it was there."""
        if self._moments.pop(uid, None) is None:
            return False
        self._ordered = None
        return True

    def ordered(self) -> tuple[PlannedPod, ...]:
        """The same object as before while nothing has changed: it is asked for at every step."""
        if self._ordered is None:
            pods = sorted(self._moments.values(), key=lambda one: one[0])
            self._ordered = tuple(moment for _, moment in pods)
        return self._ordered


_KEPT = "cpus"


def with_cores(node: NodeView, moments: Sequence[PlannedPod], journal: Journal) -> list[PlannedPod]:
    """`moments` with the cores of each: those it had stay, where it still needs them."""
    kept: dict[ContainerKey, tuple[int, ...]] = {}
    before = journal.value(_KEPT)
    for key, cpus in before.items() if isinstance(before, dict) else ():
        uid, _, name = key.partition("/")
        kept[uid, name] = tuple(cpus)
    cores = assign_on(node, [moment.pod for moment in moments], kept)
    now = {f"{uid}/{name}": list(cpus) for (uid, name), cpus in cores.exclusive.items()}
    if now != before:
        journal.set_value(_KEPT, now)
    return [
        moment._replace(exclusive_cpus=cores.of_pod(moment.pod.metadata.uid), shared_cpus=cores.shared)
        for moment in moments
    ]


def sharing(node: NodeView, moments: Sequence[PlannedPod]) -> set[ContainerKey]:
    """The containers that are due cores of their own, and for which too few are left: they run on those that are
    shared, under their quota."""
    return {
        (moment.pod.metadata.uid, container.name)
        for moment in moments
        for container in moment.pod.spec.every_container
        if container.name not in moment.exclusive_cpus and whole_cores(moment.pod, container, node.profile)
    }
