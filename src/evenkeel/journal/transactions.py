"""Transactions of the journal's database: writes that are one commit, or nothing.

SQLite may undo a transaction by itself after an error, or run out of room in the middle of one. Here that always ends
in a JournalError, with nothing of the transaction on disk.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from evenkeel.journal import faults
from evenkeel.journal.faults import SQLITE_FAULTS, JournalError


class Transactions:
    """For one thread. Owns the connection. `undone` is called after a transaction was undone."""

    def __init__(self, path: str, connection: sqlite3.Connection, undone: Callable[[], None]) -> None:
        self._path = path
        self._connection = connection
        self._undone = undone
        self._file = _identity(path)
        self._depth = 0  # of transactions within one another
        self._failure: JournalError | None = None  # of the transaction that is open

    def check_place(self) -> None:
        """Raises JournalError if the file was removed or replaced under us: what is written would be lost."""
        if _identity(self._path) != self._file:
            raise faults.moved(self._path)

    @property
    def is_open(self) -> bool:
        return self._depth > 0

    @contextmanager
    def begin(self) -> Iterator[None]:
        """All writes within are one commit, at the end of the outermost; an exception that leaves it undoes them."""
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
            # It may have undone the others already: nothing may follow, even if the error was caught on the way.
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
        """Failing at it is no harm: the next time is soon."""
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
        # What was moved into the main file need no longer be in the log of writes, which then has room again.
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
            if self._connection.in_transaction:  # SQLite itself undoes it after some errors
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
