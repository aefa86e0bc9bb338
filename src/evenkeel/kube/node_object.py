"""The Node object: the registration and the status of this machine, and the patch between two statuses."""

import os
from collections.abc import Mapping, Sequence

from evenkeel import __version__
from evenkeel.api.encode import encode
from evenkeel.api.node import Node
from evenkeel.errors import EvenkeelError
from evenkeel.host.files import read_text
from evenkeel.host.node_figures import boot_id
from evenkeel.host.node_labels import architecture, own_labels
from evenkeel.kube.api_client import Json
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.lifecycle.pod_status import timestamp
from evenkeel.runtime.interface import Image, Readiness

# The node's contract is that of a kubelet of this version. Others parse it as a semantic version.
KUBELET_VERSION = f"v1.36.0+evenkeel.{__version__}"
_MOST_IMAGES, _MOST_NAMES = 50, 5
# The scheduler and the API server ask a node of 1.36 for these before they let a pod use them.
_DECLARED = (
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
)
_NOT_SAID = ("features", "runtimeHandlers")
# Type of a condition, with kubelet's reasons for True and False.
_REASONS = {
    "MemoryPressure": ("KubeletHasInsufficientMemory", "KubeletHasSufficientMemory"),
    "DiskPressure": ("KubeletHasDiskPressure", "KubeletHasNoDiskPressure"),
    "PIDPressure": ("KubeletHasInsufficientPID", "KubeletHasSufficientPID"),
    "Ready": ("KubeletReady", "KubeletNotReady"),
}


class NodeIdentity(NamedTuple):
    """The facts about the node that do not change while the agent runs. `labels` are those of the operator."""

    name: str
    hostname: str
    address: str
    port: int  # of the node's own server; 0 if it has none
    labels: Mapping[str, str]
    swap_bytes: int = 0
    has_container_runtime: bool = False


def registration(identity: NodeIdentity, status: Json) -> Json:
    """The object that is created if there is none."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": identity.name, "labels": labels(identity)},
        "spec": {},
        "status": status,
    }


def labels(identity: NodeIdentity) -> dict[str, str]:
    return own_labels(identity.hostname, identity.labels)


def node_info(identity: NodeIdentity) -> Json:
    """The part of the status that does not change while the agent runs."""
    machine_id = _line("/etc/machine-id")
    return {
        "machineID": machine_id,
        "systemUUID": _line("/sys/class/dmi/id/product_uuid") or machine_id,
        "bootID": boot_id(),
        "kernelVersion": os.uname().release,
        "osImage": _os_image(),
        "containerRuntimeVersion": "" if identity.has_container_runtime else f"evenkeel://{__version__}",
        "kubeletVersion": KUBELET_VERSION,
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": architecture(),
        **({"swap": {"capacity": identity.swap_bytes}} if identity.swap_bytes else {}),
    }


def node_status(
    identity: NodeIdentity,
    info: Json,
    node: Node,
    images: Sequence[Image],
    runtime: Readiness,
    not_ready: str,
) -> Json:
    """The status without the times of its conditions, because new times alone are no change. `not_ready` says why the
    agent is not ready."""
    if runtime.version:  # it may be upgraded meanwhile
        info = {**info, "containerRuntimeVersion": runtime.version}
    status: Json = {
        "capacity": encode(node.status.capacity),
        "allocatable": encode(node.status.allocatable),
        "addresses": [
            {"type": "InternalIP", "address": identity.address},
            {"type": "Hostname", "address": identity.hostname},
        ],
        "nodeInfo": info,
        "images": _images(images),
        "conditions": _conditions(node, not_ready),
        "declaredFeatures": [*_DECLARED],
    }
    if not identity.has_container_runtime:
        # Strict is honoured; a container runtime may add the groups of the image.
        status["features"] = {"supplementalGroupsPolicy": True}
    if identity.port:
        status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": identity.port}}
    return status


def with_times(status: Json, before: Json, now: float) -> Json:
    """The status with the times of its conditions. A condition that is as in `before`, the status that the API server
    has, keeps the time of its transition."""
    known = {one.get("type"): one for one in before.get("conditions") or ()}
    at = timestamp(now)
    timed = []
    for one in status["conditions"]:
        old = known.get(one["type"], {})
        since = old.get("lastTransitionTime") if old.get("status") == one["status"] else None
        timed.append({**one, "lastHeartbeatTime": at, "lastTransitionTime": since or at})
    return {**status, "conditions": timed}


def has_conditions(before: Json, status: Json) -> bool:
    """Whether the conditions in `before`, the status that the API server has, are those of `status`."""
    known = {
        one.get("type"): (one.get("status"), one.get("reason")) for one in before.get("conditions") or ()
    }
    return all(known.get(one["type"]) == (one["status"], one["reason"]) for one in status["conditions"])


def status_patch(status: Json, before: Json) -> Json:
    """A strategic-merge patch that makes `before` have what the node owns of `status`: with its times."""
    patch: Json = {"conditions": status["conditions"]}
    for field in ("capacity", "allocatable"):
        old = before.get(field) or {}
        gone = dict.fromkeys(old.keys() - status[field].keys())
        if changed := {name: value for name, value in status[field].items() if old.get(name) != value} | gone:
            patch[field] = changed
    for field in ("nodeInfo", "images", "daemonEndpoints", "features", "declaredFeatures"):
        if field in status and before.get(field) != status[field]:
            patch[field] = status[field]
    # Fields that a kubelet on this machine has set before, and that are wrong for this agent.
    patch |= {field: None for field in _NOT_SAID if field in before and field not in status}
    if before.get("addresses") != status["addresses"]:
        # The type of an address is the key of a merge, though two addresses may have one type.
        patch["addresses"] = [{"$patch": "replace"}, *status["addresses"]]
    return {"status": patch}


def _conditions(node: Node, not_ready: str) -> list[Json]:
    found = []
    for one in node.status.conditions:
        if one.type not in _REASONS:
            continue  # it has no meaning to a cluster
        status, message = one.status, one.message
        if one.type == "Ready" and not_ready:
            status, message = "False", not_ready
        reason = _REASONS[one.type][status != "True"]
        found.append({"type": one.type, "status": status, "reason": reason, "message": message})
    return sorted(found, key=lambda one: one["type"] == "Ready")  # Ready is the last, as in kubelet


def _images(images: Sequence[Image]) -> list[Json]:
    """The largest images: the scheduler prefers nodes that have an image already."""
    largest = sorted((one for one in images if one.names), key=lambda one: -one.size_bytes)[:_MOST_IMAGES]
    return [
        {
            "names": sorted(one.names, key=lambda name: "@" not in name)[:_MOST_NAMES],
            "sizeBytes": one.size_bytes,
        }
        for one in largest
    ]


def _line(path: str) -> str:
    try:
        return read_text(path).strip()
    except EvenkeelError:
        return ""


def _os_image() -> str:
    for line in _line("/etc/os-release").splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip().strip('"')
    return "Linux"
