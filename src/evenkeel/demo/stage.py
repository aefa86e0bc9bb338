"""The stage of a demonstration: an agent on a small node, a view of it, and the removal of everything afterwards.

The node is a cgroup tree of its own, limited to the size of the node. Its state directory is temporary.
"""

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from evenkeel.agent.agent import Agent
from evenkeel.agent.front import Front
from evenkeel.agent.startup import RunningAgent, start
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.manifests import read_manifests
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import Statistics
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.errors import EvenkeelError
from evenkeel.journal.records import Event
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.node_view import node_view

MIB = 1 << 20
HOST_IMAGE = "host"  # for pods that are plain processes
_POLL_SECONDS = 0.05
_STOP_SECONDS = 60.0  # enough on a busy machine; after that the kernel kills what is left


class View(Protocol):
    """Shows the agent while a demonstration runs."""

    async def run(self) -> None: ...

    def say(self, text: str) -> None: ...

    def finish(self) -> None: ...


class Verdict(NamedTuple):
    is_held: bool
    figures: str


class Demonstration(NamedTuple):
    name: str
    promise: str
    capacity: NodeCapacity
    run: "Callable[[Stage], Coroutine[None, None, Verdict]]"


class Stage:
    """An async context. Its end removes everything that a demonstration has created, also after an error."""

    def __init__(
        self,
        capacity: NodeCapacity,
        time_limit_seconds: float,
        make_view: Callable[[Front, float], View],
        runtime_endpoint: str = "",
        image: str = HOST_IMAGE,
    ) -> None:
        self._image = image
        self._make_view = make_view
        # No eviction threshold: the kernel chooses the process to kill, by the OOM scores and limits of the pods.
        self._config = KubeletConfiguration(
            cgroup_root=f"/evenkeel-demo-{os.getpid()}",
            eviction_hard={},
            container_runtime_endpoint=runtime_endpoint,
        )
        self._node = node_view(capacity, self._config)
        self._time_limit_seconds = time_limit_seconds
        self._deadline = time.monotonic() + time_limit_seconds
        self._directory = tempfile.mkdtemp(prefix="evenkeel-demo-")
        self._running_agent: RunningAgent | None = None
        self._showing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(self._time_limit_seconds):
                self._running_agent = await start(self._node, self._directory)
        except TimeoutError:
            await self._clean_up()
            raise self._too_slow("the start of the agent") from None
        except BaseException:
            await self._clean_up()
            raise
        self._view = self._make_view(self.agent, time.time())
        self._showing = asyncio.create_task(self._view.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._showing is not None:
            self._view.finish()
            self._showing.cancel()
            await asyncio.wait({self._showing})
        await self._clean_up()

    async def _clean_up(self) -> None:
        """The agent stops the pods. If it cannot, the kernel kills them."""
        try:
            if self._running_agent is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_STOP_SECONDS):
                        await self._running_agent.close(stop_pods=True)
        finally:
            driver = driver_for(detect(), self._config)
            try:
                driver.remove(self._config.cgroup_root)
            finally:
                driver.close()
                shutil.rmtree(self._directory, ignore_errors=True)

    # What a demonstration does

    @property
    def has_containers(self) -> bool:
        """Otherwise pods are plain processes with the programs of the host."""
        return self._image != HOST_IMAGE

    @property
    def agent(self) -> Agent:
        assert self._running_agent is not None
        return self._running_agent.agent

    def say(self, text: str) -> None:
        self._view.say(text)

    def a_pod(
        self, name: str, *command: str, resources: dict[str, object] | None = None
    ) -> dict[str, object]:
        """A pod of one program that is never restarted."""
        container = {
            "name": "main",
            "image": self._image,
            "command": list(command),
            "resources": resources or {},
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]},
        }

    async def apply(self, *pods: dict[str, object]) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": list(pods)}
        await self.agent.apply(read_manifests(json.dumps(items), "demo").or_raise().pods)

    async def delete(self, name: str) -> None:
        await self.agent.delete(f"default/{name}", 0)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for the condition. Raises EvenkeelError if it takes too long."""
        while not condition():
            if time.monotonic() > self._deadline:
                raise self._too_slow(what)
            await asyncio.sleep(_POLL_SECONDS)

    def _too_slow(self, what: str) -> EvenkeelError:
        return EvenkeelError(
            f"{what}: not within {self._time_limit_seconds:g} s",
            hint="a slow machine may need more: --time-limit 300",
        )

    # What a demonstration sees

    def pod(self, name: str) -> Pod:
        pod = self.agent.pod(f"default/{name}")
        if pod is None:
            raise EvenkeelError(f"pod {name} is gone")
        return pod

    def phase(self, name: str) -> str:
        pod = self.agent.pod(f"default/{name}")
        return pod.status.phase if pod is not None else ""

    def restarts(self, name: str) -> int:
        return sum(status.restart_count for status in self.pod(name).status.container_statuses)

    def statistics(self, name: str) -> Statistics | None:
        """The statistics of the pod as a whole."""
        usage = self.agent.usage()
        wanted = (f"default/{name}", "")
        return next((one.statistics for one in usage.containers if (one.pod, one.container) == wanted), None)

    def memory_bytes(self, name: str) -> int:
        found = self.statistics(name)
        return found.memory_usage_bytes if found is not None else 0

    def events(self, reason: str) -> tuple[Event, ...]:
        return tuple(one for one in self.agent.events() if one.reason == reason)
