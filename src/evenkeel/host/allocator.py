"""The memory that the C library and asyncio keep for later: less of it in processes that run for months.

`keep_little` and `give_back_memory` do nothing where the C library is not glibc.
"""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BYTES = 128 << 10  # glibc's own first value
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
# For mlockall: all pages that are there, and others when they come.
LOCKING = _MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT
_TLS_BUFFER_BYTES = 32 << 10  # a record of TLS has at most 16 KiB


def keep_little() -> None:
    """For a process that runs for long. Call it before threads are started."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    # By default each thread gets an arena of its own, up to eight for each processor, and it keeps what was needed
    # once. Python's threads hardly ever allocate at the same time.
    mallopt(_M_ARENA_MAX, 1)
    # By default these grow when a large piece is freed, up to 32 and 64 MiB. Then buffers lie between small pieces.
    mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)


def keep_tls_buffers_small() -> None:
    """asyncio gives every TLS connection a buffer of 256 KiB, and a node has six connections to its API server all the
    time. More data than the buffer has room for is read in more pieces. asyncio has no public setting for it."""
    from asyncio.sslproto import SSLProtocol  # not at the top: the watch does without asyncio

    SSLProtocol.max_size = _TLS_BUFFER_BYTES


def give_back_memory() -> None:
    """Returns free memory to the kernel. The kernel takes no locked page, so locked memory is unlocked for that moment.
    It takes a few milliseconds."""
    libc = ctypes.CDLL(None)
    trim = getattr(libc, "malloc_trim", None)
    if trim is None:
        return
    is_locked = _is_locked()
    if is_locked:
        libc.munlockall()
    try:
        trim(0)
    finally:
        if is_locked:
            libc.mlockall(LOCKING)


def _is_locked() -> bool:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            found = (line.split() for line in file if line.startswith("VmLck:"))
            return any(words[1] != "0" for words in found)
    except OSError:
        return False
