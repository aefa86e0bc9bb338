"""Whether a node has the labels that a pod asks for, with kubelet's reasons.

A node alone has few labels: its architecture, its system and its name. About these it decides as kubelet does. A label
that the node does not know is no reason to refuse a pod. In a cluster the scheduler has compared it already; without
one, a warning says that it is passed over."""

from collections.abc import Iterator, Mapping

from evenkeel.api.node_affinity import HOSTNAME, SYSTEM, NodeSelectorRequirement, NodeSelectorTerm
from evenkeel.api.pod import Pod
from evenkeel.policy.admission import Refusal

_NAME = "metadata.name"  # the one field of a node that matchFields may have: its name, which is its HOSTNAME
_HINT = "run it on such a machine, or leave that out"


def refusal_of_node(pod: Pod, labels: Mapping[str, str]) -> Refusal | None:
    """Why kubelet would not run the pod on a node with these labels; None if it would."""
    for key, value in pod.spec.node_selector.items():
        has = labels.get(key, value)
        if has != value:
            reason = "PodOSSelectorNodeLabelDoesNotMatch" if key == SYSTEM else "NodeAffinity"
            return Refusal(
                reason, f"spec.nodeSelector: asks for {key}={value}, and this node has {has}; {_HINT}"
            )
    required = None if pod.spec.affinity is None else pod.spec.affinity.required
    if required is None:
        return None
    failed = [_failed(term, labels) for term in required.node_selector_terms]
    if not failed or any(one is None for one in failed):
        return None
    wanted = " or ".join(dict.fromkeys(_text(one, labels) for one in failed if one is not None))
    return Refusal("NodeAffinity", f"spec.affinity.nodeAffinity: asks for {wanted}; {_HINT}")


def _failed(term: NodeSelectorTerm, labels: Mapping[str, str]) -> NodeSelectorRequirement | None:
    """The first requirement of the term that the node does not meet. As in Kubernetes, a term without any is met by no
    node."""
    every = tuple(_requirements(term))
    if not every:
        return NodeSelectorRequirement()
    return next((one for one in every if not _holds(one, labels)), None)


def _requirements(term: NodeSelectorTerm) -> Iterator[NodeSelectorRequirement]:
    yield from term.match_expressions
    for one in term.match_fields:
        yield one._replace(key=HOSTNAME) if one.key == _NAME else one


def _holds(one: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    has = labels.get(one.key)
    if has is None:
        return True  # it is not known here
    match one.operator:
        case "In":
            return has in one.values
        case "NotIn":
            return has not in one.values
        case "DoesNotExist":
            return False
        case "Gt" | "Lt":
            try:
                number, bound = int(has), int(one.values[0])
            except (ValueError, IndexError):
                return False
            return number > bound if one.operator == "Gt" else number < bound
    return True


def _text(one: NodeSelectorRequirement, labels: Mapping[str, str]) -> str:
    if not one.key:
        return "nothing in one of its terms, which no node meets"
    values = f" {', '.join(one.values)}" if one.values else ""
    return f"{one.key} {one.operator}{values}, and this node has {labels[one.key]}"
