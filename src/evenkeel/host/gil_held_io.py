"""Reads files without releasing the GIL (Python's interpreter lock).

Python's own calls release the GIL and then wait to get it back. For a hundred reads they do this a hundred times. Under
memory pressure there is no time for that. The kernel produces the files read here in microseconds, so no other thread
needs to run in the meantime.
"""

import ctypes
import os
import threading
from typing import Any

MOST_BYTES = 64 * 1024  # per read

_libc = ctypes.PyDLL(None, use_errno=True)  # PyDLL keeps the GIL
_libc.open.argtypes = (ctypes.c_char_p, ctypes.c_int)
_libc.close.argtypes = (ctypes.c_int,)
# No argtypes are set. The callers pass C values, because a conversion would take as long as the call.
_pread = _libc.pread
_pread.restype = ctypes.c_ssize_t

_NUMBER_BYTES = ctypes.c_size_t(64)
_START = ctypes.c_long(0)


class _ThreadBuffer(threading.local):
    def __init__(self) -> None:
        self.buffer: Any = ctypes.create_string_buffer(MOST_BYTES)


_of_thread = _ThreadBuffer()


def open_to_read(path: str) -> int:
    """Opens a file and returns its descriptor. Raises OSError."""
    descriptor: int = _libc.open(os.fsencode(path), os.O_RDONLY | os.O_CLOEXEC)
    if descriptor < 0:
        raise _error(path)
    return descriptor


def close(descriptor: int) -> None:
    if _libc.close(descriptor) < 0:
        raise _error()


def pread(descriptor: int, most_bytes: int = MOST_BYTES, at: int = 0) -> bytes:
    """Reads a part of a file, at most MOST_BYTES. Raises OSError."""
    buffer = _of_thread.buffer
    most = ctypes.c_size_t(min(most_bytes, MOST_BYTES))
    count = _pread(descriptor, buffer, most, ctypes.c_long(at) if at else _START)
    if count < 0:
        raise _error()
    read: bytes = buffer[:count]
    return read


def number(descriptor: int) -> int:
    """Reads a file that contains one number. Raises OSError."""
    buffer = _of_thread.buffer
    count = _pread(descriptor, buffer, _NUMBER_BYTES, _START)
    if count < 0:
        raise _error()
    return int(buffer[:count])


def contents(path: str) -> bytes:
    """Reads a whole file. Raises OSError."""
    descriptor = open_to_read(path)
    try:
        whole = b""
        while part := pread(descriptor, at=len(whole)):
            whole += part
        return whole
    finally:
        close(descriptor)


def _error(path: str | None = None) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), path)
