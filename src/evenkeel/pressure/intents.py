"""Intents: evictions that are written down before they are carried out. The next agent reads them if the writer is
killed.

The journal belongs to the agent's loop. The loop and its disk may be busy for longer than the victim may run on. So
intents have a file of their own, one for each process that evicts. Its space is allocated when it is opened, so a write
needs no space on a full disk. The file need not survive a reboot, because pods do not survive it either.
"""

import json
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple

_NAME = "intents"  # in the directory of the journal
_SLOTS = 64  # the most evictions that may be under way and unknown to the agent
_SLOT_BYTES = 4096  # a page: a slot is written completely, or not at all
_encoded = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode


class Intent(NamedTuple):
    uid: str
    message: str
    at: float
    grace_seconds: float = 0.0  # what the pod has to end, from `at`; it was asked to


class Intents:
    """Watches write intents. The agent's loop copies them into the pods' records. For any thread of one process."""

    def __init__(
        self,
        directory: str,
        noted: Callable[[str], None],
        name: str = _NAME,
        slots: int = _SLOTS,
    ) -> None:
        """`noted` gets problems, as sentences, from any thread. Raises EvenkeelError."""
        path = os.path.join(directory, name)
        self._noted = noted
        self._slot_count = slots
        # Protects the next two fields. It is not held during a write to the file: a watch would have to wait for it.
        self._lock = threading.Lock()
        self._slots: dict[str, list[int]] = {}  # by UID: the slots in use
        self._free = deque(range(slots))
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            read = os.pread(self._file, slots * _SLOT_BYTES, 0)
            self._found = self._read(read)
            with suppress(OSError):  # if the disk is already full, the file has only the space that is left
                os.pwrite(self._file, bytes(slots * _SLOT_BYTES - len(read)), len(read))
        except OSError as error:
            raise EvenkeelError(
                f"{path}, where evictions are noted, cannot be written: {reason(error)}"
            ) from None

    @property
    def found(self) -> tuple[Intent, ...]:
        """Intents that the former process had written, and that are not taken up yet."""
        with self._lock:
            return tuple(intent for intent in self._found if intent.uid in self._slots)

    def write(self, intent: Intent) -> bool:
        """Returns whether the intent was written. If not, the pod is evicted all the same: otherwise the kernel would
        kill another pod in the meantime."""
        with self._lock:
            slot = self._free.popleft() if self._free else None
        if slot is None:
            self._noted(
                f"an eviction could not be noted before it was done: {self._slot_count} are under way"
            )
            return False
        try:
            os.pwrite(self._file, _text(intent), slot * _SLOT_BYTES)
        except OSError as error:
            self._noted(f"an eviction could not be noted before it was done: {reason(error)}")
            with self._lock:
                self._free.append(slot)
            return False
        with self._lock:
            self._slots.setdefault(intent.uid, []).append(slot)
        return True

    @staticmethod
    def rehearse(intent: Intent) -> None:
        """Does what `write` does before the file is written."""
        _text(intent)

    def taken_up(self, uid: str) -> None:
        """The eviction is in the journal, so its intent is removed."""
        with self._lock:
            slots = self._slots.pop(uid, [])
        for slot in slots:
            try:
                os.pwrite(self._file, bytes(_SLOT_BYTES), slot * _SLOT_BYTES)
            except OSError as error:  # the next agent sees that the eviction is recorded
                self._noted(f"the note of an eviction could not be taken away: {reason(error)}")
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
            intent = _intent(said)
            if intent is None:
                self._noted("the note of an eviction cannot be read")
                continue
            found.append(intent)
            self._slots.setdefault(found[-1].uid, []).append(slot)
            self._free.remove(slot)
        return tuple(found)


class OthersIntents:
    """The intents that another process writes, for reading only."""

    def __init__(self, directory: str, name: str) -> None:
        self._path = os.path.join(directory, name)
        self._map: mmap.mmap | None = None

    def find(self, uid: str) -> Intent | None:
        """The intent of evicting this pod, if there is one now. An intent is there before the kill."""
        return next((intent for intent in self.all() if intent.uid == uid), None)

    def all(self) -> tuple[Intent, ...]:
        whole = self._mapped()
        if whole is None:
            return ()
        used = [start for start in range(0, len(whole), _SLOT_BYTES) if whole[start]]
        found = (_intent(whole[start : start + _SLOT_BYTES].rstrip(b"\0")) for start in used)
        return tuple(intent for intent in found if intent is not None)

    def remove(self) -> None:
        """Removes the file. The process that wrote it must have ended."""
        self.close()
        with suppress(OSError):
            os.unlink(self._path)

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None

    def _mapped(self) -> mmap.mmap | None:
        if self._map is None:
            try:
                file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    self._map = mmap.mmap(file, 0, prot=mmap.PROT_READ)
                finally:
                    os.close(file)
            except (OSError, ValueError):
                return None  # the watch has not made it yet
        return self._map


def _intent(text: bytes) -> Intent | None:
    try:
        uid, message, at, grace_seconds = Intent(**json.loads(text))
        return Intent(str(uid), str(message), float(at), float(grace_seconds))
    except (ValueError, TypeError):
        return None


def _text(intent: Intent) -> bytes:
    """Encodes the intent. A long message is cut to fit into its slot."""
    text = _plain(intent)
    while len(text) > _SLOT_BYTES:
        intent = intent._replace(message=intent.message[: len(intent.message) // 2])
        text = _plain(intent)
    return text.ljust(_SLOT_BYTES, b"\0")


def _plain(intent: Intent) -> bytes:
    fields = intent._asdict()
    if not intent.grace_seconds:
        del fields["grace_seconds"]  # earlier versions do not know it
    return _encoded(fields).encode()
