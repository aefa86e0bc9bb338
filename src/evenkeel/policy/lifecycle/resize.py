"""Resize: how one version of a pod becomes another. Nothing changes, the amounts change in place, or a new pod is made.

In place: cpu and memory of containers and of the pod as a whole, labels and annotations. The pod must keep its QoS
class, because another class is another branch of the cgroup tree. Everything else needs a new pod.
"""

from enum import StrEnum

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU, MEMORY, NOTHING_REQUIRED, ResourceRequirements
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.kubelet_amounts import effective_limit
from evenkeel.policy.lifecycle.pod_state import AS_RESTART, PodState
from evenkeel.policy.qos import pod_class

_RESIZABLE = (CPU, MEMORY)


class Change(StrEnum):
    UNCHANGED = "unchanged"
    IN_PLACE = "in place"
    REPLACE = "replace"


class Resize(NamedTuple):
    kind: Change
    why: str = ""  # why a new pod is needed


def resize(before: Pod, after: Pod, profile: Profile = Profile.DOCUMENTS) -> Resize:
    """How `before` becomes `after`: two pods of one name, both with their defaults. What the node sets (UID, times,
    status) is not compared."""
    if _without_amounts(before) != _without_amounts(after):
        return Resize(Change.REPLACE, why="more than its cpu and memory has changed")
    own_before, own_after = before.spec.resources, after.spec.resources
    pairs = [*zip(before.spec.sized_containers, after.spec.sized_containers, strict=True)]
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
    is_kubelets = profile is Profile.KUBERNETES
    changed_init = (old for old, new in _init_pairs(before, after) if old.resources != new.resources)
    if not is_kubelets and not all(old.is_sidecar for old in changed_init):
        return Resize(Change.REPLACE, why="the amounts of an init container cannot change")
    if is_kubelets and any(_removes(old, new) for old, new in amounts):
        return Resize(Change.REPLACE, why="a request or a limit that is there cannot be taken away")
    return Resize(Change.IN_PLACE)


def restarts_for(before: Pod, after: Pod, profile: Profile = Profile.DOCUMENTS) -> tuple[str, ...]:
    """The containers whose amounts change, and whose resizePolicy asks for a restart. As in kubelet, a container
    without limits of its own has the limits of the pod."""
    once = {one.name for one in before.spec.init_containers if not one.is_sidecar}  # it does not start again
    pairs = zip(before.spec.sized_containers, after.spec.sized_containers, strict=True)
    found = []
    for old, new in pairs:
        differing = _differ(old.resources, new.resources)
        if profile is Profile.KUBERNETES:
            differing |= {
                name
                for name in _RESIZABLE
                if effective_limit(before, old, name) != effective_limit(after, new, name)
            }
        if old.name not in once and _asks_for_restart(new, differing):
            found.append(old.name)
    return tuple(found)


def in_force(pod: Pod, state: PodState) -> Pod:
    """The pod with the amounts that hold now: a container that is stopped, to restart with other amounts, keeps its old
    ones up to its end."""

    def held(container: Container) -> Container:
        record = state.container(container.name)
        is_ending = record.is_running and record.stopped_as == AS_RESTART
        now = record.resources or NOTHING_REQUIRED
        return container._replace(resources=now) if is_ending and now != container.resources else container

    if not any(one.stopped_as == AS_RESTART for one in state.containers.values()):
        return pod
    return pod._replace(
        spec=pod.spec._replace(
            containers=tuple(map(held, pod.spec.containers)),
            init_containers=tuple(map(held, pod.spec.init_containers)),
        )
    )


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


def _asks_for_restart(container: Container, differing: set[str]) -> bool:
    return any(
        policy.resource_name in differing and policy.restart_policy == "RestartContainer"
        for policy in container.resize_policy
    )
