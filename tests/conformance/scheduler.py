"""Whether a pod fits a node, and the node's scores for it, with what the pods already there add up to."""

from typing import Any

from evenkeel.api.config import Profile
from evenkeel.api.decode import Findings, decode
from evenkeel.api.node import Node
from evenkeel.api.resources import PODS
from evenkeel.simulate.node_info import NodeInfo, pod_demand
from evenkeel.simulate.plain_cluster import (
    Scoring,
    ShapePoint,
    Strategy,
    balanced_score,
    fits,
    insufficient,
    skips_balance,
    strategy_score,
)
from tests.conformance.common import differences, read_pod

_STRATEGIES = {
    "leastAllocated": Strategy.LEAST_ALLOCATED,
    "mostAllocated": Strategy.MOST_ALLOCATED,
    "requestedToCapacityRatio": Strategy.REQUESTED_TO_CAPACITY_RATIO,
}


def check(vector_input: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    node = NodeInfo(decode(Node, vector_input["node"], Findings()))
    for plain in vector_input["existingPods"] or ():
        node.add(pod_demand(read_pod(plain), Profile.KUBERNETES))
    pod = pod_demand(read_pod(vector_input["pod"]), Profile.KUBERNETES)
    resources = tuple((resource["name"], resource["weight"]) for resource in vector_input["resources"])
    names = [name for name, _ in resources]
    scoring = Scoring(
        resources=resources, shape=tuple(ShapePoint(**point) for point in vector_input["shape"])
    )
    requests = dict(pod.requests)
    skipped = skips_balance(requests, names)
    seen: dict[str, object] = {
        "fits": fits(pod, node),
        "insufficient": _sorted(
            {
                "resource": lack.resource,
                "requested": lack.requested,
                "used": lack.used,
                "capacity": lack.capacity,
                "unresolvable": lack.resource != PODS and lack.requested > lack.capacity,
            }
            for lack in insufficient(pod, node)
        ),
        "balancedAllocationSkipped": skipped,
        "balancedAllocation": 0 if skipped else balanced_score(requests, node, names),
        "nodeRequested": _requested(node),
        "nodeNonZeroRequested": {"milliCPU": node.occupied["cpu"], "memory": node.occupied["memory"]},
    }
    for name, strategy in _STRATEGIES.items():
        seen[name] = strategy_score(dict(pod.scored), node, scoring._replace(strategy=strategy))
    wanted = {**expected, "insufficient": _sorted(expected["insufficient"] or ())}
    if "nodeRequested" in wanted:
        wanted["nodeRequested"] = {
            **wanted["nodeRequested"],
            "scalar": wanted["nodeRequested"].get("scalar") or {},
        }
    return [line for name, value in wanted.items() for line in differences(name, seen[name], value)]


def _sorted(lacking: Any) -> list[dict[str, Any]]:
    return sorted(lacking, key=lambda lack: lack["resource"])


def _requested(node: NodeInfo) -> dict[str, Any]:
    amounts = dict(node.requested)
    return {
        "milliCPU": amounts.pop("cpu", 0),
        "memory": amounts.pop("memory", 0),
        "ephemeralStorage": amounts.pop("ephemeral-storage", 0),
        "scalar": amounts,
    }
