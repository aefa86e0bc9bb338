"""Eviction: thresholds, observations, ranking, and whole runs of the control loop."""

from collections.abc import Iterator
from typing import Any

from evenkeel.api.config import Profile
from evenkeel.api.decode import Findings, decode
from evenkeel.api.pod import Pod
from evenkeel.policy.eviction.conditions import observations, pressure_refusal, pressures, thresholds_met
from evenkeel.policy.eviction.decide import (
    Decision,
    Reclaim,
    Settings,
    State,
    decide,
    reclaimable,
    victim,
)
from evenkeel.policy.eviction.rank import Order, rank
from evenkeel.policy.eviction.snapshot import NodeFigures, PodFigures, PodSnapshot, Snapshot
from evenkeel.policy.eviction.thresholds import Threshold, parse_thresholds
from evenkeel.policy.eviction.usage import DiskPart, Resource, resource_of
from tests.conformance.common import differences, read_pod
from tests.conformance.eviction_parse import check_parse
from tests.eviction_pods import disruptions, evicted_status

RESOURCES = {
    "memory": Resource.MEMORY,
    "disk": Resource.STORAGE,
    "inodes": Resource.INODES,
    "pid": Resource.PIDS,
}
DISK_PARTS = {"root": DiskPart.ROOTFS, "logs": DiskPart.LOGS, "localVolumeSource": DiskPart.VOLUMES}


def check(vector_input: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    match vector_input["fn"]:
        case "parse":
            return check_parse(vector_input, expected)
        case "thresholdsMet":
            return check_thresholds_met(vector_input, expected)
        case "rank":
            return check_rank(vector_input, expected)
        case "synchronize":
            return check_synchronize(vector_input, expected)
        case other:
            return [f"unknown fn {other!r}"]


def check_thresholds_met(vector_input: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    thresholds = read_thresholds(vector_input)
    seen = observations(read_node(vector_input["node"]))
    met = thresholds_met(thresholds, seen)
    reclaiming = thresholds_met(thresholds, seen, enforce_min_reclaim=True)
    said = {
        "observations": {
            str(signal): {"Available": one.available, "Capacity": one.capacity}
            for signal, one in seen.items()
        },
        "met": sorted(map(named, met)),
        "metWithMinReclaim": sorted(map(named, reclaiming)),
        "nodeConditions": sorted(pressures(met)),
    }
    return [line for name, ours in said.items() for line in differences(name, ours, expected[name])]


def check_rank(vector_input: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    parts = [DISK_PARTS[name] for name in vector_input.get("fsStats") or () if name in DISK_PARTS]
    resource = RESOURCES[vector_input["resource"]]
    ranked = rank(read_pods(vector_input), resource, parts, profile=Profile.KUBERNETES)
    names = [one.pod.metadata.name for one in ranked]
    groups = []
    for group in expected["tieGroups"]:
        groups.append(sorted(names[: len(group)]))
        names = names[len(group) :]
    return differences("tieGroups", groups, [sorted(group) for group in expected["tieGroups"]])


def check_synchronize(vector_input: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Where several thresholds call for action, kubelet takes the first of a map, that is any. So where its
    answer was not always the same, ours must be among its answers, or else (only some of them are listed)
    each of the listed must be what we answer when the thresholds are taken in another order."""
    outcomes = [normalised(outcome) for outcome in expected["outcomes"]]
    ours = synchronize(vector_input)
    if ours in outcomes:
        return []
    if expected["deterministic"]:
        return differences("outcome", ours, outcomes[0])
    return [
        f"no order of the thresholds gives {outcome}"
        for outcome in outcomes
        if synchronize(vector_input, like=outcome) != outcome
    ]


def synchronize(vector_input: dict[str, Any], like: dict[str, Any] | None = None) -> dict[str, Any]:
    """A whole run; `like` an outcome as far as the choice among urgent thresholds allows it."""
    thresholds = read_thresholds(vector_input)
    settings = Settings(
        profile=Profile.KUBERNETES,
        order=Order.PRIORITY,
        max_pod_grace_period_seconds=vector_input["evictionMaxPodGracePeriod"],
        pressure_transition_period_seconds=vector_input["evictionPressureTransitionPeriodSeconds"],
        local_storage_capacity_isolation=vector_input["localStorageCapacityIsolation"],
    )
    pods = read_pods(vector_input)
    state = State()
    steps = []
    for number, step in enumerate(vector_input["steps"]):
        node = read_node(step["node"])._replace(dedicated_imagefs=vector_input["dedicatedImageFs"])
        snapshot = Snapshot(step["atSeconds"], node, pods)
        state, decision = decide(state, snapshot, thresholds, settings)
        if like is not None:
            choices = alternatives(decision, snapshot, settings)
            wanted = like["steps"][number]
            decision = next((one for one in choices if outcome_of(one) == wanted), decision)
        steps.append(outcome_of(decision))
        gone = {eviction.pod.metadata.uid for eviction in decision.evictions}
        pods = tuple(seen for seen in pods if seen.pod.metadata.uid not in gone)
    admitted = {
        name: pressure_refusal(pod, state.conditions, Profile.KUBERNETES) is None
        for name, pod in NEWCOMERS.items()
    }
    return {"admitAtEnd": admitted, "steps": steps}


def alternatives(decision: Decision, snapshot: Snapshot, settings: Settings) -> Iterator[Decision]:
    """The decisions for each threshold that may be taken first: any, but memory before all else."""
    of_memory = [one for one in decision.due if resource_of(one.signal) is Resource.MEMORY]
    for threshold in of_memory or decision.due:
        yield decision._replace(
            reclaim=reclaimable(threshold.signal, snapshot.node),
            victim=victim(threshold.signal, threshold, snapshot, settings),
        )


def outcome_of(decision: Decision) -> dict[str, Any]:
    kills = []
    for eviction in decision.evictions:
        status = evicted_status(eviction)
        reasons = [one.reason for one in disruptions(status)]
        kills.append(
            {
                "pod": eviction.pod.metadata.name,
                "gracePeriodSeconds": eviction.grace_period_seconds,
                "reason": status.reason,
                "conditionReason": "".join(reasons),
            }
        )
    return {
        "containerGC": Reclaim.CONTAINERS in decision.reclaim,
        "imageGC": Reclaim.IMAGES in decision.reclaim,
        "evicted": sorted(kill["pod"] for kill in kills),
        "kills": sorted(kills, key=lambda kill: kill["pod"]),
        "nodeConditions": sorted(decision.conditions),
    }


def normalised(outcome: dict[str, Any]) -> dict[str, Any]:
    """What one step evicts has no order that matters."""
    steps = [
        step
        | {
            "evicted": sorted(step["evicted"]),
            "kills": sorted(step["kills"], key=lambda kill: kill["pod"]),
            "nodeConditions": sorted(step["nodeConditions"]),
        }
        for step in outcome["steps"]
    ]
    return outcome | {"steps": steps}


def newcomer(spec: dict[str, Any]) -> Pod:
    return read_pod({"metadata": {"name": "newcomer"}, "spec": {"containers": [{"name": "c"}], **spec}})


TOLERATION = {"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"}
NEWCOMERS = {
    "adm-be": newcomer({}),
    "adm-bu": newcomer({"containers": [{"name": "c", "resources": {"requests": {"memory": "1Mi"}}}]}),
    "adm-crit": newcomer({"priority": 2_000_000_000}),
    "adm-tol": newcomer({"tolerations": [TOLERATION]}),
}


def read_thresholds(vector_input: dict[str, Any]) -> tuple[Threshold, ...]:
    return parse_thresholds(
        hard=vector_input["evictionHard"],
        soft=vector_input["evictionSoft"],
        soft_grace_period=vector_input["evictionSoftGracePeriod"],
        minimum_reclaim=vector_input["evictionMinimumReclaim"],
        enforce_node_allocatable=tuple(vector_input["enforceNodeAllocatable"] or ()),
    )


def read_node(plain: dict[str, Any]) -> NodeFigures:
    figures = dict(plain)
    limits = figures.pop("rlimit", None)
    if limits is not None:
        figures["processes"] = {"maximum": limits["maxPID"], "running": limits["numOfRunningProcesses"]}
    return read(NodeFigures, figures)


def read_pods(vector_input: dict[str, Any]) -> tuple[PodSnapshot, ...]:
    stats = {plain["uid"]: plain for plain in vector_input["podStats"] or ()}
    return tuple(
        PodSnapshot(read_pod(plain), read_stats(stats.get(plain["metadata"]["uid"])))
        for plain in vector_input["pods"] or ()
    )


def read_stats(plain: dict[str, Any] | None) -> PodFigures | None:
    if plain is None:
        return None
    return read(PodFigures, {name: plain[name] for name in plain if name not in ("uid", "name", "namespace")})


def read(cls: type, plain: dict[str, Any]) -> Any:
    """Reads a snapshot strictly: an unknown figure is an error, because our decision would not use it."""
    findings = Findings()
    value: Any = decode(cls, plain, findings)
    assert not findings.problems, findings.problems
    assert not findings.not_honoured, findings.not_honoured
    return value


def named(threshold: Threshold) -> str:
    return f"{'hard' if threshold.hard else 'soft'}:{threshold.signal}"
