"""The pods' cgroups: keeps the node's cgroup tree up to date with the pods that take room, and informs the observers.

The journal keeps the facts that a restarted agent needs: the exclusive cores of containers, the cgroups that we made
above the pods' root, and the original settings of other programs' cgroups.
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
from evenkeel.journal.records import WARNING, PodRecord
from evenkeel.journal.store import Journal
from evenkeel.policy.exclusive_cores import ContainerKey, assign_on, whole_cores
from evenkeel.policy.lifecycle.resize import in_force
from evenkeel.policy.node_view import NodeView
from evenkeel.policy.provision import PlannedPod
from evenkeel.pressure.protocol import PodObserver
from evenkeel.runtime.interface import Attempt, Runtime

log = logging.getLogger(__name__)

# Values in the journal.
CGROUPS_MADE = "cgroupsMade"  # cgroups that we made above the pods' root
FOUND_BEFORE = "foundBefore"  # original values of files that we set in cgroups of others (B13)
_CORES = "cpus"


class PodCgroups:
    def __init__(
        self,
        node: NodeView,
        journal: Journal,
        cgroups: NodeCgroups,
        runtime: Runtime,
        pod_store: PodStore,
        event_recorder: EventRecorder,
        worker: PodWorker,
        steps: StepRequests,
        observers: tuple[PodObserver, ...],
    ) -> None:
        self._node = node
        self._journal = journal
        self._cgroups = cgroups
        self._runtime = runtime
        self._pod_store = pod_store
        self._event_recorder = event_recorder
        self._worker = worker
        self._steps = steps
        self._observers = observers
        self._pods = PlannedPods()
        self._planned: tuple[PlannedPod, ...] | None = None
        # Containers that should have exclusive cores, but have none.
        self._sharing: set[ContainerKey] = set()

    def put(self, record: PodRecord, init_container: int | None) -> None:
        """Plans cgroups for the pod. `init_container` is the index of the one that runs. `follow` makes them."""
        pod, state = record.pod, record.state
        ephemeral = ((one.name, state.container(one.name)) for one in pod.spec.ephemeral_containers)
        planned = PlannedPod(
            in_force(pod, state),
            init_container,
            placed=self._runtime.placed(record.uid),
            ended=tuple(name for name, one in ephemeral if one.ended is not None and not one.is_alive),
        )
        self._pods.put(record.uid, record.order, planned)

    def drop(self, uid: str) -> bool:
        """Plans no more cgroups for the pod. The next `follow` removes them. Returns False if the pod had none."""
        return self._pods.drop(uid)

    def follow(self) -> None:
        """Makes the tree for the present pods."""
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
        """As `follow`, after a restart. Also restores settings that another configuration may have changed (B13)."""
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
        """Removes every cgroup of ours. No process runs in them any more."""
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
        """The pods that have cgroups, in order of admission, with their exclusive cores."""
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
            self._steps.want_step()  # the step commits the event
        self._sharing = now

    async def _rescore(self, cgroup: Cgroup) -> None:
        scored = await self._cgroups.set_score(cgroup)
        if scored is not None and scored.message:
            self._event_recorder.record(WARNING, "OOMScoreRefused", f"{cgroup.path}: {scored.message}")

    def _update_runtime(self, cgroups: Iterable[Cgroup]) -> None:
        """Passes new settings to the container runtime. Otherwise the runtime would restore its old settings (C6)."""
        for cgroup in cgroups:
            record = self._pod_store.by_key(cgroup.pod) if cgroup.kind == Kind.CONTAINER else None
            if record is not None and record.state.container(cgroup.container).is_running:
                number = record.state.container(cgroup.container).attempt
                self._worker.update(Attempt(record.uid, cgroup.container, number), cgroup.settings)


class PlannedPods:
    """The pods that have cgroups, in the form that the plan needs."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[int, PlannedPod]] = {}
        self._ordered: tuple[PlannedPod, ...] | None = ()  # None: must be sorted again

    def put(self, uid: str, order: int, pod: PlannedPod) -> None:
        if self._pods.get(uid) != (order, pod):
            self._pods[uid] = (order, pod)
            self._ordered = None

    def drop(self, uid: str) -> bool:
        """Returns False if the pod was not there."""
        if self._pods.pop(uid, None) is None:
            return False
        self._ordered = None
        return True

    def ordered(self) -> tuple[PlannedPod, ...]:
        """The pods in order. Every step calls this, so the same object is returned until a pod changes."""
        if self._ordered is None:
            pods = sorted(self._pods.values(), key=lambda one: one[0])
            self._ordered = tuple(pod for _, pod in pods)
        return self._ordered


def with_cores(node: NodeView, pods: Sequence[PlannedPod], journal: Journal) -> list[PlannedPod]:
    """The pods with their exclusive cores. A container keeps its cores for as long as it needs them."""
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
    """The containers that should have exclusive cores, when too few cores are left. They run on the shared cores, with
    their CPU quota."""
    return {
        (planned.pod.metadata.uid, container.name)
        for planned in pods
        for container in planned.pod.spec.every_container
        if container.name not in planned.exclusive_cpus and whole_cores(planned.pod, container, node.profile)
    }
