"""Reads files that are compressed with zstd, as layers of newer images are. Python before 3.14 cannot do it.

libzstd does the work. dpkg and rpm use it too, so it is on every machine.
"""

import ctypes
from functools import cache
from types import TracebackType
from typing import IO, Self

LIBRARY = "libzstd.so.1"
_READ_BYTES = 128 << 10
_WINDOW_LOG_MAX = 100  # ZSTD_d_windowLogMax
_LARGEST_WINDOW = 27  # 128 MiB: a frame that needs more memory is refused


class _Buffer(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("position", ctypes.c_size_t))


class Reader:
    """Reads forwards only. Raises ValueError if the content is damaged, and EOFError if it ends too early."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._library = _library()
        self._context = ctypes.c_void_p(self._library.ZSTD_createDStream())
        if not self._context.value:
            raise MemoryError
        self._checked(self._library.ZSTD_DCtx_setParameter(self._context, _WINDOW_LOG_MAX, _LARGEST_WINDOW))
        self._room = ctypes.create_string_buffer(_READ_BYTES)
        self._input = b""
        self._at = 0
        self._is_within = False  # a frame has begun and not ended
        self._ready = b""

    def read(self, size: int) -> bytes:
        while len(self._ready) < size and (part := self._more()):
            self._ready += part
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def close(self) -> None:
        if self._context.value:
            self._library.ZSTD_freeDStream(self._context)
            self._context = ctypes.c_void_p()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def _more(self) -> bytes:
        """Decompresses until there is something, or the end."""
        while True:
            if self._at == len(self._input):
                self._input, self._at = self._file.read(_READ_BYTES), 0
                if not self._input:
                    if self._is_within:
                        raise EOFError("it ends too early")
                    return b""
            held = ctypes.create_string_buffer(self._input, len(self._input))
            given = _Buffer(ctypes.cast(held, ctypes.c_void_p), len(self._input), self._at)
            taken = _Buffer(ctypes.cast(self._room, ctypes.c_void_p), len(self._room), 0)
            left = self._checked(
                self._library.ZSTD_decompressStream(self._context, ctypes.byref(taken), ctypes.byref(given))
            )
            self._at = given.position
            self._is_within = left != 0
            if taken.position:
                return self._room.raw[: taken.position]

    def _checked(self, result: int) -> int:
        if self._library.ZSTD_isError(result):
            raise ValueError(f"zstd: {self._library.ZSTD_getErrorName(result).decode().lower()}")
        return result


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        raise ValueError(
            f"it is compressed with zstd, and {LIBRARY} is not installed (apt install libzstd1)"
        ) from None
    library.ZSTD_createDStream.restype = ctypes.c_void_p
    library.ZSTD_freeDStream.argtypes = (ctypes.c_void_p,)
    library.ZSTD_DCtx_setParameter.restype = ctypes.c_size_t
    library.ZSTD_DCtx_setParameter.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    library.ZSTD_decompressStream.restype = ctypes.c_size_t
    library.ZSTD_decompressStream.argtypes = (
        ctypes.c_void_p,
        ctypes.POINTER(_Buffer),
        ctypes.POINTER(_Buffer),
    )
    library.ZSTD_isError.argtypes = (ctypes.c_size_t,)
    library.ZSTD_getErrorName.restype = ctypes.c_char_p
    library.ZSTD_getErrorName.argtypes = (ctypes.c_size_t,)
    return library
