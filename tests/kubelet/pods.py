"""The pods that both nodes run: every class, and every way to write requests and limits that changes a cgroup."""

from collections.abc import Sequence
from typing import Any

from tests.machines.container_images import TEST

Manifest = dict[str, Any]


def container(
    name: str, requests: dict[str, str] | None = None, limits: dict[str, str] | None = None, **fields: Any
) -> Manifest:
    resources = {"requests": requests, "limits": limits}
    return {
        "name": name,
        "image": TEST,
        "imagePullPolicy": "Never",
        "command": ["sleep", "1000000"],
        "resources": {key: value for key, value in resources.items() if value is not None},
        **fields,
    }


def amounts(cpu: str = "", memory: str = "") -> dict[str, str]:
    return {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}


def pod(name: str, *containers: Manifest, **spec: Any) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"hostNetwork": True, "terminationGracePeriodSeconds": 0, "containers": containers, **spec},
    }


PODS = (
    pod("best-effort", container("one"), container("two")),
    pod("guaranteed", container("one", None, amounts("150m", "24Mi"))),
    pod("guaranteed-two", container("one", None, amounts("50m", "16Mi")),
        container("two", None, amounts("30m", "16Mi"))),
    pod("whole-core", container("one", None, amounts("1", "16Mi"))),
    pod("burstable", container("one", amounts("20m", "16Mi"))),
    pod("limits-on-all", container("one", amounts("10m", "16Mi"), amounts("100m", "32Mi")),
        container("two", amounts("10m", "16Mi"), amounts("40m", "24Mi"))),
    pod("limit-on-one", container("one", amounts("10m", "16Mi"), amounts("100m", "32Mi")), container("two")),
    pod("memory-only", container("one", amounts(memory="16Mi"), amounts(memory="48Mi"))),
    pod("cpu-only", container("one", amounts(cpu="15m"), amounts(cpu="25m"))),
    pod("tiny-limit", container("one", None, amounts(cpu="1m"))),
    pod("initialized", container("one", amounts("10m", "16Mi"), amounts("50m", "32Mi")),
        initContainers=[container("before", amounts("20m", "24Mi"), amounts("60m", "48Mi"), command=["true"])]),
    pod("sidecar", container("one", amounts("10m", "16Mi"), amounts("50m", "32Mi")),
        initContainers=[container("beside", amounts("10m", "16Mi"), amounts("20m", "24Mi"), restartPolicy="Always")]),
    pod("as-a-whole", container("one", amounts("10m", "16Mi")), container("two"),
        resources={"requests": amounts("30m", "40Mi"), "limits": amounts("80m", "64Mi")}),
    pod("whole-limit", container("one"), container("two"), resources={"limits": amounts("60m", "48Mi")}),
)  # fmt: skip
# One processor is reserved, and one pod has the other: no further one that requests any is admitted.
WITH_ONE_PROCESSOR = tuple(
    one for one in PODS if one["metadata"]["name"] in ("best-effort", "whole-core", "memory-only")
)


def tasks(pods: Sequence[Manifest]) -> int:
    """How many containers run in the end, with a sandbox for each pod."""
    return sum(
        1
        + len(one["spec"]["containers"])
        + sum("restartPolicy" in first for first in one["spec"].get("initContainers", ()))
        for one in pods
    )
