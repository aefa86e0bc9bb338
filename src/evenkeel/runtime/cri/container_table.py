"""The containers that the runtime has of ours: what is known of each, and who waits for its end."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator

from evenkeel.runtime.interface import Attempt, Exit, Placed, Record
from evenkeel.runtime.paths import StatePaths, every_attempt, read_json, write_json
from evenkeel.runtime.procfs import Process, start_ticks

_SHORTEST_ID = 12  # as people see them


class CriContainer:
    """One container. `cgroup` is the plan's path of its cgroup, empty where it is not known."""

    __slots__ = ("cgroup", "ended", "id", "layer", "log", "pidfd", "record")

    def __init__(self, id_: str, record: Record, cgroup: str, layer: str = "", log: str = "") -> None:
        self.id = id_
        self.record = record
        self.cgroup = cgroup
        self.layer = layer  # the directory that it writes to, of an overlay
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
        """A start that was cut off leaves a container that has ended and never began."""
        return self.runs or self.record.started_at > 0

    @property
    def short_id(self) -> str:
        return self.id[:_SHORTEST_ID]


class ContainerTable:
    """`on_end` is told when the first process of a container that runs has ended."""

    def __init__(self, on_end: Callable[[CriContainer], None]) -> None:
        self._kept: dict[Attempt, CriContainer] = {}
        self._by_id: dict[str, CriContainer] = {}
        self._on_end = on_end

    def __iter__(self) -> Iterator[CriContainer]:
        return iter(tuple(self._kept.values()))

    def get(self, attempt: Attempt) -> CriContainer | None:
        return self._kept.get(attempt)

    def by_id(self, id_: str) -> CriContainer | None:
        return self._by_id.get(id_)

    def put(self, kept: CriContainer) -> None:
        self._kept[kept.attempt] = kept
        self._by_id[kept.id] = kept
        if kept.runs:
            self._watch(kept)

    def pop(self, attempt: Attempt) -> CriContainer | None:
        kept = self._kept.pop(attempt, None)
        if kept is not None:
            self._by_id.pop(kept.id, None)
            self._unwatch(kept)
        return kept

    def end(self, kept: CriContainer, exit_: Exit) -> bool:
        """Whether that is news."""
        if not kept.runs:
            return False
        kept.record = kept.record._replace(exit=exit_)
        self._unwatch(kept)
        if kept.ended is not None and not kept.ended.done():
            kept.ended.set_result(None)
        return True

    def end_of(self, kept: CriContainer) -> "asyncio.Future[None]":
        if kept.ended is None:
            kept.ended = asyncio.get_running_loop().create_future()
            if not kept.runs:
                kept.ended.set_result(None)
        return kept.ended

    def placed(self, uid: str) -> Placed:
        return tuple(
            (kept.attempt.container, kept.cgroup.rpartition("/")[2])
            for kept in self._kept.values()
            if kept.attempt.uid == uid and kept.runs and kept.cgroup
        )

    def close(self) -> None:
        for kept in self._kept.values():
            self._unwatch(kept)

    def _watch(self, kept: CriContainer) -> None:
        """Its end is heard of from the kernel: no runtime tells as soon, and some do not tell at all."""
        process = kept.record.process
        if process is None or kept.pidfd >= 0:
            return
        try:
            kept.pidfd = os.pidfd_open(process.pid)
        except OSError:  # it has ended, or there is no such number for us: then the runtime has to tell
            asyncio.get_running_loop().call_soon(self._on_end, kept)
            return
        if start_ticks(process.pid) != process.start_ticks:  # another has its number by now
            os.close(kept.pidfd)
            kept.pidfd = -1
            asyncio.get_running_loop().call_soon(self._on_end, kept)
            return
        asyncio.get_running_loop().add_reader(kept.pidfd, self._heard, kept)

    def _heard(self, kept: CriContainer) -> None:
        self._unwatch(kept)
        self._on_end(kept)

    def _unwatch(self, kept: CriContainer) -> None:
        if kept.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(kept.pidfd)
            os.close(kept.pidfd)
            kept.pidfd = -1


log = logging.getLogger(__name__)

_CONTAINER = "container"
_SANDBOX = "sandbox"


def note_container(kept: CriContainer, paths: StatePaths) -> None:
    pid, ticks = kept.record.process or (0, 0)
    note = {
        "id": kept.id,
        "name": kept.record.id,
        "pid": pid,
        "ticks": ticks,
        "started_at": kept.record.started_at,
        "cgroup": kept.cgroup,
        "layer": kept.layer,
        "log": kept.log,
    }
    _write(paths.attempt(*kept.attempt), _CONTAINER, note)


def note_sandbox(uid: str, cgroup: str, paths: StatePaths) -> None:
    _write(paths.pod(uid), _SANDBOX, {"cgroup": cgroup})


def every_container(paths: StatePaths) -> Iterator[CriContainer]:
    """The containers that ran when somebody last looked. Which of them still do, the runtime tells."""
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
    """What a container runtime called the pod's cgroups when somebody last looked; None if it has none of them."""
    names: dict[str, str] = {}
    latest = sorted(
        (kept for kept in every_container(paths) if kept.attempt.uid == uid and kept.cgroup),
        key=lambda kept: kept.attempt.number,
    )
    for kept in latest:
        names[kept.attempt.container] = _last(kept.cgroup)
    sandbox = read_json(paths.pod(uid), _SANDBOX)
    if sandbox is not None and isinstance(sandbox.get("cgroup"), str):
        names[""] = _last(sandbox["cgroup"])
    return tuple(names.items()) if names else None


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _write(directory: str, name: str, note: dict[str, object]) -> None:
    """Of a pod that has a directory: one without is gone, and what is left of it will be removed."""
    try:
        write_json(directory, name, note)
    except FileNotFoundError:
        pass
    except OSError as error:  # it is found by its labels too, when the runtime answers
        log.warning("%s/%s cannot be written: %s", directory, name, (error.strerror or str(error)).lower())
