"""Area `allocatable`: reservations, node allocatable and the limits on the top cgroups."""

from typing import Any

from evenkeel.api.config import KubeletConfiguration, Profile
from evenkeel.errors import EvenkeelError
from evenkeel.policy.allocatable import (
    CgroupLimits,
    NodeCapacity,
    node_allocatable,
    node_capacity,
    parse_reserved,
    pods_cgroup_limits,
    reservation,
    reservation_problems,
    reserved_cgroup_limits,
)
from evenkeel.quantity import Quantity
from tests.conformance.common import differences, quantity_differences


def check(vector_input: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    if vector_input["fn"] == "parseReserved":
        return _check_reserved(vector_input["reserved"], expected)
    return _check_node(vector_input, expected)


def _check_reserved(settings: dict[str, str], expected: dict[str, Any]) -> list[str]:
    try:
        reserved = parse_reserved(settings or {})
    except EvenkeelError as error:
        return [f"refused: {error}"] if expected["ok"] else []
    if not expected["ok"]:
        return [f"should be refused, is {reserved}"]
    return quantity_differences("reserved", reserved, expected["resources"])


def _check_node(vector_input: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    given = vector_input["capacity"]
    capacity = NodeCapacity(
        millicpu=given["cpus"] * 1000,
        memory_bytes=given["memoryBytes"],
        ephemeral_storage_bytes=Quantity(given["ephemeralStorage"]).value
        if given["ephemeralStorage"]
        else None,
        hugepages={int(kib) * 1024: pages for kib, pages in given["hugepages"].items()},
        pids=given["maxPID"],
    )
    config = KubeletConfiguration(
        profile=Profile.KUBERNETES,
        cgroups_per_qos=vector_input["cgroupsPerQOS"],
        enforce_node_allocatable=tuple(vector_input["enforceNodeAllocatable"]),
        eviction_hard=vector_input["evictionHard"] or {},
        kube_reserved=vector_input["kubeReserved"] or {},
        system_reserved=vector_input["systemReserved"] or {},
        max_pods=vector_input["maxPods"],
        pods_per_core=vector_input["podsPerCore"],
    )
    all_of_it = reserved_cgroup_limits(
        config._replace(enforce_node_allocatable=("kube-reserved", "system-reserved"))
    )
    cpu_of_it = reserved_cgroup_limits(
        config._replace(
            enforce_node_allocatable=("kube-reserved-compressible", "system-reserved-compressible")
        )
    )
    excessive = sorted(problem.field for problem in reservation_problems(capacity, config))
    pods = pods_cgroup_limits(capacity, config)
    return [
        *quantity_differences("reservation", reservation(capacity, config), expected["reservation"]),
        *quantity_differences("nodeCapacity", node_capacity(capacity, config), expected["nodeCapacity"]),
        *quantity_differences(
            "nodeAllocatable", node_allocatable(capacity, config), expected["nodeAllocatable"]
        ),
        *differences("kubepodsCgroup", _plain(pods), expected["kubepodsCgroup"]),
        *differences("kubeReservedCgroup", _plain(all_of_it.kube), expected["kubeReservedCgroup"]),
        *differences("systemReservedCgroup", _plain(all_of_it.system), expected["systemReservedCgroup"]),
        *differences(
            "kubeReservedCompressibleCgroup",
            _plain(cpu_of_it.kube),
            expected["kubeReservedCompressibleCgroup"],
        ),
        *differences(
            "systemReservedCompressibleCgroup",
            _plain(cpu_of_it.system),
            expected["systemReservedCompressibleCgroup"],
        ),
        *differences("validateErrorResources", excessive, expected.get("validateErrorResources", [])),
        *differences("valid", not excessive, expected["valid"]),
    ]


def _plain(limits: CgroupLimits | None) -> dict[str, Any] | None:
    if limits is None:
        return None
    found = {
        "cpuShares": limits.cpu_shares,
        "memory": limits.memory_bytes,
        "pidsLimit": limits.pids,
        "hugePageLimit": {str(size): amount for size, amount in limits.hugepage_bytes.items()} or None,
    }
    return {name: value for name, value in found.items() if value is not None}
