"""kubectl for a test's pods on one node: what it prints, and sessions that go on."""

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any

from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import Node
from tests.cluster.workspaces import Workspace, is_ready, pod
from tests.kernel.live_tree import cgroups_below, processes_in
from tests.machines.container_images import TEST


class Running:
    """A pod on the node, and kubectl for it."""

    def __init__(self, plane: ControlPlane, workspace: Workspace, node: Node) -> None:
        self.node = node
        self.image = "host" if node.agent.containerd is None else TEST
        self._plane = plane
        self._workspace = workspace

    def start(self, name: str, *command: str, **spec: Any) -> dict[str, Any]:
        container = {"image": self.image, **spec.pop("container", {})}
        self._workspace.apply(pod(name, *command, container=container, nodeName=self.node.name, **spec))
        return self._workspace.until(name, is_ready)

    def command(self, *words: str) -> list[str]:
        return [
            str(self._plane.kubectl_program),
            f"--kubeconfig={self._plane.admin_kubeconfig}",
            f"--namespace={self._workspace.name}",
            *words,
        ]

    def kubectl(self, *words: str, said: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(self.command(*words), input=said, capture_output=True, timeout=120, check=False)

    def done(self, *words: str, said: bytes = b"") -> bytes:
        """What it prints; it is to succeed."""
        done = self.kubectl(*words, said=said)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextlib.contextmanager
    def begun(self, *words: str, **streams: Any) -> Iterator["subprocess.Popen[bytes]"]:
        process = subprocess.Popen(self.command(*words), stdout=subprocess.PIPE, **streams)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def processes(self, uid: str) -> set[int]:
        """The processes of a pod."""
        below = cgroups_below(self.node.agent.root.paths()[0])
        return {pid for path in below if f"pod{uid}" in str(path) for pid in processes_in(path)}
