"""What a Node object must be for pods to be scheduled on it."""

from evenkeel.api.node import Node, Taint
from evenkeel.api.validation.names import dns_subdomain, label_value, qualified_name
from evenkeel.api.validation.problems import Problems, invalid, not_supported, shown

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def validate_node(node: Node) -> Problems:
    yield from _name("metadata.name", node.metadata.name, dns_subdomain(node.metadata.name))
    for index, taint in enumerate(node.spec.taints):
        yield from _taint(taint, f"spec.taints[{index}]")
    for field in ("capacity", "allocatable"):
        for name, amount in getattr(node.status, field).items():
            if amount.sign < 0:
                yield invalid(f"status.{field}[{name}]", f"{amount} is less than nothing: write 0 or more")


def _taint(taint: Taint, path: str) -> Problems:
    yield from _name(f"{path}.key", taint.key, qualified_name(taint.key))
    yield from _name(f"{path}.value", taint.value, label_value(taint.value))
    if taint.effect not in _EFFECTS:
        yield not_supported(f"{path}.effect", taint.effect, _EFFECTS)


def _name(path: str, seen: str, complaint: str) -> Problems:
    if complaint:
        yield invalid(path, f"{shown(seen)} {complaint}")
