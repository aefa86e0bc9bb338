"""The figures that scheduling counts with, in whole numbers: cpu in millicpu, everything else in whole units.

The demand of a pod follows from its requests, never from its limits (A9, A10), and is computed once. The figures of a
node are updated with each pod. Amounts are rounded as Kubernetes rounds them: up, for each pod and resource.
"""

from functools import lru_cache
from types import MappingProxyType

from evenkeel.api.config import Profile
from evenkeel.api.node import Node, NodeSpec, Taint
from evenkeel.api.pod import Pod, PodSpec, Toleration
from evenkeel.api.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    PODS,
    ResourceList,
    is_hugepages,
)
from evenkeel.api.validation.resource_rules import is_extended
from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.pod_resources import has_pod_level_requests, pod_requests
from evenkeel.quantity import BinarySI, Quantity

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def repelling(spec: NodeSpec) -> tuple[Taint, ...]:
    """The taints of a node that keep pods away. PreferNoSchedule does not."""
    taints = tuple(taint for taint in spec.taints if taint.effect in ("NoSchedule", "NoExecute"))
    return (*taints, UNSCHEDULABLE) if spec.unschedulable and UNSCHEDULABLE not in taints else taints


def untolerated(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first of `taints` that none of `tolerations` tolerates."""
    for taint in taints:
        if not any(_tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def taint_text(taint: Taint) -> str:
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


Amounts = tuple[tuple[str, int], ...]

MAX_AMOUNT = 2**63 - 1
_NO_STATUS = Pod().status

# A container without requests counts as this much when nodes are compared, so that such pods are spread, too. It does
# not count when the scheduler asks whether the pod fits.
IF_MISSING: ResourceList = MappingProxyType(
    {CPU: Quantity.of_milli(100), MEMORY: Quantity.of(200 << 20, BinarySI)}
)


class PodDemand(NamedTuple):
    """The amounts that a pod counts for. Pods with equal amounts are of one shape: every node treats them alike."""

    needed: Amounts  # must be free on its node; no zeros
    requests: Amounts  # added to the requests of its node
    scored: Amounts  # the strategy compares by these: `requests` with IF_MISSING
    occupied: Amounts  # the strategy counts these once the pod is on a node
    tolerations: tuple[Toleration, ...]


def pod_demand(pod: Pod, profile: Profile) -> PodDemand:
    # D1: in the documents profile a pod has limits only, so the requests of its containers count.
    pod_level = profile is Profile.KUBERNETES
    by_spec = requests = _amounts(pod_requests(pod, with_pod_level=pod_level), pod)
    has_status = pod.status is not _NO_STATUS
    if has_status:
        requests = _amounts(pod_requests(pod, with_pod_level=pod_level, from_status=True), pod)
    scored = requests
    if has_status or not _states_all(pod.spec):
        scored = _amounts(
            pod_requests(pod, with_pod_level=pod_level, from_status=has_status, if_missing=IF_MISSING), pod
        )
    occupied = scored
    if pod_level and has_pod_level_requests(pod):
        # Of a pod with pod-level requests, IF_MISSING counts only for resources that it does not request at all.
        stated = dict(requests)
        missing = {name: amount for name, amount in IF_MISSING.items() if name not in stated}
        occupied = _amounts(pod_requests(pod, from_status=has_status, if_missing=missing), pod)
    needed = tuple([item for item in by_spec if item[1] > 0])
    return PodDemand(needed, requests, scored, occupied, pod.spec.tolerations)


class NodeInfo:
    """A node, and the sums over the pods on it."""

    __slots__ = ("allocatable", "allowed_pods", "name", "occupied", "pods", "requested", "taints")

    def __init__(self, node: Node) -> None:
        # B2: allocatable where it is stated, or else capacity.
        stated = node.status.allocatable or node.status.capacity
        for name, quantity in stated.items():
            if quantity.sign < 0:
                raise _uncountable(node, name, quantity, "is less than nothing; write 0 or more")
            if name == PODS and quantity.value > MAX_AMOUNT:
                raise _uncountable(node, name, quantity, "is too many; write a number such as 110")
        self.name = node.metadata.name
        self.allocatable: dict[str, int] = dict(_amounts(stated, node))
        self.allowed_pods = stated[PODS].value if PODS in stated else 0
        self.pods = 0
        self.requested: dict[str, int] = {}
        self.occupied: dict[str, int] = {CPU: 0, MEMORY: 0}
        self.taints: tuple[Taint, ...] = repelling(node.spec)

    def add(self, pod: PodDemand) -> None:
        self.pods += 1
        for name, more in pod.requests:
            self.requested[name] = self.requested.get(name, 0) + more
        for name, more in pod.occupied:
            self.occupied[name] = self.occupied.get(name, 0) + more


def quantity_of(name: str, amount: int) -> Quantity:
    """The amount as a quantity, in the format that people write."""
    if name == CPU:
        return Quantity.of_milli(amount)
    in_bytes = name in (MEMORY, EPHEMERAL_STORAGE) or is_hugepages(name)
    return Quantity.of(amount, BinarySI) if in_bytes else Quantity.of(amount)


@lru_cache(1024)
def is_scalar(name: str) -> bool:
    """Whether the resource counts only for pods that request it: extended resources, huge pages and others."""
    return (
        is_hugepages(name)
        or name.startswith("attachable-volumes-")
        or "kubernetes.io/" in name
        or is_extended(name)
    )


def _states_all(spec: PodSpec) -> bool:
    """Whether every container requests cpu and memory. This is the usual case and saves a second sum."""
    for container in spec.every_container:
        requests = container.resources.requests
        if CPU not in requests or MEMORY not in requests:
            return False
    return True


def _amounts(resources: ResourceList, of: Pod | Node) -> Amounts:
    """The resources that count, sorted by name, so that equal demands compare as equal."""
    amounts = []
    for name, quantity in resources.items():
        if name == CPU:
            amount = quantity.milli
        elif name in (MEMORY, EPHEMERAL_STORAGE) or is_scalar(name):
            amount = quantity.value
        else:
            continue
        if amount > MAX_AMOUNT:
            most = MAX_AMOUNT // 1000 if name == CPU else MAX_AMOUNT
            raise _uncountable(of, name, quantity, f"is too much; write at most {most}")
        amounts.append((name, amount))
    amounts.sort()
    return tuple(amounts)


def _uncountable(of: Pod | Node, name: str, quantity: Quantity, why: str) -> EvenkeelError:
    where = f"pod {of.key}: its requests" if isinstance(of, Pod) else f"node {of.metadata.name}"
    text = str(quantity)
    return EvenkeelError(f"{where}: {name}: {text if len(text) <= 40 else text[:39] + '…'} {why}")
