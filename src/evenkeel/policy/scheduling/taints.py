"""Taints keep pods away from a node unless they tolerate them; an unschedulable node has one of its own."""

from evenkeel.api.node import NodeSpec, Taint
from evenkeel.api.pod import Toleration

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def repelling(spec: NodeSpec) -> tuple[Taint, ...]:
    """The node's taints that keep pods away; PreferNoSchedule does not."""
    taints = tuple(taint for taint in spec.taints if taint.effect in ("NoSchedule", "NoExecute"))
    return (*taints, UNSCHEDULABLE) if spec.unschedulable and UNSCHEDULABLE not in taints else taints


def untolerated(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first of `taints` that none of `tolerations` tolerates."""
    for taint in taints:
        if not any(_tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def taint_words(taint: Taint) -> str:
    """`key=value:effect`, as kubectl writes it."""
    return f"{taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}"


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    # An empty key with Exists tolerates everything.
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value
