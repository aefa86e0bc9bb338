"""A fake front of an agent. It runs nothing: a test sets the pods. Served on a real socket, in a thread of its own."""

import asyncio
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from evenkeel.agent.front import Applied
from evenkeel.agent.observe.history import Advice
from evenkeel.agent.observe.node_snapshot import ContainerUsage, NodeUsage, is_notable
from evenkeel.agent.observe.pod_history import PodHistory
from evenkeel.agent.pod_store import ADDED, DELETED, MODIFIED, PodChange
from evenkeel.api.config import KubeletConfiguration, defaulted
from evenkeel.api.data_objects import DataKey
from evenkeel.api.node import Node, NodeCondition, NodeStatus
from evenkeel.api.pod import (
    ContainerState,
    ContainerStateRunning,
    ContainerStatus,
    ObjectMeta,
    Pod,
    PodStatus,
)
from evenkeel.api.stored_objects import StoredObject, key_of_object, kind_of_object
from evenkeel.api.workloads import Workload, key_of, kind_of
from evenkeel.cgroup.driver import Statistics
from evenkeel.cli.main import main
from evenkeel.errors import EvenkeelError
from evenkeel.journal.records import NORMAL, Event
from evenkeel.quantity import Quantity
from evenkeel.runtime.interface import Image
from evenkeel.runtime.sessions import SessionRefused
from evenkeel.server.app import serve
from tests.models.node_snapshots import SnapshotMaker

DEFAULTS = KubeletConfiguration()
_NO_SESSIONS = "nothing runs here"
BORN = "2026-11-16T00:00:00Z"


class FakeFront:
    """`ends_at_once` pods that are deleted are gone; others stay, with a deletion timestamp, until `remove`."""

    def __init__(self, config=DEFAULTS, *, ends_at_once=True, most_waiting=1000):
        self.memory = Quantity("32Gi")
        self.config = defaulted(config)
        self.held: dict[str, Pod] = {}
        self.data: dict[DataKey, StoredObject] = {}
        self.made: dict[str, Workload] = {}
        self.recorded: list[Event] = []
        self.deleted: list[tuple[str, float | None]] = []
        self.sources: list[str] = []
        self.dropped = 0
        self.usages = 0
        self.trouble = ""
        self.advised = Advice(0.0, 3600.0, 3600.0, (), ())
        self.keeps_snapshot = False  # one that was made before is young enough
        self.snapshot_maker = SnapshotMaker(self.config)
        self._node_snapshot = None
        self.histories: dict[str, PodHistory] = {}
        self.snapshot_plain: dict[str, object] = {}
        self.from_files: dict[str, str] = {}
        self._ends_at_once = ends_at_once
        self._most_waiting = most_waiting
        self._listeners: set[asyncio.Queue] = set()
        self._followers: set[asyncio.Queue] = set()

    def node(self):
        amounts = {"cpu": Quantity("8"), "memory": self.memory, "pods": Quantity("110")}
        conditions = (
            NodeCondition("Ready", "True"),
            NodeCondition("MemoryPressure", "True", "Low", "10Mi left"),
        )
        return Node(
            ObjectMeta(name="here"),
            status=NodeStatus(amounts, {**amounts, "memory": self.memory - Quantity("2Gi")}, conditions),
        )

    def pods(self):
        return tuple(self.held.values())

    def pod(self, key):
        return self.held.get(key)

    def workloads(self):
        return tuple(self.made.values())

    def workload(self, key):
        return self.made.get(key)

    async def scale(self, key, replicas):
        workload: Any = self.made[key]
        self.made[key] = workload._replace(spec=workload.spec._replace(replicas=replicas))
        return True

    async def delete_workload(self, key, grace_seconds=None):
        return self.made.pop(key, None) is not None

    async def apply(self, pods, source="api", objects=(), *, workloads=()):
        self.sources.append(source)
        for pod in pods:
            if pod.key in self.from_files:
                raise EvenkeelError(f"{pod.key} is of {self.from_files[pod.key]}", hint="change it there")
        outcomes = []
        for pod in pods:
            known = self.held.get(pod.key)
            outcome = "created" if known is None else "unchanged" if known.spec == pod.spec else "configured"
            outcomes.append(Applied(pod.key, outcome))
            self.put(running(pod))
        for workload in workloads:
            name = f"{workload.metadata.namespace}/{workload.metadata.name}"
            outcome = "configured" if key_of(workload) in self.made else "created"
            self.made[key_of(workload)] = workload
            outcomes.append(Applied(name, outcome, kind_of(workload)))
        applied = [
            Applied(f"{key.namespace}/{key.name}", "created", key.kind) for key in map(key_of_object, objects)
        ]
        self.data.update((key_of_object(one), one) for one in objects)
        return (*applied, *outcomes)

    def data_objects(self, kind):
        return tuple(one for one in self.data.values() if kind_of_object(one) == kind)

    def data_object(self, key):
        return self.data.get(key)

    async def delete_data(self, key):
        if str(key) in self.from_files:
            raise EvenkeelError(f"{key} is of {self.from_files[str(key)]}", hint="change it there")
        return self.data.pop(key, None) is not None

    async def delete(self, key, grace_seconds=None):
        self.deleted.append((key, grace_seconds))
        if key not in self.held:
            return False
        if key in self.from_files:
            raise EvenkeelError(f"{key} is of {self.from_files[key]}", hint="change it there")
        if self._ends_at_once:
            self.remove(key)
        else:
            pod = self.held[key]
            self.put(pod._replace(metadata=pod.metadata._replace(deletion_timestamp=BORN)))
        return True

    def put(self, pod):
        kind = MODIFIED if pod.key in self.held else ADDED
        self.held[pod.key] = pod
        self._change(PodChange(kind, pod))

    def remove(self, key):
        self._change(PodChange(DELETED, self.held.pop(key)))

    def tell(self, reason, message="", pod="", **more):
        event = Event(
            1_794_787_200.0,
            more.pop("type", NORMAL),
            reason,
            message,
            pod,
            number=len(self.recorded) + 1,
            **more,
        )
        self.recorded.append(event)
        for queue in tuple(self._followers):
            queue.put_nowait(event)

    def events(self, pod="", most=1000):
        return tuple(event for event in self.recorded if pod in ("", event.pod))[-most:]

    def follow(self):
        return self._listen(self._followers, ())

    def watch(self):
        return self._listen(self._listeners, [PodChange(ADDED, pod) for pod in self.held.values()])

    async def pod_history(self, key):
        return self.histories.get(key)

    async def snapshot(self):
        return self.snapshot_plain

    def advice(self):
        return self.advised

    async def open_exec(self, key, container, command, wanted):
        raise SessionRefused(_NO_SESSIONS)

    async def open_attach(self, key, container, wanted):
        raise SessionRefused(_NO_SESSIONS)

    async def open_port(self, key, port):
        raise EvenkeelError(_NO_SESSIONS)

    def not_ready(self):
        return self.trouble

    async def node_snapshot(self):
        if not self.keeps_snapshot or self._node_snapshot is None:
            notable = tuple(event for event in self.recorded if is_notable(event))
            self._node_snapshot = self.snapshot_maker.node_snapshot(self.pods(), notable)
        return self._node_snapshot

    async def images(self):
        return (Image("0" * 64, ("registry.example/app:1",), 1 << 20, True),), ()

    def usage(self):
        self.usages += 1
        second = 1_000_000 * self.usages
        containers = []
        for key, pod in self.held.items():
            figures = Statistics(200 << 20, 100 << 20, 0, 90 << 20, second // 2, 0, 3)
            containers.append(ContainerUsage(key, "", figures))
            containers += [ContainerUsage(key, c.name, figures) for c in pod.spec.containers]
        everything = Statistics(4 << 30, 3 << 30, 0, 2 << 30, second, 0, 30)
        return NodeUsage(float(self.usages), 32 << 30, 20 << 30, 8000, everything, tuple(containers))

    @property
    def listeners(self):
        return len(self._listeners) + len(self._followers)

    def _change(self, change):
        for queue in tuple(self._listeners):
            if queue.qsize() < self._most_waiting:
                queue.put_nowait(change)
            else:
                self.dropped += 1
                self._listeners.discard(queue)
                queue.put_nowait(None)

    def _listen(self, listeners, first):
        queue: asyncio.Queue = asyncio.Queue()
        for item in first:
            queue.put_nowait(item)
        listeners.add(queue)
        return self._heard(listeners, queue)

    async def _heard(self, listeners, queue):
        try:
            while (item := await queue.get()) is not None:
                yield item
        finally:
            listeners.discard(queue)


def running(pod: Pod) -> Pod:
    """`pod`, with every container running and ready."""
    statuses = tuple(
        ContainerStatus(c.name, ContainerState(running=ContainerStateRunning(BORN)), ready=True, started=True)
        for c in pod.spec.containers
    )
    meta = pod.metadata._replace(creation_timestamp=BORN)
    return pod._replace(
        metadata=meta,
        status=PodStatus("Running", qos_class="Burstable", start_time=BORN, container_statuses=statuses),
    )


class Served:
    """A front that is served in another thread. `call` runs a function in that thread."""

    def __init__(self, front, state_dir, loop, server):
        self.front = front
        self.state_dir = state_dir
        self._loop = loop
        self.server = server

    def end(self):
        """Ends the agent. Its pods run on."""
        asyncio.run_coroutine_threadsafe(self.server.close(), self._loop).result(30)

    def call(self, function, *arguments, **named):
        async def do():
            return function(*arguments, **named)

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(30)


@contextmanager
def served(front, state_dir, **options) -> Iterator[Served]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(serve(front, str(state_dir), **options), loop).result(30)
        try:
            yield (agent := Served(front, str(state_dir), loop, server))
        finally:
            agent.end()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def run_command(command, *arguments, state_dir):
    """Runs a command. Returns its exit code, and its output on both streams."""
    out, err = io.StringIO(), io.StringIO()
    code: int | str | None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([command, "--state-dir", str(state_dir), *arguments])
        except SystemExit as end:  # argparse's own
            code = end.code
    return code, out.getvalue(), err.getvalue()
