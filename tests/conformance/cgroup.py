"""Area `cgroup`: kubelet's amounts for pod, container and QoS cgroups."""

from evenkeel.api.config import Profile
from evenkeel.policy import amounts
from evenkeel.policy.kubelet_amounts import (
    CgroupConfig,
    ContainerConfig,
    container_config,
    pod_config,
    qos_configs,
)
from evenkeel.policy.node_view import KubeletSettings
from evenkeel.policy.pod_resources import pod_requests
from evenkeel.policy.qos import pod_class
from evenkeel.quantity import Quantity
from tests.conformance.common import differences, read_pod

# The variants that the vectors were made with; `memoryQoSOff` alone gets no memory.high.
_POD_VARIANTS = {
    "default": KubeletSettings(0, 0, throttling_factor=0.9),
    "noCpuQuota": KubeletSettings(0, 0, throttling_factor=0.9, enforce_cpu_limits=False),
    "period10ms": KubeletSettings(0, 0, throttling_factor=0.9, cpu_period_us=10_000),
    "tiered": KubeletSettings(0, 0, throttling_factor=0.9, reservation_policy="TieredReservation"),
    "memoryQoSOff": KubeletSettings(0, 0, memory_qos=False, reservation_policy="TieredReservation"),
}
_HOST_PAGE_SIZES = {"2MB": 2 << 20, "1GB": 1 << 30}


def check(vector_input: dict, expected: dict) -> list[str]:
    return _CHECKS[vector_input["fn"]](vector_input, expected)


def _millicpu(vector_input: dict, expected: dict) -> list[str]:
    millicpu = int(vector_input["milliCPU"])
    shares = amounts.shares(millicpu)
    ours = {
        "shares": shares,
        "kubeletCpuWeight": amounts.weight_linear(shares),
        "runcCpuWeight": amounts.weight_quadratic(shares),
        "quotaByPeriod": {
            period: amounts.quota_us(millicpu, int(period)) for period in expected.get("quotaByPeriod", {})
        },
    }
    return differences("milliCPU", {name: ours[name] for name in expected}, expected)


def _shares(vector_input: dict, expected: dict) -> list[str]:
    shares = int(vector_input["shares"])
    ours = {
        "kubeletCpuWeight": amounts.weight_linear(shares),
        "runcCpuWeight": amounts.weight_quadratic(shares),
        "milliCPUFromShares": amounts.millicpu_from_shares(shares),
    }
    # Nothing here converts a weight back to shares.
    theirs = {name: value for name, value in expected.items() if name != "sharesFromKubeletWeight"}
    return differences("shares", {name: ours[name] for name in theirs}, theirs)


def _pod(vector_input: dict, expected: dict) -> list[str]:
    pod = read_pod(vector_input["pod"])
    found = differences("qosClass", pod_class(pod, Profile.KUBERNETES), expected["qosClass"])
    for variant, theirs in expected["variants"].items():
        found += differences(variant, _plain(_pod_config(pod, _POD_VARIANTS[variant])), theirs)
    return found


def _pod_config(pod, node: KubeletSettings) -> CgroupConfig:
    return pod_config(pod, node, pod_class(pod, Profile.KUBERNETES), pod_requests(pod))


def _pod_direct(vector_input: dict, expected: dict) -> list[str]:
    """Upstream's own test inputs: the same function, with what the input names."""
    node = KubeletSettings(
        0,
        0,
        enforce_cpu_limits=vector_input.get("enforceCPULimits", True),
        cpu_period_us=int(vector_input.get("cpuPeriod", vector_input.get("quotaPeriod", 100_000))),
        memory_qos=vector_input.get("enforceMemoryQoS", False),
        reservation_policy=vector_input.get("memoryReservationPolicy", "None"),
    )
    ours = _plain(_pod_config(read_pod(vector_input["pod"]), node))
    return differences("pod", {name: ours.get(name) for name in expected}, expected)


def _container(vector_input: dict, expected: dict) -> list[str]:
    pod = read_pod(vector_input["pod"])
    node = KubeletSettings(
        capacity_bytes=vector_input["nodeMemoryCapacity"],
        allocatable_bytes=Quantity.parse(vector_input["nodeAllocatableMemory"]).value,
        memory_qos=vector_input["enforceMemoryQoS"],
        reservation_policy=vector_input["memoryReservationPolicy"],
        throttling_factor=vector_input["memoryThrottlingFactor"],
        enforce_cpu_limits=vector_input["cpuCFSQuota"],
        cpu_period_us=vector_input["cpuCFSQuotaPeriodUs"],
        swap_bytes=vector_input["swapCapacity"],
        swap_behavior=vector_input["memorySwapBehavior"],
        has_swap_controller=vector_input["swapControllerAvailable"],
        single_process_oom_kill=vector_input["singleProcessOOMKill"],
    )
    qos = pod_class(pod, Profile.KUBERNETES)
    found = differences("containers", {c.name for c in pod.spec.every_container}, set(expected))
    for container in pod.spec.every_container:
        theirs = expected.get(container.name)
        found += differences(
            container.name, _plain_container(container_config(pod, container, node, qos)), theirs
        )
    return found


def _qos_level(vector_input: dict, expected: dict) -> list[str]:
    pods = [read_pod(pod) for pod in vector_input["pods"]]
    ours = qos_configs(
        [(pod_class(pod, Profile.KUBERNETES), pod_requests(pod)) for pod in pods],
        tiered=vector_input["memoryQoS"] and vector_input["memoryReservationPolicy"] == "TieredReservation",
        allocatable_bytes=Quantity.parse(vector_input["nodeAllocatableMemory"]).value,
        reserved_percent=vector_input["qosReservedMemoryPercent"],
    )
    return differences("qos", {str(qos): _plain(config) for qos, config in ours.items()}, expected)


def _plain(config: CgroupConfig) -> dict:
    plain = {
        "cpuShares": config.cpu_shares,
        "cpuQuota": config.cpu_quota_us,
        "cpuPeriod": config.cpu_period_us,
        "memory": config.memory_bytes,
        "unified": dict(config.unified) or None,
        "hugePageLimit": {str(size): amount for size, amount in config.hugepage_bytes.items()} or None,
    }
    return {name: value for name, value in plain.items() if value is not None}


def _plain_container(config: ContainerConfig) -> dict:
    return {
        "oomScoreAdj": config.oom_score_adj,
        "cpuShares": config.cpu_shares,
        "cpuQuota": config.cpu_quota_us,
        "cpuPeriod": config.cpu_period_us,
        "memoryLimitInBytes": config.memory_bytes,
        "memorySwapLimitInBytes": 0,
        "unified": dict(config.unified),
        "hugepageLimits": {
            name: config.hugepage_bytes.get(size, 0) for name, size in _HOST_PAGE_SIZES.items()
        },
    }


_CHECKS = {
    "milliCPU": _millicpu,
    "shares": _shares,
    "pod": _pod,
    "pod-direct": _pod_direct,
    "container": _container,
    "qosLevel": _qos_level,
}
