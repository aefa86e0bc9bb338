"""What the agent and the supervisor say to each other: one JSON object a packet, over a Unix socket of packets.

The client asks (`id`, `do`, and what it takes), the supervisor answers with the same `id`; with `error` and `hint`, two
parts of a sentence, if it could not. What the supervisor says unasked has `event` in place of an `id`:

| `do` | takes | answers with |
| --- | --- | --- |
| `start` | attempt | `pid`, `ticks`, `started_at`, `notes` once the program runs |
| `signal` | attempt, `signal` | nothing; one that has ended is fine |
| `list` | | `records`, in several packets if they are many: `more` is true in all but the last |
| `execute` | attempt, `command`, `seconds` | `exit_code` (null: not in time), `output` |
| `adopt` | attempt | nothing; relays its log and watches for its end from now on |
| `finish` | attempt, `exit` | nothing; that is how an adopted one ended |
| `forget` | attempt | nothing |
| `ping` | | nothing: it is alive |

| `event` | says |
| --- | --- |
| `hello` | `version`, `pid`, `has_namespaces`, `no_filter` (why there is no seccomp filter): first of all |
| `busy` | another supervisor has this state directory; this one ends |
| `exited` | attempt, `exit` |
| `ended` | attempt: an adopted one has ended; `finish` is to say how, if the client is its parent |

An attempt is a list: the pod's UID, the container's name, the number. What a start needs is in a file of the attempt's
directory, so that no packet is longer than `MOST_BYTES`.
"""

import json
import os
import signal
import socket
from typing import Any, NamedTuple

from evenkeel.runtime.paths import AttemptKey, is_name, read_json, write_json
from evenkeel.runtime.procfs import read_stat

VERSION = 2
MOST_BYTES = 160 * 1024  # half of what a socket takes as it comes, and some
SOCKET_NAME = "keeper.sock"
LOCK_NAME = "keeper.lock"

Message = dict[str, Any]


class BadMessage(Exception):
    """What came is not one of these messages; the text says why."""


class Inbox:
    """Room for one packet, used again for each: a new one of that size would be mapped and unmapped every time."""

    def __init__(self) -> None:
        self._room = memoryview(bytearray(MOST_BYTES + 1))

    def receive(self, connection: socket.socket) -> bytes:
        """The next packet; nothing at the end. Raises OSError."""
        size = connection.recv_into(self._room)
        return bytes(self._room[:size])


def encode(message: Message) -> bytes:
    packet = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(packet) > MOST_BYTES:
        raise BadMessage(f"a message of {len(packet)} bytes is longer than the {MOST_BYTES} that are taken")
    return packet


def decode(packet: bytes) -> Message:
    if len(packet) > MOST_BYTES:
        raise BadMessage(f"a message is longer than {MOST_BYTES} bytes")
    try:
        message = json.loads(packet)
    except (ValueError, RecursionError):
        raise BadMessage("a message is not JSON") from None
    if not isinstance(message, dict):
        raise BadMessage("a message is not an object")
    return message


def attempt_of(message: Message) -> AttemptKey:
    """The attempt a message is about. Its parts become names of directories: none may lead elsewhere."""
    value = message.get("attempt")
    if not isinstance(value, list) or len(value) != 3:
        raise BadMessage("attempt must be a list of UID, container and number")
    uid, container, number = value
    if not is_name(uid) or not is_name(container):
        raise BadMessage("a UID and a container's name are one component of a path each")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise BadMessage("an attempt's number is 0 or more")
    return uid, container, number


LAUNCH = "launch"
PROCESS = "process"
EXIT = "exit"
STDOUT = "stdout"
STDERR = "stderr"


class ProcessFile(NamedTuple):
    """Which process an attempt is. A number alone proves nothing: the time it started and the cgroup it is in do."""

    pid: int
    ticks: int
    cgroup: str  # the plan's path
    procs: tuple[str, ...]  # as the plan has them
    started_at: float
    has_pid_namespace: bool
    notes: tuple[str, ...] = ()


def read_process(directory: str) -> ProcessFile | None:
    value = read_json(directory, PROCESS)
    return None if value is None else process_from(value)


def process_from(value: dict[str, Any]) -> ProcessFile | None:
    """What `_asdict` made; None if that is something else."""
    try:
        return ProcessFile(
            int(value["pid"]),
            int(value["ticks"]),
            str(value["cgroup"]),
            tuple(str(path) for path in value["procs"]),
            float(value["started_at"]),
            bool(value["has_pid_namespace"]),
            tuple(str(note) for note in value["notes"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def write_process(directory: str, process: ProcessFile) -> None:
    write_json(directory, PROCESS, process._asdict())


def is_running(process: ProcessFile) -> bool:
    """Whether it is still that process and in that cgroup: alive, not only waiting for its parent to take note."""
    stat = read_stat(process.pid)
    if stat is None or stat.start_ticks != process.ticks or stat.has_ended:
        return False
    try:
        with open(f"/proc/{process.pid}/cgroup", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    path = os.fsencode(process.cgroup)
    below = path.rstrip(b"/") + b"/"  # it may have made cgroups of its own
    return any((place := line.split(b":", 2)[2]) == path or place.startswith(below) for line in lines)


def send_signal(process: ProcessFile, number: int) -> None:
    """To that process and no other; one that has ended is fine."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        stat = read_stat(process.pid)
        if stat is not None and stat.start_ticks == process.ticks:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


SIGNALLED = 128  # a signal's exit code is this and its number
UNKNOWN_EXIT_CODE = 137  # as kubelet says of one of which nobody knows how it ended


class ExitFile(NamedTuple):
    exit_code: int
    signal: int = 0
    started_at: float = 0.0
    finished_at: float = 0.0
    is_known: bool = True
    message: str = ""


def of_status(status: int, started_at: float, finished_at: float) -> ExitFile:
    """From what waitpid says."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return ExitFile(SIGNALLED + number, number, started_at, finished_at)
    return ExitFile(os.WEXITSTATUS(status), 0, started_at, finished_at)


def unknown(started_at: float, finished_at: float) -> ExitFile:
    return ExitFile(UNKNOWN_EXIT_CODE, 0, started_at, finished_at, is_known=False)


def write_exit(directory: str, ended: ExitFile) -> None:
    """Raises OSError."""
    write_json(directory, EXIT, ended._asdict())


def read_exit(directory: str) -> ExitFile | None:
    value = read_json(directory, EXIT)
    return None if value is None else from_json(value)


def from_json(value: dict[str, Any]) -> ExitFile | None:
    try:
        return ExitFile(
            int(value["exit_code"]),
            int(value["signal"]),
            float(value["started_at"]),
            float(value["finished_at"]),
            bool(value["is_known"]),
            str(value["message"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
