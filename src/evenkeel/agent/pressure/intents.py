"""What the watch is about to do, on disk before it does it.

The journal is the agent's loop's, which may be busy for longer than a pod may live on: the watch writes its intents
through a connection of its own, one small row each, and the loop takes them up into the pods' lives.
"""

import logging
import sqlite3

from evenkeel.agent import journal_schema
from evenkeel.agent.journal import Journal, JournalError
from evenkeel.agent.journal_text import plain_text

log = logging.getLogger(__name__)

_PREFIX = "evicting:"  # in the journal's values, with the pod's UID
_PATIENCE_MILLISECONDS = 5  # for a lock that the loop holds


class Intents:
    """Of the watch's thread."""

    def __init__(self, journal_path: str) -> None:
        """Raises JournalError."""
        self._connection = journal_schema.connect(journal_path, "rw")
        try:
            self._connection.execute("PRAGMA synchronous = NORMAL")
            # To move what is in the log to its place waits for the disk: that is for the loop, and a thread beside it.
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")
            self._connection.execute(f"PRAGMA busy_timeout = {_PATIENCE_MILLISECONDS}")
            self._connection.execute('SELECT 1 FROM "values" LIMIT 1').fetchall()
        except sqlite3.Error as error:
            self._connection.close()
            raise JournalError(f"the journal {journal_path} cannot be written: {error}") from None

    def write(self, uid: str, verdict: dict[str, object]) -> bool:
        """Whether it is written. If not, the pod goes all the same: the kernel would not wait for the disk, and would
        take another one."""
        try:
            self._connection.execute(
                'INSERT OR REPLACE INTO "values" (key, value) VALUES (?, ?)',
                (_PREFIX + uid, plain_text(verdict)),
            )
        except sqlite3.Error as error:
            log.warning("an eviction could not be noted before it was done: %s", error)
            return False
        return True

    def close(self) -> None:
        try:
            self._connection.close()
        except sqlite3.Error:
            pass


def intent_of(journal: Journal, uid: str) -> dict[str, object] | None:
    """What the watch meant to do to the pod, and the loop has not taken up."""
    found = journal.value(_PREFIX + uid)
    return found if isinstance(found, dict) else None


def taken_up(journal: Journal, uid: str) -> None:
    journal.set_value(_PREFIX + uid, None)
