"""The table of our containers in the runtime, by attempt, and its copy in the state directory.

The runtime may be away when an agent starts. The copy then shows which containers ran, and in which cgroups.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator

from evenkeel.errors import is_shortage, reason
from evenkeel.runtime.interface import Attempt, Exit, Placed, Record
from evenkeel.runtime.paths import StatePaths, every_attempt, read_json, write_json
from evenkeel.runtime.procfs import Process, start_ticks

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_SHORTEST_ID = 12  # the characters of an ID that are shown
_CONTAINER, _SANDBOX = "container", "sandbox"  # files in the directories of an attempt and of a pod


class CriContainer:
    """One container. `cgroup` is the path of its cgroup in the plan; empty if it is not known."""

    __slots__ = ("cgroup", "ended", "id", "layer", "log", "pidfd", "record")

    def __init__(self, id_: str, record: Record, cgroup: str, layer: str = "", log: str = "") -> None:
        self.id = id_
        self.record = record
        self.cgroup = cgroup
        self.layer = layer  # the directory to which its overlay writes
        self.log = log
        self.pidfd = -1
        self.ended: asyncio.Future[None] | None = None

    @property
    def attempt(self) -> Attempt:
        return self.record.attempt

    @property
    def runs(self) -> bool:
        return self.record.exit is None

    @property
    def has_begun(self) -> bool:
        """Whether the container ever ran. An interrupted start leaves a container that ended and never ran."""
        return self.runs or self.record.started_at > 0

    @property
    def short_id(self) -> str:
        return self.id[:_SHORTEST_ID]


class ContainerTable:
    """The containers by attempt and by ID.

    `on_end` is called when the first process of a running container has ended.
    """

    def __init__(self, on_end: Callable[[CriContainer], None]) -> None:
        self._by_attempt: dict[Attempt, CriContainer] = {}
        self._by_id: dict[str, CriContainer] = {}
        self._on_end = on_end
        self._is_closed = False

    def __iter__(self) -> Iterator[CriContainer]:
        return iter(tuple(self._by_attempt.values()))

    def get(self, attempt: Attempt) -> CriContainer | None:
        return self._by_attempt.get(attempt)

    def by_id(self, id_: str) -> CriContainer | None:
        return self._by_id.get(id_)

    def put(self, container: CriContainer) -> None:
        self._by_attempt[container.attempt] = container
        self._by_id[container.id] = container
        if container.runs:
            self._watch(container)

    def pop(self, attempt: Attempt) -> CriContainer | None:
        container = self._by_attempt.pop(attempt, None)
        if container is not None:
            self._by_id.pop(container.id, None)
            self._unwatch(container)
        return container

    def end(self, container: CriContainer, exit_: Exit) -> bool:
        """Records the exit. Returns False if it was recorded before."""
        if not container.runs:
            return False
        container.record = container.record._replace(exit=exit_)
        self._unwatch(container)
        if container.ended is not None and not container.ended.done():
            container.ended.set_result(None)
        return True

    def end_of(self, container: CriContainer) -> "asyncio.Future[None]":
        if container.ended is None:
            container.ended = asyncio.get_running_loop().create_future()
            if not container.runs:
                container.ended.set_result(None)
        return container.ended

    def placed(self, uid: str) -> Placed:
        return tuple(
            (container.attempt.container, container.cgroup.rpartition("/")[2])
            for container in self._by_attempt.values()
            if container.attempt.uid == uid and container.runs and container.cgroup
        )

    def close(self) -> None:
        self._is_closed = True
        for container in self._by_attempt.values():
            self._unwatch(container)

    def _watch(self, container: CriContainer) -> None:
        """Watches for the end of the process through the kernel. Runtimes report it later, and some never do."""
        process = container.record.process
        if process is None or container.pidfd >= 0:
            return
        try:
            container.pidfd = os.pidfd_open(process.pid)
            is_same = start_ticks(process.pid) == process.start_ticks
        except (
            OSError
        ) as error:  # it has ended, or is in another PID namespace: then the runtime has to report it
            is_same = False
            if is_shortage(error):
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._watch_again, container)
        if not is_same:  # or the number belongs to another process now
            if container.pidfd >= 0:
                os.close(container.pidfd)
                container.pidfd = -1
            asyncio.get_running_loop().call_soon(self._on_end, container)
            return
        asyncio.get_running_loop().add_reader(container.pidfd, self._process_ended, container)

    def _watch_again(self, container: CriContainer) -> None:
        if not self._is_closed and container.runs and self._by_attempt.get(container.attempt) is container:
            self._watch(container)

    def _process_ended(self, container: CriContainer) -> None:
        self._unwatch(container)
        self._on_end(container)

    def _unwatch(self, container: CriContainer) -> None:
        if container.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(container.pidfd)
            os.close(container.pidfd)
            container.pidfd = -1


def save_container(container: CriContainer, paths: StatePaths) -> None:
    pid, ticks = container.record.process or (0, 0)
    saved = {
        "id": container.id,
        "name": container.record.id,
        "pid": pid,
        "ticks": ticks,
        "started_at": container.record.started_at,
        "cgroup": container.cgroup,
        "layer": container.layer,
        "log": container.log,
    }
    _write(paths.attempt(*container.attempt), _CONTAINER, saved)


def save_sandbox(uid: str, cgroup: str, paths: StatePaths) -> None:
    _write(paths.pod(uid), _SANDBOX, {"cgroup": cgroup})


def every_container(paths: StatePaths) -> Iterator[CriContainer]:
    """Reads the containers that ran when the table was last saved. The runtime knows which of them still run."""
    for key in every_attempt(paths):
        value = read_json(paths.attempt(*key), _CONTAINER)
        if value is None:
            continue
        try:
            process = Process(int(value["pid"]), int(value["ticks"]))
            record = Record(Attempt(*key), process, float(value["started_at"]), id=str(value["name"]))
            yield CriContainer(
                str(value["id"]), record, str(value["cgroup"]), str(value["layer"]), str(value["log"])
            )
        except (KeyError, TypeError, ValueError):
            continue


def placed(uid: str, paths: StatePaths) -> Placed | None:
    """Returns the names that the runtime gave to the pod's cgroups when the table was last saved; None if there are
    none.
    """
    names: dict[str, str] = {}
    latest = sorted(
        (
            container
            for container in every_container(paths)
            if container.attempt.uid == uid and container.cgroup
        ),
        key=lambda container: container.attempt.number,
    )
    for container in latest:
        names[container.attempt.container] = _last(container.cgroup)
    sandbox = read_json(paths.pod(uid), _SANDBOX)
    if sandbox is not None and isinstance(sandbox.get("cgroup"), str):
        names[""] = _last(sandbox["cgroup"])
    return tuple(names.items()) if names else None


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _write(directory: str, name: str, value: dict[str, object]) -> None:
    """Writes a file of the table. Does nothing if the pod's directory is gone; the rest of that pod will be removed."""
    try:
        write_json(directory, name, value)
    except FileNotFoundError:
        pass
    except OSError as error:  # when the runtime answers, the container is found by its labels
        log.warning("%s/%s cannot be written: %s", directory, name, reason(error))
