"""The profile `kubernetes` writes the same kernel files as the real kubelet, for the same pods and settings.

Both nodes run the same pods with containerd, one after the other. Then every file of their cgroups that can be written
is compared, and the OOM score of each container.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster.binaries import kubelet
from tests.kernel.agents import Up
from tests.kernel.cgroup_roots import bounded_root
from tests.kernel.waiting import eventually
from tests.kubelet.kernel_files import Files, kernel_files
from tests.kubelet.pods import PODS, WITH_ONE_PROCESSOR, Manifest, tasks
from tests.kubelet.standalone import NODE, kubelet_alone
from tests.machines import host
from tests.machines.containerd import Containerd
from tests.machines.packages import require_containerd
from tests.needing import needing

RUNNING_SECONDS = 600.0  # an emulated machine takes minutes
AT_REST = 4  # equal readings, one after the other
DEFAULT_THRESHOLD = {"memory.available": "100Mi"}  # kubelet's own
SETUPS: dict[str, Manifest] = {
    "default": {},
    "reserved": {
        "kubeReserved": {"cpu": "200m", "memory": "96Mi", "pid": "500"},
        "systemReserved": {"cpu": "100m", "memory": "64Mi"},
        "evictionHard": {"memory.available": "90Mi"},
        "podPidsLimit": 100,
        "cpuCFSQuotaPeriod": "50ms",
        "featureGates": {"CustomCPUCFSQuotaPeriod": True},
    },
    "memory-qos": {
        "kubeReserved": {"memory": "96Mi"},
        "evictionHard": {"memory.available": "90Mi"},
        "memoryThrottlingFactor": 0.8,
        "qosReserved": {"memory": "50%"},
        "featureGates": {"MemoryQoS": True, "QOSReserved": True},
    },
    "static": {
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": "0",
        "evictionHard": {"memory.available": "90Mi"},
    },
}


@pytest.fixture(autouse=True)
def built() -> None:
    with needing():
        host.require_root()
        require_containerd()
        kubelet()


def of_kubelet(directory: Path, settings: Manifest, pods: Sequence[Manifest]) -> Files:
    with (
        bounded_root(f"evenkeeltestkubelet{os.getpid()}", is_slice=False) as root,
        kubelet_alone(directory / "kubelet", root, settings, pods) as (containerd, process),
    ):

        def are_running() -> bool:
            process.check()
            return containerd.ctr("tasks", "list").count("RUNNING") == tasks(pods)

        eventually(are_running, within_seconds=RUNNING_SECONDS, details=process.last_words)
        readings: list[Files] = []

        def is_at_rest() -> bool:
            """kubelet updates the cgroups of the classes after those of the pods."""
            readings.append(kernel_files(root, containerd, f"-{NODE}"))
            return len(readings) >= AT_REST and all(one == readings[-1] for one in readings[-AT_REST:])

        eventually(is_at_rest, within_seconds=RUNNING_SECONDS)
        return readings[-1]


def of_evenkeel(directory: Path, settings: Manifest, pods: Sequence[Manifest]) -> Files:
    config = directory / "config.json"
    kind = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    config.write_text(json.dumps({**kind, "failSwapOn": False, **settings}))
    thresholds = settings.get("evictionHard", DEFAULT_THRESHOLD)
    flags = (
        f"--config={config}",
        "--profile=kubernetes",
        f"--eviction-hard={','.join(f'{signal}<{value}' for signal, value in thresholds.items())}",
    )
    (directory / "up").mkdir()
    with Containerd() as containerd, bounded_root(f"evenkeeltest{os.getpid()}", is_slice=False) as root:
        agent = Up(root, directory / "up", *flags, node="", containerd=containerd)
        agent.start()
        try:
            agent.apply(*pods)
            for one in pods:
                agent.await_phase(one["metadata"]["name"], "Running", within_seconds=RUNNING_SECONDS)
            return kernel_files(root, containerd)
        finally:
            agent.close()


@pytest.mark.parametrize("setup", SETUPS)
def test_the_kernel_files_are_those_of_the_real_kubelet(setup: str, tmp_path: Path):
    settings = SETUPS[setup]
    pods = WITH_ONE_PROCESSOR if "cpuManagerPolicy" in settings else PODS
    expected, found = of_kubelet(tmp_path, settings, pods), of_evenkeel(tmp_path, settings, pods)
    print(f"{setup}: {len(expected)} values of {len({place for place, _ in expected})} cgroups")
    differences = [
        f"{place} {file}: kubelet {expected.get((place, file))}, Evenkeel {found.get((place, file))}"
        for place, file in sorted(expected.keys() | found.keys())
        if expected.get((place, file)) != found.get((place, file))
    ]
    assert not differences, "\n".join(differences)
