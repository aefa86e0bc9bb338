"""Intents: evictions that are written down before they are carried out. The next agent reads them if this one is
killed.

The journal belongs to the agent's loop. The loop and its disk may be busy for longer than the victim may run on. So
intents have a file of their own. Its space is allocated when it is opened, so a write needs no space on a full disk.
The file need not survive a reboot, because pods do not survive it either.
"""

import json
import logging
import os
import threading
from collections import deque
from contextlib import suppress
from typing import NamedTuple

from evenkeel.errors import reason
from evenkeel.journal.store import JournalError

log = logging.getLogger(__name__)

_NAME = "intents"  # in the directory of the journal
_SLOTS = 64  # the most evictions that may be under way and unknown to the loop
_SLOT_BYTES = 4096  # a page: a slot is written completely, or not at all


class Intent(NamedTuple):
    uid: str
    message: str
    at: float


class Intents:
    """The watch threads write intents. The agent's loop copies them into the pods' records. For any thread."""

    def __init__(self, directory: str) -> None:
        """Raises JournalError."""
        path = os.path.join(directory, _NAME)
        # Protects the next two fields. It is not held during a write to the file: a watch would have to wait for it.
        self._lock = threading.Lock()
        self._slots: dict[str, list[int]] = {}  # by UID: the slots in use
        self._free = deque(range(_SLOTS))
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            read = os.pread(self._file, _SLOTS * _SLOT_BYTES, 0)
            self._found = self._read(read)
            with suppress(OSError):  # if the disk is already full, the file has only the space that is left
                os.pwrite(self._file, bytes(_SLOTS * _SLOT_BYTES - len(read)), len(read))
        except OSError as error:
            why = reason(error)
            raise JournalError(f"{path}, where evictions are noted, cannot be written: {why}") from None

    @property
    def found(self) -> tuple[Intent, ...]:
        """Intents of a former agent that it had not taken up."""
        return self._found

    def write(self, intent: Intent) -> bool:
        """Returns whether the intent was written. If not, the pod is evicted all the same: otherwise the kernel would
        kill another pod in the meantime."""
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
        """The eviction is in the journal, so its intent is removed."""
        with self._lock:
            slots = self._slots.pop(uid, [])
        for slot in slots:
            try:
                os.pwrite(self._file, bytes(_SLOT_BYTES), slot * _SLOT_BYTES)
            except OSError as error:  # the next agent sees that the eviction is recorded
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
    """Encodes the intent. A long message is cut to fit into its slot."""
    text = json.dumps(intent._asdict(), ensure_ascii=False).encode()
    while len(text) > _SLOT_BYTES:
        intent = intent._replace(message=intent.message[: len(intent.message) // 2])
        text = json.dumps(intent._asdict(), ensure_ascii=False).encode()
    return text.ljust(_SLOT_BYTES, b"\0")
