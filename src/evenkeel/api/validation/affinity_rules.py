"""The rules for what a pod requires of its node, those of the API server."""

from evenkeel.api.node_affinity import Affinity, NodeSelectorRequirement
from evenkeel.api.problems import Problems, invalid, not_supported, required

_PATH = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


def node_affinity_problems(affinity: Affinity) -> Problems:
    selector = affinity.required
    if selector is None:
        return
    if not selector.node_selector_terms:
        yield required(_PATH, "write at least one term, or leave the affinity out")
    for number, term in enumerate(selector.node_selector_terms):
        for index, one in enumerate(term.match_expressions):
            yield from _requirement(one, f"{_PATH}[{number}].matchExpressions[{index}]")
        for index, one in enumerate(term.match_fields):
            path = f"{_PATH}[{number}].matchFields[{index}]"
            if one.key != "metadata.name":
                yield not_supported(f"{path}.key", one.key, ("metadata.name",))
            if one.operator not in ("In", "NotIn"):
                yield not_supported(f"{path}.operator", one.operator, ("In", "NotIn"))
            elif len(one.values) != 1:
                yield invalid(f"{path}.values", f"must be one name, not {len(one.values)}")


def _requirement(one: NodeSelectorRequirement, path: str) -> Problems:
    if not one.key:
        yield required(f"{path}.key", "write the label to compare")
    if one.operator not in _OPERATORS:
        yield not_supported(f"{path}.operator", one.operator, _OPERATORS)
    elif one.operator in ("In", "NotIn") and not one.values:
        yield required(f"{path}.values", f"{one.operator} needs values to compare with")
    elif one.operator in ("Exists", "DoesNotExist") and one.values:
        yield invalid(f"{path}.values", f"{one.operator} takes no values")
    elif one.operator in ("Gt", "Lt") and len(one.values) != 1:
        yield invalid(f"{path}.values", f"{one.operator} takes one number, not {len(one.values)} values")
