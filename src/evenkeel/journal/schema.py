"""The journal's schema: its tables, the migration of older journals, and the opening of the file."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from evenkeel.journal.transactions import (
    SQLITE_FAULTS,
    JournalError,
    damaged,
    foreign,
    newer,
    sqlite_fault,
    system_fault,
)

APPLICATION = 0x45564B4C  # EVKL: marks a journal among databases of other programs
LOCK_PATIENCE_SECONDS = 1.0
CHECK_SECONDS = 2.0
# Kept free in the file and its write-ahead log, so that the journal can still be written when the disk is full.
RESERVE_BYTES = 512 * 1024
# At this many pages (of 4 KiB) in the write-ahead log, the writer itself makes a checkpoint. `Journal.checkpoint`
# normally does that earlier.
AUTOMATIC_CHECKPOINT_PAGES = 4096
_CACHE_KIB = 256  # by default 2 MiB of pages stay in memory, which the kernel has in its page cache, too

# Each step has the statements that migrate one version to the next. Steps are never changed; new ones are added.
STEPS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE pods (
            uid TEXT PRIMARY KEY NOT NULL, "order" INTEGER NOT NULL, source NOT NULL, pod TEXT NOT NULL)""",
        # The state has its own table: it is small and changes often. The manifest may be large and seldom changes.
        """CREATE TABLE lives (
            uid TEXT PRIMARY KEY NOT NULL REFERENCES pods ON DELETE CASCADE,
            is_admitted INTEGER NOT NULL, life TEXT NOT NULL)""",
        "CREATE TABLE pods_aside (uid, 'order', source, pod, is_admitted, life, why)",
        """CREATE TABLE happenings (
            number INTEGER PRIMARY KEY, at REAL NOT NULL, type NOT NULL, reason NOT NULL, message NOT NULL,
            pod NOT NULL, uid NOT NULL, container NOT NULL, figures TEXT, times INTEGER NOT NULL DEFAULT 1)""",
        "CREATE INDEX happenings_of_pod ON happenings (pod, number)",
        'CREATE TABLE "values" (key TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) WITHOUT ROWID',
        """CREATE TABLE decisions (
            number INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, size INTEGER NOT NULL,
            content BLOB NOT NULL)""",
        "CREATE TABLE reserve (space BLOB)",
    ),
    (
        # Workloads: their objects, and the part of their progress that the present pods do not show.
        """CREATE TABLE workloads (
            key TEXT PRIMARY KEY NOT NULL, "order" INTEGER NOT NULL, kind TEXT NOT NULL, source NOT NULL,
            workload TEXT NOT NULL, progress TEXT NOT NULL)""",
    ),
)
VERSION = len(STEPS)
_TABLES = {"pods", "lives", "pods_aside", "happenings", "values", "decisions"}  # since the first version


def open_for_writing(path: str) -> sqlite3.Connection:
    try:
        # SQLite would make the file readable for others. It gives the mode of this file to the files beside it.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            if os.fstat(descriptor).st_size == 0 and size(f"{path}-wal") > 0:
                raise damaged(path, "it is empty, but the log of writes beside it is not")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise system_fault(path, error) from None
    connection = connect(path, "rw")
    with _closed_on_fault(connection, path):
        _recognise(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        # Committed data survives the end of the agent. After a power cut the last commits may be missing. The
        # containers that they describe are gone then as well.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA wal_autocheckpoint = {AUTOMATIC_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {AUTOMATIC_CHECKPOINT_PAGES * 4096}")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        _migrate(connection)
        _expect_tables(connection, path)
    return connection


def open_for_reading(path: str) -> sqlite3.Connection:
    """Opens a journal for reading. The file system may be read-only, if the write-ahead log is empty."""
    if not os.path.exists(path):
        raise JournalError(
            f"there is no journal {path}", hint="it is made by evenkeel up; --state-dir says where"
        )
    try:
        return _checked_for_reading(path, "ro")
    except JournalError as error:
        if not error.is_passing or size(f"{path}-wal") > 0:
            raise
    return _checked_for_reading(path, "ro&immutable=1")


def connect(path: str, mode: str) -> sqlite3.Connection:
    try:
        return sqlite3.connect(
            f"file:{quote(os.fsencode(os.path.abspath(path)))}?mode={mode}",
            uri=True,
            isolation_level=None,  # transactions are begun explicitly
            timeout=LOCK_PATIENCE_SECONDS,
            check_same_thread=False,
        )
    except SQLITE_FAULTS as error:
        raise sqlite_fault(path, error) from None


def check(connection: sqlite3.Connection, path: str, seconds: float = CHECK_SECONDS) -> None:
    """Looks for damage, in the pods first, for at most `seconds`. If none is found in that time, the check passes."""
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
    try:
        for table in ("(pods)", "(lives)", "('values')", ""):
            (found,) = connection.execute(f"PRAGMA quick_check{table}").fetchone()
            if found != "ok":
                raise damaged(path, " ".join(str(found).split())[:200])
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_INTERRUPT:
            raise
    finally:
        connection.set_progress_handler(None, 0)


def keep_reserve(connection: sqlite3.Connection, *, at_least_bytes: int = RESERVE_BYTES // 2) -> None:
    """Keeps free pages in the file for new rows. So a checkpoint needs no more space on the disk. After a checkpoint
    the write-ahead log is written from its beginning again, in the space that it already has."""
    (pages,) = connection.execute("PRAGMA freelist_count").fetchone()
    if pages * 4096 >= at_least_bytes:
        return
    connection.execute("INSERT INTO reserve VALUES (zeroblob(?))", (RESERVE_BYTES,))
    try:
        # Passive: the other modes would make writers wait for the disk.
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    finally:
        connection.execute("DELETE FROM reserve")


@contextmanager
def _closed_on_fault(connection: sqlite3.Connection, path: str) -> Iterator[None]:
    """Raises JournalError, with the connection closed."""
    try:
        yield
    except SQLITE_FAULTS as error:
        connection.close()
        raise sqlite_fault(path, error) from None
    except JournalError:
        connection.close()
        raise


def _checked_for_reading(path: str, mode: str) -> sqlite3.Connection:
    connection = connect(path, mode)
    with _closed_on_fault(connection, path):
        _recognise(connection, path)
        _expect_tables(connection, path)
    return connection


def _recognise(connection: sqlite3.Connection, path: str) -> None:
    if _number(connection, "application_id") != APPLICATION:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if tables:
            raise foreign(path)
    version = _number(connection, "user_version")
    if version > VERSION:
        raise newer(path, version, VERSION)


def _migrate(connection: sqlite3.Connection) -> None:
    for version in range(_number(connection, "user_version"), VERSION):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in STEPS[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _expect_tables(connection: sqlite3.Connection, path: str) -> None:
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    missing = ", ".join(sorted(_TABLES - there))
    if missing:
        raise damaged(path, f"it has no table {missing}")


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    (value,) = connection.execute(f"PRAGMA {pragma}").fetchone()
    return int(value)


def size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
