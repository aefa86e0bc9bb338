"""What a pod asks for and may not exceed, all containers together, in words."""

from typing import Any

from evenkeel.api.decode import Findings, decode
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU, MEMORY
from evenkeel.policy.pod_resources import pod_limits, pod_requests
from evenkeel.policy.words import bytes_text, cores_text
from evenkeel.quantity import Quantity


def typed(pod: dict[str, Any]) -> Pod:
    """The agent's JSON as a pod."""
    plain = {name: value for name, value in pod.items() if name not in ("apiVersion", "kind")}
    return decode(Pod, plain, Findings())


def request_and_limit(pod: dict[str, Any]) -> tuple[str, str]:
    """`500m/2` and `256Mi/512Mi`: what cpu and memory are asked for and limited to."""
    read = typed(pod)
    requests, limits = pod_requests(read), pod_limits(read)
    cpu, memory = (
        f"{amount_text(name, requests.get(name))}/{amount_text(name, limits.get(name))}"
        for name in (CPU, MEMORY)
    )
    return cpu, memory


def amount_text(name: str, amount: Quantity | None) -> str:
    """The amount of a resource in few letters; `-` for none."""
    if not amount:
        return "-"
    return cores_text(amount.milli) if name == CPU else bytes_text(amount.value)
