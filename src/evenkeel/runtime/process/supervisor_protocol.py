"""The protocol between the agent and the supervisor: one JSON object per packet, over a Unix packet socket.

The client sends a request: `id`, `do`, and the fields in the table. The supervisor answers with the same `id`. If the
request failed, the answer has `error` and `hint`. Other messages of the supervisor have `event` in place of an `id`:

| `do` | takes | answers with |
| --- | --- | --- |
| `start` | attempt | `pid`, `ticks`, `started_at`, `notes` once the program runs |
| `signal` | attempt, `signal` | nothing; the attempt may have ended |
| `list` | | `records`, in several packets if there are many: `more` is true in all but the last |
| `execute` | attempt, `command`, `seconds` | `exit_code` (null: not in time), `output` |
| `open` | attempt, `session`, `command`, `stdin`, `stdout`, `stderr`, `terminal` | descriptors of the streams |
| `hang_up` | `session` | nothing; the session's processes are ended |
| `attach` | attempt, `session`, `stdin`, `stdout`, `stderr` | descriptors of the container's own streams |
| `end_input` | `session` | nothing; the client of `attach` sends no more |
| `detach` | `session` | nothing; the client of `attach` has left |
| `adopt` | attempt | nothing; relays its log and watches for its end from now on |
| `finish` | attempt, `status` | nothing; `status` is waitpid's of an adopted container (null: not known) |
| `forget` | attempt | nothing |
| `ping` | | nothing; the supervisor is alive |

| `event` | fields and meaning |
| --- | --- |
| `hello` | `version`, `pid`, `has_namespaces`, `no_filter` (why there is no seccomp filter); the first message |
| `busy` | another supervisor has this state directory; this one ends |
| `exited` | attempt, `exit` |
| `began` | `session`, `pid` of its command |
| `finished` | `session`, `exit_code`, or `error` and `hint` if it could not be executed or `attach` broke off |
| `ended` | attempt: an adopted container has ended; the client reports how with `finish`, if it is the parent |

The number of a session is the client's. Its descriptors go with the packet of the answer (SCM_RIGHTS): those of stdin,
stdout and stderr that were asked for, in this order, or one of the terminal. With `attach`, a terminal comes first and
is for the input and the size; the output is a pipe.

An attempt is a list: the pod's UID, the container's name, the number. The plan of a start is in a file of the attempt's
directory, so that no packet is longer than `MOST_BYTES`.
"""

import array
import json
import os
import signal
import socket
from typing import Any

from evenkeel.errors import raise_shortage
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.paths import AttemptKey, is_name, read_json, write_json
from evenkeel.runtime.procfs import is_alive, start_ticks

VERSION = 5
MOST_BYTES = 160 * 1024  # more than half of a socket's default buffer
MOST_DESCRIPTORS = 3  # with one packet
_DESCRIPTORS_SPACE = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
# These names are older than the word supervisor. They stay, so that an agent finds the supervisor of an older one.
SOCKET_NAME = "keeper.sock"
LOCK_NAME = "keeper.lock"

Message = dict[str, Any]


class BadMessage(Exception):
    """The packet is not a valid message. The text says why."""


class Inbox:
    """A buffer for one packet, used again for each.

    A new buffer of that size would be mapped and unmapped every time.
    """

    def __init__(self) -> None:
        self._room = memoryview(bytearray(MOST_BYTES + 1))

    def receive(self, connection: socket.socket) -> bytes:
        """Returns the next packet; empty at the end. Raises OSError."""
        size = connection.recv_into(self._room)
        return bytes(self._room[:size])

    def receive_all(self, connection: socket.socket) -> tuple[bytes, list[int]]:
        """Returns the next packet and the descriptors that came with it. Raises OSError."""
        size, ancillary, _, _ = connection.recvmsg_into(
            [self._room], _DESCRIPTORS_SPACE, socket.MSG_CMSG_CLOEXEC
        )
        descriptors = array.array("i")
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        return bytes(self._room[:size]), descriptors.tolist()


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
    """Returns the attempt of a message. Its parts become names of directories, so no part may lead elsewhere."""
    value = message.get("attempt")
    if not isinstance(value, list) or len(value) != 3:
        raise BadMessage("attempt must be a list of UID, container and number")
    uid, container, number = value
    if not is_name(uid) or not is_name(container):
        raise BadMessage("a UID and a container's name are one component of a path each")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise BadMessage("an attempt's number is 0 or more")
    return uid, container, number


def words_of(message: Message) -> tuple[str, ...]:
    """Returns the command of a message."""
    command = message.get("command")
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise BadMessage("command must be a list of words")
    return tuple(command)


def session_of(message: Message) -> int:
    """Returns the number of a session, which is the client's."""
    number = message.get("session")
    if not isinstance(number, int) or isinstance(number, bool):
        raise BadMessage("session must be a number")
    return number


LAUNCH = "launch"
PROCESS = "process"
EXIT = "exit"
STDIN = "stdin"
STDOUT = "stdout"
STDERR = "stderr"


class ProcessFile(NamedTuple):
    """The process of an attempt. A PID alone does not identify it; its start time and its cgroup do."""

    pid: int
    ticks: int
    cgroup: str  # the path in the cgroup plan
    procs: tuple[str, ...]  # as in the launch plan
    started_at: float
    has_pid_namespace: bool
    notes: tuple[str, ...] = ()


def read_process(directory: str) -> ProcessFile | None:
    value = read_json(directory, PROCESS)
    return None if value is None else process_from(value)


def process_from(value: dict[str, Any]) -> ProcessFile | None:
    """Reads the result of `_asdict`; None if the value is something else."""
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
    """Returns whether the process is alive, is the same process, and is in the same cgroup. A zombie is not alive.
    Raises OSError if no descriptor is left to look."""
    if not is_alive(process.pid, process.ticks):
        return False
    try:
        with open(f"/proc/{process.pid}/cgroup", "rb") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise_shortage(error)
        return False
    path = os.fsencode(process.cgroup)
    below = path.rstrip(b"/") + b"/"  # the container may have made cgroups of its own
    return any((place := line.split(b":", 2)[2]) == path or place.startswith(below) for line in lines)


def send_signal(process: ProcessFile, number: int) -> None:
    """Sends a signal to that process and no other. The process may have ended. Raises OSError if no descriptor is left
    for it."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError as error:
        raise_shortage(error)
        return
    try:
        if start_ticks(process.pid) == process.ticks:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


SIGNALLED = 128  # the exit code after a signal is this plus the signal's number
UNKNOWN_EXIT_CODE = 137  # the code that kubelet gives when the exit code is lost


class ExitFile(NamedTuple):
    exit_code: int
    signal: int = 0
    started_at: float = 0.0
    finished_at: float = 0.0
    is_known: bool = True
    message: str = ""


def of_status(status: int, started_at: float, finished_at: float) -> ExitFile:
    """Converts a status from waitpid."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return ExitFile(SIGNALLED + number, number, started_at, finished_at)
    return ExitFile(os.WEXITSTATUS(status), 0, started_at, finished_at)


def unknown(started_at: float, finished_at: float) -> ExitFile:
    return ExitFile(UNKNOWN_EXIT_CODE, 0, started_at, finished_at, is_known=False)


def write_exit(directory: str, ended: ExitFile) -> None:
    """Writes the exit to disk. Raises OSError."""
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
