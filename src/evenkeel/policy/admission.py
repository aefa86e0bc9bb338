"""Admission: whether the node takes a pod (A6, B2). The requests of all admitted pods must stay within allocatable, and
the node must not be under a pressure that refuses the pod."""

from collections.abc import Collection, Iterable, Mapping

from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod
from evenkeel.api.resources import PODS, ResourceList, Totals, add_to
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.amounts import resource_text
from evenkeel.policy.pod_resources import pod_requests
from evenkeel.quantity import ZERO, Quantity

NOT_HONOURED = "NotHonoured"  # the reason of a pod whose fields this node cannot honour
_OUT_OF = "OutOf"  # begins the reason of a pod that lacks room
_ONE_POD: ResourceList = {PODS: Quantity.of(1)}


class Refusal(NamedTuple):
    """Why a pod is not admitted: the reason of Kubernetes, and a sentence with the figures."""

    reason: str
    message: str


class Admission(NamedTuple):
    """A pod, and why it is refused; None if it is admitted."""

    pod: Pod
    refusal: Refusal | None


def admit(
    pods: Iterable[Pod], allocatable: ResourceList, profile: Profile, conditions: Collection[str] = ()
) -> tuple[Admission, ...]:
    """Decide about each pod, in order of arrival. A refused pod takes nothing from the pods after it. `conditions` are
    the pressure conditions of the node."""
    used: Totals = {}
    ports: HostPorts = {}
    decided = []
    for pod in pods:
        asked = requested(pod, profile)
        refusal = (
            refusal_under_pressure(pod, conditions, profile)
            or refusal_of_ports(pod, ports)
            or refusal_of(asked, used, allocatable)
        )
        if refusal is None:
            add_to(used, asked)
            take_ports(pod, ports)
        decided.append(Admission(pod, refusal))
    return tuple(decided)


def refusal_under_pressure(pod: Pod, conditions: Collection[str], profile: Profile) -> Refusal | None:
    """The rule of kubelet: no BestEffort pods under memory pressure, only critical pods under other pressure."""
    if not conditions:
        return None
    from evenkeel.policy.eviction.conditions import pressure_refusal

    why = pressure_refusal(pod, conditions, profile)
    return None if why is None else Refusal("Evicted", why)


def requested(pod: Pod, profile: Profile) -> Totals:
    """The amounts that admission counts for a pod: its requests, and 1 for the number of pods."""
    asked = pod_requests(pod, with_pod_level=profile == Profile.KUBERNETES)
    add_to(asked, _ONE_POD)
    return asked


# The pods that have each port of the host, by protocol and port, with the address it is open at; "" is every address.
HostPorts = dict[tuple[str, int], list[tuple[str, str]]]
_EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 nothing is opened here


def take_ports(pod: Pod, ports: HostPorts) -> None:
    for port in pod.spec.host_ports:
        ports.setdefault((port.protocol or "TCP", port.host_port), []).append((port.host_ip, pod.key))


def refusal_of_ports(pod: Pod, ports: HostPorts) -> Refusal | None:
    """The rule of kubelet (NodePorts): a port of the host belongs to one pod."""
    for port in pod.spec.host_ports:
        number, protocol, address = port.host_port, port.protocol or "TCP", port.host_ip
        for taken, other in ports.get((protocol, number), ()):
            if taken == address or taken in _EVERY_ADDRESS or address in _EVERY_ADDRESS:
                return Refusal("NodePorts", f"host port {number} ({protocol}) is taken by pod {other}")
    return None


# The pod that opens each port of the host's network, by protocol and port: a port that it names, and no hostPort.
SharedPorts = dict[tuple[str, int], str]


def shared_port(pod: Pod, ports: SharedPorts) -> str:
    """A warning for a pod in the host's network that names a port of another pod there; empty if there is none. The pod
    is admitted all the same, because a pod need not open a port that it names. Its own ports are added to `ports`."""
    words = ""
    beside = (one for one in pod.spec.init_containers if one.is_sidecar)  # other init containers end soon
    for container in (*pod.spec.containers, *beside):
        for port in container.ports:
            protocol, number = port.protocol or "TCP", port.container_port
            other = ports.setdefault((protocol, number), pod.key)
            if other != pod.key and not words:
                words = (
                    f"port {number} ({protocol}) of container {container.name} is also a port of pod {other}, and both "
                    "use the host's network, where only one of them can open it; write hostNetwork: false, and each "
                    "pod has a network of its own"
                )
    return words


def refusal_of(
    asked: ResourceList, used: Mapping[str, Quantity], allocatable: ResourceList
) -> Refusal | None:
    """The first resource that is short, the number of pods before all others; None if there is enough."""
    for name in (PODS, *sorted(asked.keys() - {PODS})):
        amount, has, taken = asked.get(name, ZERO), allocatable.get(name, ZERO), used.get(name, ZERO)
        if amount and taken + amount > has:
            return Refusal(f"{_OUT_OF}{name}", _figures(name, amount, taken, has))
    return None


def is_shortage(refusal: Refusal) -> bool:
    """Whether the pod was refused for lack of room. Other pods could make room for it (`policy.preemption`)."""
    return refusal.reason.startswith(_OUT_OF)


def _figures(name: str, amount: Quantity, taken: Quantity, has: Quantity) -> str:
    if name == PODS:
        return f"the node takes {has.value} pods and has {taken.value}"
    free = max(has - taken, ZERO)
    return (
        f"requests {resource_text(name, amount)} of {name}, {resource_text(name, free)} is free: "
        f"{resource_text(name, taken)} of {resource_text(name, has)} allocatable is requested already"
    )
