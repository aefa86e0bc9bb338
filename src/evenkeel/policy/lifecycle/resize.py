"""Resize: how one version of a pod becomes another. Nothing changes, the amounts change in place, or a new pod is made.

In place: cpu and memory of containers that keep running, labels and annotations. The pod must keep its QoS class,
because another class is another branch of the cgroup tree. Everything else needs a new pod.
"""

from enum import StrEnum
from typing import NamedTuple

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU, MEMORY, NOTHING_REQUIRED, ResourceRequirements
from evenkeel.policy.qos import pod_class

_RESIZABLE = (CPU, MEMORY)


class Change(StrEnum):
    UNCHANGED = "unchanged"
    IN_PLACE = "in place"
    REPLACE = "replace"


class Resize(NamedTuple):
    kind: Change
    restart: tuple[str, ...] = ()  # containers whose amounts change and whose resizePolicy asks for a restart
    why: str = ""  # why a new pod is needed


def resize(before: Pod, after: Pod, profile: Profile = Profile.DOCUMENTS) -> Resize:
    """How `before` becomes `after`: two pods of one name, both with their defaults. What the node sets (UID, times,
    status) is not compared."""
    if _without_amounts(before) != _without_amounts(after):
        return Resize(Change.REPLACE, why="more than its cpu and memory has changed")
    own_before, own_after = before.spec.resources, after.spec.resources
    pairs = [*zip(before.spec.every_container, after.spec.every_container, strict=True)]
    amounts = [(old.resources, new.resources) for old, new in pairs]
    amounts.append((own_before or NOTHING_REQUIRED, own_after or NOTHING_REQUIRED))
    if all(old == new for old, new in amounts):
        described = before.metadata.labels, before.metadata.annotations
        is_same = described == (after.metadata.labels, after.metadata.annotations)
        return Resize(Change.UNCHANGED if is_same else Change.IN_PLACE)
    if pod_class(before, profile) != pod_class(after, profile):
        return Resize(Change.REPLACE, why="the pod's class changes with its amounts")
    if any(_differ(old, new) - {*_RESIZABLE} for old, new in amounts):
        return Resize(Change.REPLACE, why="only cpu and memory can change while a container runs")
    if any(old.resources != new.resources and not old.is_sidecar for old, new in _init_pairs(before, after)):
        return Resize(Change.REPLACE, why="the amounts of an init container cannot change")
    if profile is Profile.KUBERNETES and any(_removes(old, new) for old, new in amounts):
        return Resize(Change.REPLACE, why="a request or a limit that is there cannot be taken away")
    return Resize(Change.IN_PLACE, tuple(old.name for old, new in pairs if _asks_for_restart(old, new)))


def _without_amounts(pod: Pod) -> object:
    spec = pod.spec
    return (
        pod.metadata.name,
        pod.metadata.namespace,
        spec._replace(
            containers=tuple(map(_bare, spec.containers)),
            init_containers=tuple(map(_bare, spec.init_containers)),
            resources=None,
        ),
    )


def _bare(container: Container) -> Container:
    # The resize policy is not part of what runs.
    return container._replace(resources=NOTHING_REQUIRED, resize_policy=())


def _init_pairs(before: Pod, after: Pod) -> list[tuple[Container, Container]]:
    return [*zip(before.spec.init_containers, after.spec.init_containers, strict=True)]


def _differ(before: ResourceRequirements, after: ResourceRequirements) -> set[str]:
    """The resources whose request or limit differs."""
    return {
        name
        for old, new in zip(before, after, strict=True)
        for name in {*old, *new}
        if old.get(name) != new.get(name)
    }


def _removes(before: ResourceRequirements, after: ResourceRequirements) -> bool:
    return any(name not in new for old, new in zip(before, after, strict=True) for name in old)


def _asks_for_restart(before: Container, after: Container) -> bool:
    differing = _differ(before.resources, after.resources)
    return any(
        policy.resource_name in differing and policy.restart_policy == "RestartContainer"
        for policy in after.resize_policy
    )
