"""The node's cgroup tree: the plan for its pods, and the passes that make the kernel equal to the plan.

A change of pods is applied only to the cgroups that it affects. From time to time the whole tree is read, and changes
by others are repaired (E9). Killing processes may take long, so it runs on a thread. That thread has its own driver,
for a driver belongs to one thread.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Sequence

from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.node.own_cgroup import not_the_pods
from evenkeel.api.pod import Pod
from evenkeel.cgroup.diff import Action
from evenkeel.cgroup.driver import CgroupError, Driver, Statistics
from evenkeel.cgroup.overrides import Overrides, Wanted
from evenkeel.cgroup.plan import INFRASTRUCTURE, Planner
from evenkeel.cgroup.reconcile import Report, reconcile, reconcile_changed
from evenkeel.cgroup.reconfigure import Found, found_before, not_only_ours, relocate, restoring, still_needed
from evenkeel.cgroup.tree import Cgroup, Kind, Naming, Setting, Tree, Version
from evenkeel.host.oom_scores import ScoresSet, frozen, set_oom_scores
from evenkeel.journal.records import WARNING
from evenkeel.policy.node_view import NodeView
from evenkeel.policy.provision import PlannedPod

# A process could change these files to avoid its memory limit. Of the second file only the first line is compared: its
# other lines are counters.
_LIMIT_FILES = {Version.V1: ("memory.limit_in_bytes", "memory.oom_control"), Version.V2: ("memory.max",)}
_UNLIMITED = ("-1", "max")
_OOM_KILLER_OFF = b"oom_kill_disable 1"
_OWN_NAMES = {Kind.INFRASTRUCTURE: INFRASTRUCTURE}


class NodeCgroups:
    """For the agent's loop. Repairs of a pass, and refusals of the kernel, are recorded as events."""

    def __init__(
        self, node: NodeView, make_driver: Callable[[], Driver], event_recorder: EventRecorder
    ) -> None:
        self._node = node
        self._hands_off = (*node.config.hands_off, *not_the_pods(node.config))
        self._event_recorder = event_recorder
        self._make_driver = make_driver
        self.driver = make_driver()
        self._planner = Planner(node, self.driver.version, self.driver.naming)
        self._overrides = Overrides()
        self._planned: Tree | None = None  # without overrides
        self._tree: Tree | None = None
        self._last: Report | None = None
        self._just_made: set[str] = set()  # created by the last pass; a start follows at once
        self._of_container: dict[tuple[str, str], Cgroup] = {}
        self._limited: tuple[str, ...] = ()  # paths of the cgroups with a memory limit
        self._limits: dict[str, tuple[bytes, ...]] = {}  # by path, first read after the last pass
        self.killing: set[str] = set()  # cgroups whose processes are being killed
        # Since the previous tree: containers with another OOM score, and cgroups of a container runtime with other
        # settings.
        self.rescored: tuple[Cgroup, ...] = ()
        self.resettled: tuple[Cgroup, ...] = ()

    def follow(self, pods: Sequence[PlannedPod]) -> Tree:
        """Applies the tree that these pods need, where it differs from the last one. Returns the tree."""
        self._planned = self._planner.tree(pods)
        tree = self._overrides.on(self._planned)
        self._follow(tree)
        return tree

    def override(self, source: str, wanted: Wanted) -> None:
        """Replaces planned settings by these until `source` changes them. They replace its former overrides."""
        if self._overrides.set(source, wanted) and self._planned is not None:
            self._follow(self._overrides.on(self._planned))

    def was_overridden(self, path: str, setting: Setting) -> None:
        """Notes an override by a former agent. The next pass restores the planned value, or else the kernel's
        default."""
        self._overrides.was_set(path, setting)

    @property
    def planned(self) -> Tree | None:
        """The tree without overrides."""
        return self._planned

    def _follow(self, tree: Tree) -> None:
        if self._tree is None or self._last is None:
            report = reconcile(self.driver, tree, self._hands_off)
        else:
            report = reconcile_changed(self.driver, self._tree, tree, self._hands_off, self._last)
        self._event_recorder.reconciled(self._made(report, tree))

    def first_pass(
        self, pods: Sequence[PlannedPod], before: Found, remember: Callable[[Found], None]
    ) -> Report:
        """As `follow`, and also restores settings that another configuration may have changed before the last restart
        (B13). `before` has the original values of cgroups that are not only ours. `remember` is called with the values
        to keep, before they are changed and after they are restored."""
        self._planned = self._planner.tree(pods)
        tree = self._overrides.on(self._planned)
        relocation = relocate(self.driver, self._node.config, tree, self._hands_off)
        found = found_before(tree, self.driver.observe_only(not_only_ours(tree)), before)
        remember(found)
        report = self._made(reconcile(self.driver, restoring(tree, found), self._hands_off), tree)
        if not report.failures and not report.skipped:
            remember(still_needed(tree, found))
        report = report._replace(failures=(*relocation.failures, *report.failures))
        self._event_recorder.reconciled(report)
        return report

    def heal(self) -> None:
        """Reads the whole tree again, and repairs changes by others (E9)."""
        if self._tree is not None:
            report = reconcile(self.driver, self._tree, self._hands_off, self._last)
            self._event_recorder.reconciled(self._made(report, self._tree))

    def heal_limits(self) -> None:
        """Repairs memory limits that others changed. It reads files that stay open, so it can be done often."""
        files = _LIMIT_FILES[self.driver.version]
        for path in self._limited:
            try:
                contents = self.driver.contents(path, files)
                now = tuple(content.partition(b"\n")[0] for content in contents)
                if _OOM_KILLER_OFF in now:
                    self.driver.write(path, files[1], "0")
                    message = f"{path}/{files[1]}: found oom_kill_disable 1, restored 0 (A19: a limit ends in a kill)"
                    self._event_recorder.record(WARNING, "DriftRepaired", message)
            except CgroupError:
                continue  # the cgroup is gone, or `heal` reports the error
            if self._limits.setdefault(path, now) != now:
                self.heal()
                return

    def _made(self, report: Report, tree: Tree) -> Report:
        self._last = report
        self._limits.clear()
        self._just_made = {step.path for step in report.done if step.action == Action.CREATE}
        if self.driver.naming == Naming.SYSTEMD:
            # systemd removes a scope when its last process ends. That is not drift.
            report = report._replace(
                repairs=tuple(one for one in report.repairs if one.file or not one.path.endswith(".scope"))
            )
        if tree is not self._tree:
            before, self._tree = self._of_container, tree
            limit = _LIMIT_FILES[self.driver.version][0]
            self._limited = tuple(
                cgroup.path
                for cgroup in tree.cgroups
                if cgroup.kind in (Kind.CONTAINER, Kind.POD)
                and cgroup.value(limit) not in (None, *_UNLIMITED)
            )
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
        return report

    @property
    def tree(self) -> Tree | None:
        return self._tree

    def of_container(self, pod: str, container: str) -> Cgroup | None:
        """The container's cgroup in the last plan. `pod` is namespace/name. An empty `container` means the pod itself,
        and INFRASTRUCTURE means the pod's infrastructure."""
        return self._of_container.get((pod, container))

    def is_there(self, cgroup: Cgroup) -> bool:
        """Whether the cgroup exists now. systemd removes a container's cgroup when its last process ends, and other
        programs may remove any cgroup."""
        if cgroup.path in self._just_made:
            self._just_made.discard(cgroup.path)  # only once: it may be removed when its process ends
            return True
        directories = dict.fromkeys(self.driver.files(cgroup.path).values())
        return all(os.path.isdir(directory) for directory in directories)

    def too_low(self, pod: Pod) -> str:
        """Names a memory limit of this specification that cannot be set without an OOM kill: it is lower than the
        present limit, and lower than what the cgroup holds besides cache that can be dropped. Empty if none is."""
        file = _LIMIT_FILES[self.driver.version][0]
        for was, will in self._planner.changed(pod):
            limit, before = _bytes(will.value(file)), _bytes(was.value(file))
            if limit is None or (before is not None and before <= limit):
                continue
            statistics = self.statistics(was)
            if statistics is None:
                continue  # there is no such cgroup yet, or not any more
            held = statistics.memory_usage_bytes - statistics.memory_droppable_bytes
            if held >= limit:
                whose = f'container "{was.container}"' if was.container else "pod"
                # Kubelet's words: clients look for them.
                wanted = f"attempting to set {whose} memory limit ({limit}) below current usage ({held})"
                return f"cannot decrease memory limits: {wanted}"
        return ""

    def oom_kills(self, pod: str, container: str) -> int | None:
        """The kernel's count of OOM kills for the container; None if the cgroup is gone, and its count with it.

        Some containers' cgroups do not outlive the container. On v2 the count is then that of the pod's cgroup, which
        includes its children. On v1 it is that of the container's cgroup, which was made for this attempt alone."""
        cgroup = self.of_container(pod, container)
        is_lasting = self.driver.naming == Naming.CGROUPFS and (cgroup is None or cgroup.is_ours_to_make)
        if not is_lasting and self.driver.version == Version.V2:
            cgroup = self.of_container(pod, "")
        statistics = self.statistics(cgroup) if cgroup is not None else None
        return statistics.oom_kills if statistics is not None else None

    def statistics(self, cgroup: Cgroup) -> Statistics | None:
        """The cgroup's statistics; None if it is gone or cannot be read."""
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
        """Sets the planned OOM score on all processes that already run in the container (A14)."""
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
            return ScoresSet(score, 0, 0)  # the container has ended
        finally:
            driver.close()

    def ancestors_made(self, report: Report) -> tuple[str, ...]:
        """The cgroups above the pods' root that this pass has made. The agent removes them at the end."""
        above = {cgroup.path for cgroup in report.tree.cgroups if cgroup.kind == Kind.ANCESTOR}
        return tuple(step.path for step in report.done if step.action == Action.CREATE and step.path in above)

    def remove_all(self, made: Collection[str]) -> None:
        """Removes every cgroup of ours. Of the cgroups above the pods' root, removes those in `made` that have no
        processes."""
        for cgroup in reversed(self._tree.cgroups if self._tree is not None else ()):
            is_ours = cgroup.kind not in (Kind.RESERVED, Kind.ANCESTOR)
            if is_ours or (cgroup.path in made and not self.driver.processes(cgroup.path)):
                self.driver.remove(cgroup.path)
        self._tree = self._planned = None

    def close(self) -> None:
        self.driver.close()


def _bytes(limit: str | None) -> int | None:
    return None if limit is None or limit in _UNLIMITED else int(limit)
