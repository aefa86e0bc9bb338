"""Metrics of the node and the agent for Prometheus (/metrics), with kubelet's names where it has them.

The text is written without a client library. The figures come from one snapshot of cgroups that come and go, and not
from counters in this process. A scrape of 330 containers only joins text.
"""

import os
import resource
from collections import Counter
from collections.abc import Iterable

from evenkeel.agent.observe.node_snapshot import NodeSnapshot
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU, PODS
from evenkeel.cgroup.tree import Kind
from evenkeel.policy.allocatable import node_capacity, reserved_of
from evenkeel.policy.eviction.conditions import observations
from evenkeel.policy.eviction.thresholds import config_thresholds, threshold_amount
from evenkeel.policy.pod_resources import pod_requests
from evenkeel.quantity import Quantity
from evenkeel.server.metrics_cgroups import UNBOUNDED, UNTYPED, Exposition, Labels, labels
from evenkeel.server.view import live

_NUMERIC = (
    "memory.min",
    "memory.low",
    "memory.high",
    "memory.max",
    "memory.limit_in_bytes",
    "memory.soft_limit_in_bytes",
    "cpu.weight",
    "cpu.shares",
)


def node_metrics(snapshot: NodeSnapshot, named: Labels) -> bytes:
    out = Exposition()
    _kubelet(out, snapshot)
    _counts(out, snapshot)
    _node(out, snapshot)
    _pressure(out, snapshot)
    _asked_for(out, snapshot, named)
    _process(out, snapshot)
    return out.text()


def _kubelet(out: Exposition, snapshot: NodeSnapshot) -> None:
    counts = snapshot.counts
    running = sum(pod.status.phase == "Running" for pod in snapshot.pods)
    out.gauge("kubelet_node_name", "The node's name.", [(labels(node=snapshot.node.metadata.name), 1)])
    out.gauge("kubelet_running_pods", "Running pods.", running)
    out.gauge("kubelet_running_containers", "Containers by state.", _container_states(snapshot.pods))
    out.counter("kubelet_started_pods_total", "Pods with a started container.", counts.pods_started)
    out.counter(
        "kubelet_started_containers_total",
        "Containers started.",
        [(labels(container_type="container"), counts.events["Normal", "Started"])],
    )
    out.histogram(
        "kubelet_pod_start_duration_seconds",
        "From a pod's admission to the start of its first container.",
        counts.pod_start_seconds,
    )
    # A counter without the suffix of counters: the name is kubelet's.
    out.family(
        "kubelet_evictions",
        UNTYPED,
        "Pods evicted, by signal.",
        [(labels(eviction_signal=signal), number) for signal, number in counts.evictions.items()],
    )


def _counts(out: Exposition, snapshot: NodeSnapshot) -> None:
    counts = snapshot.counts
    out.counter(
        "evenkeel_evictions_total",
        "Pods evicted, by signal.",
        [(labels(signal=signal), number) for signal, number in counts.evictions.items()],
    )
    out.histogram(
        "evenkeel_eviction_decision_seconds",
        "From the figures that crossed a memory threshold to the kill.",
        counts.decision_seconds,
    )
    out.histogram(
        "evenkeel_eviction_memory_back_seconds",
        "From the kill until the memory of the pod was freed.",
        counts.back_seconds,
    )
    out.counter(
        "evenkeel_eviction_memory_back_bytes_total",
        "Memory that evictions have freed.",
        counts.back_bytes,
    )
    events = counts.events
    out.counter(
        "evenkeel_reclaims_total",
        "Reclaims of memory from pods above their requests, before an eviction.",
        events["Normal", "Reclaiming"],
    )
    out.counter(
        "evenkeel_reclaim_expected_bytes_total",
        "Memory that those reclaims were to free.",
        counts.reclaim_bytes,
    )
    out.counter(
        "evenkeel_drift_repaired_total",
        "Settings that another program had changed and the agent repaired.",
        events["Warning", "DriftRepaired"],
    )
    out.counter(
        "evenkeel_memory_high_stalls_total",
        "Containers found stalled at memory.high.",
        events["Warning", "MemoryHighStall"],
    )
    out.counter(
        "evenkeel_oom_kills_total",
        "Processes that the OOM killer killed, by the cgroup whose limit was reached.",
        [(labels(**key._asdict()), number) for key, number in counts.oom_kills.items()],
    )
    out.counter(
        "evenkeel_happenings_total",
        "Recorded events, by reason.",
        [(labels(type=type_, reason=reason), number) for (type_, reason), number in events.items() if number],
    )


def _node(out: Exposition, snapshot: NodeSnapshot) -> None:
    view = snapshot.view
    capacity = node_capacity(view.capacity, view.config)
    reserved = reserved_of(view.config)
    requested: dict[str, float] = dict.fromkeys(capacity, 0)
    for pod in live(snapshot.pods):
        for name, amount in pod_requests(pod).items():
            requested[name] = requested.get(name, 0) + _value(name, amount)
        requested[PODS] += 1
    out.gauge(
        "evenkeel_node_capacity",
        "Capacity of the node: cores, bytes, pods.",
        [(labels(resource=name), _value(name, amount)) for name, amount in capacity.items()],
    )
    out.gauge(
        "evenkeel_node_allocatable",
        "Amounts that pods may request together.",
        [(labels(resource=name), _value(name, amount)) for name, amount in view.allocatable.items()],
    )
    out.gauge(
        "evenkeel_node_reserved",
        "Amounts that are reserved for daemons.",
        [
            (labels(reservation=which, resource=name), _value(name, amount))
            for which, amounts in (("kube", reserved.kube), ("system", reserved.system))
            for name, amount in amounts.items()
        ],
    )
    out.gauge(
        "evenkeel_node_requested",
        "Requests of pods that have not ended.",
        [(labels(resource=name), amount) for name, amount in requested.items()],
    )
    out.gauge(
        "evenkeel_node_condition",
        "1 while the condition is true.",
        [(labels(condition=one.type), int(one.status == "True")) for one in snapshot.node.status.conditions],
    )
    phases = Counter((pod.status.phase or "Pending", pod.status.qos_class) for pod in snapshot.pods)
    out.gauge(
        "evenkeel_pods",
        "Pods by phase and class.",
        [(labels(phase=phase, qos_class=qos), number) for (phase, qos), number in phases.items()],
    )
    daemons = {name: one.sample.statistics for name, one in snapshot.sweep.daemons.items()}
    out.gauge(
        "evenkeel_daemon_memory_working_set_bytes",
        "Memory of daemons, by cgroup.",
        [(labels(daemon=name), used.memory_working_set_bytes) for name, used in daemons.items()],
    )
    out.counter(
        "evenkeel_daemon_cpu_usage_seconds_total",
        "CPU time of daemons, by cgroup.",
        [(labels(daemon=name), used.cpu_usage_us / 1e6) for name, used in daemons.items()],
    )


def _pressure(out: Exposition, snapshot: NodeSnapshot) -> None:
    sweep = snapshot.sweep
    seen = observations(sweep.node)
    out.gauge(
        "evenkeel_eviction_signal",
        "Available amount of each eviction signal: bytes, inodes, processes.",
        [(labels(signal=str(signal)), int(one.available)) for signal, one in seen.items()],
    )
    out.gauge(
        "evenkeel_eviction_threshold",
        "Below this available amount pods are evicted.",
        [
            (
                labels(signal=str(one.signal), kind="hard" if one.hard else "soft"),
                threshold_amount(one.value, seen[one.signal].capacity),
            )
            for one in config_thresholds(snapshot.view.config)
            if one.signal in seen
        ],
    )
    machine = sweep.machine.pressures
    if machine is not None:
        out.counter(
            "evenkeel_pressure_seconds_total",
            "Time in which some or all tasks of the node waited (PSI).",
            [
                (labels(resource=name, kind=kind), line.total_us / 1e6)
                for name, figures in machine._asdict().items()
                for kind, line in figures._asdict().items()
            ],
        )


def _asked_for(out: Exposition, snapshot: NodeSnapshot, named: Labels) -> None:
    """Requests, limits and applied values (E17) of each container."""
    requests: list[tuple[str, float]] = []
    limits: list[tuple[str, float]] = []
    for pod in live(snapshot.pods):
        for container in pod.spec.every_container:
            where = named.of(pod, container.name)[:-1]
            asked = container.resources
            for found, amounts in ((requests, asked.requests), (limits, asked.limits)):
                found += [
                    (f'{where},resource="{name}"}}', _value(name, amount)) for name, amount in amounts.items()
                ]
    out.gauge("evenkeel_container_request", "Requests of a container: cores, bytes.", requests)
    out.gauge("evenkeel_container_limit", "Limits of a container: cores, bytes.", limits)
    by_key = {pod.key: pod for pod in snapshot.pods}
    applied = [
        (f'{named.of(by_key[cgroup.pod], cgroup.container)[:-1]},file="{file}"}}', int(text))
        for cgroup in snapshot.sweep.tree.cgroups
        if cgroup.kind == Kind.CONTAINER and cgroup.pod in by_key
        for file, text in snapshot.sweep.applied.get(cgroup.path, {}).items()
        if file in _NUMERIC and text.isdecimal() and int(text) < UNBOUNDED
    ]
    out.gauge("evenkeel_container_applied", "Values in the cgroup files of a container.", applied)


def _process(out: Exposition, snapshot: NodeSnapshot) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/statm", "rb") as file:
        pages = int(file.read().split()[1])
    out.gauge(
        "evenkeel_sweep_duration_seconds",
        "Duration of the last sweep over all cgroups.",
        snapshot.sweep.took_seconds,
    )
    out.counter("process_cpu_seconds_total", "CPU time of the agent.", used.ru_utime + used.ru_stime)
    out.gauge("process_start_time_seconds", "When the agent was started, since the epoch.", snapshot.since)
    out.gauge("process_open_fds", "Open files of the agent.", len(os.listdir("/proc/self/fd")))
    out.gauge("process_resident_memory_bytes", "Memory of the agent.", pages * os.sysconf("SC_PAGE_SIZE"))


def _container_states(pods: Iterable[Pod]) -> list[tuple[str, float]]:
    found = Counter(
        "running" if one.state.running is not None else "exited"
        for pod in pods
        for one in pod.status.container_statuses
        if one.state is not None and one.state.waiting is None
    )
    return [(labels(container_state=state), number) for state, number in found.items()]


def _value(name: str, amount: Quantity) -> float:
    return amount.milli / 1000 if name == CPU else amount.value
