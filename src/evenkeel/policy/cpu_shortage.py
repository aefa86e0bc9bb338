"""CPU shortage: pods that do not get the cpu they requested, and what is done about it (A22, `cpuKills`; off by
default).

A pod is short if for a whole window it waited for cpu and received less than 90 % of its request. Then the node reports
CPUPressure, and BestEffort pods get the smallest weight. If a pod is still short after a second window, one pod is
evicted, and another one after each further window: BestEffort pods by usage, then Burstable pods by usage over request.
A pod within its request, a pod that uses very little and a Guaranteed pod are never evicted.
"""

from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.amounts import cores_text
from evenkeel.policy.eviction.conditions import CPU_PRESSURE
from evenkeel.policy.pod_resources import eviction_request
from evenkeel.policy.qos import QoSClass, is_critical, pod_class

__all__ = ["CPU_PRESSURE", "CpuDecision", "CpuSettings", "CpuState", "CpuWindow", "PodCpu", "decide_cpu"]

_DELIVERED_PERCENT = 90  # of the request; less is a shortage
_LEAST_MILLICPU = 10  # the eviction of a pod that uses less would not help
_NEXT_IN_RANK = 3
_CLASS_PLACE = {QoSClass.BEST_EFFORT: 0, QoSClass.BURSTABLE: 1}


class PodCpu(NamedTuple):
    """One pod in a window. `waited_us` is how long it waited because of others, not because of its own limit: summed
    over its tasks (`is_wait_of_tasks`), or the time in which at least one task waited. None if it was not measured."""

    pod: Pod = Pod()
    used_us: int = 0
    waited_us: int | None = None
    is_wait_of_tasks: bool = False


class CpuWindow(NamedTuple):
    """All pods that ran during the whole window."""

    ends_at: float = 0.0  # seconds of a clock that only grows
    seconds: float = 0.0
    pods: tuple[PodCpu, ...] = ()


class CpuSettings(NamedTuple):
    profile: Profile = Profile.DOCUMENTS
    max_pod_grace_period_seconds: int = 0
    transition_period_seconds: float = 300.0


class CpuState(NamedTuple):
    """The state that one window passes to the next."""

    short_windows: int = 0  # in a row, up to now
    short_at: float | None = None  # the end of the last window with a shortage


class ShortPod(NamedTuple):
    pod: str
    received_millicpu: int
    waited_millicpu: int
    request_millicpu: int


class CpuCandidate(NamedTuple):
    """A pod that could be evicted."""

    pod: str
    qos_class: str
    priority: int
    used_millicpu: int
    request_millicpu: int


class CpuShortage(NamedTuple):
    """Why this pod is evicted and no other."""

    short: tuple[ShortPod, ...]
    seconds: float
    windows: int
    victim: CpuCandidate
    next_in_rank: tuple[CpuCandidate, ...] = ()
    others_in_rank: int = 0


class CpuDecision(NamedTuple):
    """`short` are the pods with a shortage, the worst first. `is_pressure` is the condition CPUPressure, which also
    gives BestEffort pods the smallest weight."""

    short: tuple[ShortPod, ...] = ()
    is_pressure: bool = False
    victim: Pod | None = None
    grace_seconds: float = 0.0
    reason: CpuShortage | None = None
    message: str = ""


def decide_cpu(state: CpuState, window: CpuWindow, settings: CpuSettings) -> tuple[CpuState, CpuDecision]:
    short = short_pods(window, settings.profile)
    if not short:
        lasting = settings.transition_period_seconds
        is_pressure = state.short_at is not None and window.ends_at - state.short_at < lasting
        return CpuState(0, state.short_at if is_pressure else None), CpuDecision(is_pressure=is_pressure)
    after = CpuState(state.short_windows + 1, window.ends_at)
    ranked = cpu_candidates(window, settings.profile) if state.short_windows else []
    if not ranked:
        return after, CpuDecision(short, is_pressure=True)
    (first, victim), *others = ranked
    reason = CpuShortage(
        short,
        window.seconds,
        after.short_windows,
        first,
        tuple(one for one, _ in others[:_NEXT_IN_RANK]),
        len(others[_NEXT_IN_RANK:]),
    )
    grace = _grace_seconds(victim, settings)
    return after, CpuDecision(short, True, victim, grace, reason, shortage_message(reason))


def short_pods(window: CpuWindow, profile: Profile) -> tuple[ShortPod, ...]:
    """The pods that waited and would have received 90 % of their request without waiting. A pod that wanted less was
    not short."""
    found = []
    for one in window.pods:
        request = _request_millicpu(one.pod, profile)
        if not request or one.waited_us is None:
            continue
        received, waited = _millicpu(one.used_us, window), _millicpu(one.waited_us, window)
        # If only "at least one task waited" is known, assume as many tasks as could use the whole request.
        tasks = 1.0 if one.is_wait_of_tasks else max(request / 1000, 1.0)
        due = request * _DELIVERED_PERCENT / 100
        if waited and received < due <= received + waited * tasks:
            found.append(ShortPod(one.pod.key, received, waited, request))
    found.sort(key=lambda pod: (pod.received_millicpu / pod.request_millicpu, pod.pod))
    return tuple(found)


def cpu_candidates(window: CpuWindow, profile: Profile) -> list[tuple[CpuCandidate, Pod]]:
    """The pods that could be evicted, the first victim first. Critical pods come last."""
    found: list[tuple[tuple[int, ...], str, CpuCandidate, Pod]] = []
    for one in window.pods:
        qos = pod_class(one.pod, profile)
        request, used = _request_millicpu(one.pod, profile), _millicpu(one.used_us, window)
        over = used - request
        if qos not in _CLASS_PLACE or over < _LEAST_MILLICPU:
            continue
        priority = one.pod.spec.priority or 0
        key = (is_critical(one.pod, profile), _CLASS_PLACE[qos], -over, priority)
        found.append((key, one.pod.key, CpuCandidate(one.pod.key, qos, priority, used, request), one.pod))
    found.sort(key=lambda each: each[:2])
    return [(candidate, pod) for _, _, candidate, pod in found]


def shortage_message(reason: CpuShortage) -> str:
    """E14: the shortage with its figures, the usage and request of the victim, and the next pods in the ranking.

    The text is recorded with the decision and compared when the decision is replayed (`eviction.message`)."""
    first, *more = reason.short
    others = f", and {len(more)} more pods were short" if more else ""
    for_long = f"for {reason.seconds:.3g} s"
    what = (
        f"{first.pod} received {cores_text(first.received_millicpu)} of the {cores_text(first.request_millicpu)} cpu"
        f" that it requested {for_long}, less than {_DELIVERED_PERCENT}%, while it waited for cpu{others}; it is the"
        f" {_ordinal(reason.windows)} such time in a row, and BestEffort pods have the least weight already."
    )
    sentences = [what, f"{_figures(reason.victim)}, and is first in rank by class and use over request."]
    if reason.next_in_rank:
        rest = f"; and {reason.others_in_rank} more" if reason.others_in_rank else ""
        sentences.append(f"Next in rank: {'; '.join(map(_figures, reason.next_in_rank))}{rest}.")
    else:
        sentences.append("No other pod could be evicted.")
    return " ".join(sentences)


def short_sentence(one: ShortPod, seconds: float) -> str:
    return (
        f"{one.pod} waited for cpu and received {cores_text(one.received_millicpu)} of the"
        f" {cores_text(one.request_millicpu)} that it requested, for {seconds:.3g} s"
    )


def _figures(one: CpuCandidate) -> str:
    against = (
        f"{cores_text(one.used_millicpu - one.request_millicpu)} above its request of"
        f" {cores_text(one.request_millicpu)}"
        if one.request_millicpu
        else "requested none"
    )
    return f"{one.pod} ({one.qos_class}, priority {one.priority}) uses {cores_text(one.used_millicpu)} cpu, {against}"


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def _grace_seconds(pod: Pod, settings: CpuSettings) -> float:
    """As for soft thresholds: the grace period of the pod, up to the setting. A cpu shortage is no emergency."""
    most, own = settings.max_pod_grace_period_seconds, pod.spec.termination_grace_period_seconds
    if most < 0:
        return float(30 if own is None else own)
    return float(most if own is None else min(most, own))


def _millicpu(used_us: int, window: CpuWindow) -> int:
    return round(used_us / window.seconds / 1000) if window.seconds > 0 else 0


def _request_millicpu(pod: Pod, profile: Profile) -> int:
    return eviction_request(pod, CPU, with_pod_level=profile is Profile.KUBERNETES).milli
