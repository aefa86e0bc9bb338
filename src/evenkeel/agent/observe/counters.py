"""Counters and histograms for /metrics: how often each event happened since the agent was started, and how long actions
took."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

from evenkeel.api.pod import Pod
from evenkeel.named_tuples import NamedTuple

_MOST_SERIES = 2000  # of OOM kills: each pod has its own series
_MOST_STARTING = 10_000
_FAST = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_STARTS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class OomKills(NamedTuple):
    """`scope` says which limit was hit: the container's, the pod's, that of all pods, or the node's memory."""

    namespace: str
    pod: str
    container: str
    scope: str


class Histogram:
    """`counts` has one more entry than `bounds`: the last one counts values above the last bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Counters:
    """For the agent's loop. The event recorder calls `happened` for every event."""

    def __init__(self) -> None:
        self.evictions: Counter[str] = Counter()  # by signal
        self.oom_kills: Counter[OomKills] = Counter()
        self.events: Counter[tuple[str, str]] = Counter()  # by type and reason
        self.decision_seconds = Histogram(_FAST)  # from the sample that crossed a threshold to the kill
        self.back_seconds = Histogram(_FAST)  # from the kill until its memory was freed
        self.back_bytes = 0
        self.reclaim_bytes = 0
        self.pod_start_seconds = Histogram(_STARTS)
        self.pods_started = 0
        self._admitted_at: dict[str, float] = {}  # by UID; pods without a started container
        self._started: dict[str, float] = {}

    def evicted(self, signal: str) -> None:
        self.evictions[signal] += 1

    def happened(
        self,
        at: float,
        type_: str,
        reason: str,
        pod: Pod | None,
        container: str,
        figures: Mapping[str, object],
    ) -> None:
        self.events[type_, reason] += 1
        if reason == "OOMKilling":
            self._oom_killed(pod, container, figures)
        elif reason == "MemoryBack":
            self.back_seconds.observe(_number(figures, "seconds"))
            self.back_bytes += int(_number(figures, "bytes"))
        elif reason == "Reclaiming":
            self.reclaim_bytes += int(_number(figures, "expectedBytes"))
        elif reason == "Admitted" and pod is not None:
            _put(self._admitted_at, pod.metadata.uid, at)
        elif reason == "Started" and pod is not None and pod.metadata.uid not in self._started:
            self.pods_started += 1
            _put(self._started, pod.metadata.uid, at)
            if (admitted_at := self._admitted_at.pop(pod.metadata.uid, None)) is not None:
                self.pod_start_seconds.observe(max(at - admitted_at, 0.0))

    def _oom_killed(self, pod: Pod | None, container: str, figures: Mapping[str, object]) -> None:
        namespace, name = (pod.metadata.namespace, pod.metadata.name) if pod is not None else ("", "")
        key = OomKills(namespace, name, container, oom_scope(figures))
        while key not in self.oom_kills and len(self.oom_kills) >= _MOST_SERIES:
            del self.oom_kills[next(iter(self.oom_kills))]
        self.oom_kills[key] += 1


def _put(times: dict[str, float], uid: str, at: float) -> None:
    """Adds a time. The oldest times are dropped, so that memory is bounded."""
    while len(times) >= _MOST_STARTING:
        del times[next(iter(times))]
    times[uid] = at


def oom_scope(figures: Mapping[str, object]) -> str:
    """Which limit was hit, according to a record of the kernel log."""
    cgroup, limit = str(figures.get("cgroup", "")), str(figures.get("limit_cgroup", ""))
    if not limit:
        return "node" if figures.get("constraint") != "memcg" else "cgroup"
    if limit == cgroup:
        return "container"
    return "pod" if limit == cgroup.rpartition("/")[0] else "pods"


def _number(figures: Mapping[str, object], name: str) -> float:
    value = figures.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
