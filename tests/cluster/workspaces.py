"""A Kubernetes namespace of a test's own: what the test makes in it and asks of it, with kubectl as its user would."""

import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from tests.cluster.control_plane import ControlPlane
from tests.kernel.waiting import eventually

SOON_SECONDS = 120.0
SLEEP = ("sleep", "infinity")
# Tolerations of pods that leave an unreachable node after a second, not after five minutes.
IMPATIENT = tuple(
    {
        "key": f"node.kubernetes.io/{reason}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 1,
    }
    for reason in ("unreachable", "not-ready")
)


class Workspace:
    def __init__(self, plane: ControlPlane, name: str) -> None:
        self.name = name
        self._plane = plane
        self._pods_path = f"/api/v1/namespaces/{name}/pods"

    def __enter__(self) -> Self:
        self._plane.make_namespace(self.name)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        # The controllers take their time for a namespace: what runs in it goes before.
        self.kubectl("delete", "deployments,jobs,pods", "--all", "--wait=false")
        self._plane.kubectl("delete", "namespace", self.name, "--wait=false")
        self.until_gone()

    def kubectl(self, *arguments: str, sent: str = "", timeout_seconds: float = 60.0) -> str:
        namespace = f"--namespace={self.name}"
        return self._plane.kubectl(namespace, *arguments, sent=sent, timeout_seconds=timeout_seconds)

    def apply(self, *objects: dict[str, Any]) -> None:
        everything = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--filename=-", sent=json.dumps(everything))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Empty if there is none."""
        if kind == "pod":
            return self._plane.reader.get(f"{self._pods_path}/{name}")
        said = self.kubectl("get", kind, name, "--ignore-not-found", "--output=json")
        return json.loads(said) if said else {}

    def pods(self, **labels: str) -> list[dict[str, Any]]:
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        found: list[dict[str, Any]] = self._plane.reader.get(
            f"{self._pods_path}?labelSelector={quote(selector)}"
        )["items"]
        return found

    def pods_on(self, node: str) -> list[dict[str, Any]]:
        return [one for one in self.pods() if one["spec"].get("nodeName") == node]

    def uids_on(self, node: str) -> set[str]:
        return {one["metadata"]["uid"] for one in self.pods_on(node)}

    def ready_on(self, *nodes: str) -> list[dict[str, Any]]:
        """The pods that are ready on these nodes."""
        return [one for one in self.pods() if one["spec"].get("nodeName") in nodes and is_ready(one)]

    def until(
        self, name: str, holds: Callable[[dict[str, Any]], object], kind: str = "pod"
    ) -> dict[str, Any]:
        """The object `name` once `holds` says so of it."""
        seen: dict[str, Any] = {}

        def does() -> bool:
            seen.clear()
            seen.update(self.get(kind, name))
            return bool(seen and holds(seen))

        try:
            eventually(does, within_seconds=SOON_SECONDS)
        except AssertionError:
            events = self.kubectl("get", "events")
            reported = f"{kind} {name} is {json.dumps(seen.get('status', seen), indent=1)}\n{events}"
            raise AssertionError(reported) from None
        return seen

    def until_phase(self, name: str, phase: str) -> dict[str, Any]:
        return self.until(name, lambda pod: pod["status"].get("phase") == phase)

    def until_rolled_out(self, name: str, *, timeout_seconds: float = SOON_SECONDS) -> None:
        """Every replica of the deployment `name` is there in its newest form, and no other."""
        said = ("rollout", "status", f"deployment/{name}", f"--timeout={timeout_seconds:g}s")
        self.kubectl(*said, timeout_seconds=timeout_seconds + 10)

    def until_schedulable(self, *nodes: str) -> None:
        """The scheduler would give pods to each of the nodes. It hears of nodes, and of their taints, by another way
        than we do, and leaves out those that it does not know to be ready. It says so of pods that are too large for
        any node."""
        for node in nodes:
            name = f"too-large-for-{node}"
            large = {"resources": {"requests": {"memory": "1Ti"}}}
            there = {"kubernetes.io/hostname": node}
            self.apply(pod(name, *SLEEP, container=large, nodeSelector=there))
            self.until(name, lambda one: "Insufficient memory" in str(one["status"].get("conditions")))
            self.kubectl("delete", "pod", name)

    def until_gone(self) -> None:
        """No pod is left."""
        try:
            eventually(lambda: not self.pods(), within_seconds=SOON_SECONDS)
        except AssertionError:
            left = {pod["metadata"]["name"]: pod["status"] for pod in self.pods()}
            raise AssertionError(f"pods are left: {json.dumps(left, indent=1)}") from None


def shell(text: str) -> tuple[str, str, str]:
    """A command for `pod`."""
    return ("sh", "-c", text)


def pod(name: str, *command: str, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod with one container `main`; `container` has more of that, and the rest more of the spec."""
    container = {"name": "main", "image": "host", "command": list(command), **spec.pop("container", {})}
    container.setdefault(
        "resources", {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "32Mi"}}
    )
    body = {"terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": body,
    }


def deployment(name: str, *command: str, replicas: int, **spec: Any) -> dict[str, Any]:
    labels = {"app": name}
    template = pod("", *command, labels=labels, **spec)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }


def condition(status_of: dict[str, Any], kind: str) -> str:
    """A condition of a pod or another object; empty if it has none of that type."""
    conditions = status_of["status"].get("conditions", ())
    return next((one["status"] for one in conditions if one["type"] == kind), "")


def restarts(one: dict[str, Any]) -> int:
    """The restarts of the pod's first container; 0 if its node has not reported any status yet."""
    statuses = one["status"].get("containerStatuses") or [{"restartCount": 0}]
    return int(statuses[0]["restartCount"])


def is_ready(one: dict[str, Any]) -> bool:
    return condition(one, "Ready") == "True"
