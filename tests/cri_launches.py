"""The runtime for containers before a fake one: a start, the runtime's life, and waiting within a loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from evenkeel.api.config import KubeletConfiguration, defaulted
from evenkeel.api.manifests import read_manifests
from evenkeel.cgroup.driver import CgroupError, Statistics
from evenkeel.cgroup.plan import plan
from evenkeel.cgroup.tree import Kind, Naming, Version
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.node_view import node_view
from evenkeel.policy.provision import PlannedPod
from evenkeel.runtime.cri.cri_runtime import CriRuntime
from evenkeel.runtime.interface import Attempt, Launch, Planned
from tests.fake_cri import FakeCri
from tests.models.kernel import Kernel

CONFIG = defaulted(KubeletConfiguration())
NODE = node_view(NodeCapacity(4000, 8 << 30), CONFIG)
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, uid: u-1}
spec:
  containers:
  - {name: main, image: "local/busybox:1", command: [a], resources: {requests: {memory: 64Mi}}}
"""
WITHIN_SECONDS = 60.0


class Driver(Kernel):
    """Cgroups whose processes the fake runtime keeps."""

    version, naming = Version.V2, Naming.CGROUPFS

    def __init__(self, fake: FakeCri) -> None:
        super().__init__()
        self._fake = fake

    def lacking(self, file: str) -> None:
        return None

    def kill(self, path: str) -> None:
        self._fake.kill(path)

    def statistics(self, path: str) -> Statistics:
        if path not in self._fake.oom_kills:
            raise CgroupError(f"there is no cgroup {path}", path=path, reason="ENOENT")
        return Statistics(0, 0, 0, 0, 0, 0, 0, oom_kills=self._fake.oom_kills[path])

    def close(self) -> None: ...


def launch(number: int = 1, pod: str = POD) -> Launch:
    (read,) = read_manifests(pod, "x.yaml").pods
    of = {c.kind: c for c in plan(NODE, [PlannedPod(read, placed=())]).cgroups}
    planned = Planned(Version.V2, of[Kind.CONTAINER], of[Kind.POD], of[Kind.INFRASTRUCTURE])
    container = read.spec.containers[0]
    return Launch(Attempt("u-1", "main", number), read, container, of[Kind.CONTAINER].path, 500, planned)


def runtime_at(fake: FakeCri, directory: str) -> CriRuntime:
    return CriRuntime(fake.endpoint, directory, lambda: Driver(fake), CONFIG)


@asynccontextmanager
async def opened(fake: FakeCri, directory: str) -> AsyncIterator[CriRuntime]:
    runtime = runtime_at(fake, directory)
    await runtime.open()
    try:
        yield runtime
    finally:
        await runtime.close()


async def until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(WITHIN_SECONDS):
        while not is_so():
            await asyncio.sleep(0.01)
