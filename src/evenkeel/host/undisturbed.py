"""System calls in which no other thread of ours gets the interpreter.

Python lets others run during a call of its own, and then waits for its turn: a hundred times in a hundred reads, when
there is no time for one. The files read here are made by the kernel, in a moment: nobody else needs to run in it.
"""

import ctypes
import os
import threading

MOST_BYTES = 64 * 1024  # at a time

_libc = ctypes.PyDLL(None, use_errno=True)  # which keeps the interpreter's lock
_libc.pread.restype = ctypes.c_ssize_t
_libc.pread.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long)
_libc.open.argtypes = (ctypes.c_char_p, ctypes.c_int)
_libc.close.argtypes = (ctypes.c_int,)
_of_thread = threading.local()


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
    try:
        buffer = _of_thread.buffer
    except AttributeError:
        buffer = _of_thread.buffer = ctypes.create_string_buffer(MOST_BYTES)
    count = _libc.pread(descriptor, buffer, min(most_bytes, MOST_BYTES), at)
    if count < 0:
        raise _error()
    return ctypes.string_at(buffer, count)


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
