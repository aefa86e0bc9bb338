"""The logs and the end of a pod, for `evenkeel run` and `evenkeel logs`.

`Attached` prints the output of a pod until the pod ends, and goes on while the agent is stopped and started again.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from evenkeel.cli.client import AgentRefused, Client, NoAgent
from evenkeel.cli.output import printable
from evenkeel.errors import EvenkeelError, reason
from evenkeel.runtime.log_files import attempts
from evenkeel.runtime.log_reading import LogLine, follow
from evenkeel.runtime.paths import StatePaths, state_paths

Json = dict[str, Any]
_ENDED = ("Succeeded", "Failed")


def is_ended(pod: Json) -> bool:
    """True if no container of the pod will run again."""
    return pod.get("status", {}).get("phase") in _ENDED


def status_of(pod: Json, container: str) -> Json:
    status = pod.get("status", {})
    for field in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        for one in status.get(field, ()):
            if one["name"] == container:
                found: Json = one
                return found
    return {}


def attempt_is_over(pod: Json, container: str, attempt: int) -> bool:
    """True if the status says so, a later attempt has begun or the pod has ended."""
    status = status_of(pod, container)
    last, state = status.get("restartCount", 0) + 1, status.get("state", {})
    if last != attempt or is_ended(pod):
        return last > attempt or is_ended(pod)
    ended = status.get("lastState", {}).get("terminated")
    # A container that runs its postStart hook waits, too, and has another id than the run that has ended.
    waits_again = "waiting" in state and ended and ended.get("containerID") == status.get("containerID")
    return "terminated" in state or bool(waits_again)


def containers_of(pod: Json) -> tuple[list[str], list[str]]:
    """The names of the init containers and of the others, ephemeral ones last."""
    spec = pod.get("spec", {})
    init, others, ephemeral = (
        [one["name"] for one in spec.get(field, ())]
        for field in ("initContainers", "containers", "ephemeralContainers")
    )
    return init, [*others, *ephemeral]


def log_directory(paths: StatePaths, namespace: str, name: str, uid: str) -> str:
    """The directory of the pod's logs. Without `uid` (no agent answers) that of the last pod of that name."""
    if uid:
        return paths.pod_logs(namespace, name, uid)
    start = os.path.basename(paths.pod_logs(namespace, name, "x"))[:-1]
    try:
        with os.scandir(paths.logs) as entries:
            found = [(entry.stat().st_mtime, entry.path) for entry in entries if entry.name.startswith(start)]
    except FileNotFoundError:
        found = []
    except OSError as error:
        raise EvenkeelError(f"cannot read {paths.logs}: {reason(error)}") from None
    if not found:
        raise EvenkeelError(f'there is no log of a pod "{name}" in namespace {namespace} below {paths.logs}')
    return max(found)[1]


class LogPrinter:
    """Prints log lines as the container wrote them, with the time or the container in front if that is wanted."""

    def __init__(
        self, *, has_timestamps: bool = False, splits_streams: bool = False, most_bytes: int | None = None
    ) -> None:
        self._has_timestamps = has_timestamps
        self._splits_streams = splits_streams
        self._left = most_bytes  # None: no limit

    def print(self, line: LogLine, prefix: str = "", *, at_once: bool = False) -> bool:
        """Returns whether more may be printed."""
        stream = sys.stderr if self._splits_streams and line.stream == "stderr" else sys.stdout
        stamp = f"{line.timestamp} " if self._has_timestamps else ""
        text = f"{prefix}{stamp}".encode() + line.text + (b"\n" if line.is_whole else b"")
        if self._left is not None:
            text = text[: self._left]
            self._left -= len(text)
        raw = getattr(stream, "buffer", None)
        if raw is None:
            stream.write(text.decode(errors="replace"))
        else:
            raw.write(text)
            if at_once:
                raw.flush()
        return self._left is None or self._left > 0


_RETRY_SECONDS = 0.5
_POLL_SECONDS = 0.02


class Attached:
    """Follows a pod in a thread of its own, from now until the pod is gone."""

    def __init__(self, client: Client, namespace: str, name: str, container: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._container = container
        self._pod = client.pod(namespace, name)
        self._is_gone = False
        self._changed = threading.Condition()
        self._broken = ""
        self._paths = state_paths(client.state_dir)
        self._tasks: list[threading.Thread] = []
        threading.Thread(target=self._watch, daemon=True).start()

    def stream(self) -> Json:
        """Prints the output of the container, attempt after attempt. Returns the pod with its last status."""
        printer = LogPrinter(splits_streams=True)
        uid = self._pod["metadata"]["uid"]
        directory = self._paths.container_logs(self._namespace, self._name, uid, self._container)
        printed = 0
        while True:
            if self._broken:
                raise EvenkeelError(self._broken)
            is_at_end = self.is_at_end
            attempt = next((number for number in attempts(directory) if number > printed), 0)
            if attempt:
                is_over = partial(self._is_over, attempt)
                for line in follow(f"{directory}/{attempt}.log", is_over=is_over, look_seconds=_POLL_SECONDS):
                    printer.print(line, at_once=True)
                printed = attempt
            elif is_at_end:
                return self._pod
            else:
                time.sleep(_POLL_SECONDS)

    def wait_for(self, is_reached: Callable[[Json], bool]) -> Json:
        """Returns the pod when `is_reached` holds for it, or when the pod has ended or is gone."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_at_end or is_reached(self._pod))
            return self._pod

    def break_off(self, why: str) -> None:
        """`stream` raises EvenkeelError. For another thread."""
        self._broken = why

    def ask_to_stop(self, grace_seconds: float | None) -> None:
        """Deletes the pod in a thread of its own, because this is called from a signal handler."""
        task = threading.Thread(target=self._delete, args=(grace_seconds,), daemon=True)
        self._tasks.append(task)
        task.start()

    def finish(self) -> None:
        """Waits until the agent has taken the deletion."""
        for task in self._tasks:
            task.join(10)

    @property
    def is_at_end(self) -> bool:
        return self._is_gone or is_ended(self._pod)

    def _is_over(self, attempt: int) -> bool:
        return bool(self._broken) or self._is_gone or attempt_is_over(self._pod, self._container, attempt)

    def _delete(self, grace_seconds: float | None) -> None:
        while True:
            try:
                self._client.delete(self._namespace, self._name, grace_seconds)
            except AgentRefused as refusal:
                if not refusal.is_not_found:
                    print(printable(f"evenkeel: {refusal}"), file=sys.stderr)
            except NoAgent:
                time.sleep(_RETRY_SECONDS)
                continue
            return

    def _watch(self) -> None:
        """Keeps the status of the pod up to date until the pod is gone."""
        is_reported = False
        while True:
            try:
                for change in self._client.lines("/watch", pod=f"{self._namespace}/{self._name}"):
                    if self._take(change["object"], is_deleted=change["type"] == "DELETED"):
                        return
                now = self._client.pod_or_none(self._namespace, self._name)
                if self._take(now or self._pod, is_deleted=now is None):
                    return
                is_reported = False
            except NoAgent:
                if not is_reported:
                    print("evenkeel: the agent does not answer; the pod runs on without it", file=sys.stderr)
                    is_reported = True
            except AgentRefused as refusal:
                print(printable(f"evenkeel: {refusal}"), file=sys.stderr)
            time.sleep(_RETRY_SECONDS)

    def _take(self, pod: Json, *, is_deleted: bool) -> bool:
        """True if the pod is gone."""
        is_same = pod["metadata"]["uid"] == self._pod["metadata"]["uid"]
        with self._changed:
            if is_same:
                self._pod = pod
            self._is_gone = is_deleted or not is_same  # another pod has that name now
            self._changed.notify_all()
        return self._is_gone
