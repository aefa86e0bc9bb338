"""Pods between the API server's JSON and the agent: a specification to run, and a status to report.

The API server has validated the specification. It is validated once more, because names become paths here, and because
this node does not honour everything.
"""

from collections.abc import Mapping, Sequence

from evenkeel.api.config import Profile
from evenkeel.api.container import Container, EnvVar
from evenkeel.api.decode import Findings, decode
from evenkeel.api.defaults import default_pod
from evenkeel.api.encode import encode
from evenkeel.api.pod import Pod, PodStatus
from evenkeel.api.problems import Problems, unusable
from evenkeel.api.validation import validate_pod
from evenkeel.kube.api_client import Json, path_of
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.admission import NOT_HONOURED
from evenkeel.policy.pod_resources import RESIZE_IN_PROGRESS, RESIZE_PENDING

FAILED, SUCCEEDED, PENDING = "Failed", "Succeeded", "Pending"
TERMINAL = (FAILED, SUCCEEDED)
MIRROR = "kubernetes.io/config.mirror"
_TERMINATION_MESSAGES_BYTES = 12 << 10  # of all containers of a pod
_REJECTED = "Pod was rejected: "
LINUX = "linux"
# Fields of a container's status that Kubernetes does not have.
_OURS = ("memoryQosClass", "cpuQosClass")
_CONTAINERS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
# Fields that the node owns, beside the conditions. They are replaced as a whole.
_OWNED = (
    "phase", "reason", "message", "hostIP", "hostIPs", "podIP", "startTime", "initContainerStatuses",
    "containerStatuses", "ephemeralContainerStatuses", "observedGeneration", "resources", "allocatedResources",
)  # fmt: skip


class NotHonoured(NamedTuple):
    """A pod that this node cannot run as it is written. With a reason of kubelet it is rejected as by kubelet."""

    message: str
    reason: str = NOT_HONOURED


_OTHER_OS = NotHonoured("Failed to admit pod as the OS field doesn't match node OS", "PodOSNotSupported")


def read_pod(value: Json, profile: Profile, service_env: Sequence[EnvVar]) -> Pod | NotHonoured:
    """`service_env` are the variables with the addresses of Services. A container's own variables override them."""
    findings = Findings()
    spec_of = value.get("spec") or {}
    if (spec_of.get("os") or {}).get("name", LINUX) != LINUX:
        return _OTHER_OS
    written = {"metadata": value.get("metadata"), "spec": value.get("spec")}
    pod = default_pod(decode(Pod, written, findings), profile)
    problems = [*findings.problems, *findings.refused, *_claims(pod), *validate_pod(pod, profile)]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return NotHonoured(f"{problems[0]}{more}")

    def with_services(containers: tuple[Container, ...]) -> tuple[Container, ...]:
        return tuple(each._replace(env=(*service_env, *each.env)) for each in containers)

    if service_env:
        spec = pod.spec._replace(
            containers=with_services(pod.spec.containers),
            init_containers=with_services(pod.spec.init_containers),
            ephemeral_containers=tuple(
                one._replace(env=(*service_env, *one.env)) for one in pod.spec.ephemeral_containers
            ),
        )
        pod = pod._replace(spec=spec)
    return pod._replace(status=PodStatus())


def _claims(pod: Pod) -> Problems:
    """A claim of a cluster stands for a volume of the cluster, and not for a directory of this machine."""
    for index, volume in enumerate(pod.spec.volumes):
        for name, source in (
            ("persistentVolumeClaim", volume.persistent_volume_claim), ("ephemeral", volume.ephemeral)
        ):  # fmt: skip
            if source is not None:
                field = f"spec.volumes[{index}].{name}"
                yield unusable(field, "this node mounts no volumes of a cluster: write hostPath or emptyDir")


def uid_of(value: Json) -> str:
    return str(value["metadata"].get("uid") or "")


def pod_path(value: Json) -> str:
    """Where the API server has the pod."""
    metadata = value["metadata"]
    return path_of("api", "v1", "namespaces", str(metadata.get("namespace")), "pods", str(metadata["name"]))


def grace_of(value: Json) -> float:
    """The seconds that the deletion of the pod gives it, at least one."""
    given = value["metadata"].get("deletionGracePeriodSeconds")
    return max(float(given), 1.0) if isinstance(given, int | float) else 1.0


def is_deleted(value: Json) -> bool:
    return bool(value["metadata"].get("deletionTimestamp"))


def phase_of(value: Json) -> str:
    return str((value.get("status") or {}).get("phase") or "")


def transitions_of(value: Json) -> dict[str, tuple[str, str]]:
    """By the type of each condition: its status, and since when it has it."""
    return {
        str(one.get("type")): (str(one.get("status")), str(one.get("lastTransitionTime") or ""))
        for one in (value.get("status") or {}).get("conditions") or ()
    }


def is_mirror(value: Json) -> bool:
    return MIRROR in (value["metadata"].get("annotations") or {})


def wanted_status(pod: Pod, value: Json, node_address: str, agent_address: str) -> Json:
    """The status to report of a pod that the agent has. `value` is the pod as the API server has it. `agent_address` is
    the agent's address of this machine."""
    status = encode(pod.status)
    assert isinstance(status, dict)
    status.pop("qosClass", None)  # the API server writes it
    # Never less than was reported before: after a restart the agent may know an older generation for a moment.
    before = (value.get("status") or {}).get("observedGeneration")
    generation = max(pod.metadata.generation or 0, before if isinstance(before, int) else 0)
    if pod.metadata.deletion_timestamp and isinstance(value["metadata"].get("generation"), int):
        # A deletion raises the generation, and a pod that ends takes no other change: it has seen all of them.
        generation = max(generation, value["metadata"]["generation"])
    if status.get("hostIP"):
        status["hostIP"], status["hostIPs"] = node_address, [{"ip": node_address}]
    if status.get("podIP") == agent_address:
        status["podIP"], status["podIPs"] = node_address, [{"ip": node_address}]
    message_bytes = _TERMINATION_MESSAGES_BYTES // sum(1 for _ in pod.spec.every_container)
    for field in _CONTAINERS:
        for one in status.get(field) or ():
            for ours in _OURS:
                one.pop(ours, None)
            _cut_messages(one, message_bytes)
            if "running" in one["state"]:
                one.setdefault("resources", {})  # without it the API server refuses to resize the pod
    for field in ("containerStatuses", "ephemeralContainerStatuses"):
        if field in status:
            status[field].sort(key=lambda one: one["name"])
    if status.get("phase") == FAILED and "startTime" not in status and status.get("reason"):
        status["message"] = _REJECTED + status.get("message", "")
    _apply_gates(status, value)
    if generation:
        status["observedGeneration"] = generation
        for condition in status.get("conditions") or ():
            condition["observedGeneration"] = generation
    return status


def _cut_messages(container_status: Json, most_bytes: int) -> None:
    """All messages of a pod's containers are bounded together, so that a status stays small."""
    for state in ("state", "lastState"):
        ended = (container_status.get(state) or {}).get("terminated") or {}
        if len(message := str(ended.get("message") or "").encode()) > most_bytes:
            ended["message"] = message[:most_bytes].decode(errors="ignore")


def _apply_gates(status: Json, value: Json) -> None:
    """A pod with readiness gates is ready only if each of them is a condition that is true. Others set those."""
    known = {one.get("type"): one for one in (value.get("status") or {}).get("conditions") or ()}
    closed = []
    for gate in value["spec"].get("readinessGates") or ():
        name = gate["conditionType"]
        if name not in known:
            closed.append(f'corresponding condition of pod readiness gate "{name}" does not exist.')
        elif known[name].get("status") != "True":
            closed.append(
                f'the status of pod readiness gate "{name}" is not "True", but {known[name].get("status")}'
            )
    for one in status.get("conditions") or ():
        if one["type"] != "Ready":
            continue
        if closed and one["status"] == "True":
            one |= {"status": "False", "reason": "ReadinessGatesNotReady", "message": ", ".join(closed)}
        before = known.get("Ready", {})
        if value["spec"].get("readinessGates") and before.get("status") == one["status"]:
            one["lastTransitionTime"] = before.get("lastTransitionTime") or one["lastTransitionTime"]


def not_honoured_status(value: Json, refused: NotHonoured) -> Json:
    """The status of a pod that this node cannot run. Where kubelet would run it, it stays pending: a controller that
    saw it fail would make another one at once, and so on."""
    message, reason = refused
    status: Json = {"phase": PENDING, "reason": reason, "message": message}
    if reason != NOT_HONOURED:
        status |= {"phase": FAILED, "message": f"{_REJECTED}{message}"}
    if generation := value["metadata"].get("generation"):
        status["observedGeneration"] = generation
    return status


def ended_status(before: Json) -> Json:
    """The status of a pod of which nothing is left here. Only the API server still knows it."""
    status: Json = {name: before[name] for name in _OWNED if name in before}
    if before.get("phase") not in TERMINAL:
        status["phase"] = FAILED
    for field in _CONTAINERS:
        if field in before:
            status[field] = [_ended_container(one) for one in before[field]]
    status["conditions"] = [
        {**one, "status": "False", "reason": "PodFailed" if status["phase"] == FAILED else "PodCompleted"}
        for one in before.get("conditions") or ()
        if one.get("type") in ("Ready", "ContainersReady") and one.get("status") != "False"
    ]
    return status


def _ended_container(one: Json) -> Json:
    if "terminated" in (one.get("state") or {}):
        return one
    lost = {
        "exitCode": 137,
        "reason": "ContainerStatusUnknown",
        "message": "the container could not be located when the pod was ended",
    }
    return {**one, "ready": False, "started": False, "state": {"terminated": lost}}


def status_patch(uid: str, wanted: Json, before: Json) -> Json | None:
    """A strategic-merge patch from `before`, the status that the API server has; None if nothing is to be changed. Its
    UID is a precondition. Conditions of others stay as they are."""
    changed: Json = {}
    for field in _OWNED:
        if _plain(wanted.get(field)) != _plain(before.get(field)):
            changed[field] = wanted.get(field)
    if wanted.get("podIPs") != before.get("podIPs"):
        changed["podIPs"] = [{"$patch": "replace"}, *(wanted.get("podIPs") or ())]
    known = {one.get("type"): one for one in before.get("conditions") or ()}
    conditions = [
        {**dict.fromkeys(known.get(one["type"], {}).keys() & {"reason", "message"}), **one}
        for one in wanted.get("conditions") or ()
        if _plain(one) != _plain(known.get(one["type"]))
    ]
    gone = [
        {"$patch": "delete", "type": name}
        for name in _TEMPORARY
        if name in known and all(one["type"] != name for one in wanted.get("conditions") or ())
    ]
    if conditions or gone:
        changed["conditions"] = [*conditions, *gone]
    return {"metadata": {"uid": uid}, "status": changed} if changed else None


_TEMPORARY = (RESIZE_PENDING, RESIZE_IN_PROGRESS)  # conditions of ours that are taken away again


def _plain(value: object) -> object:
    """The value without empty fields: the API server writes some of them, and leaves others out."""
    if isinstance(value, Mapping):
        found = {name: _plain(item) for name, item in value.items()}
        empty: tuple[object, ...] = (None, "", {}, [])
        return {name: item for name, item in found.items() if name == "resources" or item not in empty}
    return [_plain(item) for item in value] if isinstance(value, list) else value
