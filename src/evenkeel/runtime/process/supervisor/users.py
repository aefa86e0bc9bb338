"""Who a container runs as, where its manifest leaves that open: as /etc/passwd of its own files has it."""

import os
from typing import NamedTuple

_MOST_BYTES = 1 << 20


class User(NamedTuple):
    uid: int
    gid: int
    home: str


def look_up(uid: int | None, gid: int | None, passwd_text: str) -> User:
    """Without a user, the one we are; without a group, the user's own, or root's for a user that is not known (as
    container runtimes have it)."""
    wanted = os.geteuid() if uid is None else uid
    known = _entry(wanted, passwd_text)
    group = gid
    if group is None:
        group = os.getegid() if uid is None else (known.gid if known else 0)
    return User(wanted, group, known.home if known and known.home else "/")


def passwd(path: str = "/etc/passwd") -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _MOST_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _entry(uid: int, text: str) -> User | None:
    number = str(uid)
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and fields[2] == number and fields[3].isdecimal():
            return User(uid, int(fields[3]), fields[5])
    return None
