"""Transactions of the journal's database: all writes of a transaction are committed together, or none is. Also turns
faults of its file into error messages.

SQLite may roll back a transaction by itself after an error. It may also run out of disk space during one. This module
then always raises a JournalError, and nothing of the transaction is on disk. Each message says what happened, what
stays safe, and how to repair it.
"""

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from evenkeel.errors import EvenkeelError, reason

_SAFE = "running pods keep running"


class JournalError(EvenkeelError):
    """The journal cannot be read or written. With `is_passing`, a later try may succeed (a full disk, a lock)."""

    def __init__(self, message: str, *, hint: str = "", is_passing: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_passing = is_passing


def damaged(path: str, what: str) -> JournalError:
    return JournalError(
        f"the journal {path} is damaged: {what}; {_SAFE}",
        hint=f"put back a copy, or set it aside with mv {path} {path}.damaged and start again:"
        " pods of files are then read anew",
    )


# The errors of SQLite. If the file is damaged, Python's module may even fail to decode the error message.
SQLITE_FAULTS = (sqlite3.Error, UnicodeDecodeError)


def is_full(error: Exception) -> bool:
    return _code(error) == sqlite3.SQLITE_FULL


def sqlite_fault(path: str, error: Exception) -> JournalError:
    """The JournalError for an error of SQLite with the journal at `path`. `error` is one of SQLITE_FAULTS."""
    if isinstance(error, UnicodeDecodeError):
        return damaged(path, "what should be text in it is not")
    match _code(error):
        case sqlite3.SQLITE_FULL:
            return full(path)
        case sqlite3.SQLITE_NOTADB:
            return damaged(path, "it is not an SQLite database")
        case sqlite3.SQLITE_CORRUPT:
            return damaged(path, "its pages do not fit together")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return _read_only(path)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return JournalError(
                f"the journal {path} is locked by another program; {_SAFE}",
                hint=f"end the program that has it open: fuser -v {path}",
                is_passing=True,
            )
        case sqlite3.SQLITE_CANTOPEN:
            return JournalError(
                f"the journal {path} cannot be opened; {_SAFE}",
                hint="its directory must be there and be writable, as for the files -wal and -shm beside it",
                is_passing=True,
            )
        case sqlite3.SQLITE_IOERR:
            return JournalError(
                f"the disk fails under the journal {path} ({_name(error)}); {_SAFE}",
                hint="see the kernel's log (dmesg), and whether the disk is full: df",
                is_passing=True,
            )
        case sqlite3.SQLITE_ERROR if "no such" in str(error):
            return damaged(path, str(error))
    return JournalError(f"the journal {path} cannot be used: {error}; {_SAFE}")


def system_fault(path: str, error: OSError) -> JournalError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return full(path)
    if error.errno == errno.EROFS:
        return _read_only(path)
    what = reason(error)
    return JournalError(f"the journal {path} cannot be opened: {what}; {_SAFE}", is_passing=True)


def newer(path: str, version: int, ours: int) -> JournalError:
    return JournalError(
        f"the journal {path} is of version {version}, by a newer Evenkeel; this one knows up to {ours}; {_SAFE}",
        hint="start the newer Evenkeel",
    )


def foreign(path: str) -> JournalError:
    return JournalError(
        f"{path} is a database of another program, not a journal of Evenkeel's",
        hint="give another state directory",
    )


def moved(path: str) -> JournalError:
    return JournalError(
        f"the journal {path} was removed or replaced while in use; {_SAFE}, but what is written now would be lost",
        hint="restart the agent: it makes a new one",
    )


def full(path: str) -> JournalError:
    return JournalError(
        f"the disk is full: the journal {path} takes no more; {_SAFE}, and nothing new is started",
        hint=f"free some space: df {os.path.dirname(path) or '.'}",
        is_passing=True,
    )


def _read_only(path: str) -> JournalError:
    return JournalError(
        f"the journal {path} is read-only, by its mode or its file system; {_SAFE}, and nothing new is started",
        hint="make it writable: mount -o remount,rw, or another --state-dir",
        is_passing=True,
    )


def _code(error: Exception) -> int:
    """The primary error code; -1 if the error comes from Python's module and not from SQLite."""
    code: int = getattr(error, "sqlite_errorcode", -1)
    return code & 0xFF if code >= 0 else code


def _name(error: Exception) -> str:
    return str(getattr(error, "sqlite_errorname", error))


class Transactions:
    """For one thread. Owns the connection. `undone` is called after a transaction was rolled back."""

    def __init__(self, path: str, connection: sqlite3.Connection, undone: Callable[[], None]) -> None:
        self._path = path
        self._connection = connection
        self._undone = undone
        self._file = _identity(path)
        self._depth = 0  # nesting depth of transactions
        self._failure: JournalError | None = None  # of the open transaction
        self._synced = connection.total_changes

    def check_place(self) -> None:
        """Raises JournalError if the file was removed or replaced while in use. Later writes would be lost."""
        if _identity(self._path) != self._file:
            raise moved(self._path)

    @property
    def is_synced(self) -> bool:
        """Whether nothing was written since the last `sync`."""
        return self._connection.total_changes == self._synced

    def sync(self) -> Callable[[], None]:
        """Returns a call that waits until all that is committed now is on the disk. The call is for any thread, and
        raises JournalError."""
        changes = self._connection.total_changes

        def wait() -> None:
            try:
                descriptor = os.open(f"{self._path}-wal", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise system_fault(self._path, error) from None
            self._synced = changes

        return wait

    @property
    def is_open(self) -> bool:
        return self._depth > 0

    @contextmanager
    def begin(self) -> Iterator[None]:
        """Begins a transaction. The outermost one commits all writes at its end. An exception that leaves it rolls them
        back."""
        if self._depth:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
            return
        self.check_place()
        self._execute("BEGIN IMMEDIATE")
        self._depth = 1
        self._failure = None
        try:
            yield
            self.write("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._depth = 0

    def write(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        if self._failure is not None and self._depth:
            # The failure may already have rolled back the earlier writes. So no write may follow, even if a caller has
            # caught the error.
            raise self._failure
        if not self._depth:
            self.check_place()
        try:
            return self._execute(statement, values)
        except JournalError as failure:
            if self._depth:
                self._failure = failure
            raise

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except SQLITE_FAULTS as error:
            raise sqlite_fault(self._path, error) from None

    def prune(self, statement: tuple[str, tuple[object, ...]] | None) -> None:
        """Deletes old rows. A failure does no harm: it is tried again soon."""
        if statement is not None and self._failure is None:
            try:
                self._connection.execute(*statement)
            except SQLITE_FAULTS as error:
                if self._depth:
                    self._failure = sqlite_fault(self._path, error)

    def _execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        try:
            return self._connection.execute(statement, values)
        except SQLITE_FAULTS as error:
            if not is_full(error):
                raise sqlite_fault(self._path, error) from None
        # A checkpoint moves the content of the write-ahead log into the main file. The log then has space again.
        try:
            if self._depth or self._connection.in_transaction:
                self._roll_back()
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            else:
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                return self._connection.execute(statement, values)
        except SQLITE_FAULTS as error:
            raise sqlite_fault(self._path, error) from None
        raise full(self._path)

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:  # after some errors SQLite itself has rolled back
                self._connection.execute("ROLLBACK")
        except SQLITE_FAULTS as error:
            raise sqlite_fault(self._path, error) from None
        finally:
            self._undone()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
