"""Where a demonstration plays: an agent of its own on a node of limited size, a view of it, and an end to all of it.

The node is a cgroup tree of its own with the node's size as limit, and a state directory of its own.
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
from typing import NamedTuple, Self

from evenkeel.agent.agent import Agent
from evenkeel.agent.bootstrap import RunningAgent, start
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.manifests import read_manifests
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import Statistics
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.cli.up_view import view_of
from evenkeel.errors import EvenkeelError
from evenkeel.journal.records import Event
from evenkeel.policy.allocatable import NodeCapacity
from evenkeel.policy.node_view import node_view

MIB = 1 << 20
HOST_IMAGE = "host"  # of pods that are plain processes
_LOOK_AGAIN_SECONDS = 0.05
_PROMPT_END_SECONDS = 60.0  # of containers on a busy machine; after that the kernel ends what is left


class Verdict(NamedTuple):
    is_held: bool
    figures: str


class Story(NamedTuple):
    name: str
    promise: str
    capacity: NodeCapacity
    tell: "Callable[[Stage], Coroutine[None, None, Verdict]]"


class Stage:
    """An async context. Whatever happens in it, nothing of it is left after it."""

    def __init__(
        self,
        capacity: NodeCapacity,
        time_limit_seconds: float,
        runtime_endpoint: str = "",
        image: str = HOST_IMAGE,
    ) -> None:
        self._image = image
        # No eviction threshold: who dies is for the kernel to say here, by the scores and limits that we gave it.
        self._config = KubeletConfiguration(
            cgroup_root=f"/evenkeel-demo-{os.getpid()}",
            eviction_hard={},
            container_runtime_endpoint=runtime_endpoint,
        )
        self._node = node_view(capacity, self._config)
        self._time_limit_seconds = time_limit_seconds
        self._deadline = time.monotonic() + time_limit_seconds
        self._directory = tempfile.mkdtemp(prefix="evenkeel-demo-")
        self._assembled: RunningAgent | None = None
        self._showing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            starting = start(self._node, self._directory)
            self._assembled = await asyncio.wait_for(starting, self._time_limit_seconds)
        except TimeoutError:
            await self._clean_up()
            raise self._too_slow("the start of the agent") from None
        except BaseException:
            await self._clean_up()
            raise
        self._view = view_of(self.agent, time.time())
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
        """By the agent if it can, and by the kernel if not."""
        try:
            if self._assembled is not None:
                with suppress(TimeoutError):
                    closing = self._assembled.close(stop_pods=True)
                    await asyncio.wait_for(closing, _PROMPT_END_SECONDS)
        finally:
            driver = driver_for(detect(), self._config)
            try:
                driver.remove(self._config.cgroup_root)
            finally:
                driver.close()
                shutil.rmtree(self._directory, ignore_errors=True)

    # What a story does

    @property
    def has_containers(self) -> bool:
        """And else plain processes, which find the host's programs."""
        return self._image != HOST_IMAGE

    @property
    def agent(self) -> Agent:
        assert self._assembled is not None
        return self._assembled.agent

    def say(self, text: str) -> None:
        self._view.say(text)

    def a_pod(
        self, name: str, *command: str, resources: dict[str, object] | None = None
    ) -> dict[str, object]:
        """A pod of one program, which nothing brings back once it has ended."""
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
        """Raises EvenkeelError if it does not come to pass in time."""
        while not condition():
            if time.monotonic() > self._deadline:
                raise self._too_slow(what)
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def _too_slow(self, what: str) -> EvenkeelError:
        return EvenkeelError(
            f"{what} did not come to pass in {self._time_limit_seconds:g} s",
            hint="a slow machine may need more: --time-limit 300",
        )

    # What a story sees

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
        """Of the pod as a whole."""
        usage = self.agent.usage()
        wanted = (f"default/{name}", "")
        return next((one.statistics for one in usage.containers if (one.pod, one.container) == wanted), None)

    def memory_bytes(self, name: str) -> int:
        found = self.statistics(name)
        return found.memory_usage_bytes if found is not None else 0

    def happenings(self, reason: str) -> tuple[Event, ...]:
        return tuple(one for one in self.agent.happenings() if one.reason == reason)
