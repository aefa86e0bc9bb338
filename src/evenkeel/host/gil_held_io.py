"""System calls in which no other thread of ours gets the interpreter.

Python lets others run during a call of its own, and then waits for its turn: a hundred times in a hundred reads, when
there is no time for one. The files read here are made by the kernel, in a moment: nobody else needs to run in it.
"""

import ctypes
import os
import threading
from typing import Any

MOST_BYTES = 64 * 1024  # at a time

_libc = ctypes.PyDLL(None, use_errno=True)  # which keeps the interpreter's lock
_libc.open.argtypes = (ctypes.c_char_p, ctypes.c_int)
_libc.close.argtypes = (ctypes.c_int,)
# Given values of C's own types, for to convert them would take as long as the call.
_pread = _libc.pread
_pread.restype = ctypes.c_ssize_t

_NUMBER_BYTES = ctypes.c_size_t(64)
_START = ctypes.c_long(0)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.buffer: Any = ctypes.create_string_buffer(MOST_BYTES)


_of_thread = _OfThread()


def open_to_read(path: str) -> int:
    """A descriptor. Raises OSError."""
    descriptor: int = _libc.open(os.fsencode(path), os.O_RDONLY | os.O_CLOEXEC)
    if descriptor < 0:
        raise _error(path)
    return descriptor


def close(descriptor: int) -> None:
    if _libc.close(descriptor) < 0:
        raise _error()


def pread(descriptor: int, most_bytes: int = MOST_BYTES, at: int = 0) -> bytes:
    """Part of a file, no more than MOST_BYTES. Raises OSError."""
    buffer = _of_thread.buffer
    most = ctypes.c_size_t(min(most_bytes, MOST_BYTES))
    count = _pread(descriptor, buffer, most, ctypes.c_long(at) if at else _START)
    if count < 0:
        raise _error()
    read: bytes = buffer[:count]
    return read


def number(descriptor: int) -> int:
    """What a file says that says nothing else. Raises OSError."""
    buffer = _of_thread.buffer
    count = _pread(descriptor, buffer, _NUMBER_BYTES, _START)
    if count < 0:
        raise _error()
    return int(buffer[:count])


def contents(path: str) -> bytes:
    """All of a file. Raises OSError."""
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
