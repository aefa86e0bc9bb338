"""A FUSE filesystem that answers for its root directory and never for anything in it: a process that looks
for a file there waits, and cannot be killed until the filesystem is closed. Another one answers until it is silenced,
and every name in it is a file."""

import errno
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from evenkeel.runtime import syscalls
from tests.kernel.waiting import PATIENCE_SECONDS

_HEADER = struct.Struct("<IIQQIIIHH")  # length, opcode, unique, node, uid, gid, pid …
_ANSWER = struct.Struct("<IiQ")  # length, error, unique
_INIT, _GETATTR, _LOOKUP, _OPEN, _FORGET = 26, 3, 1, 14, 2
_ATTRIBUTES = struct.Struct("<QII QQQQQQ IIIIIIIIII")
_ENTRY = struct.Struct("<QQQQII")  # before the attributes, which have no times of their own there
_DIRECTORY, _FILE = 0o040755, 0o100644
_ROOT_NODE, _FILE_NODE = 1, 2
# Version 7.31, no features, the least buffers.
_WELCOME = struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 16, 0, 12, 9, 1 << 16, 1, 1, 0, 0)


@contextmanager
def silent_fuse(place: Path) -> Iterator[threading.Event]:
    """Mounts it at `place`. The event is set when a process looks for a file there."""
    with _mounted(place, _serve) as asked:
        yield asked


@contextmanager
def fuse_that_falls_silent(place: Path) -> Iterator[threading.Event]:
    """Mounts it at `place`. It answers nothing from the time when the event is set."""
    with _mounted(place, _serve_until) as silenced:
        yield silenced


@contextmanager
def _mounted(place: Path, serve: Callable[[int, threading.Event], None]) -> Iterator[threading.Event]:
    place.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    syscalls.mount("evenkeel-test", str(place), "fuse", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
    event = threading.Event()
    thread = threading.Thread(target=serve, args=(device, event), daemon=True)
    thread.start()
    try:
        yield event
    finally:
        syscalls.umount(str(place), syscalls.MNT_DETACH | 1)  # MNT_FORCE ends all requests
        thread.join(PATIENCE_SECONDS)  # it reads the device, whose number must not be another file's by then
        assert not thread.is_alive()
        os.close(device)


def _serve(device: int, asked: threading.Event) -> None:
    with suppress(OSError):  # it was unmounted
        while True:
            request = os.read(device, 1 << 17)
            _, opcode, unique, *_ = _HEADER.unpack_from(request)
            if opcode == _INIT:
                body = _WELCOME
            elif opcode == _GETATTR:
                body = _attributes(_ROOT_NODE, _DIRECTORY, seconds=3600)
            elif opcode == _LOOKUP:
                asked.set()
                continue
            else:  # the kernel asks in an older way
                os.write(device, _ANSWER.pack(_ANSWER.size, -errno.ENOSYS, unique))
                continue
            os.write(device, _ANSWER.pack(_ANSWER.size + len(body), 0, unique) + body)


def _serve_until(device: int, silenced: threading.Event) -> None:
    with suppress(OSError):  # it was unmounted
        while True:
            _, opcode, unique, node, *_ = _HEADER.unpack_from(os.read(device, 1 << 17))
            if silenced.is_set() or opcode == _FORGET:
                continue
            if opcode == _INIT:
                body = _WELCOME
            elif opcode == _GETATTR:
                body = _attributes(node, _DIRECTORY if node == _ROOT_NODE else _FILE)
            elif opcode == _LOOKUP:
                body = _ENTRY.pack(_FILE_NODE, 0, 0, 0, 0, 0) + _attributes(_FILE_NODE, _FILE)[16:]
            elif opcode == _OPEN:
                body = bytes(16)
            else:
                os.write(device, _ANSWER.pack(_ANSWER.size, -errno.ENOSYS, unique))
                continue
            os.write(device, _ANSWER.pack(_ANSWER.size + len(body), 0, unique) + body)


def _attributes(node: int, mode: int, *, seconds: int = 0) -> bytes:
    """For so many seconds the kernel does not ask again."""
    return _ATTRIBUTES.pack(seconds, 0, 0, node, 0, 0, 0, 0, 0, 0, 0, 0, mode, 2, 0, 0, 0, 4096, 0)
