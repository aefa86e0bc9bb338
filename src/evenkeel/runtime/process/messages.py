"""What client and keeper say to each other: one JSON object a packet, over a Unix socket that keeps packets whole.

The client asks (`id`, `do`, and what it takes), the keeper answers with the same `id`; with `error` and `hint`, two
parts of a sentence, if it could not. What the keeper says unasked has `event` in place of an `id`:

| `do` | takes | answers with |
| --- | --- | --- |
| `start` | attempt | `pid`, `ticks`, `started_at`, `notes` once the program runs |
| `signal` | attempt, `signal` | nothing; one that has ended is fine |
| `list` | | `records`, in several packets if they are many: `more` is true in all but the last |
| `execute` | attempt, `command`, `seconds` | `exit_code` (null: not in time), `output` |
| `adopt` | attempt | nothing; relays its log and watches for its end from now on |
| `finish` | attempt, `exit` | nothing; that is how an adopted one ended |
| `forget` | attempt | nothing |

| `event` | says |
| --- | --- |
| `hello` | `version`, `pid`, `has_namespaces`: first of all |
| `busy` | another keeper keeps this state directory; this one ends |
| `exited` | attempt, `exit` |
| `ended` | attempt: an adopted one has ended; `finish` is to say how, if the client is its parent |

An attempt is a list: the pod's UID, the container's name, the number. What a start needs is in a file of the attempt's
directory, so that no packet is longer than `MOST_BYTES`.
"""

import json
import socket
from typing import Any

from evenkeel.runtime.attempts import AttemptKey
from evenkeel.runtime.paths import is_name

VERSION = 1
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
