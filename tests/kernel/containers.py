"""The process runtime in a test's own cgroup, with a state directory of its own; nothing is left after the test."""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.container import EphemeralContainer
from evenkeel.api.manifests import read_manifests
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import Driver
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.cgroup.drivers.processes import is_dead
from evenkeel.runtime.interface import Attempt, Exited, Launch, Record
from evenkeel.runtime.process.process_runtime import ProcessRuntime
from evenkeel.runtime.process.supervisor_protocol import LOCK_NAME
from tests.kernel.cgroups import Cgroup
from tests.kernel.waiting import PATIENCE_SECONDS, T, eventually

CONTAINER = "main"


class Containers:
    """`start` makes a pod of one container, with its cgroup, and starts it; `log` is what it wrote."""

    def __init__(self, root: str, state: Path, config: KubeletConfiguration | None = None) -> None:
        self.root = root
        self.state = state
        self._config = config or KubeletConfiguration(cgroup_root=root)
        self._machine = detect()
        self._driver = self.make_driver()
        self.runtime = self.another()

    def make_driver(self) -> Driver:
        return driver_for(self._machine, self._config)

    def another(self) -> ProcessRuntime:
        """Another client, as that of the agent after a restart."""
        return ProcessRuntime(str(self.state), self.make_driver, self._config)

    def run(self, body: Callable[["Containers"], Awaitable[None]]) -> None:
        async def whole() -> None:
            await self.runtime.open()
            try:
                await asyncio.wait_for(body(self), 4 * PATIENCE_SECONDS)
            finally:
                with suppress(Exception):
                    for record in (
                        await asyncio.wait_for(self.runtime.containers(), PATIENCE_SECONDS)
                    ).values():
                        await self.runtime.stop(record.attempt, 0)
                await self.runtime.close()

        asyncio.run(whole())

    def pod(self, name: str, command: list[str], container: str = "", spec: str = "") -> Pod:
        """`container` and `spec` are more lines of YAML."""
        lines = [
            "apiVersion: v1",
            "kind: Pod",
            f"metadata: {{name: {name}, uid: uid-{name}}}",
            "spec:",
            *(f"  {line}" for line in spec.splitlines()),
            "  containers:",
            f"  - name: {CONTAINER}",
            "    image: host",
            f"    command: {json.dumps(command)}",
            *(f"    {line}" for line in container.splitlines()),
        ]
        return read_manifests("\n".join(lines), "test").or_raise().pods[0]

    def cgroup(self, name: str) -> str:
        return f"{self.root}/{name}"

    def launch(self, pod: Pod, *, number: int = 1, score: int | None = 500) -> Launch:
        path = self.cgroup(pod.metadata.name)
        self._driver.create(path)
        return Launch(Attempt(pod.metadata.uid, CONTAINER, number), pod, pod.spec.containers[0], path, score)

    async def start_beside(self, pod: Pod, one: EphemeralContainer) -> Record:
        """Starts an ephemeral container of the pod, in a cgroup that is called after it."""
        path = self.cgroup(one.name)
        self._driver.create(path)
        attempt = Attempt(pod.metadata.uid, one.name, 1)
        return await self.runtime.start(Launch(attempt, pod.with_ephemeral(one), one.container, path, 500))

    async def start(
        self, name: str, *command: str, container: str = "", spec: str = "", score: int = 500
    ) -> Record:
        pod = self.pod(name, list(command), container, spec)
        await self.runtime.prepare(pod)
        return await self.runtime.start(self.launch(pod, score=score))

    async def shell(self, name: str, script: str, **more: Any) -> Record:
        # The runtime reads $$ as Kubernetes does: a doubled dollar is one.
        return await self.start(name, "/bin/sh", "-c", script.replace("$", "$$"), **more)

    async def exited(self) -> Exited:
        """The next end."""
        async for event in self.runtime.events():
            if isinstance(event, Exited):
                return event
        raise AssertionError

    async def ran(self, name: str, script: str, **more: Any) -> list[str]:
        """What a script writes to stdout, line by line."""
        record = await self.shell(name, script, **more)
        event = await asyncio.wait_for(self.exited(), PATIENCE_SECONDS)
        assert event.attempt == record.attempt
        assert event.exit.exit_code == 0, (event, self.log(name))
        return self.log(name)

    def log(
        self, name: str, stream: str = "stdout", number: int = 1, container: str = CONTAINER
    ) -> list[str]:
        path = self.state / f"logs/default_{name}_uid-{name}/{container}/{number}.log"
        fields = [line.split(" ", 3) for line in path.read_text().splitlines()] if path.exists() else []
        return [line[3] for line in fields if line[1] == stream]

    def processes(self, name: str) -> list[int]:
        """The living processes. A zombie stays in the list of cgroup v1 until its parent reaps it."""
        return [pid for pid in self._driver.processes(self.cgroup(name)) if not is_dead(pid)]

    def supervisor(self) -> int:
        """The PID of the supervisor: it holds the lock."""
        return lock_holder(self.state / LOCK_NAME)

    def close(self) -> None:
        self._driver.close()


def lock_holder(path: Path) -> int:
    """The PID of the holder of a flock(2) lock; 0 if there is none."""
    inode = path.stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            return int(fields[4])
    return 0


async def until(probe: Callable[[], T], within_seconds: float = PATIENCE_SECONDS) -> T:
    """As `eventually`, without blocking the event loop."""
    return await asyncio.to_thread(eventually, probe, within_seconds=within_seconds)


@pytest.fixture
def containers(cgroup_root: Cgroup) -> Iterator[Containers]:
    with tempfile.TemporaryDirectory(prefix="evenkeel-") as directory:
        one = Containers(f"/{cgroup_root.paths()[0].name}", Path(directory).resolve())
        try:
            yield one
        finally:
            cgroup_root.kill()
            try:
                eventually(lambda: one.supervisor() == 0)  # nothing is left to keep
            finally:
                left = one.supervisor()
                if left:
                    os.kill(left, signal.SIGKILL)
            one.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
