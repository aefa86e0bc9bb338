"""What is known of a container from its status and from the kernel."""

import json
import os
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri.configs import MESSAGE_POLICY
from evenkeel.runtime.cri.container_table import CriContainer, note_container
from evenkeel.runtime.cri.cri_connection import CallFailed, Connection, RuntimeAway
from evenkeel.runtime.interface import UNKNOWN_EXIT, Attempt, Exit, Launch, Record
from evenkeel.runtime.log_reading import termination_message
from evenkeel.runtime.log_relay import LogLimits
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.procfs import process_at, start_ticks

_SLICE, _SCOPE = ".slice", ".scope"
_UPPER = "upperdir="


class Whereabouts(NamedTuple):
    """`cgroup` is its path from the hierarchy's root; empty where the runtime does not tell."""

    pid: int
    cgroup: str


def whereabouts(info: Mapping[str, str]) -> Whereabouts:
    """From the verbose part of a status, which containerd and CRI-O both fill with JSON. Pure."""
    try:
        told: Any = json.loads(info.get("info", "{}"))
    except ValueError:
        return Whereabouts(0, "")
    path = _member(_member(_member(told, "runtimeSpec"), "linux"), "cgroupsPath")
    pid = _member(told, "pid")
    return Whereabouts(pid if isinstance(pid, int) else 0, cgroup_path(path) if isinstance(path, str) else "")


def cgroup_path(cgroups_path: str) -> str:
    """Of an OCI `cgroupsPath`: a path, or `slice:prefix:name` for a scope of systemd's. Pure."""
    if cgroups_path.count(":") == 2 and "/" not in cgroups_path:
        parent, prefix, name = cgroups_path.split(":")
        return (
            f"{_slice_path(parent)}/{prefix}-{name}{_SCOPE}"
            if prefix
            else f"{_slice_path(parent)}/{name}{_SCOPE}"
        )
    return cgroups_path.rstrip("/") if cgroups_path.startswith("/") else ""


def _slice_path(name: str) -> str:
    """A slice lies in those that its name begins with."""
    parts = name.removesuffix(_SLICE).split("-")
    return "".join(f"/{'-'.join(parts[: depth + 1])}{_SLICE}" for depth in range(len(parts)))


def written_layer(pid: int) -> str:
    """The directory that a container's root filesystem writes to, of an overlay; empty where that cannot be seen."""
    try:
        with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields, _, rest = line.partition(" - ")
                if fields.split()[4] == "/" and rest.startswith("overlay "):
                    options = rest.split()[2].split(",")
                    return next((one.removeprefix(_UPPER) for one in options if one.startswith(_UPPER)), "")
    except (OSError, IndexError):
        pass
    return ""


def _member(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


_NANOSECONDS = 1e9
_SIGNALLED = 128
_SIGNALS = 64
_OOM_KILLED = "OOMKilled"


async def seen(
    connection: Connection, id_: str, attempt: Attempt, paths: StatePaths, runtime: str
) -> CriContainer | None:
    """The container as the runtime has it now, noted down; None if it does not have it. Raises RuntimeAway."""
    try:
        answer = await connection.ask(
            pb.ContainerStatusRequest(container_id=id_, verbose=True), pb.ContainerStatusResponse
        )
    except RuntimeAway:
        raise
    except CallFailed as error:
        if error.is_not_found:
            return None
        raise RuntimeAway(error.message, error.code) from None
    status, (pid, cgroup) = answer.status, whereabouts(answer.info)
    process = process_at(pid) if pid else None
    record = Record(attempt, process, status.started_at / _NANOSECONDS, id=f"{runtime}://{id_}")
    kept = CriContainer(id_, record, cgroup, written_layer(pid) if process else "", status.log_path)
    if status.state == pb.ContainerState.CONTAINER_EXITED:
        kept.record = record._replace(exit=exit_of(kept, status, paths))
    else:
        note_container(kept, paths)
    return kept


def exit_of(kept: CriContainer, status: pb.ContainerStatus, paths: StatePaths) -> Exit:
    """Blocks for a moment."""
    code = status.exit_code
    number = code - _SIGNALLED if _SIGNALLED < code <= _SIGNALLED + _SIGNALS else 0
    policy = status.annotations.get(MESSAGE_POLICY, "")
    message = termination_message(paths.attempt(*kept.attempt), status.log_path, policy, is_error=code != 0)
    return Exit(
        code,
        number,
        status.started_at / _NANOSECONDS,
        status.finished_at / _NANOSECONDS,
        message=message,
        is_oom_killed=says_oom_killed(status),
    )


def says_oom_killed(status: pb.ContainerStatus) -> bool:
    return status.reason == _OOM_KILLED


def unknown_exit(kept: CriContainer, why: str) -> Exit:
    return Exit(UNKNOWN_EXIT, 0, kept.record.started_at, time.time(), is_known=False, message=why)


def is_running(kept: CriContainer) -> bool:
    """Whether its first process is there, and still that one."""
    process = kept.record.process
    return process is not None and start_ticks(process.pid) == process.start_ticks


def score_notes(kept: CriContainer, launch: Launch) -> tuple[str, ...]:
    """What about it is not as asked for: a runtime may give no score below its own."""
    process, wanted = kept.record.process, launch.oom_score_adj
    if process is None or wanted is None:
        return ()
    try:
        with open(f"/proc/{process.pid}/oom_score_adj", encoding="ascii") as file:
            has = int(file.read())
    except (OSError, ValueError):
        return ()
    if has == wanted:
        return ()
    return (f"oom_score_adj is {has} and not {wanted}: the container runtime gave it that",)


def rotate(path: str, limits: LogLimits) -> str | None:
    """Moves a log that has grown too large aside, as kubelet does, and removes the oldest; where it was moved to, or
    None. One that is not there was moved by an agent that was killed before the runtime heard of it, or was removed by
    somebody (then empty): the runtime is to open a new one in any case. Blocks for a moment."""
    directory, name = os.path.split(path)
    try:
        rotated = sorted(other for other in os.listdir(directory) if other.startswith(f"{name}."))
        if not os.path.exists(path):
            return os.path.join(directory, rotated[-1]) if rotated else ""
        if os.stat(path).st_size < limits.max_bytes:
            return None
        target = f"{path}.{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        if os.path.exists(target):
            return None
        os.rename(path, target)
        for other in rotated[: max(0, len(rotated) + 2 - limits.max_files)]:
            os.unlink(os.path.join(directory, other))
    except OSError:
        return None
    return target
