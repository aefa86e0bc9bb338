"""Node affinity: the labels that a pod requires of its node, the part of `spec.affinity` that a node decides about."""

from evenkeel.named_tuples import NamedTuple

ARCH, SYSTEM, HOSTNAME = "kubernetes.io/arch", "kubernetes.io/os", "kubernetes.io/hostname"
# The labels that every node has.
OWN_LABELS = (ARCH, SYSTEM, HOSTNAME, "beta.kubernetes.io/arch", "beta.kubernetes.io/os")


class NodeSelectorRequirement(NamedTuple):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(NamedTuple):
    """All of it must hold."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(NamedTuple):
    """One of the terms must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(NamedTuple):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(NamedTuple):
    node_affinity: NodeAffinity | None = None

    @property
    def required(self) -> NodeSelector | None:
        affinity = self.node_affinity
        return None if affinity is None else affinity.required_during_scheduling_ignored_during_execution
