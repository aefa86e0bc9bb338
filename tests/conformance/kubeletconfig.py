"""Area `kubeletconfig`: defaults, and what validation and start-up refuse."""

import json
from typing import Any

from evenkeel.api.config import KubeletConfiguration, Profile, defaulted
from evenkeel.api.config_file import read_config
from evenkeel.api.config_validation import validate_config
from evenkeel.errors import EvenkeelError
from evenkeel.policy.allocatable import startup_problems
from tests.conformance.common import differences

# The machine on which the real code ran.
CGROUP_VERSION = 1


def check(vector_input: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    try:
        config = read_config(json.dumps(vector_input["config"]), "vector").config
    except EvenkeelError as error:
        return [] if expected.get("decodeError") else [f"refused: {error}"]
    if expected.get("decodeError"):
        return ["should not even be decoded"]
    config = config._replace(profile=Profile.KUBERNETES)
    invalid = {
        field.partition("[")[0]
        for problem in validate_config(config, CGROUP_VERSION)
        for field in problem.field.split(", ")
    }
    at_startup = {
        "eviction" if problem.field.startswith("eviction") else problem.field.partition("[")[0]
        for problem in startup_problems(config)
    } & {"eviction", "kubeReserved", "systemReserved"}
    return [
        *differences("invalidFields", sorted(invalid), sorted(expected["invalidFields"])),
        *differences("startupInvalid", sorted(at_startup), sorted(expected["startupInvalid"])),
        *differences("valid", not invalid and not at_startup, expected["valid"]),
        *differences("defaulted", _excerpt(defaulted(config)), expected["defaulted"]),
    ]


def _excerpt(config: KubeletConfiguration) -> dict[str, Any]:
    return {
        "cgroupDriver": config.cgroup_driver,
        "cgroupsPerQOS": config.cgroups_per_qos,
        "cpuCFSQuota": config.cpu_cfs_quota,
        "cpuCFSQuotaPeriod": str(config.cpu_cfs_quota_period),
        "enforceNodeAllocatable": list(config.enforce_node_allocatable),
        "evictionHard": dict(config.eviction_hard or {}),
        "evictionPressureTransitionPeriod": str(config.eviction_pressure_transition_period),
        "maxPods": config.max_pods,
        "memoryReservationPolicy": config.memory_reservation_policy,
        "memorySwapBehavior": config.memory_swap.swap_behavior,
        "memoryThrottlingFactor": config.memory_throttling_factor,
        "podPidsLimit": config.pod_pids_limit,
        "singleProcessOOMKill": config.single_process_oom_kill,
    }
