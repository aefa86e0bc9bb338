"""Metrics of each cgroup for Prometheus: /metrics/resource for metrics-server, /metrics/cadvisor with cAdvisor's names;
and the text format that all metrics share."""

import math
from collections.abc import Callable, Iterable, Mapping

from evenkeel.agent.observe.counters import Histogram
from evenkeel.agent.observe.node_snapshot import NodeSnapshot
from evenkeel.api.pod import Pod
from evenkeel.cgroup.tree import Cgroup, Kind
from evenkeel.host.node_figures import Sample
from evenkeel.named_tuples import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTER, GAUGE, HISTOGRAM, UNTYPED = "counter", "gauge", "histogram", "untyped"

UNBOUNDED = 2**62  # cgroup v1 has no unlimited value: more than this is no limit
_MOST_KEPT = 10_000

Samples = Iterable[tuple[str, float]] | float


class Exposition:
    """The text of a scrape, written family by family. `at` is the time at which the values were read; it stands behind
    each value that is stamped."""

    def __init__(self, at: float | None = None) -> None:
        self._parts: list[str] = []
        self._stamp = "" if at is None else f" {round(at * 1000)}"

    def counter(self, name: str, help_: str, samples: Samples) -> None:
        self.family(name, COUNTER, help_, samples)

    def gauge(self, name: str, help_: str, samples: Samples, *, is_stamped: bool = True) -> None:
        self.family(name, GAUGE, help_, samples, is_stamped=is_stamped)

    def family(
        self,
        name: str,
        type_: str,
        help_: str,
        samples: Samples,
        *,
        is_stamped: bool = True,
    ) -> None:
        """A sample is its labels, as `labels` returns them, and its value. A single number is a sample without labels.
        A family without samples is left out."""
        if isinstance(samples, int | float):
            samples = (("", samples),)
        end = f"{self._stamp}\n" if is_stamped else "\n"
        lines = [f"{name}{labels} {value!r}{end}" for labels, value in samples]
        if lines:
            self._parts.append(f"# HELP {name} {help_}\n# TYPE {name} {type_}\n")
            self._parts += lines

    def histogram(self, name: str, help_: str, histogram: Histogram) -> None:
        parts = [f"# HELP {name} {help_}\n# TYPE {name} {HISTOGRAM}\n"]
        total = 0
        for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
            total += count
            le = "+Inf" if bound == math.inf else repr(bound)
            parts.append(f'{name}_bucket{{le="{le}"}} {total}\n')
        parts.append(f"{name}_sum {histogram.sum!r}\n{name}_count {total}\n")
        self._parts += parts

    def text(self) -> bytes:
        return "".join(self._parts).encode()


def labels(**named: str) -> str:
    """The labels as text: in braces, escaped."""
    return of_mapping(named)


def of_mapping(named: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in named.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Labels:
    """The labels of pods and cgroups as text, made once: a scrape is mostly joining text."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], str] = {}

    def of(self, pod: Pod, container: str) -> str:
        """The labels of a container, or of the pod if the name is empty."""
        key = (pod.key, container)
        known = self._kept.get(key)
        if known is None:
            first = {"container": container} if container else {}
            known = self._keep(key, labels(**first, namespace=pod.metadata.namespace, pod=pod.metadata.name))
        return known

    def with_id(self, cgroup: Cgroup) -> str:
        """The labels of cAdvisor, with the path of the cgroup."""
        key = ("", cgroup.path)
        known = self._kept.get(key)
        if known is None:
            namespace, _, name = cgroup.pod.partition("/")
            text = labels(container=cgroup.container, id=cgroup.path, namespace=namespace, pod=name)
            known = self._keep(key, text)
        return known

    def _keep(self, key: tuple[str, str], text: str) -> str:
        if len(self._kept) >= _MOST_KEPT:  # most are of deleted pods
            self._kept.clear()
        self._kept[key] = text
        return text


class _Row(NamedTuple):
    cgroup: Cgroup
    sample: Sample
    labels: str


def resource_metrics(snapshot: NodeSnapshot, named: Labels) -> bytes:
    sweep = snapshot.sweep
    out = Exposition(sweep.at)
    by_key = {pod.key: pod for pod in snapshot.pods}
    containers, pods = (
        [
            _Row(cgroup, sample, named.of(pod, cgroup.container))
            for cgroup in sweep.tree.cgroups
            if cgroup.kind == kind
            and (sample := sweep.samples.get(cgroup.path)) is not None
            and (pod := by_key.get(cgroup.pod)) is not None
        ]
        for kind in (Kind.CONTAINER, Kind.POD)
    )
    machine = sweep.machine
    out.counter(
        "node_cpu_usage_seconds_total", "CPU time that the node has used.", machine.cpu_usage_us / 1e6
    )
    out.gauge(
        "node_memory_working_set_bytes",
        "Memory of the node without inactive file cache.",
        machine.memory_working_set_bytes,
    )
    out.gauge("node_swap_usage_bytes", "Swap in use on the node.", machine.swap_used_bytes)
    starts = _starts(snapshot.pods)
    out.gauge(
        "container_start_time_seconds",
        "When the container was started, since the epoch.",
        [
            (row.labels, starts[key])
            for row in containers
            if (key := (row.cgroup.pod, row.cgroup.container)) in starts
        ],
        is_stamped=False,
    )
    for what, rows in (("container", containers), ("pod", pods)):
        out.counter(f"{what}_cpu_usage_seconds_total", f"CPU time of the {what}.", _each(rows, _cpu_seconds))
        out.gauge(
            f"{what}_memory_working_set_bytes",
            f"Memory of the {what} without inactive file cache.",
            _each(rows, _working_set),
        )
        out.gauge(f"{what}_swap_usage_bytes", f"Swap in use by the {what}.", _each(rows, _swap))
    is_missing = int(len(containers) < len(starts))
    for name in ("scrape_error", "resource_scrape_error"):
        out.gauge(
            name, "1 if figures of a container could not be read, else 0.", is_missing, is_stamped=False
        )
    return out.text()


def cadvisor_metrics(snapshot: NodeSnapshot, named: Labels) -> bytes:
    sweep = snapshot.sweep
    out = Exposition()
    rows = [
        _Row(cgroup, sample, named.with_id(cgroup))
        for cgroup in sweep.tree.cgroups
        if cgroup.kind != Kind.INFRASTRUCTURE and (sample := sweep.samples.get(cgroup.path)) is not None
    ]
    out.gauge("machine_cpu_cores", "CPUs of the machine.", snapshot.view.capacity.millicpu / 1000)
    out.gauge("machine_memory_bytes", "Memory of the machine.", sweep.machine.memory_total_bytes)
    for name, type_, help_, figure in _OF_CGROUPS:
        out.family(name, type_, help_, _each(rows, figure))
    faults = [
        (f'{row.labels[:-1]},failure_type="{kind}",scope="hierarchy"}}', number)
        for row in rows
        for kind, number in (
            ("pgfault", row.sample.statistics.page_faults),
            ("pgmajfault", row.sample.statistics.major_page_faults),
        )
    ]
    out.counter("container_memory_failures_total", "Page faults.", faults)
    return out.text()


def _each(rows: list[_Row], figure: Callable[[_Row], float | None]) -> Iterable[tuple[str, float]]:
    for row in rows:
        value = figure(row)
        if value is not None:
            yield row.labels, value


def _starts(pods: Iterable[Pod]) -> dict[tuple[str, str], float]:
    """The start times of running containers, since the epoch."""
    return {
        (pod.key, one.name): seconds
        for pod in pods
        for one in pod.status.every_container_status
        if one.state is not None
        and one.state.running is not None
        and (seconds := _seconds(one.state.running.started_at)) is not None
    }


def _seconds(text: str | None) -> float | None:
    """The seconds of a Kubernetes timestamp."""
    from calendar import timegm

    if text is None or len(text) != 20:
        return None
    try:
        parts = (text[:4], text[5:7], text[8:10], text[11:13], text[14:16], text[17:19])
        return float(timegm((*map(int, parts), 0, 0, 0)))
    except ValueError:
        return None


def _cpu_seconds(row: _Row) -> float:
    return row.sample.statistics.cpu_usage_us / 1e6


def _working_set(row: _Row) -> float:
    return row.sample.statistics.memory_working_set_bytes


def _swap(row: _Row) -> float | None:
    return row.sample.statistics.swap_bytes


def _memory_limit(row: _Row) -> float:
    value = row.cgroup.value("memory.max") or row.cgroup.value("memory.limit_in_bytes") or ""
    return int(value) if value.isdecimal() and int(value) < UNBOUNDED else 0


def _stalled(resource: str, kind: str) -> Callable[[_Row], float | None]:
    def figure(row: _Row) -> float | None:
        pressures = row.sample.pressures
        if pressures is None:
            return None
        total: int = getattr(getattr(pressures, resource), kind).total_us
        return total / 1e6

    return figure


_OF_CGROUPS: tuple[tuple[str, str, str, Callable[[_Row], float | None]], ...] = (
    ("container_cpu_usage_seconds_total", COUNTER, "CPU time used.", _cpu_seconds),
    (
        "container_cpu_cfs_throttled_seconds_total",
        COUNTER,
        "Time spent throttled at the cpu limit.",
        lambda row: row.sample.statistics.cpu_throttled_us / 1e6,
    ),
    (
        "container_memory_usage_bytes",
        GAUGE,
        "Memory charged, cache included.",
        lambda row: row.sample.statistics.memory_usage_bytes,
    ),
    ("container_memory_working_set_bytes", GAUGE, "Memory without inactive file cache.", _working_set),
    (
        "container_memory_rss",
        GAUGE,
        "Memory of processes.",
        lambda row: row.sample.statistics.memory_rss_bytes,
    ),
    ("container_memory_swap", GAUGE, "Swap in use.", _swap),
    ("container_threads", GAUGE, "Processes and threads.", lambda row: row.sample.statistics.pids),
    (
        "container_oom_events_total",
        COUNTER,
        "Processes that the OOM killer killed.",
        lambda row: row.sample.statistics.oom_kills,
    ),
    ("container_spec_memory_limit_bytes", GAUGE, "The memory limit, 0 for none.", _memory_limit),
    *(
        (
            f"container_pressure_{one}_{word}_seconds_total",
            COUNTER,
            f"Time in which {share} of its tasks waited for {one}.",
            _stalled(one, kind),
        )
        for one in ("cpu", "memory", "io")
        for kind, word, share in (("some", "waiting", "some"), ("full", "stalled", "all"))
    ),
)
