"""Opening a file by its number instead of its name, which may change at any moment.

The kernel opens files by handles, for file servers (open_by_handle_at). In ext4 a handle can be made from the number
alone. Other filesystems want a generation that only a name leads to, and refuse: ESTALE. It takes root.
"""

import ctypes
import errno
import os
import struct

_INODE_AND_GENERATION = 1  # FILEID_INO32_GEN
_ANY_GENERATION = 0
_MOST_INODE = 0xFFFFFFFF
_SIZE = struct.Struct("=II")
_HEAD = struct.Struct("=Ii")  # the size of what follows, and its type

_libc = ctypes.CDLL(None, use_errno=True)
_open_by_handle_at = _libc.open_by_handle_at
_open_by_handle_at.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int)


def open_inode(inode: int, flags: int, beside: int) -> int:
    """Opens the file with this number on the filesystem of the descriptor `beside`. It may be another one than a
    moment before: a number is used again. Raises OSError."""
    if not 0 < inode <= _MOST_INODE:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    handle = _HEAD.pack(_SIZE.size, _INODE_AND_GENERATION) + _SIZE.pack(inode, _ANY_GENERATION)
    descriptor: int = _open_by_handle_at(beside, handle, flags | os.O_CLOEXEC)
    if descriptor < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return descriptor
