"""The real kubelet as a node of a test's control plane, with a containerd of its own: what Evenkeel is compared with.

kubelet and containerd share a mount namespace of their own, so that what kubelet mounts is seen by its containers and
goes with them. There the kernel settings that kubelet would change for the whole machine seem to be as it wants them.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.binaries import kubelet
from tests.cluster.control_plane import ControlPlane, Place
from tests.kernel.cgroups import Cgroup, named_hierarchies
from tests.kernel.waiting import eventually
from tests.kubelet.standalone import private_mounts
from tests.machines.containerd import Containerd
from tests.machines.daemon import Daemon

READY_SECONDS = 180.0
STOPPED_SECONDS = 10.0
MAX_PODS = 200
CLUSTER_DNS = "10.251.0.10"


class KubeletNode:
    """`containerd` is its runtime, and `kubelet` the process that is measured."""

    def __init__(self, name: str, containerd: Containerd, process: Daemon) -> None:
        self.name = name
        self.containerd = containerd
        self.kubelet = process


@contextmanager
def kubelet_node(
    plane: ControlPlane, place: Place, directory: Path, root: Cgroup, network: dict[str, Any]
) -> Iterator[KubeletNode]:
    """Ready. `root` is the cgroup of its pods, and `network` a CNI configuration."""
    directory.mkdir()
    for top in named_hierarchies():  # kubelet wants its root there, too
        (top / root.paths()[0].name).mkdir()
    with ExitStack() as opened:
        within = (*place.network.within, *opened.enter_context(private_mounts(directory)))
        containerd = opened.enter_context(Containerd(network=network, within=within))
        process = Daemon("kubelet", directory / "kubelet.log", stopped_seconds=STOPPED_SECONDS)
        command = [
            str(kubelet()),
            f"--config={_configuration(plane, directory, root, containerd)}",
            f"--kubeconfig={place.kubeconfig}",
            f"--hostname-override={place.name}",
            f"--node-ip={place.address}",
            f"--root-dir={directory}",
            f"--cert-dir={directory}/pki",
        ]
        process.spawn([*within, "setpriv", "--pdeathsig", "KILL", "--", *command], dict(os.environ))
        opened.callback(process.stop)

        def is_ready() -> bool:
            process.check()
            nodes = plane.get("nodes", f"--field-selector=metadata.name={place.name}")["items"]
            conditions = nodes[0]["status"].get("conditions", ()) if nodes else ()
            return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)

        try:
            eventually(is_ready, within_seconds=READY_SECONDS)
        except AssertionError:
            raise AssertionError(f"kubelet does not become ready: {process.last_words()}") from None
        yield KubeletNode(place.name, containerd, process)


def _configuration(plane: ControlPlane, directory: Path, root: Cgroup, containerd: Containerd) -> Path:
    value = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"x509": {"clientCAFile": str(plane.authority.certificate)}},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{root.paths()[0].name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        # Without cluster DNS, kubelet records an event about that for each pod again and again.
        "clusterDNS": [CLUSTER_DNS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": containerd.endpoint,
        "maxPods": MAX_PODS,
        "podLogsDir": str(directory / "logs"),
        "volumePluginDir": str(directory / "plugins"),
    }
    path = directory / "kubelet.json"
    path.write_text(json.dumps(value))  # JSON is YAML
    return path
