"""`qos`: classes, and what the API server's defaulting makes of requests and limits."""

from typing import Any

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.decode import Findings, decode
from evenkeel.api.defaults import default_pod
from evenkeel.api.pod import Pod
from evenkeel.api.resources import ResourceList, ResourceRequirements
from evenkeel.api.validation import validate_pod
from evenkeel.policy.qos import pod_class
from evenkeel.quantity import Quantity


def check(vector_input: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    raw = decode(Pod, vector_input["pod"], Findings())
    if vector_input["fn"] == "qos-direct":
        return _differences({"qosClass": pod_class(raw, Profile.KUBERNETES)}, expected)
    persisted = default_pod(raw, Profile.KUBERNETES)
    static = default_pod(raw, Profile.KUBERNETES, static=True)
    seen: dict[str, object] = {
        "qosClass": pod_class(persisted, Profile.KUBERNETES),
        "kubeletQosClass": pod_class(persisted, Profile.KUBERNETES),
        "undefaultedQosClass": pod_class(raw, Profile.KUBERNETES),
        "staticPodQosClass": pod_class(static, Profile.KUBERNETES),
        "valid": not any(validate_pod(persisted, Profile.KUBERNETES)),
    }
    return _differences(seen, expected) + _defaulted(persisted, expected.get("defaulted") or {})


def _differences(seen: dict[str, object], expected: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {seen[name]!s}, not {wanted!s}"
        for name, wanted in expected.items()
        if name in seen and seen[name] != wanted
    ]


def _defaulted(pod: Pod, expected: dict[str, Any]) -> list[str]:
    spec = pod.spec
    found: list[str] = []
    groups: tuple[tuple[str, tuple[Container, ...]], ...] = (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
    )
    for group, containers in groups:
        wanted = expected.get(group) or {}
        if sorted(wanted) != sorted({container.name for container in containers}):
            found.append(f"{group}: {[container.name for container in containers]}, not {sorted(wanted)}")
            continue
        for container in containers:
            found += _requirements(f"{group}.{container.name}", container.resources, wanted[container.name])
    if spec.resources is None or "pod" not in expected:
        return found + (["pod: only one of the two has it"] if spec.resources or "pod" in expected else [])
    return found + _requirements("pod", spec.resources, expected["pod"])


def _requirements(where: str, seen: ResourceRequirements, wanted: dict[str, dict[str, str]]) -> list[str]:
    return _list(f"{where}.requests", seen.requests, wanted.get("requests") or {}) + _list(
        f"{where}.limits", seen.limits, wanted.get("limits") or {}
    )


def _list(where: str, seen: ResourceList, wanted: dict[str, str]) -> list[str]:
    """Both the amounts and their spelling."""
    if dict(seen) != {name: Quantity.parse(text) for name, text in wanted.items()}:
        return [f"{where}: { {name: str(amount) for name, amount in seen.items()} }, not {wanted}"]
    return [
        f"{where}[{name}]: spelled {amount}, not {wanted[name]}"
        for name, amount in seen.items()
        if str(amount) != wanted[name]
    ]
