"""Kubernetes' Summary API (B11): stats/v1alpha1, field for field, from the node snapshot.

An unknown figure is left out, as in kubelet. Beside kubelet's system containers (`kubelet`, which is this agent,
`runtime`, `misc`, `pods`) there are those of daemons: `kube-reserved`, `system-reserved`, `system.slice`, `user.slice`.
"""

import asyncio
from collections.abc import Mapping

from evenkeel.agent.node.daemons import AGENT, RUNTIME
from evenkeel.agent.observe.node_snapshot import NodeSnapshot
from evenkeel.api.pod import Pod
from evenkeel.api.resources import MEMORY
from evenkeel.cgroup.tree import Cgroup, Kind
from evenkeel.host.disk_usage import Usage
from evenkeel.host.node_figures import Sample
from evenkeel.host.psi import PressureFigures
from evenkeel.policy.eviction.snapshot import (
    DiskFigures,
    FilesystemFigures,
    PodFigures,
    PodSnapshot,
    VolumeFigures,
)
from evenkeel.policy.eviction.usage import Resource, usage
from evenkeel.policy.lifecycle.pod_status import timestamp
from evenkeel.policy.pod_resources import pod_limits
from evenkeel.server.http import to_json
from evenkeel.server.view import storage_bytes

_PODS_AT_A_TIME = 10  # are encoded before other tasks have their turn
Plain = dict[str, object]


async def summary(snapshot: NodeSnapshot, *, only_cpu_and_memory: bool = False) -> bytes:
    tree = snapshot.sweep.tree
    containers: dict[str, list[Cgroup]] = {}
    of_pod: dict[str, Cgroup] = {}
    for cgroup in tree.cgroups:
        if cgroup.kind == Kind.CONTAINER:
            containers.setdefault(cgroup.pod, []).append(cgroup)
        elif cgroup.kind == Kind.POD:
            of_pod[cgroup.pod] = cgroup
    encoder = _Encoder(snapshot, is_short=only_cpu_and_memory)
    pods = []
    for number, pod in enumerate(snapshot.pods, start=1):
        own = of_pod.get(pod.key)
        if own is not None and own.path in snapshot.sweep.samples:
            pods.append(to_json(encoder.pod(pod, own, containers.get(pod.key, []))).strip())
        if number % _PODS_AT_A_TIME == 0:
            await asyncio.sleep(0)
    return b'{"node":%b,"pods":[%b]}\n' % (to_json(encoder.node()).strip(), b",".join(pods))


class _Encoder:
    def __init__(self, snapshot: NodeSnapshot, *, is_short: bool) -> None:
        self._snapshot = snapshot
        self._is_short = is_short
        self._at = timestamp(snapshot.sweep.at)
        self._room = _room(self._at, snapshot.sweep.node.nodefs)

    def node(self) -> Plain:
        sweep = self._snapshot.sweep
        machine, signals = sweep.machine, sweep.node
        memory: Plain = {
            "time": self._at,
            "usageBytes": machine.memory_usage_bytes,
            "workingSetBytes": machine.memory_working_set_bytes,
            "rssBytes": machine.memory_rss_bytes,
            "pageFaults": machine.page_faults,
            "majorPageFaults": machine.major_page_faults,
        }
        if signals.memory is not None:  # the figure that eviction uses
            memory["availableBytes"] = signals.memory.available_bytes
        cpu: Plain = {"time": self._at, "usageCoreNanoSeconds": machine.cpu_usage_us * 1000}
        if sweep.machine_nanocores is not None:
            cpu["usageNanoCores"] = sweep.machine_nanocores
        io: Plain | None = None
        if machine.pressures is not None:
            cpu["psi"], memory["psi"] = _psi(machine.pressures.cpu), _psi(machine.pressures.memory)
            io = {"time": self._at, "psi": _psi(machine.pressures.io)}
        node: Plain = {
            "nodeName": self._snapshot.node.metadata.name,
            "systemContainers": self._system_containers(),
            "startTime": timestamp(machine.booted_at),
            "cpu": cpu,
            "memory": memory,
            "swap": {
                "time": self._at,
                "swapAvailableBytes": machine.swap_total_bytes - machine.swap_used_bytes,
                "swapUsageBytes": machine.swap_used_bytes,
            },
        }
        if self._is_short:
            return node
        if io is not None:
            node["io"] = io
        if machine.interfaces:
            listed = [
                {
                    "name": one.name,
                    "rxBytes": one.received_bytes,
                    "rxErrors": one.receive_errors,
                    "txBytes": one.sent_bytes,
                    "txErrors": one.send_errors,
                }
                for one in machine.interfaces
            ]
            node["network"] = {"time": self._at, **listed[0], "interfaces": listed}
        if signals.nodefs is not None:
            node["fs"] = _whole(self._at, signals.nodefs)
            images = {**_room(self._at, signals.imagefs or signals.nodefs), **_used(self._snapshot.images)}
            # Where layers lie with the images, kubelet reports the same for both.
            layers = images
            if signals.separate_containerfs:
                layers = {**_room(self._at, signals.containerfs), **_used(self._layers())}
            node["runtime"] = {"imageFs": images, "containerFs": layers}
        if signals.processes is not None:
            node["rlimit"] = {
                "time": self._at,
                "maxpid": signals.processes.maximum,
                "curproc": signals.processes.running,
            }
        return node

    def _layers(self) -> Usage:
        """The size of the writable layers of all containers."""
        parts = [
            one.rootfs
            for figures in self._snapshot.disk.values()
            for one in figures.containers
            if one.rootfs is not None
        ]
        return Usage(sum(one.used_bytes or 0 for one in parts), sum(one.inodes_used or 0 for one in parts))

    def pod(self, pod: Pod, cgroup: Cgroup, containers: list[Cgroup]) -> Plain:
        samples = self._snapshot.sweep.samples
        disk = self._snapshot.disk.get(pod.metadata.uid, PodFigures())
        started = {
            one.name: one.state.running.started_at
            for one in pod.status.every_container_status
            if one.state is not None and one.state.running is not None
        }
        limit = pod_limits(pod).get(MEMORY)
        # A pod's limit is that of its cgroup, if it has one (D2).
        bounded = limit.value if limit is not None and _memory_limit(cgroup) is not None else None
        on_disk = {one.name: one for one in disk.containers}
        entries = []
        for one in containers:
            if one.path in samples and one.container in started:
                since = started[one.container] or self._at
                own = _memory_limit(one)  # which may be the pod's, and is the pod's if it has none
                limit_bytes = bounded if own is None else own
                entry = self._container(
                    one.container, since, samples[one.path], limit_bytes, _swap_limit(one)
                )
                known = on_disk.get(one.container)
                if not self._is_short and known is not None:
                    entry["rootfs"] = self._part(known.rootfs)
                    entry["logs"] = self._part(known.logs)
                entries.append(entry)
        sample = samples[cgroup.path]
        entry = {
            "podRef": {
                "name": pod.metadata.name,
                "namespace": pod.metadata.namespace,
                "uid": pod.metadata.uid,
            },
            "startTime": pod.status.start_time or self._at,
            "containers": entries,
            **self._figures(sample, bounded, _swap_limit(cgroup)),
        }
        if self._is_short:
            return entry
        if sample.pressures is not None:
            entry["io"] = {"time": self._at, "psi": _psi(sample.pressures.io)}
        if disk.volumes:
            entry["volume"] = [{"name": one.name, **self._part(one)} for one in disk.volumes]
        used = storage_bytes(pod, self._snapshot)
        if used is not None:
            inodes = usage(PodSnapshot(pod, disk), Resource.INODES) or 0
            entry["ephemeral-storage"] = {**self._room, **_used(Usage(used, inodes))}
        entry["process_stats"] = {"process_count": sample.statistics.pids}
        return entry

    def _system_containers(self) -> list[Plain]:
        snapshot, sweep = self._snapshot, self._snapshot.sweep
        since = timestamp(snapshot.since)
        listed = []
        root = next((one for one in sweep.tree.cgroups if one.kind == Kind.ROOT), None)
        pods = sweep.samples.get(root.path) if root is not None else None
        if pods is not None:
            limit = snapshot.view.pods_limits.memory_bytes
            listed.append(self._container("pods", since, pods, limit))
        for name, daemon in sweep.daemons.items():
            listed.append(self._container(name, since, daemon.sample, None))
        misc = self._misc(pods)
        if misc is not None:
            listed.append(misc)
        return listed

    def _misc(self, pods: Sample | None) -> Plain | None:
        """The use of everything but pods, agent and runtime. All four add up to the figure of the node."""
        sweep = self._snapshot.sweep
        machine = sweep.machine
        others = [sweep.daemons[name].sample for name in (AGENT, RUNTIME) if name in sweep.daemons]
        if pods is not None:
            others.append(pods)
        cpu_us = machine.cpu_usage_us - sum(one.statistics.cpu_usage_us for one in others)
        used = machine.memory_usage_bytes - sum(one.statistics.memory_usage_bytes for one in others)
        rss = machine.memory_rss_bytes - sum(one.statistics.memory_rss_bytes for one in others)
        working_set = machine.memory_working_set_bytes
        working_set -= sum(one.statistics.memory_working_set_bytes for one in others)
        if cpu_us < 0 or used < 0:  # inside another machine the figures may not add up
            return None
        cpu: Plain = {"time": self._at, "usageCoreNanoSeconds": cpu_us * 1000}
        rates = [one.nanocores for one in others if one.nanocores is not None]
        if sweep.machine_nanocores is not None and len(rates) == len(others):
            cpu["usageNanoCores"] = max(sweep.machine_nanocores - sum(rates), 0)
        return {
            "name": "misc",
            "startTime": timestamp(machine.booted_at),
            "cpu": cpu,
            "memory": {
                "time": self._at,
                "usageBytes": used,
                "workingSetBytes": max(min(working_set, used), 0),
                "rssBytes": max(rss, 0),
            },
        }

    def _container(
        self, name: str, since: str, sample: Sample, limit_bytes: int | None, swap_bytes: int | None = None
    ) -> Plain:
        entry: Plain = {"name": name, "startTime": since, **self._figures(sample, limit_bytes, swap_bytes)}
        if not self._is_short and sample.pressures is not None:
            entry["io"] = {"time": self._at, "psi": _psi(sample.pressures.io)}
        return entry

    def _figures(self, sample: Sample, limit_bytes: int | None, swap_bytes: int | None) -> Plain:
        used = sample.statistics
        cpu: Plain = {"time": self._at, "usageCoreNanoSeconds": used.cpu_usage_us * 1000}
        if sample.nanocores is not None:
            cpu["usageNanoCores"] = sample.nanocores
        memory: Plain = {
            "time": self._at,
            "usageBytes": used.memory_usage_bytes,
            "workingSetBytes": used.memory_working_set_bytes,
            "rssBytes": used.memory_rss_bytes,
            "pageFaults": used.page_faults,
            "majorPageFaults": used.major_page_faults,
        }
        if limit_bytes is not None:
            memory["availableBytes"] = max(limit_bytes - used.memory_working_set_bytes, 0)
        if sample.pressures is not None:
            cpu["psi"], memory["psi"] = _psi(sample.pressures.cpu), _psi(sample.pressures.memory)
        found: Plain = {"cpu": cpu, "memory": memory}
        if used.swap_bytes is not None:
            swap: Plain = {"time": self._at, "swapUsageBytes": used.swap_bytes}
            if swap_bytes is not None:
                swap["swapAvailableBytes"] = max(swap_bytes - used.swap_bytes, 0)
            found["swap"] = swap
        return found

    def _part(self, disk: DiskFigures | VolumeFigures | None) -> Plain:
        """The use of a part of the shared filesystem."""
        if disk is None:
            return self._room
        used = {"usedBytes": disk.used_bytes, "inodesUsed": disk.inodes_used}
        return {**self._room, **{name: amount for name, amount in used.items() if amount is not None}}


def _memory_limit(cgroup: Cgroup) -> int | None:
    return _bound(cgroup.value("memory.max") or cgroup.value("memory.limit_in_bytes"))


def _swap_limit(cgroup: Cgroup) -> int | None:
    both = _bound(cgroup.value("memory.memsw.limit_in_bytes"))
    if both is not None:  # v1 counts memory and swap together
        return both - (_memory_limit(cgroup) or 0)
    return _bound(cgroup.value("memory.swap.max"))


def _bound(value: str | None) -> int | None:
    return None if value is None or value in ("max", "-1") else int(value)


def _used(amount: Usage | None) -> Plain:
    return {} if amount is None else {"usedBytes": amount.used_bytes, "inodesUsed": amount.inodes}


def _psi(figures: PressureFigures) -> Mapping[str, Mapping[str, float]]:
    return {
        kind: {
            "total": line.total_us,  # kubelet hands on what the kernel counts, in microseconds
            "avg10": line.avg10,
            "avg60": line.avg60,
            "avg300": line.avg300,
        }
        for kind, line in figures._asdict().items()
    }


def _room(at: str, filesystem: FilesystemFigures | None) -> Plain:
    found: Plain = {"time": at}
    if filesystem is None:
        return found
    for name, amount in (
        ("availableBytes", filesystem.available_bytes),
        ("capacityBytes", filesystem.capacity_bytes),
        ("inodesFree", filesystem.inodes_free),
        ("inodes", filesystem.inodes),
    ):
        if amount is not None:
            found[name] = amount
    return found


def _whole(at: str, filesystem: FilesystemFigures) -> Plain:
    """The filesystem with its use as a whole."""
    found = _room(at, filesystem)
    if filesystem.capacity_bytes is not None and filesystem.available_bytes is not None:
        found["usedBytes"] = filesystem.capacity_bytes - filesystem.available_bytes
    if filesystem.inodes is not None and filesystem.inodes_free is not None:
        found["inodesUsed"] = filesystem.inodes - filesystem.inodes_free
    return found
