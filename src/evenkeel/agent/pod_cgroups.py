"""The pods' cgroups: the tree of the node follows the pods that take room, and those who watch cgroups hear of it.

What must be known after a restart is kept in the journal: cores that containers own, cgroups that we made above the
pods' root, and what cgroups of others held before we set it.
"""

import logging
from collections.abc import Iterable, Sequence

from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.node.node_cgroups import NodeCgroups
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.pod_worker import PodWorker
from evenkeel.agent.step_requests import StepRequests
from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.reconfigure import Found
from evenkeel.cgroup.tree import Cgroup, Kind
from evenkeel.journal.records import WARNING
from evenkeel.journal.store import Journal
from evenkeel.policy.exclusive_cores import ContainerKey, assign_on, whole_cores
from evenkeel.policy.node_view import NodeView
from evenkeel.policy.provision import PlannedPod
from evenkeel.pressure.protocol import PodObserver
from evenkeel.runtime.interface import Attempt

log = logging.getLogger(__name__)

# Values in the journal.
CGROUPS_MADE = "cgroupsMade"  # above the pods' root, by us
FOUND_BEFORE = "foundBefore"  # what cgroups of others had in the files that we set (B13)
_CORES = "cpus"


class PodCgroups:
    def __init__(
        self,
        node: NodeView,
        journal: Journal,
        cgroups: NodeCgroups,
        pod_store: PodStore,
        event_recorder: EventRecorder,
        worker: PodWorker,
        steps: StepRequests,
        observers: tuple[PodObserver, ...],
    ) -> None:
        self._node = node
        self._journal = journal
        self._cgroups = cgroups
        self._pod_store = pod_store
        self._event_recorder = event_recorder
        self._worker = worker
        self._steps = steps
        self._observers = observers
        self._pods = PlannedPods()
        self._planned: tuple[PlannedPod, ...] | None = None
        # Containers without the cores of their own that they are due.
        self._sharing: set[ContainerKey] = set()

    def put(self, uid: str, order: int, pod: PlannedPod) -> None:
        """The pod has cgroups from the next `follow` on."""
        self._pods.put(uid, order, pod)

    def drop(self, uid: str) -> bool:
        """The pod has none from the next `follow` on. Whether it had some."""
        return self._pods.drop(uid)

    def follow(self) -> None:
        """Makes the tree for the pods as they are now."""
        pods = self._with_cores()
        if pods != self._planned:
            self._planned = pods
            tree = self._cgroups.follow(pods)
            for observer in self._observers:
                observer.cgroups_changed(tree)
            for cgroup in self._cgroups.rescored:
                self._worker.spawn(self._rescore(cgroup))
            self._update_runtime(self._cgroups.resettled)

    def first_pass(self) -> None:
        """As `follow`, after a restart: also puts back what another configuration may have set (B13)."""
        self._planned = self._with_cores()
        before = self._journal.value(FOUND_BEFORE)
        report = self._cgroups.first_pass(
            self._planned, before if isinstance(before, dict) else {}, self._remember_found
        )
        tree = self._cgroups.tree
        assert tree is not None
        for observer in self._observers:
            observer.cgroups_changed(tree)
        if made := self._cgroups.ancestors_made(report):
            self._journal.set_value(CGROUPS_MADE, sorted({*self._made(), *made}))
        self._update_runtime(cgroup for cgroup in report.tree.cgroups if not cgroup.is_ours_to_make)

    def remove_all(self) -> None:
        """Removes every cgroup of ours; nothing runs in them any more."""
        try:
            self._cgroups.remove_all(self._made())
        except CgroupError as error:
            log.error("%s", error)  # noqa: TRY400
        else:
            self._journal.set_value(CGROUPS_MADE, None)

    def _made(self) -> list[str]:
        made = self._journal.value(CGROUPS_MADE)
        return made if isinstance(made, list) else []

    def _remember_found(self, found: Found) -> None:
        if found != (self._journal.value(FOUND_BEFORE) or {}):
            self._journal.set_value(FOUND_BEFORE, found or None)

    def _with_cores(self) -> tuple[PlannedPod, ...]:
        """The pods that have cgroups, in order of admission, with the cores that are theirs alone."""
        pods = self._pods.ordered()
        if self._node.config.cpu_manager_policy == "static":
            pods = tuple(with_cores(self._node, pods, self._journal))
            self._record_sharing(sharing(self._node, pods))
        return pods

    def _record_sharing(self, now: set[ContainerKey]) -> None:
        for uid, name in sorted(now - self._sharing):
            record = self._pod_store.get(uid)
            message = f"container {name} shares its cores: too few are left that could be its own"
            self._event_recorder.record(
                WARNING, "CoresShared", message, record.pod if record is not None else None, name
            )
            self._steps.want_step()  # which commits the event
        self._sharing = now

    async def _rescore(self, cgroup: Cgroup) -> None:
        scored = await self._cgroups.set_score(cgroup)
        if scored is not None and scored.message:
            self._event_recorder.record(WARNING, "OOMScoreRefused", f"{cgroup.path}: {scored.message}")

    def _update_runtime(self, cgroups: Iterable[Cgroup]) -> None:
        """Passes new settings on to the runtime, which would put back what it has (C6)."""
        for cgroup in cgroups:
            record = self._pod_store.by_key(cgroup.pod) if cgroup.kind == Kind.CONTAINER else None
            if record is not None and record.state.container(cgroup.container).is_running:
                number = record.state.container(cgroup.container).attempt
                self._worker.update(Attempt(record.uid, cgroup.container, number), cgroup.settings)


class PlannedPods:
    """The pods that have cgroups, as the plan needs them."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[int, PlannedPod]] = {}
        self._ordered: tuple[PlannedPod, ...] | None = ()  # None: to be put in order again

    def put(self, uid: str, order: int, pod: PlannedPod) -> None:
        if self._pods.get(uid) != (order, pod):
            self._pods[uid] = (order, pod)
            self._ordered = None

    def drop(self, uid: str) -> bool:
        """Whether it was there."""
        if self._pods.pop(uid, None) is None:
            return False
        self._ordered = None
        return True

    def ordered(self) -> tuple[PlannedPod, ...]:
        """The same object as before while nothing has changed: every step asks for it."""
        if self._ordered is None:
            pods = sorted(self._pods.values(), key=lambda one: one[0])
            self._ordered = tuple(pod for _, pod in pods)
        return self._ordered


def with_cores(node: NodeView, pods: Sequence[PlannedPod], journal: Journal) -> list[PlannedPod]:
    """The pods with the cores of each. A container keeps the cores it has for as long as it needs them."""
    kept: dict[ContainerKey, tuple[int, ...]] = {}
    before = journal.value(_CORES)
    for key, cpus in before.items() if isinstance(before, dict) else ():
        uid, _, name = key.partition("/")
        kept[uid, name] = tuple(cpus)
    cores = assign_on(node, [planned.pod for planned in pods], kept)
    now = {f"{uid}/{name}": list(cpus) for (uid, name), cpus in cores.exclusive.items()}
    if now != before:
        journal.set_value(_CORES, now)
    return [
        planned._replace(exclusive_cpus=cores.of_pod(planned.pod.metadata.uid), shared_cpus=cores.shared)
        for planned in pods
    ]


def sharing(node: NodeView, pods: Sequence[PlannedPod]) -> set[ContainerKey]:
    """The containers that are due cores of their own where too few are left. They run on the shared cores, under their
    quota."""
    return {
        (planned.pod.metadata.uid, container.name)
        for planned in pods
        for container in planned.pod.spec.every_container
        if container.name not in planned.exclusive_cpus and whole_cores(planned.pod, container, node.profile)
    }
