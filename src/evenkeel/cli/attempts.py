"""Attempts of a pod's containers, as its status tells of them, and the logs that each left."""

import os
import sys
from typing import Any

from evenkeel.errors import EvenkeelError
from evenkeel.runtime.log_reading import LogLine
from evenkeel.runtime.paths import StatePaths

Json = dict[str, Any]
_ENDED = ("Succeeded", "Failed")


def is_ended(pod: Json) -> bool:
    """Whether nothing of it will ever run again."""
    return pod.get("status", {}).get("phase") in _ENDED


def status_of(pod: Json, container: str) -> Json:
    status = pod.get("status", {})
    for told in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        if told["name"] == container:
            found: Json = told
            return found
    return {}


def attempt_is_over(pod: Json, container: str, attempt: int) -> bool:
    """Whether the attempt has ended: it says so, or a later one has begun, or the whole pod has ended."""
    told = status_of(pod, container)
    last, state = told.get("restartCount", 0) + 1, told.get("state", {})
    if last != attempt or is_ended(pod):
        return last > attempt or is_ended(pod)
    return "terminated" in state or state.get("waiting", {}).get("reason") == "CrashLoopBackOff"


def containers_of(pod: Json) -> tuple[list[str], list[str]]:
    """The names of its init containers and of its others."""
    spec = pod.get("spec", {})
    init, others = ([c["name"] for c in spec.get(field, ())] for field in ("initContainers", "containers"))
    return init, others


def log_directory(paths: StatePaths, namespace: str, name: str, uid: str) -> str:
    """Where the pod's logs are; without `uid` (no agent to ask), of the last pod of that name."""
    if uid:
        return paths.pod_logs(namespace, name, uid)
    start = os.path.basename(paths.pod_logs(namespace, name, "x"))[:-1]
    try:
        with os.scandir(paths.logs) as entries:
            found = [(entry.stat().st_mtime, entry.path) for entry in entries if entry.name.startswith(start)]
    except FileNotFoundError:
        found = []
    except OSError as error:
        raise EvenkeelError(f"cannot read {paths.logs}: {(error.strerror or str(error)).lower()}") from None
    if not found:
        raise EvenkeelError(f'there is no log of a pod "{name}" of namespace {namespace} in {paths.logs}')
    return max(found)[1]


class LogPrinter:
    """Log lines on standard output as they were written, or with their time or their container before them."""

    def __init__(self, *, has_timestamps: bool = False, splits_streams: bool = False) -> None:
        self._has_timestamps = has_timestamps
        self._splits_streams = splits_streams

    def print(self, line: LogLine, prefix: str = "", *, at_once: bool = False) -> None:
        stream = sys.stderr if self._splits_streams and line.stream == "stderr" else sys.stdout
        stamp = f"{line.timestamp} " if self._has_timestamps else ""
        text = f"{prefix}{stamp}".encode() + line.text + (b"\n" if line.is_whole else b"")
        raw = getattr(stream, "buffer", None)
        if raw is None:
            stream.write(text.decode(errors="replace"))
        else:
            raw.write(text)
            if at_once:
                raw.flush()
