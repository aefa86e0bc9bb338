"""Containers through the agent, beside the bare calls of the Container Runtime Interface and beside `podman run`.

A start is timed to the first instruction of the program, which says what time it was. The bare calls are RunPodSandbox,
CreateContainer and StartContainer, one after the other, of the same image and mounts in the same containerd, by a
client that does nothing else. All three take turns.
"""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kernel.cgroups import named_hierarchies, removed
from tests.machines import Unavailable
from tests.machines.container_images import Entry, archive
from tests.machines.containerd import Containerd
from tests.machines.packages import IMAGES, PROGRAMS, require, require_containerd

from bench.bench_agent import (
    PODMAN_STARTS,
    SETTLED_SECONDS,
    Agent,
    eventually,
    podman_problem,
    podman_start,
    said,
    said_time,
)
from bench.figure import Figure, against, failed, ratio_at_most

STARTS = 15
IMAGE = "localhost/evenkeel-bench:1"
PROGRAM = "/program"


class ContainerAgent(Agent):
    """`evenkeel up` with containerd; its pods see the directory that they write the time to."""

    def __init__(self, directory: Path, containerd: Containerd) -> None:
        super().__init__(directory)
        self.containerd = containerd

    def start(self, *flags: str) -> None:
        super().start("--runtime-endpoint", self.containerd.endpoint, *flags)

    def close(self) -> None:
        super().close()
        for top in named_hierarchies():
            eventually(lambda: removed(top / self.cgroup_root.removeprefix("/")))  # noqa: B023 called here

    def _pod(self, name: str) -> dict[str, Any]:
        made = super()._pod(name)
        container = made["spec"]["containers"][0]
        container["image"] = IMAGE
        container["command"][0] = PROGRAM
        container["volumeMounts"] = [{"name": "times", "mountPath": str(self.times)}]
        made["spec"]["volumes"] = [{"name": "times", "hostPath": {"path": str(self.times)}}]
        return made


class BareCalls:
    """A client of CRI that waits for each answer before the next call."""

    def __init__(self, containerd: Containerd, times: Path, cgroup_parent: str) -> None:
        import grpc

        self._times = times
        self._cgroup_parent = cgroup_parent
        self._channel = grpc.insecure_channel(containerd.endpoint)

    def close(self) -> None:
        self._channel.close()

    def start(self, name: str) -> float:
        """How long it takes from the first call to the program's first instruction."""
        from evenkeel.runtime.cri import cri_pb2

        linux = cri_pb2.LinuxPodSandboxConfig(cgroup_parent=self._cgroup_parent)
        linux.security_context.namespace_options.network = cri_pb2.NODE
        metadata = cri_pb2.PodSandboxMetadata(name=name, uid=name, namespace="bare")
        sandbox = cri_pb2.PodSandboxConfig(
            metadata=metadata, log_directory=str(self._times.parent / "bare"), linux=linux
        )
        container = cri_pb2.ContainerConfig(
            metadata=cri_pb2.ContainerMetadata(name="main"),
            image=cri_pb2.ImageSpec(image=IMAGE),
            command=[PROGRAM, "first", str(self._times / name), "stay"],
            log_path=f"{name}.log",
            mounts=[cri_pb2.Mount(container_path=str(self._times), host_path=str(self._times))],
            linux=cri_pb2.LinuxContainerConfig(
                resources=cri_pb2.LinuxContainerResources(cpu_shares=102, oom_score_adj=990)
            ),
        )
        at = time.time()
        pod = self._call("RunPodSandbox", cri_pb2.RunPodSandboxRequest(config=sandbox)).pod_sandbox_id
        try:
            create = cri_pb2.CreateContainerRequest(
                pod_sandbox_id=pod, config=container, sandbox_config=sandbox
            )
            made = self._call("CreateContainer", create).container_id
            self._call("StartContainer", cri_pb2.StartContainerRequest(container_id=made))
            return said_time(self._times / name) - at
        finally:
            self._call("StopPodSandbox", cri_pb2.StopPodSandboxRequest(pod_sandbox_id=pod))
            self._call("RemovePodSandbox", cri_pb2.RemovePodSandboxRequest(pod_sandbox_id=pod))

    def _call(self, method: str, request: Any) -> Any:
        from evenkeel.runtime.cri import cri_pb2

        answer = getattr(cri_pb2, f"{method}Response")
        path = f"/runtime.v1.RuntimeService/{method}"
        call = self._channel.unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        return call(request, timeout=60)


def figures() -> Iterator[Figure]:
    try:
        require((*PROGRAMS, *IMAGES))
        require_containerd()
    except Unavailable as reason:
        yield failed("containers", f"containerd cannot be had: {reason}", None)
        return
    with agent() as one:
        bare = BareCalls(one.containerd, one.times, f"{one.cgroup_root}/bare")
        try:
            yield from starts(one, bare)
        finally:
            bare.close()


@contextmanager
def agent() -> Iterator[ContainerAgent]:
    with tempfile.TemporaryDirectory() as directory, Containerd() as containerd:
        one = ContainerAgent(Path(directory), containerd)
        image = Path(directory) / "image.tar"
        entry = Entry(PROGRAM.removeprefix("/"), one.program.read_bytes())
        image.write_bytes(archive(IMAGE, [entry], [PROGRAM]))
        containerd.import_images({IMAGE: image})
        one.start()
        try:
            yield one
        finally:
            one.close()


def starts(one: ContainerAgent, calls: BareCalls) -> Iterator[Figure]:
    applied: list[float] = []
    admitted: list[float] = []
    bare: list[float] = []
    podman: list[float] = []
    problem = podman_problem()
    for number in range(STARTS):
        name = f"start-{number}"
        time.sleep(SETTLED_SECONDS)
        at = one.apply(name)
        began = one.began(name)
        applied.append((began - at) * 1000)
        admitted.append((began - one.happened(name, "Admitted")) * 1000)
        one.delete(name)
        time.sleep(SETTLED_SECONDS)
        bare.append(calls.start(f"bare-{number}") * 1000)
        if len(podman) < PODMAN_STARTS and not problem:
            try:
                podman.append(podman_start(one, f"podman-{number}") * 1000)
            except (OSError, subprocess.CalledProcessError, AssertionError) as error:
                problem = f"podman cannot be measured here: {said(error)}"
    name = "a pod of one container from apply to its first instruction"
    yield against(f"{name}, beside the bare CRI calls", applied, bare, "ms", ratio_at_most(1.2))
    yield against("the same from admission on", admitted, bare, "ms", None)
    if not problem:
        yield against(f"{name}, beside podman run", applied, podman, "ms", None)
