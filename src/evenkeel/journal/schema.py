"""The journal's tables, how an older journal becomes one of today, and the opening of its file."""

import os
import sqlite3
import time
from urllib.parse import quote

from evenkeel.journal.faults import SQLITE_FAULTS, JournalError, damaged, foreign, newer, of_sqlite, of_system

APPLICATION = 0x45564B4C  # EVKL: tells a journal from other programs' databases
LOCK_PATIENCE_SECONDS = 1.0
CHECK_SECONDS = 2.0
# Kept free in the file and its log, so that there is room for what must be noted when the disk is full.
RESERVE_BYTES = 512 * 1024
# Pages (of 4 KiB) in the write-ahead log after which the writer itself moves them; `Journal.checkpoint` comes before.
AUTOMATIC_CHECKPOINT_PAGES = 4096

# Each step is the statements that lead from one version to the next; they are never changed, only added to.
_STEPS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE pods (
            uid TEXT PRIMARY KEY NOT NULL, "order" INTEGER NOT NULL, source NOT NULL, pod TEXT NOT NULL)""",
        # Apart from the manifest: it changes often and is small, the manifest seldom and may be large.
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
)
VERSION = len(_STEPS)
_TABLES = {"pods", "lives", "pods_aside", "happenings", "values", "decisions"}


def open_for_writing(path: str) -> sqlite3.Connection:
    try:
        # SQLite would make it readable for others; the files beside it get this one's mode.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            if os.fstat(descriptor).st_size == 0 and size(f"{path}-wal") > 0:
                raise damaged(path, "it is empty, but the log of writes beside it is not")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise of_system(path, error) from None
    connection = connect(path, "rw")
    try:
        _recognise(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        # What is committed outlives the agent's end; after a power cut the last moments may be missing, and so are
        # the containers they told of.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA wal_autocheckpoint = {AUTOMATIC_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {AUTOMATIC_CHECKPOINT_PAGES * 4096}")
        _migrate(connection)
        _expect_tables(connection, path)
    except SQLITE_FAULTS as error:
        connection.close()
        raise of_sqlite(path, error) from None
    except JournalError:
        connection.close()
        raise
    return connection


def open_for_reading(path: str) -> sqlite3.Connection:
    """Also of a journal that is on a read-only file system, if nothing is left to be moved into its main file."""
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
            isolation_level=None,  # transactions are begun where they are meant
            timeout=LOCK_PATIENCE_SECONDS,
            check_same_thread=False,
        )
    except SQLITE_FAULTS as error:
        raise of_sqlite(path, error) from None


def check(connection: sqlite3.Connection, path: str, seconds: float = CHECK_SECONDS) -> None:
    """Looks for damage, the pods first, for as long as is allowed; finding none in that time is enough."""
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
    """Sees to it that new rows find room in the file as it is. Then a checkpoint needs no room on the disk, and after
    one the log of writes is written anew from its beginning, in the room that it has."""
    (pages,) = connection.execute("PRAGMA freelist_count").fetchone()
    if pages * 4096 >= at_least_bytes:
        return
    connection.execute("INSERT INTO reserve VALUES (zeroblob(?))", (RESERVE_BYTES,))
    try:
        # Passive: the others would keep writers waiting for the disk.
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    finally:
        connection.execute("DELETE FROM reserve")


def _checked_for_reading(path: str, mode: str) -> sqlite3.Connection:
    connection = connect(path, mode)
    try:
        _recognise(connection, path)
        _expect_tables(connection, path)
    except SQLITE_FAULTS as error:
        connection.close()
        raise of_sqlite(path, error) from None
    except JournalError:
        connection.close()
        raise
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
            for statement in _STEPS[version]:
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
