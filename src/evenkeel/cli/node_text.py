"""The node in words: what it has, what of it is promised to whom, and how it is."""

from collections.abc import Iterator
from typing import Any

from evenkeel.api.resources import CPU, MEMORY
from evenkeel.cli.pod_amounts import amount_text, typed
from evenkeel.cli.table import printable
from evenkeel.policy.pod_resources import pod_limits, pod_requests
from evenkeel.quantity import Quantity

_ENDED = ("Succeeded", "Failed")
Json = dict[str, Any]


def node_lines(node: Json, pods: list[Json]) -> Iterator[str]:
    status = node.get("status", {})
    yield f"Name:           {printable(node['metadata'].get('name', ''))}"
    if conditions := status.get("conditions", ()):
        yield "Conditions:"
        width = max(len(condition["type"]) for condition in conditions)
        for condition in conditions:
            words = ": ".join(filter(None, (condition.get("reason", ""), condition.get("message", ""))))
            yield printable(f"  {condition['type']:<{width}}  {condition['status']:<7}  {words}".rstrip())
    capacity, allocatable = status.get("capacity", {}), status.get("allocatable", {})
    yield "Resources:"
    held = [typed(pod) for pod in pods if pod.get("status", {}).get("phase") not in _ENDED]
    requests, limits = [pod_requests(pod) for pod in held], [pod_limits(pod) for pod in held]
    rows = [("", "CAPACITY", "ALLOCATABLE", "REQUESTED", "LIMITS")]
    for name in dict.fromkeys((*capacity, *allocatable)):
        may_use = Quantity(allocatable.get(name, "0"))
        asked = [of_pod[name] for of_pod in requests if name in of_pod]
        most = [of_pod[name] for of_pod in limits if name in of_pod]
        promised = str(len(held)) if name == "pods" else _share(name, asked, may_use)
        limited = "" if name == "pods" else _share(name, most, may_use)
        rows.append((name, str(capacity.get(name, "-")), str(allocatable.get(name, "-")), promised, limited))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield f"Pods:           {len(pods)} ({len(pods) - len(held)} ended)"
    for pod in held:
        amounts = pod_requests(pod)
        asks = ", ".join(
            f"{name} {amount_text(name, amounts.get(name))}" for name in (CPU, MEMORY) if amounts.get(name)
        )
        yield printable(f"  {pod.key}: {pod.status.qos_class or 'BestEffort'}, {asks or 'asks for nothing'}")


def _share(name: str, amounts: list[Quantity], whole: Quantity) -> str:
    """The sum and how much of the whole it is: `550m (6%)`."""
    total = sum(amount.milli for amount in amounts)
    percent = f" ({100 * total // whole.milli}%)" if whole.milli else ""
    return f"{amount_text(name, Quantity.of_milli(total)) if total else '0'}{percent}"
