"""Process audit: checks from time to time that the processes of containers still have their OOM score, and are still in
their container's cgroup.

Even without CAP_SYS_RESOURCE a process can lower its own score to 0, and root on the host can move any process."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.node.node_cgroups import NodeCgroups
from evenkeel.agent.node.own_cgroup import parse_own
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.step_requests import StepRequests
from evenkeel.api.pod import Pod
from evenkeel.api.scalars import is_within
from evenkeel.cgroup.driver import Driver
from evenkeel.cgroup.tree import Cgroup
from evenkeel.host.oom_scores import read_score
from evenkeel.journal.records import WARNING
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.procfs import start_ticks

_READ_BYTES = 4096
_CONTROLLERS = ("", "memory", "cpu", "pids")  # the controllers with limits; "" is the hierarchy of v2


class Running(NamedTuple):
    """A running container with its first process. The pid is 0 if it is not known."""

    pod: Pod
    name: str
    cgroup: Cgroup
    pid: int
    start_ticks: int


class Finding(NamedTuple):
    container: Running
    moved_to: str = ""  # empty: an OOM score is too low


class ProcessAudit:
    def __init__(
        self,
        make_driver: Callable[[], Driver],
        cgroups: NodeCgroups,
        pod_store: PodStore,
        event_recorder: EventRecorder,
        steps: StepRequests,
    ) -> None:
        self._make_driver = make_driver
        self._cgroups = cgroups
        self._pod_store = pod_store
        self._event_recorder = event_recorder
        self._steps = steps
        self._reported: set[tuple[int, str]] = set()  # pids, and the cgroups in which they were found
        # By pid, start and planned cgroup: the cgroups of first processes that were where they should be.
        self._in_place: dict[tuple[int, int, str], bytes] = {}

    async def look(self) -> None:
        """Sets lowered scores again, and reports each moved process once."""
        findings = await asyncio.to_thread(self._findings, tuple(self._running()))
        moved = set()
        for container, moved_to in findings:
            name = container.name
            if not moved_to:
                await self._cgroups.set_score(container.cgroup)
                message = (
                    f"a process of container {name} had a lower OOM score than it was given: it was set again"
                )
                self._event_recorder.record(WARNING, "OOMScoreRestored", message, container.pod, name)
                self._steps.want_step()
                continue
            moved.add((container.pid, moved_to))
            if (container.pid, moved_to) not in self._reported:
                message = (
                    f"process {container.pid} of container {name} was moved out of its cgroup, to {moved_to}"
                )
                self._event_recorder.record(WARNING, "ProcessMoved", message, container.pod, name)
                self._steps.want_step()
        self._reported = moved

    def _running(self) -> Iterator[Running]:
        for record in self._pod_store:
            for name, container in record.state.containers.items():
                cgroup = self._cgroups.of_container(record.pod.key, name)
                if container.is_running and cgroup is not None:
                    yield Running(record.pod, name, cgroup, container.pid, container.pid_start_ticks)

    def _findings(self, running: Sequence[Running]) -> list[Finding]:
        with closing(self._make_driver()) as driver:
            lowered = [Finding(one) for one in running if _is_lowered(driver, one.cgroup)]
        in_place: dict[tuple[int, int, str], bytes] = {}
        moved = []
        for one in running:
            key = (one.pid, one.start_ticks, one.cgroup.path)
            content = _content(f"/proc/{one.pid}/cgroup") if one.pid else b""
            # Most processes are where they were at the last look.
            if content and content != self._in_place.get(key) and (place := _other_place(one, content)):
                moved.append(Finding(one, place))
            else:
                in_place[key] = content
        self._in_place = in_place
        return lowered + moved


def _is_lowered(driver: Driver, cgroup: Cgroup) -> bool:
    """Whether a process directly in the cgroup has a lower score. Containers cannot make cgroups below theirs."""
    if cgroup.oom_score_adj is None:
        return False
    directories = driver.files(cgroup.path)
    directory = directories.get("memory") or next(iter(directories.values()), "")
    scores = (read_score(int(pid)) for pid in _content(f"{directory}/cgroup.procs").split())
    least = int(cgroup.oom_score_adj.value)
    return any(score is not None and score < least for score in scores)


def _other_place(container: Running, content: bytes) -> str:
    """The cgroup of the container's first process, if that is not the container's cgroup; else empty. `content` is the
    process's list of cgroups."""
    at = parse_own(content.decode(errors="surrogateescape"))
    ours = container.cgroup.path
    places = [at[one] for one in _CONTROLLERS if one in at and not is_within(at[one], ours)]
    if "memory" in at:  # v1: its cgroup in the v2 hierarchy beside v1 has no limits
        places = [at[one] for one in _CONTROLLERS[1:] if one in at and not is_within(at[one], ours)]
    try:
        return places[0] if places and start_ticks(container.pid) == container.start_ticks else ""
    except OSError:  # no descriptor is left: the next look may have one
        return ""


def _content(path: str) -> bytes:
    """A file of the kernel; empty if the process or the cgroup is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(descriptor, _READ_BYTES):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
