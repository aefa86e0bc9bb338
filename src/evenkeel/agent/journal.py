"""The journal: what the agent knows of its pods, what happened and what was decided, on disk before anything is done.

SQLite in its write-ahead mode: what was committed is there after the agent is killed, and no row is half there.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from evenkeel.agent.records import Happening, HeldPod
from evenkeel.errors import EvenkeelError


class JournalError(EvenkeelError):
    """The journal cannot be read or written. `is_passing` says that a later try may do (a full disk, a lock)."""

    def __init__(self, message: str, *, hint: str = "", is_passing: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_passing = is_passing


class Decision(NamedTuple):
    """A step that was decided, with the snapshot it was decided on; both as plain values."""

    number: int
    at: float
    kind: str
    snapshot: object
    decision: object


class Journal:
    """Of one thread. A method that fails raises JournalError; nothing of its transaction is then on disk."""

    path: str
    notes: tuple[str, ...]  # a sentence for each row that could not be read, and was set aside

    @classmethod
    def open(cls, path: str) -> "Journal":
        """The journal at `path`, made if there is none."""
        raise NotImplementedError

    @classmethod
    def read(cls, path: str) -> "Journal":
        """The journal at `path` for reading only, as without a running agent."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def transaction(self) -> AbstractContextManager[None]:
        """All writes within are one commit, at the end of the outermost; an exception that leaves it undoes them."""
        raise NotImplementedError

    def save(self, held: HeldPod) -> None:
        """Keeps `held` by its UID. Writes what differs from the last time only."""
        raise NotImplementedError

    def remove(self, uid: str) -> None:
        raise NotImplementedError

    def pods(self) -> tuple[HeldPod, ...]:
        """In `order`. One that cannot be read is set aside, with a sentence in `notes`."""
        raise NotImplementedError

    def tell(self, happening: Happening) -> Happening:
        """Keeps `happening` and returns it with its number. One without figures that repeats another within a minute
        is counted with it, and has its number."""
        raise NotImplementedError

    def happenings(self, pod: str = "", most: int = 1000, after: int = 0) -> tuple[Happening, ...]:
        """The latest of those with a number above `after`, oldest first; of one pod (namespace/name), or all."""
        raise NotImplementedError

    def value(self, key: str) -> object:
        """What `set_value` kept under `key`; None if there is nothing."""
        raise NotImplementedError

    def set_value(self, key: str, plain: object) -> None:
        """Keeps `plain` (dict, list, str, int, float, bool); None removes it."""
        raise NotImplementedError

    def record(self, kind: str, snapshot: object, decision: object, at: float) -> int:
        """Keeps a decision and the snapshot it was made on, as plain values; returns its number."""
        raise NotImplementedError

    def decisions(self, kind: str = "", after: int = 0) -> Iterator[Decision]:
        """Oldest first."""
        raise NotImplementedError

    def checkpoint(self) -> None:
        """Moves what was written into the main file, which waits for the disk: for a thread beside the loop. Cheap if
        there is little to move; safe in any thread."""
        raise NotImplementedError


def set_aside(path: str) -> str:
    """Renames a damaged journal, so that a new one can be made; returns its new path."""
    raise NotImplementedError
