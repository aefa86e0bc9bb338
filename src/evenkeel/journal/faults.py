"""Faults of the journal's file, as error messages. Each message says what happened, what stays safe, and how to repair
it."""

import errno
import os
import sqlite3

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


def of_sqlite(path: str, error: Exception) -> JournalError:
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


def of_system(path: str, error: OSError) -> JournalError:
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
