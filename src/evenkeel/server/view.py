"""The view of the node as plain values: the JSON that the page and `evenkeel top` draw (docs/api.md has its shape)."""

from collections.abc import Iterable, Mapping, Sequence

from evenkeel.agent.node.daemons import Daemon
from evenkeel.agent.observe.node_snapshot import NodeSnapshot
from evenkeel.api.encode import encode
from evenkeel.api.pod import ContainerState, ContainerStatus, Pod
from evenkeel.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, ResourceList
from evenkeel.cgroup.kernel_files import same_value
from evenkeel.cgroup.tree import Cgroup, Kind
from evenkeel.host.node_figures import Pressures, Sample
from evenkeel.host.psi import PressureFigures
from evenkeel.policy.allocatable import node_capacity, reserved_of
from evenkeel.policy.eviction.conditions import observations, thresholds_met
from evenkeel.policy.eviction.snapshot import PodSnapshot
from evenkeel.policy.eviction.thresholds import config_thresholds, threshold_amount
from evenkeel.policy.eviction.usage import Resource, usage
from evenkeel.policy.pod_resources import pod_limits, pod_requests
from evenkeel.quantity import Quantity

_LIVE = ("Pending", "Running")
Plain = dict[str, object]


def figures(sample: Sample) -> Plain:
    """The use of a cgroup."""
    used = sample.statistics
    found: Plain = {
        "cpuMillicores": None if sample.nanocores is None else round(sample.nanocores / 1_000_000, 1),
        "cpuUsageUs": used.cpu_usage_us,
        "cpuThrottledUs": used.cpu_throttled_us,
        "memoryBytes": used.memory_usage_bytes,
        "workingSetBytes": used.memory_working_set_bytes,
        "droppableBytes": used.memory_droppable_bytes,
        "rssBytes": used.memory_rss_bytes,
        "pids": used.pids,
        "pageFaults": used.page_faults,
        "majorPageFaults": used.major_page_faults,
        "oomKills": used.oom_kills,
        "swapBytes": used.swap_bytes,
    }
    if sample.pressures is not None:
        found["stalls"] = {
            name: [one.some.avg10, one.full.avg10] for name, one in sample.pressures._asdict().items()
        }
    return found


class Amounts:
    """Requests and limits of every pod and container, in bytes and millicores. Those of a branch are the sum over its
    pods."""

    def __init__(self, snapshot: NodeSnapshot) -> None:
        self._pods = {pod.key: pod for pod in snapshot.pods}
        self._by_pod = {
            pod.key: (plain_amounts(pod_requests(pod)), plain_amounts(pod_limits(pod)))
            for pod in snapshot.pods
        }
        self._by_class: dict[str, dict[str, int]] = {}
        self.requested: dict[str, int] = {}
        for pod in live(snapshot.pods):
            for name, amount in self.of_pod(pod)[0].items():
                of_class = self._by_class.setdefault(pod.status.qos_class, {})
                of_class[name] = of_class.get(name, 0) + amount
                self.requested[name] = self.requested.get(name, 0) + amount
        limits = snapshot.view.pods_limits
        self._root_limits = {
            name: amount
            for name, amount in ((MEMORY, limits.memory_bytes), (CPU, limits.millicpu))
            if amount is not None
        }

    def of_pod(self, pod: Pod) -> tuple[dict[str, int], dict[str, int]]:
        """Requests and limits."""
        return self._by_pod[pod.key]

    def of_cgroup(self, cgroup: Cgroup) -> tuple[dict[str, int], dict[str, int]]:
        if cgroup.kind == Kind.POD:
            return self._by_pod.get(cgroup.pod, ({}, {}))
        if cgroup.kind == Kind.CONTAINER and (pod := self._pods.get(cgroup.pod)) is not None:
            for container in pod.spec.every_container:
                if container.name == cgroup.container:
                    asked = container.resources
                    return plain_amounts(asked.requests), plain_amounts(asked.limits)
        if cgroup.kind == Kind.BRANCH:
            return self._by_class.get(cgroup.qos, {}), {}
        if cgroup.kind == Kind.ROOT:
            return self.requested, self._root_limits
        return {}, {}


def plain_amounts(amounts: ResourceList) -> dict[str, int]:
    return {name: _plain(name, amount) for name, amount in amounts.items()}


def _plain(name: str, amount: Quantity) -> int:
    return amount.milli if name == CPU else amount.value


def node_view(snapshot: NodeSnapshot, amounts: Amounts) -> Plain:
    sweep = snapshot.sweep
    return {
        "number": sweep.number,
        "at": sweep.at,
        "node": snapshot.node.metadata.name,
        "cgroupVersion": str(sweep.tree.version),
        "cgroupDriver": str(sweep.tree.naming),
        "profile": str(snapshot.view.profile),
        "resources": _resources(snapshot, amounts),
        "pressure": _pressure(snapshot),
        "daemons": {name: _daemon(one) for name, one in sweep.daemons.items()},
        "happenings": [encode(one) for one in snapshot.notable],
    }


def _resources(snapshot: NodeSnapshot, amounts: Amounts) -> Plain:
    view, sweep = snapshot.view, snapshot.sweep
    reserved = reserved_of(view.config)
    root = next((sweep.samples.get(one.path) for one in sweep.tree.cgroups if one.kind == Kind.ROOT), None)
    used = _used(snapshot, root)
    found: Plain = {}
    for name, capacity in node_capacity(view.capacity, view.config).items():
        allocatable = view.allocatable[name]
        kept = {
            "kubeReserved": _plain(name, reserved.kube[name]) if name in reserved.kube else 0,
            "systemReserved": _plain(name, reserved.system[name]) if name in reserved.system else 0,
        }
        whole, free = _plain(name, capacity), _plain(name, allocatable)
        requested = amounts.requested.get(name, 0)
        if name == PODS:
            requested = sum((pod.status.phase or "Pending") in _LIVE for pod in snapshot.pods)
        found[name] = {
            "capacity": whole,
            **kept,
            "evictionHard": max(whole - free - sum(kept.values()), 0),
            "allocatable": free,
            "requested": requested,
            **used.get(name, {}),
        }
    return found


def _used(snapshot: NodeSnapshot, root: Sample | None) -> dict[str, Plain]:
    """`used` is the use of the node, `usedByPods` the use of all pods together."""
    sweep, size = snapshot.sweep, snapshot.view.capacity
    of_pods = root.statistics if root is not None else None
    by_pods = of_pods.memory_working_set_bytes if of_pods is not None else 0
    memory = sweep.node.memory
    available = (memory.available_bytes or 0) if memory is not None else 0
    # A node may be only a part of the machine: then what is left of that part.
    available = max(min(available, size.memory_bytes - by_pods), 0)
    found: dict[str, Plain] = {
        MEMORY: {"used": size.memory_bytes - available, "usedByPods": by_pods, "available": available}
    }
    if sweep.machine_nanocores is not None:
        of_machine = min(round(sweep.machine_nanocores / 1_000_000), size.millicpu)
        by_pods = round((root.nanocores or 0) / 1_000_000) if root is not None else 0
        found[CPU] = {"used": max(of_machine, by_pods), "usedByPods": by_pods}
    nodefs = sweep.node.nodefs
    if nodefs is not None and nodefs.capacity_bytes is not None and nodefs.available_bytes is not None:
        by_pods = sum(storage_bytes(pod, snapshot) or 0 for pod in snapshot.pods)
        whole = size.ephemeral_storage_bytes or nodefs.capacity_bytes
        available = max(min(nodefs.available_bytes, whole - by_pods), 0)
        found[EPHEMERAL_STORAGE] = {
            "used": whole - available,
            "usedByPods": by_pods,
            "available": int(available),
        }
    return found


def _pressure(snapshot: NodeSnapshot) -> Plain:
    sweep = snapshot.sweep
    seen = observations(sweep.node)
    thresholds = config_thresholds(snapshot.view.config)
    met = thresholds_met(thresholds, seen)
    listed = []
    for one in thresholds:
        entry: Plain = {
            "signal": str(one.signal),
            "threshold": str(one.value),
            "isHard": one.hard,
            "graceSeconds": one.grace_period_seconds,
            "isCrossed": one in met,
        }
        if one.signal in seen:
            available, capacity = seen[one.signal]
            entry |= {
                "available": int(available),
                "capacity": int(capacity),
                "thresholdAmount": threshold_amount(one.value, capacity),
            }
        listed.append(entry)
    machine = sweep.machine.pressures
    return {
        "stalls": stalls(machine) if machine is not None else None,
        "conditions": encode(snapshot.node.status.conditions),
        "thresholds": listed,
    }


def stalls(pressures: Pressures) -> Plain:
    return {name: _stall(one) for name, one in pressures._asdict().items()}


def _stall(one: PressureFigures) -> Plain:
    return {kind: encode(line) for kind, line in one._asdict().items()}


def _daemon(daemon: Daemon) -> Plain:
    return {"path": daemon.path, **figures(daemon.sample)}


def cgroup_view(cgroup: Cgroup, applied: Mapping[str, str] | None, amounts: Amounts) -> Plain:
    requests, limits = amounts.of_cgroup(cgroup)
    parent, _, name = cgroup.path.rpartition("/")
    found: Plain = {
        "path": cgroup.path,
        "parent": parent,
        "name": cgroup.container or cgroup.pod or name,
        "kind": str(cgroup.kind),
        "qosClass": str(cgroup.qos),
        "requests": requests,
        "limits": limits,
        "settings": settings(cgroup, applied),
    }
    if cgroup.pod:
        found["pod"] = cgroup.pod
    if cgroup.container:
        found |= {
            "container": cgroup.container,
            "memoryQosClass": str(cgroup.memory_qos),
            "cpuQosClass": str(cgroup.cpu_qos),
        }
    return found


def settings(cgroup: Cgroup, applied: Mapping[str, str] | None) -> list[Plain]:
    """Each value that was asked for, the applied one and the reason (E17). Without `applied` the kernel has no such
    file."""
    listed: list[Plain] = []
    for setting in cgroup.settings:
        entry: Plain = {
            "file": setting.file,
            "asked": setting.value,
            "rule": setting.rule,
            "reason": setting.reason,
        }
        if applied is not None and setting.file in applied:
            entry["applied"] = applied[setting.file]
            entry["isApplied"] = same_value(setting.file, setting.value, applied[setting.file])
        else:
            entry["isApplied"] = False
        listed.append(entry)
    if cgroup.oom_score_adj is not None:
        listed.append(
            {
                "file": "oom_score_adj",
                "asked": cgroup.oom_score_adj.value,
                "rule": cgroup.oom_score_adj.rule,
                "reason": cgroup.oom_score_adj.reason,
            }
        )
    return listed


def pod_view(
    pod: Pod, path: str, storage_bytes: int | None, asked: tuple[dict[str, int], dict[str, int]]
) -> Plain:
    status = pod.status
    statuses: Sequence[ContainerStatus] = status.container_statuses
    requests, limits = asked
    return {
        "pod": pod.key,
        "uid": pod.metadata.uid,
        "path": path,
        "phase": status.phase,
        "reason": status.reason,
        "message": status.message,
        "qosClass": status.qos_class,
        "priority": pod.spec.priority or 0,
        "containers": len(pod.spec.containers),
        "ready": sum(one.ready for one in statuses),
        "restarts": sum(one.restart_count for one in statuses),
        "states": {one.name: _state(one) for one in status.every_container_status},
        "startTime": status.start_time,
        "isEnding": pod.metadata.deletion_timestamp is not None,
        "requests": requests,
        "limits": limits,
        "storageBytes": storage_bytes,
    }


def _state(status: ContainerStatus) -> Plain:
    """The state with the word that `kubectl get` shows."""
    state = status.state or ContainerState()
    if state.running is not None:
        word = "Running"
    elif state.terminated is not None:
        word = state.terminated.reason
    else:
        word = state.waiting.reason if state.waiting is not None else ""
    return {"state": word, "ready": status.ready, "restarts": status.restart_count}


def storage_bytes(pod: Pod, snapshot: NodeSnapshot) -> int | None:
    """The pod's use of the node's disk; None if it was not measured yet."""
    return usage(PodSnapshot(pod, snapshot.disk.get(pod.metadata.uid)), Resource.STORAGE)


def live(pods: Iterable[Pod]) -> Iterable[Pod]:
    return (pod for pod in pods if (pod.status.phase or "Pending") in _LIVE)
