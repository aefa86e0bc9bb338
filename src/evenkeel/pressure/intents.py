"""Intents: evictions that are noted before they are carried out, for the next agent if this one is killed in between.

The journal belongs to the agent's loop. The loop and its disk may be busy for longer than the victim may run on. So
intents have a file of their own, whose room is allocated when it is opened: a write needs no room on a full disk. The
file need not survive a restart of the machine: pods do not either.
"""

import json
import logging
import os
import threading
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from evenkeel.journal.store import JournalError

log = logging.getLogger(__name__)

_NAME = "intents"  # beside the journal
_SLOTS = 64  # so many evictions may be under way that the loop has not heard of
_SLOT_BYTES = 4096  # a page: what is written of one is there whole, or not at all


class Intent(NamedTuple):
    uid: str
    message: str
    at: float


class Intents:
    """Written by the threads of the watches, and taken up by the agent's loop into the pods' records. For any
    thread."""

    def __init__(self, directory: str) -> None:
        """Raises JournalError."""
        path = os.path.join(directory, _NAME)
        self._lock = (
            threading.Lock()
        )  # of the two below; held for no write, for which a watch would have to wait
        self._slots: dict[str, list[int]] = {}  # by UID: slots that are written
        self._free = deque(range(_SLOTS))
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            read = os.pread(self._file, _SLOTS * _SLOT_BYTES, 0)
            self._found = self._read(read)
            with suppress(OSError):  # where the disk is full already they have the room that is left then
                os.pwrite(self._file, bytes(_SLOTS * _SLOT_BYTES - len(read)), len(read))
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise JournalError(f"{path}, where evictions are noted, cannot be written: {why}") from None

    @property
    def found(self) -> tuple[Intent, ...]:
        """What a former agent meant to do, and had not taken up."""
        return self._found

    def write(self, intent: Intent) -> bool:
        """Whether it is written. If not, the pod is evicted all the same: the kernel would kill another one
        meanwhile."""
        with self._lock:
            slot = self._free.popleft() if self._free else None
        if slot is None:
            log.warning("an eviction could not be noted before it was done: %d are under way", _SLOTS)
            return False
        try:
            os.pwrite(self._file, _text(intent), slot * _SLOT_BYTES)
        except OSError as error:
            log.warning("an eviction could not be noted before it was done: %s", error)
            with self._lock:
                self._free.append(slot)
            return False
        with self._lock:
            self._slots.setdefault(intent.uid, []).append(slot)
        return True

    def taken_up(self, uid: str) -> None:
        """It is in the journal."""
        with self._lock:
            slots = self._slots.pop(uid, [])
        for slot in slots:
            try:
                os.pwrite(self._file, bytes(_SLOT_BYTES), slot * _SLOT_BYTES)
            except OSError as error:  # the next agent sees that it is done
                log.warning("the note of an eviction could not be taken away: %s", error)
        with self._lock:
            self._free.extend(slots)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self, whole: bytes) -> tuple[Intent, ...]:
        found = []
        for slot in range(len(whole) // _SLOT_BYTES):
            said = whole[slot * _SLOT_BYTES : (slot + 1) * _SLOT_BYTES].rstrip(b"\0")
            if not said:
                continue
            try:
                uid, message, at = Intent(**json.loads(said))
                found.append(Intent(str(uid), str(message), float(at)))
            except (ValueError, TypeError):
                log.warning("the note of an eviction in %s cannot be read", _NAME)
                continue
            self._slots.setdefault(found[-1].uid, []).append(slot)
            self._free.remove(slot)
        return tuple(found)


def _text(intent: Intent) -> bytes:
    """A long message is cut to what has room."""
    text = json.dumps(intent._asdict(), ensure_ascii=False).encode()
    while len(text) > _SLOT_BYTES:
        intent = intent._replace(message=intent.message[: len(intent.message) // 2])
        text = json.dumps(intent._asdict(), ensure_ascii=False).encode()
    return text.ljust(_SLOT_BYTES, b"\0")
