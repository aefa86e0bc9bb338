"""A FUSE filesystem that answers for its root directory and never for anything in it: whoever looks for a file there
waits, and cannot be killed until the filesystem is closed."""

import errno
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from evenkeel.runtime import syscalls

_HEADER = struct.Struct("<IIQQIIIHH")  # length, opcode, unique, node, uid, gid, pid …
_ANSWER = struct.Struct("<IiQ")  # length, error, unique
_INIT, _GETATTR, _LOOKUP = 26, 3, 1
_ATTRIBUTES = struct.Struct("<QII QQQQQQ IIIIIIIIII")
_DIRECTORY = 0o040755


@contextmanager
def silent_fuse(place: Path) -> Iterator[threading.Event]:
    """Mounts it at `place`. The event is set when somebody looks for a file there."""
    place.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    syscalls.mount("evenkeel-test", str(place), "fuse", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
    asked = threading.Event()
    thread = threading.Thread(target=_serve, args=(device, asked), daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        syscalls.umount(str(place), syscalls.MNT_DETACH | 1)  # MNT_FORCE ends all requests
        os.close(device)
        thread.join(10)


def _serve(device: int, asked: threading.Event) -> None:
    with suppress(OSError):  # it was unmounted
        while True:
            request = os.read(device, 1 << 17)
            _, opcode, unique, *_ = _HEADER.unpack_from(request)
            if opcode == _INIT:
                # Version 7.31, no features, the least buffers.
                body = struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 16, 0, 12, 9, 1 << 16, 1, 1, 0, 0)
            elif opcode == _GETATTR:
                body = _ATTRIBUTES.pack(
                    3600, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, _DIRECTORY, 2, 0, 0, 0, 4096, 0
                )
            elif opcode == _LOOKUP:
                asked.set()
                continue
            else:  # the kernel asks in an older way
                os.write(device, _ANSWER.pack(_ANSWER.size, -errno.ENOSYS, unique))
                continue
            os.write(device, _ANSWER.pack(_ANSWER.size + len(body), 0, unique) + body)
