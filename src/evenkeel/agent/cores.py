"""Cores that containers have for themselves (A23), kept in the journal for as long as they have them."""

from collections.abc import Sequence

from evenkeel.agent.journal import Journal
from evenkeel.policy.cpuset import ContainerKey, assign_on, whole_cores
from evenkeel.policy.node import NodeView
from evenkeel.policy.provision import PodMoment

_KEPT = "cpus"


def with_cores(node: NodeView, moments: Sequence[PodMoment], journal: Journal) -> list[PodMoment]:
    """`moments` with the cores of each: those it had stay, where it still needs them."""
    kept: dict[ContainerKey, tuple[int, ...]] = {}
    before = journal.value(_KEPT)
    for key, cpus in before.items() if isinstance(before, dict) else ():
        uid, _, name = key.partition("/")
        kept[uid, name] = tuple(cpus)
    cores = assign_on(node, [moment.pod for moment in moments], kept)
    now = {f"{uid}/{name}": list(cpus) for (uid, name), cpus in cores.exclusive.items()}
    if now != before:
        journal.set_value(_KEPT, now)
    return [
        moment._replace(exclusive_cpus=cores.of_pod(moment.pod.metadata.uid), shared_cpus=cores.shared)
        for moment in moments
    ]


def sharing(node: NodeView, moments: Sequence[PodMoment]) -> set[ContainerKey]:
    """The containers that are due cores of their own, and for which too few are left: they run on those that are
    shared, under their quota."""
    return {
        (moment.pod.metadata.uid, container.name)
        for moment in moments
        for container in moment.pod.spec.every_container
        if container.name not in moment.exclusive_cpus and whole_cores(moment.pod, container, node.profile)
    }
