"""Containers through the agent, beside the bare calls of the Container Runtime Interface and beside `podman run`.

A start is timed to the first instruction of the program, which prints the time. The bare calls are RunPodSandbox,
CreateContainer and StartContainer, one after the other, by a client that does nothing else, and ask for the container
that the agent asks for, but for names and amounts: before anything is timed, the containers that containerd makes of
both are compared. So both have containerd's default seccomp filter, which runc compiles anew for every container; the
start of a container without a filter is measured as well. All take turns."""

import json
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
    timed_start,
)
from bench.figure import Figure, against, failed, ratio_at_most
from evenkeel.named_tuples import NamedTuple

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

    def began(self, name: str) -> float:
        return said_time(self.times / name)

    def _pod(self, name: str) -> dict[str, Any]:
        made = super()._pod(name)
        container = made["spec"]["containers"][0]
        container["image"] = IMAGE
        container["command"] = [PROGRAM, "first", str(self.times / name), "stay"]
        container["volumeMounts"] = [{"name": "times", "mountPath": str(self.times)}]
        made["spec"]["volumes"] = [{"name": "times", "hostPath": {"path": str(self.times)}}]
        return made


class Asked(NamedTuple):
    """Settings that the agent asks for and that a runtime does not make by default."""

    files: list[str]  # where files of the agent are mounted in the container
    capabilities: list[str]
    masked: list[str]
    read_only: list[str]


def asked_for(one: ContainerAgent, id_: str) -> Asked:
    """The settings of a container of the agent, as containerd has them."""
    spec = specification(one.containerd, id_)
    linux, state = spec["linux"], str(one.state)
    return Asked(
        [mount["destination"] for mount in spec["mounts"] if mount["source"].startswith(state)],
        [name.removeprefix("CAP_") for name in spec["process"]["capabilities"]["bounding"]],
        linux["maskedPaths"],
        linux["readonlyPaths"],
    )


class BareCalls:
    """A client of CRI that waits for each answer before the next call."""

    def __init__(self, containerd: Containerd, times: Path, cgroup_parent: str, asked: Asked) -> None:
        import grpc

        self._containerd = containerd
        self._times = times
        self._cgroup_parent = cgroup_parent
        self._asked = asked
        self._file = times.parent / "file"
        self._file.touch()
        self._channel = grpc.insecure_channel(containerd.endpoint)

    def close(self) -> None:
        self._channel.close()

    def start(self, name: str, *, has_filter: bool = True) -> float:
        """How long it takes from the first call to the program's first instruction."""
        requests = self._requests(name, has_filter=has_filter)
        at = time.time()
        with self._running(*requests):
            return said_time(self._times / name) - at

    def likeness(self, name: str) -> dict[str, Any]:
        with self._running(*self._requests(name, has_filter=True)) as id_:
            said_time(self._times / name)
            return likeness(self._containerd, id_)

    @contextmanager
    def _running(self, sandbox: Any, container: Any) -> Iterator[str]:
        from evenkeel.runtime.cri import cri_pb2

        pod = self._call("RunPodSandbox", sandbox).pod_sandbox_id
        try:
            container.pod_sandbox_id = pod
            made = self._call("CreateContainer", container).container_id
            self._call("StartContainer", cri_pb2.StartContainerRequest(container_id=made))
            yield made
        finally:
            self._call("StopPodSandbox", cri_pb2.StopPodSandboxRequest(pod_sandbox_id=pod))
            self._call("RemovePodSandbox", cri_pb2.RemovePodSandboxRequest(pod_sandbox_id=pod))

    def _requests(self, name: str, *, has_filter: bool) -> tuple[Any, Any]:
        """The requests that make a sandbox and a container in it. The sandbox's ID is filled in later."""
        from evenkeel.runtime.cri import cri_pb2

        namespaces = cri_pb2.NamespaceOption(network=cri_pb2.NODE, pid=cri_pb2.CONTAINER)
        linux = cri_pb2.LinuxPodSandboxConfig(cgroup_parent=self._cgroup_parent)
        linux.security_context.namespace_options.CopyFrom(namespaces)
        sandbox = cri_pb2.PodSandboxConfig(
            metadata=cri_pb2.PodSandboxMetadata(name=name, uid=name, namespace="bare"),
            log_directory=str(self._times.parent / "bare"),
            linux=linux,
        )
        security = cri_pb2.LinuxContainerSecurityContext(
            namespace_options=namespaces,
            masked_paths=self._asked.masked,
            readonly_paths=self._asked.read_only,
            capabilities=cri_pb2.Capability(
                drop_capabilities=["ALL"], add_capabilities=self._asked.capabilities
            ),
        )
        if has_filter:
            security.seccomp.profile_type = cri_pb2.SecurityProfile.RuntimeDefault
        container = cri_pb2.ContainerConfig(
            metadata=cri_pb2.ContainerMetadata(name="main"),
            image=cri_pb2.ImageSpec(image=IMAGE),
            command=[PROGRAM, "first", str(self._times / name), "stay"],
            envs=[cri_pb2.KeyValue(key="HOSTNAME", value=name)],
            log_path=f"{name}.log",
            mounts=[
                cri_pb2.Mount(container_path=str(self._times), host_path=str(self._times)),
                *(
                    cri_pb2.Mount(container_path=path, host_path=str(self._file))
                    for path in self._asked.files
                ),
            ],
            linux=cri_pb2.LinuxContainerConfig(
                resources=cri_pb2.LinuxContainerResources(cpu_shares=102, oom_score_adj=990),
                security_context=security,
            ),
        )
        return (
            cri_pb2.RunPodSandboxRequest(config=sandbox),
            cri_pb2.CreateContainerRequest(config=container, sandbox_config=sandbox),
        )

    def _call(self, method: str, request: Any) -> Any:
        from evenkeel.runtime.cri import cri_pb2

        answer = getattr(cri_pb2, f"{method}Response")
        path = f"/runtime.v1.RuntimeService/{method}"
        call = self._channel.unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        return call(request, timeout=60)


def specification(containerd: Containerd, id_: str) -> dict[str, Any]:
    """The specification that runc gets."""
    found: dict[str, Any] = json.loads(containerd.ctr("containers", "info", id_))["Spec"]
    return found


def likeness(containerd: Containerd, id_: str) -> dict[str, Any]:
    """The specification for runc without names and amounts. Two containers that take the same work have the same
    one."""
    spec = specification(containerd, id_)
    linux, process = spec["linux"], spec["process"]
    return {
        "mounts": [(one["destination"], one["type"], one.get("options", [])) for one in spec["mounts"]],
        "namespaces": [(one["type"], "path" in one) for one in linux["namespaces"]],
        "process": [process.get(name) for name in ("user", "capabilities", "rlimits", "noNewPrivileges")],
        **{name: linux.get(name) for name in ("seccomp", "maskedPaths", "readonlyPaths", "devices")},
    }


def bare_calls(one: ContainerAgent) -> BareCalls:
    """Calls that ask for the same container as the agent, so that both take the same work. That is checked."""
    one.apply("alike")
    one.began("alike")
    (id_,) = one.containerd.containers(
        io__kubernetes__pod__name="alike", io__kubernetes__container__name="main"
    )
    calls = BareCalls(one.containerd, one.times, f"{one.cgroup_root}/bare", asked_for(one, id_))
    pod = likeness(one.containerd, id_)
    one.delete("alike")
    bare = calls.likeness("bare-alike")
    different = [name for name, value in pod.items() if bare[name] != value]
    assert not different, f"the bare calls ask for another container than the agent: {', '.join(different)}"
    return calls


def figures() -> Iterator[Figure]:
    try:
        require((*PROGRAMS, *IMAGES))
        require_containerd()
    except Unavailable as reason:
        yield failed("containers", f"containerd is not available: {reason}", None)
        return
    with agent() as one:
        bare = bare_calls(one)
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
    without_filter: list[float] = []
    podman: list[float] = []
    problem = podman_problem()
    for number in range(STARTS):
        name = f"start-{number}"
        since_apply, since_admission = timed_start(one, name)
        applied.append(since_apply)
        admitted.append(since_admission)
        one.delete(name)
        time.sleep(SETTLED_SECONDS)
        bare.append(calls.start(f"bare-{number}") * 1000)
        time.sleep(SETTLED_SECONDS)
        without_filter.append(calls.start(f"open-{number}", has_filter=False) * 1000)
        if len(podman) < PODMAN_STARTS and not problem:
            try:
                podman.append(podman_start(one, f"podman-{number}") * 1000)
            except (OSError, subprocess.CalledProcessError, AssertionError) as error:
                problem = f"podman cannot be measured here: {said(error)}"
    name = "a pod of one container from apply to its first instruction"
    yield against(f"{name}, beside the bare CRI calls", applied, bare, "ms", ratio_at_most(1.2))
    yield against("the same from admission on", admitted, bare, "ms", None)
    title = f"{name}, beside the bare CRI calls for one without a seccomp filter"
    yield against(title, applied, without_filter, "ms", None)
    if not problem:
        yield against(f"{name}, beside podman run", applied, podman, "ms", None)
