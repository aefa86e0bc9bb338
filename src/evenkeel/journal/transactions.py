"""Transactions of the journal's database: all writes of a transaction are committed together, or none is.

SQLite may roll back a transaction by itself after an error. It may also run out of disk space during one. This module
then always raises a JournalError, and nothing of the transaction is on disk.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from evenkeel.journal import faults
from evenkeel.journal.faults import SQLITE_FAULTS, JournalError


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
            raise faults.moved(self._path)

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
                raise faults.of_system(self._path, error) from None
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
            raise faults.of_sqlite(self._path, error) from None

    def prune(self, statement: tuple[str, tuple[object, ...]] | None) -> None:
        """Deletes old rows. A failure does no harm: it is tried again soon."""
        if statement is not None and self._failure is None:
            try:
                self._connection.execute(*statement)
            except SQLITE_FAULTS as error:
                if self._depth:
                    self._failure = faults.of_sqlite(self._path, error)

    def _execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        try:
            return self._connection.execute(statement, values)
        except SQLITE_FAULTS as error:
            if not faults.is_full(error):
                raise faults.of_sqlite(self._path, error) from None
        # A checkpoint moves the content of the write-ahead log into the main file. The log then has space again.
        try:
            if self._depth or self._connection.in_transaction:
                self._roll_back()
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            else:
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                return self._connection.execute(statement, values)
        except SQLITE_FAULTS as error:
            raise faults.of_sqlite(self._path, error) from None
        raise faults.full(self._path)

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:  # after some errors SQLite itself has rolled back
                self._connection.execute("ROLLBACK")
        except SQLITE_FAULTS as error:
            raise faults.of_sqlite(self._path, error) from None
        finally:
            self._undone()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
