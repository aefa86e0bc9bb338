"""A fake container runtime whose faults a test chooses: the Container Runtime Interface on a Unix socket. Its
containers are plain sleeping processes."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri import tasks_pb2 as tasks

_OF_IMAGES = ("ListImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo")


class FakeCri:
    """`refuses` are methods that fail, with the words; `loses` those that are done and never answered; `hangs` those
    that are neither done nor answered; `held` those that are done, and answered when the event is set."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.refuses: dict[str, str] = {}
        self.loses: set[str] = set()
        self.hangs: set[str] = set()
        self.held: dict[str, asyncio.Event] = {}
        self.calls: list[str] = []
        self.requests: list[Any] = []
        self.images = {"local/busybox:1"}
        self.sandboxes: dict[str, pb.PodSandboxConfig] = {}
        self.unready: set[str] = set()  # sandboxes
        self.containers: dict[str, _Container] = {}
        self.keeps_tasks = False  # as containerd does, of a start that was cut off
        self.with_user_namespaces: tuple[str, ...] = ()  # the names of its handlers
        self.systemd_cgroup = False
        self.tells_pids = True
        # As containerd 1.6: it sends no events.
        self.events: asyncio.Queue[pb.ContainerEventResponse] | None = None
        self.unreadable: set[str] = set()  # containers whose status it cannot tell
        self.oom_kills: dict[str, int] = {}  # the kernel's count of each cgroup that is there
        self.on_status: Callable[[], None] = lambda: None  # before a container's status is told
        # Before containers with these labels are listed; FileExistsError refuses that.
        self.on_list: Callable[[dict[str, str]], None] = lambda _: None
        self._server: Any = None
        self._count = 0

    @property
    def endpoint(self) -> str:
        return f"unix://{self.path}"

    async def start(self) -> None:
        self._server = grpc.aio.server()
        for service, names in (("Runtime", _METHODS - set(_OF_IMAGES)), ("Image", set(_OF_IMAGES))):
            handlers = {
                name: grpc.unary_unary_rpc_method_handler(
                    self._method(name),
                    request_deserializer=getattr(pb, f"{name}Request").FromString,
                    response_serializer=self.serialized,
                )
                for name in names
            }
            if service == "Runtime":
                handlers["GetContainerEvents"] = grpc.unary_stream_rpc_method_handler(
                    self._tell_events,
                    pb.GetEventsRequest.FromString,
                    pb.ContainerEventResponse.SerializeToString,
                )
            handler = grpc.method_handlers_generic_handler(f"runtime.v1.{service}Service", handlers)
            self._server.add_generic_rpc_handlers((handler,))
        handlers = {
            "Kill": grpc.unary_unary_rpc_method_handler(
                self._method("KillTask"), tasks.KillRequest.FromString, tasks.KillResponse.SerializeToString
            ),
            "Delete": grpc.unary_unary_rpc_method_handler(
                self._method("DeleteTask"),
                tasks.DeleteTaskRequest.FromString,
                tasks.DeleteResponse.SerializeToString,
            ),
        }
        handler = grpc.method_handlers_generic_handler("containerd.services.tasks.v1.Tasks", handlers)
        self._server.add_generic_rpc_handlers((handler,))
        assert self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()

    def serialized(self, answer: Any) -> bytes:
        return answer.SerializeToString()

    async def stop(self) -> None:
        """Stops the runtime. Its containers run on."""
        await self._server.stop(0)
        self._server = None

    async def close(self) -> None:
        if self._server is not None:
            await self.stop()
        for container in self.containers.values():
            container.kill()

    def kill(self, cgroup: str) -> None:
        """Kills all processes of the cgroup, as the kernel does."""
        for container in self.containers.values():
            if container.cgroup == cgroup:
                container.kill()

    def running(self) -> list[str]:
        return [id_ for id_, container in self.containers.items() if container.state == "running"]

    def counted(self, name: str) -> int:
        return self.calls.count(name)

    async def _tell_events(self, _: Any, context: Any) -> AsyncIterator[pb.ContainerEventResponse]:
        if self.events is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no events are told here")
            return
        self.calls.append("GetContainerEvents")
        while True:
            yield await self.events.get()

    def _method(self, name: str) -> Callable[[Any, Any], Any]:
        async def answer(request: Any, context: Any) -> Any:
            self.calls.append(name)
            self.requests.append(request)
            if name in self.hangs:
                await asyncio.sleep(3600)
            if name in self.refuses:
                await context.abort(grpc.StatusCode.UNKNOWN, self.refuses[name])
            try:
                found = getattr(self, f"_{name}")(request)
            except LookupError:
                await context.abort(grpc.StatusCode.NOT_FOUND, "there is none")
            except FileExistsError as error:
                await context.abort(grpc.StatusCode.UNKNOWN, str(error))
            if name in self.held:
                await self.held[name].wait()
            if name in self.loses:
                self.loses.discard(name)
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
            return found

        return answer

    def _Version(self, _: Any) -> Any:
        return pb.VersionResponse(runtime_name="fake", runtime_version="1", runtime_api_version="v1")

    def _Status(self, _: Any) -> Any:
        config = {
            "containerd": {
                "defaultRuntimeName": "runc",
                "runtimes": {"runc": {"options": {"SystemdCgroup": self.systemd_cgroup}}},
            }
        }
        return pb.StatusResponse(
            status=pb.RuntimeStatus(conditions=[pb.RuntimeCondition(type="RuntimeReady", status=True)]),
            info={"config": json.dumps(config)},
            runtime_handlers=[
                pb.RuntimeHandler(name=name, features=pb.RuntimeHandlerFeatures(user_namespaces=True))
                for name in self.with_user_namespaces
            ],
        )

    def _ImageFsInfo(self, _: Any) -> Any:
        used = pb.FilesystemUsage(
            fs_id=pb.FilesystemIdentifier(mountpoint="/"),
            used_bytes=pb.UInt64Value(value=4096 * len(self.images)),
            inodes_used=pb.UInt64Value(value=len(self.images)),
        )
        return pb.ImageFsInfoResponse(image_filesystems=[used])

    def _ImageStatus(self, request: Any) -> Any:
        image = request.image.image
        return pb.ImageStatusResponse(image=pb.Image(id=f"sha256:{image}" if image in self.images else ""))

    def _PullImage(self, request: Any) -> Any:
        self.images.add(request.image.image)
        return pb.PullImageResponse(image_ref=request.image.image)

    def _ListPodSandbox(self, request: Any) -> Any:
        wanted = dict(request.filter.label_selector)
        return pb.ListPodSandboxResponse(
            items=[
                pb.PodSandbox(
                    id=id_,
                    metadata=config.metadata,
                    labels=config.labels,
                    state=pb.PodSandboxState.SANDBOX_NOTREADY
                    if id_ in self.unready
                    else pb.PodSandboxState.SANDBOX_READY,
                )
                for id_, config in self.sandboxes.items()
                if wanted.items() <= dict(config.labels).items()
            ]
        )

    def _RunPodSandbox(self, request: Any) -> Any:
        for config in self.sandboxes.values():
            if config.metadata == request.config.metadata:
                raise FileExistsError("the name is reserved for another")
        id_ = self._next("sandbox")
        self.sandboxes[id_] = request.config
        return pb.RunPodSandboxResponse(pod_sandbox_id=id_)

    def _PodSandboxStatus(self, request: Any) -> Any:
        config = self.sandboxes[request.pod_sandbox_id]
        path = f"{config.linux.cgroup_parent}/{request.pod_sandbox_id}"
        info = json.dumps({"pid": 0, "runtimeSpec": {"linux": {"cgroupsPath": path}}})
        return pb.PodSandboxStatusResponse(info={"info": info})

    def _StopPodSandbox(self, request: Any) -> Any:
        for container in self.containers.values():
            if container.sandbox == request.pod_sandbox_id:
                container.kill()
        return pb.StopPodSandboxResponse()

    def _RemovePodSandbox(self, request: Any) -> Any:
        for id_, container in tuple(self.containers.items()):
            if container.sandbox == request.pod_sandbox_id:
                self._RemoveContainer(pb.RemoveContainerRequest(container_id=id_))
        self.sandboxes.pop(request.pod_sandbox_id, None)
        return pb.RemovePodSandboxResponse()

    def _CreateContainer(self, request: Any) -> Any:
        for container in self.containers.values():
            if container.config.metadata == request.config.metadata:
                raise FileExistsError("the name is reserved for another")
        id_ = self._next("container")
        cgroup = f"{request.sandbox_config.linux.cgroup_parent}/{id_}"
        self.containers[id_] = _Container(request.config, request.pod_sandbox_id, cgroup)
        return pb.CreateContainerResponse(container_id=id_)

    def _StartContainer(self, request: Any) -> Any:
        self.containers[request.container_id].start()
        return pb.StartContainerResponse()

    def _StopContainer(self, request: Any) -> Any:
        self.containers[request.container_id].kill(signal.SIGTERM)
        return pb.StopContainerResponse()

    def _RemoveContainer(self, request: Any) -> Any:
        if self.keeps_tasks:
            raise FileExistsError(f"cannot delete running task {request.container_id}: failed precondition")
        container = self.containers.pop(request.container_id, None)
        if container is not None:
            container.kill()
        return pb.RemoveContainerResponse()

    def _KillTask(self, _: Any) -> Any:
        raise LookupError

    def _DeleteTask(self, request: Any) -> Any:
        assert request.container_id in self.containers
        self.keeps_tasks = False
        return tasks.DeleteResponse()

    def _ListContainers(self, request: Any) -> Any:
        wanted = dict(request.filter.label_selector)
        self.on_list(wanted)
        return pb.ListContainersResponse(
            containers=[
                pb.Container(
                    id=id_,
                    pod_sandbox_id=container.sandbox,
                    state=container.number(),
                    created_at=int(container.created_at * 1e9),
                    labels=container.config.labels,
                )
                for id_, container in self.containers.items()
                if wanted.items() <= dict(container.config.labels).items()
            ]
        )

    def _ContainerStatus(self, request: Any) -> Any:
        container = self.containers[request.container_id]
        if request.container_id in self.unreadable:
            raise FileExistsError("its record is damaged")
        self.on_status()
        state = container.number()
        spec = {"linux": {"cgroupsPath": container.cgroup}}
        pid = container.process.pid if container.process is not None and self.tells_pids else 0
        return pb.ContainerStatusResponse(
            status=pb.ContainerStatus(
                id=request.container_id,
                state=state,
                started_at=int(container.started_at * 1e9),
                finished_at=int(time.time() * 1e9) if container.state == "exited" else 0,
                exit_code=container.exit_code,
                reason=container.reason,
                labels=container.config.labels,
                annotations=container.config.annotations,
                log_path=self._log_path(container),
            ),
            info={"info": json.dumps({"pid": pid, "runtimeSpec": spec})},
        )

    def _UpdateContainerResources(self, request: Any) -> Any:
        assert request.container_id in self.containers
        return pb.UpdateContainerResourcesResponse()

    def _ReopenContainerLog(self, request: Any) -> Any:
        Path(self._log_path(self.containers[request.container_id])).touch()
        return pb.ReopenContainerLogResponse()

    def _log_path(self, container: "_Container") -> str:
        sandbox = self.sandboxes.get(container.sandbox)
        return f"{sandbox.log_directory}/{container.config.log_path}" if sandbox is not None else ""

    def _ExecSync(self, request: Any) -> Any:
        assert self.containers[request.container_id].state == "running"
        return pb.ExecSyncResponse(stdout=b" ".join(map(str.encode, request.cmd)), exit_code=3)

    def _next(self, what: str) -> str:
        self._count += 1
        return f"{what}{self._count}"


_METHODS = {
    name.removeprefix("_")
    for name in vars(FakeCri)
    if name[:1] == "_" and name[1:2].isupper() and not name.endswith("Task")
}


class _Container:
    def __init__(self, config: pb.ContainerConfig, sandbox: str, cgroup: str) -> None:
        self.config = config
        self.sandbox = sandbox
        self.cgroup = cgroup
        self.process: subprocess.Popen[bytes] | None = None
        self.created_at = time.time()
        self.started_at = 0.0
        self.reason = ""
        self.is_unnoticed = False  # the runtime does not look whether it has ended, and so does not reap it

    @property
    def state(self) -> str:
        if self.process is None:
            return "created"
        if self.is_unnoticed:
            return "running"
        return "running" if self.process.poll() is None else "exited"

    @property
    def exit_code(self) -> int:
        code = self.process.poll() if self.process is not None and not self.is_unnoticed else None
        return 0 if code is None else code if code >= 0 else 128 - code

    def number(self) -> Any:
        return {
            "created": pb.ContainerState.CONTAINER_CREATED,
            "running": pb.ContainerState.CONTAINER_RUNNING,
            "exited": pb.ContainerState.CONTAINER_EXITED,
        }[self.state]

    def start(self) -> None:
        assert self.process is None, "started twice"
        self.process = subprocess.Popen(["sleep", "1000"])
        self.started_at = time.time()

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, number)
            self.process.wait()
