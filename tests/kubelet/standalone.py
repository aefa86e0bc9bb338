"""The real kubelet by itself, without an API server: it runs the pods of a directory, with a containerd of its own.

kubelet and containerd share a mount and a network namespace of their own, so that what they mount and open goes with
them. There the kernel settings that kubelet would change for the whole machine seem to be as it wants them.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cluster.binaries import kubelet
from tests.kernel.cgroups import Cgroup, named_hierarchies
from tests.kubelet.pods import Manifest
from tests.machines.containerd import Containerd
from tests.machines.daemon import Daemon

STOPPED_SECONDS = 10.0
NODE = "node"  # kubelet adds it to the names of its pods
# The kernel settings that kubelet demands, and writes if they differ.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}


@contextmanager
def kubelet_alone(
    directory: Path, root: Cgroup, settings: Manifest, manifests: Sequence[Manifest]
) -> Iterator[tuple[Containerd, Daemon]]:
    """kubelet and its containerd. `settings` are fields of KubeletConfiguration, and `root` the cgroup of its pods."""
    directory.mkdir()
    pods = directory / "pods"
    pods.mkdir()
    for number, manifest in enumerate(manifests):
        (pods / f"{number}.json").write_text(json.dumps(manifest))
    for top in named_hierarchies():  # kubelet wants its root there, too
        (top / root.paths()[0].name).mkdir(exist_ok=True)
    with ExitStack() as opened:
        within = opened.enter_context(private_mounts(directory, "--net"))
        containerd = opened.enter_context(Containerd(within=within))
        value = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            # Nobody can ask it: there is no server.
            "authentication": {"webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{root.paths()[0].name}",
            "containerRuntimeEndpoint": containerd.endpoint,
            "enableServer": False,
            "failCgroupV1": False,
            "failSwapOn": False,
            "healthzPort": 0,
            "podLogsDir": str(directory / "logs"),
            "staticPodPath": str(pods),
            "volumePluginDir": str(directory / "plugins"),
            **settings,
        }
        config = directory / "kubelet.json"
        config.write_text(json.dumps(value))  # JSON is YAML
        process = Daemon("kubelet", directory / "kubelet.log", stopped_seconds=STOPPED_SECONDS)
        command = [
            str(kubelet()),
            f"--config={config}",
            f"--root-dir={directory}/root",
            f"--cert-dir={directory}/pki",
            f"--hostname-override={NODE}",
        ]
        process.spawn([*within, "setpriv", "--pdeathsig", "KILL", "--", *command], dict(os.environ))
        opened.callback(process.stop)
        yield containerd, process


@contextmanager
def private_mounts(directory: Path, *namespaces: str) -> Iterator[tuple[str, ...]]:
    """A command that executes its arguments in a mount namespace of our own, and in other `namespaces` (flags of
    unshare)."""
    lines = [
        "set -e",
        "mount --make-rprivate /",
        "mkdir -p /var/lib/kubelet",
        "mount -t tmpfs none /var/lib/kubelet",
    ]
    for name, value in KERNEL_SETTINGS.items():
        file = directory / name.replace("/", "-")
        file.write_text(f"{value}\n")
        lines.append(f"mount --bind {file} /proc/sys/{name}")
    holder = subprocess.Popen(
        [
            "setpriv", "--pdeathsig", "KILL", "--",
            "unshare", "--mount", *namespaces, "--", "sh", "-c", "\n".join([*lines, "exec cat"]),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdin
    assert holder.stdout
    holder.stdin.write(b"?\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == b"?\n", "no mount namespace can be made"
    at = f"/proc/{holder.pid}/ns"
    try:
        yield ("nsenter", f"--mount={at}/mnt", *([f"--net={at}/net"] if "--net" in namespaces else []), "--")
    finally:
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()
