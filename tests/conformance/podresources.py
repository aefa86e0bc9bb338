"""Pod requests and limits as the scheduler, kubelet and eviction count them."""

from evenkeel.policy.pod_resources import container_requests, eviction_request, pod_limits, pod_requests
from evenkeel.quantity import Quantity
from tests.conformance.common import quantity_differences, read_pod

_IF_MISSING = {"cpu": Quantity.parse("100m"), "memory": Quantity.parse("200Mi")}


def check(vector_input: dict, expected: dict) -> list[str]:
    pod = read_pod(vector_input["pod"])
    kind = vector_input["fn"]
    if kind == "podresources-status":
        ours = {
            "requests": pod_requests(pod, from_status=True),
            "limits": pod_limits(pod, from_status=True),
            "requestsFromSpecOnly": pod_requests(pod),
        }
    elif kind == "podresources-opts":
        return quantity_differences(vector_input["which"], _with_options(vector_input), expected)
    else:
        ours = {
            "requests": pod_requests(pod),
            "limits": pod_limits(pod),
            "requestsExcludeOverhead": pod_requests(pod, with_overhead=False),
            "limitsExcludeOverhead": pod_limits(pod, with_overhead=False),
            "requestsSkipPodLevel": pod_requests(pod, with_pod_level=False),
            "limitsSkipPodLevel": pod_limits(pod, with_pod_level=False),
            "requestsNonMissing": pod_requests(pod, if_missing=_IF_MISSING),
            "aggregateContainerRequests": container_requests(pod),
            "getResourceRequest": {
                name: eviction_request(pod, name) for name in expected.get("getResourceRequest", {})
            },
        }
    return [line for name in expected for line in quantity_differences(name, ours[name], expected[name])]


def _with_options(vector_input: dict) -> dict[str, Quantity]:
    pod = read_pod(vector_input["pod"])
    options = {name[:1].lower() + name[1:]: value for name, value in (vector_input.get("opts") or {}).items()}
    common = {
        "with_pod_level": not options.get("skipPodLevelResources"),
        "with_overhead": not options.get("excludeOverhead"),
        "from_status": bool(options.get("useStatusResources")),
        "from_pod_status": bool(options.get("inPlacePodLevelResourcesVerticalScalingEnabled")),
    }
    if vector_input["which"] == "limits":
        return pod_limits(pod, **common)
    missing = options.get("nonMissingContainerRequests") or {}
    if_missing = {name: Quantity.from_json(amount) for name, amount in missing.items()}
    return pod_requests(
        pod, with_containers=not options.get("skipContainerLevelResources"), if_missing=if_missing, **common
    )
