"""The picture of the node for the page and the terminal, as JSON (docs/api.md has its shape).

What stands still (who there is, what was asked for and what is applied, E17) is apart from the figures that move: those
who watch get the whole once, and then only what changed.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

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
from evenkeel.server.http import to_json

_AT_A_TIME = 20  # cgroups are encoded before others have their turn
_LIVE = ("Pending", "Running")
Plain = dict[str, object]


class View(NamedTuple):
    """Made once for all who look. `changes` is what differs from the view before, for those who have that; empty where
    more has changed than figures."""

    number: int
    whole: bytes
    changes: bytes
    since: int  # the number of that view before


class Views:
    """One view for each picture, with what it takes to make the next one cheaply."""

    def __init__(self) -> None:
        self._last: tuple[NodeSnapshot, View] | None = None
        self._still: dict[str, tuple[object, bytes]] = {}  # what stands still of a cgroup
        self._moving: dict[str, tuple[Sample | None, bytes]] = {}
        self._amounts: _Amounts | None = None
        self._pods: dict[str, tuple[object, bytes]] = {}
        self._making = asyncio.Lock()

    async def of(self, picture: NodeSnapshot) -> View:
        async with self._making:
            if self._last is not None and self._last[0].sweep.number == picture.sweep.number:
                return self._last[1]
            view = await self._made(picture)
            self._last = (picture, view)
            return view

    async def _made(self, picture: NodeSnapshot) -> View:
        before = self._last[0] if self._last is not None else None
        amounts = self._amounts
        if amounts is None or before is None or before.pods != picture.pods:
            amounts = self._amounts = _Amounts(picture)
        still: dict[str, tuple[object, bytes]] = {}
        moving: dict[str, tuple[Sample | None, bytes]] = {}
        moved: list[bytes] = []
        for number, cgroup in enumerate(picture.sweep.tree.cgroups, start=1):
            path = cgroup.path
            still[path] = self._standing(picture, cgroup, amounts)
            moving[path] = self._figures(picture, path)
            if moving[path] is not self._moving.get(path):
                moved.append(b"%b:%b" % (to_json(path).strip(), moving[path][1]))
            if number % _AT_A_TIME == 0:
                await asyncio.sleep(0)
        pods = self._told_pods(picture, amounts)
        is_still = (
            before is not None
            and pods == self._pods
            and len(self._still) == len(still)
            and all(known is self._still.get(path) for path, known in still.items())
        )
        self._still, self._moving, self._pods = still, moving, pods
        top = to_json(_top(picture, amounts)).strip()
        cgroups = b",".join(
            b'%b,"figures":%b}' % (text[:-1], moving[path][1]) for path, (_, text) in still.items()
        )
        listed = b",".join(text for _, text in pods.values())
        whole = b'%b,"pods":[%b],"cgroups":[%b]}' % (top[:-1], listed, cgroups)
        changes = b'%b,"figures":{%b}}' % (top[:-1], b",".join(moved)) if is_still else b""
        since = before.sweep.number if before is not None else 0
        return View(picture.sweep.number, whole, changes, since)

    def _told_pods(self, picture: NodeSnapshot, amounts: "_Amounts") -> dict[str, tuple[object, bytes]]:
        paths = {one.pod: one.path for one in picture.sweep.tree.cgroups if one.kind == Kind.POD}
        told = {}
        for pod in picture.pods:
            key = (pod, paths.get(pod.key, ""), storage_bytes(pod, picture))
            known = self._pods.get(pod.metadata.uid)
            if known is None or known[0] != key:
                known = (key, to_json(_pod(*key, amounts.asked(pod))).strip())
            told[pod.metadata.uid] = known
        return told

    def _standing(self, picture: NodeSnapshot, cgroup: Cgroup, amounts: "_Amounts") -> tuple[object, bytes]:
        applied = picture.sweep.applied.get(cgroup.path)
        key = (cgroup, applied, amounts.of(cgroup))
        known = self._still.get(cgroup.path)
        if known is not None and known[0] == key:
            return known
        return key, to_json(_cgroup(cgroup, applied, amounts)).strip()

    def _figures(self, picture: NodeSnapshot, path: str) -> tuple[Sample | None, bytes]:
        sample = picture.sweep.samples.get(path)
        known = self._moving.get(path)
        if known is not None and known[0] == sample:
            return known
        return sample, to_json(figures(sample) if sample is not None else None).strip()


def figures(sample: Sample) -> Plain:
    """What a cgroup uses."""
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


class _Amounts:
    """Requests and limits of every pod and container, in bytes and thousandths of a core; of a branch, their sum."""

    def __init__(self, picture: NodeSnapshot) -> None:
        self._pods = {pod.key: pod for pod in picture.pods}
        self._of_pod = {
            pod.key: (plain_amounts(pod_requests(pod)), plain_amounts(pod_limits(pod)))
            for pod in picture.pods
        }
        self._of_class: dict[str, dict[str, int]] = {}
        self.requested: dict[str, int] = {}
        for pod in live(picture.pods):
            for name, amount in self.asked(pod)[0].items():
                of_class = self._of_class.setdefault(pod.status.qos_class, {})
                of_class[name] = of_class.get(name, 0) + amount
                self.requested[name] = self.requested.get(name, 0) + amount
        limits = picture.view.pods_limits
        self._root_limits = {
            name: amount
            for name, amount in ((MEMORY, limits.memory_bytes), (CPU, limits.millicpu))
            if amount is not None
        }

    def asked(self, pod: Pod) -> tuple[dict[str, int], dict[str, int]]:
        """Requests and limits."""
        return self._of_pod[pod.key]

    def of(self, cgroup: Cgroup) -> tuple[dict[str, int], dict[str, int]]:
        if cgroup.kind == Kind.POD:
            return self._of_pod.get(cgroup.pod, ({}, {}))
        if cgroup.kind == Kind.CONTAINER and (pod := self._pods.get(cgroup.pod)) is not None:
            for container in pod.spec.every_container:
                if container.name == cgroup.container:
                    asked = container.resources
                    return plain_amounts(asked.requests), plain_amounts(asked.limits)
        if cgroup.kind == Kind.BRANCH:
            return self._of_class.get(cgroup.qos, {}), {}
        if cgroup.kind == Kind.ROOT:
            return self.requested, self._root_limits
        return {}, {}


def plain_amounts(amounts: ResourceList) -> dict[str, int]:
    return {name: _plain(name, amount) for name, amount in amounts.items()}


def _plain(name: str, amount: Quantity) -> int:
    return amount.milli if name == CPU else amount.value


def _top(picture: NodeSnapshot, amounts: _Amounts) -> Plain:
    sweep = picture.sweep
    return {
        "number": sweep.number,
        "at": sweep.at,
        "node": picture.node.metadata.name,
        "cgroupVersion": str(sweep.tree.version),
        "cgroupDriver": str(sweep.tree.naming),
        "profile": str(picture.view.profile),
        "resources": _resources(picture, amounts),
        "pressure": _pressure(picture),
        "daemons": {name: _daemon(one) for name, one in sweep.daemons.items()},
        "happenings": [encode(one) for one in picture.notable],
    }


def _resources(picture: NodeSnapshot, amounts: _Amounts) -> Plain:
    view, sweep = picture.view, picture.sweep
    reserved = reserved_of(view.config)
    root = next((sweep.samples.get(one.path) for one in sweep.tree.cgroups if one.kind == Kind.ROOT), None)
    used = _used(picture, root)
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
            requested = sum((pod.status.phase or "Pending") in _LIVE for pod in picture.pods)
        found[name] = {
            "capacity": whole,
            **kept,
            "evictionHard": max(whole - free - sum(kept.values()), 0),
            "allocatable": free,
            "requested": requested,
            **used.get(name, {}),
        }
    return found


def _used(picture: NodeSnapshot, root: Sample | None) -> dict[str, Plain]:
    """`used` is of the node, `usedByPods` of all pods together."""
    sweep, size = picture.sweep, picture.view.capacity
    of_pods = root.statistics if root is not None else None
    by_pods = of_pods.memory_working_set_bytes if of_pods is not None else 0
    memory = sweep.node.memory
    available = (memory.available_bytes or 0) if memory is not None else 0
    # Of a node that is only a part of the machine, what is left of that part.
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
        by_pods = sum(storage_bytes(pod, picture) or 0 for pod in picture.pods)
        whole = size.ephemeral_storage_bytes or nodefs.capacity_bytes
        available = max(min(nodefs.available_bytes, whole - by_pods), 0)
        found[EPHEMERAL_STORAGE] = {
            "used": whole - available,
            "usedByPods": by_pods,
            "available": int(available),
        }
    return found


def _pressure(picture: NodeSnapshot) -> Plain:
    sweep = picture.sweep
    seen = observations(sweep.node)
    thresholds = config_thresholds(picture.view.config)
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
        "conditions": encode(picture.node.status.conditions),
        "thresholds": listed,
    }


def stalls(pressures: Pressures) -> Plain:
    return {name: _stall(one) for name, one in pressures._asdict().items()}


def _stall(one: PressureFigures) -> Plain:
    return {kind: encode(line) for kind, line in one._asdict().items()}


def _daemon(daemon: Daemon) -> Plain:
    return {"path": daemon.path, **figures(daemon.sample)}


def _cgroup(cgroup: Cgroup, applied: Mapping[str, str] | None, amounts: _Amounts) -> Plain:
    requests, limits = amounts.of(cgroup)
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
    """Asked-for beside applied values, and why (E17). `applied` is absent where the kernel has no such file."""
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


def _pod(
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
        "states": {one.name: _state(one) for one in (*status.init_container_statuses, *statuses)},
        "startTime": status.start_time,
        "isEnding": pod.metadata.deletion_timestamp is not None,
        "requests": requests,
        "limits": limits,
        "storageBytes": storage_bytes,
    }


def _state(status: ContainerStatus) -> Plain:
    """In the word that `kubectl get` has for it."""
    state = status.state or ContainerState()
    if state.running is not None:
        word = "Running"
    elif state.terminated is not None:
        word = state.terminated.reason
    else:
        word = state.waiting.reason if state.waiting is not None else ""
    return {"state": word, "ready": status.ready, "restarts": status.restart_count}


def storage_bytes(pod: Pod, picture: NodeSnapshot) -> int | None:
    """What the pod has on the node's disk; None where nobody has looked yet."""
    return usage(PodSnapshot(pod, picture.disk.get(pod.metadata.uid)), Resource.STORAGE)


def live(pods: Iterable[Pod]) -> Iterable[Pod]:
    return (pod for pod in pods if (pod.status.phase or "Pending") in _LIVE)
