"""Notes on disk of what runs where: with them an agent that starts while the container runtime is away knows which
cgroups and processes are those of its pods, and so does `evenkeel plan`, which speaks to no runtime.

`STATE/pods/<uid>/sandbox` and `STATE/pods/<uid>/<container>.<number>/container`.
"""

import logging
from collections.abc import Iterator

from evenkeel.runtime import attempts
from evenkeel.runtime.cri.table import Kept
from evenkeel.runtime.interface import Attempt, Placed, Record
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.proc_stat import Process

log = logging.getLogger(__name__)

_CONTAINER = "container"
_SANDBOX = "sandbox"


def note_container(kept: Kept, paths: StatePaths) -> None:
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


def every_container(paths: StatePaths) -> Iterator[Kept]:
    """The containers that ran when somebody last looked. Which of them still do, the runtime tells."""
    for key in attempts.every_attempt(paths):
        value = attempts.read_json(paths.attempt(*key), _CONTAINER)
        if value is None:
            continue
        try:
            process = Process(int(value["pid"]), int(value["ticks"]))
            record = Record(Attempt(*key), process, float(value["started_at"]), id=str(value["name"]))
            yield Kept(str(value["id"]), record, str(value["cgroup"]), str(value["layer"]), str(value["log"]))
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
    sandbox = attempts.read_json(paths.pod(uid), _SANDBOX)
    if sandbox is not None and isinstance(sandbox.get("cgroup"), str):
        names[""] = _last(sandbox["cgroup"])
    return tuple(names.items()) if names else None


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _write(directory: str, name: str, note: dict[str, object]) -> None:
    """Of a pod that has a directory: one without is gone, and what is left of it will be removed."""
    try:
        attempts.write_json(directory, name, note)
    except FileNotFoundError:
        pass
    except OSError as error:  # it is found by its labels too, when the runtime answers
        log.warning("%s/%s cannot be written: %s", directory, name, (error.strerror or str(error)).lower())
