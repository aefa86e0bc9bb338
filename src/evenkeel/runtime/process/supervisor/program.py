"""The program of a container, its directory and its user, looked up in the container's own files."""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress

from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.process.seccomp import NO_FILTER, Filter

_USUAL_BYTES = 16 << 10
_MOST_BYTES = 1 << 20
_NO_NUMBER = 0xFFFF_FFFF  # (uid_t) -1
_MOST_GROUPS = 1024
NOT_EXECUTABLE, NOT_FOUND = 126, 127  # exit codes, as in a shell


class NoProgram(EvenkeelError):
    """The command names no program that can be executed. `exit_code` is what a shell would return."""

    def __init__(self, message: str, *, hint: str = "", exit_code: int = NOT_EXECUTABLE) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class User(NamedTuple):
    uid: int
    gid: int
    home: str
    name: str = ""


def look_up(uid: int | None, gid: int | None, passwd_text: str, image_user: str = "") -> User:
    """Returns the user to run as. Without `uid`, it is the user of the image; without that, our own user.

    Without `gid`, the group is the user's own. A user that is not known gets root's group, as in container runtimes.
    Raises EvenkeelError if the image names a user that its files do not have.
    """
    if uid is None and image_user:
        return _of_image(image_user, gid, passwd_text)
    wanted = os.geteuid() if uid is None else uid
    known = _entry(wanted, passwd_text)
    group = gid
    if group is None:
        group = os.getegid() if uid is None else (known.gid if known else 0)
    return User(wanted, group, known.home if known and known.home else "/", known.name if known else "")


def _of_image(text: str, gid: int | None, passwd_text: str) -> User:
    """Reads NAME or NUMBER, with or without :GROUP. A number need not be in the image's files."""
    wanted, _, group = text.partition(":")
    if wanted.isascii() and wanted.isdecimal():
        number = _number(wanted, "user")
        known = _entry(number, passwd_text) or User(number, 0, "/")
    else:
        named = _named(wanted, passwd_text)
        if named is None:
            raise EvenkeelError(
                f"the image runs as user {wanted[:80]!r}, which is not in its /etc/passwd",
                hint="set runAsUser",
            )
        known = named
    if gid is None and group:
        gid = _number(group, "group") if group.isascii() and group.isdecimal() else _group(group)
    return known._replace(gid=known.gid if gid is None else gid, home=known.home or "/")


def _number(text: str, what: str) -> int:
    number = int(text[:12])
    if number >= _NO_NUMBER:
        raise EvenkeelError(f"the image names {what} {text[:20]}, which is no number of a {what}")
    return number


def _group(name: str) -> int:
    for line in group_file().splitlines():
        fields = line.split(":")
        if len(fields) >= 3 and fields[0] == name and fields[2].isascii() and fields[2].isdecimal():
            return _number(fields[2], "group")
    raise EvenkeelError(
        f"the image runs as group {name[:80]!r}, which is not in its /etc/group", hint="set runAsGroup"
    )


def groups_of(name: str, group_text: str) -> tuple[int, ...]:
    """Returns the groups that a user is a member of, besides its own."""
    found = []
    for line in group_text.splitlines():
        fields = line.split(":")
        is_member = name and len(fields) >= 4 and name in fields[3].split(",")
        if is_member and fields[2].isascii() and fields[2].isdecimal() and int(fields[2][:12]) < _NO_NUMBER:
            found.append(int(fields[2]))
    return tuple(found[:_MOST_GROUPS])


def group_file() -> str:
    return passwd("/etc/group")


def passwd(path: str = "/etc/passwd") -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        read = os.read(descriptor, _USUAL_BYTES)
        if len(read) == _USUAL_BYTES:
            read += os.read(descriptor, _MOST_BYTES)
        return read.decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _entry(uid: int, text: str) -> User | None:
    number = str(uid)
    return next((user for user in _users(text) if str(user.uid) == number), None)


def _named(name: str, text: str) -> User | None:
    return next((user for user in _users(text) if user.name == name), None)


def _users(text: str) -> Iterator[User]:
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and _is_number(fields[2]) and _is_number(fields[3]):
            uid, gid = int(fields[2][:12]), int(fields[3][:12])
            if uid < _NO_NUMBER and gid < _NO_NUMBER:
                yield User(uid, gid, fields[5], fields[0])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


class Program(NamedTuple):
    path: str
    argv: tuple[str, ...]
    env: dict[str, str]
    own_filter: Filter = NO_FILTER  # installed last; empty if there is none


def enter_directory(directory: str, *, is_made: bool = False) -> None:
    """With `is_made`, a missing directory is made: an image may name one that it does not have."""
    if is_made and directory:
        with suppress(OSError):
            os.makedirs(directory, 0o755, exist_ok=True)
    try:
        os.chdir(directory or "/")
    except OSError as error:
        raise EvenkeelError(
            f"workingDir {directory!r} cannot be entered: {reason(error)}",
            hint="name a directory that is in the image, or leave workingDir out",
        ) from None


def program_path(name: str, path: str) -> str:
    """Finds the program as a shell does. If it is in no directory, the error names the directories."""
    if "/" in name:
        _check_executable(name)
        return name
    found = ""
    for directory in path.split(":"):
        candidate = f"{directory or '.'}/{name}"
        if os.path.isfile(candidate):
            found = candidate
            if os.access(candidate, os.X_OK, effective_ids=True):
                return candidate
    if found:
        raise NoProgram(
            f"command {name!r} cannot be executed: {found} is not executable for this user",
            hint=f"chmod +x {found}",
        )
    raise NoProgram(
        f"command {name!r} was not found in the container's PATH ({path})",
        hint="write the full path of a program that is in the image, or install it",
        exit_code=NOT_FOUND,
    )


def _check_executable(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise NoProgram(
            f"command {path!r} cannot be executed: {reason(error)}",
            hint="write the full path of a program that is in the image",
            exit_code=exit_code_of(error),
        ) from None
    if mode & 0o170000 == 0o040000:
        raise NoProgram(f"command {path!r} cannot be executed: it is a directory")


def exit_code_of(error: OSError) -> int:
    """The exit code of a command that the kernel refused to execute."""
    return NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE


def execution_hint(error: OSError) -> str:
    return {
        errno.ENOENT: "the program, or the interpreter or loader that it names, is not in the image",
        errno.ENOEXEC: "it is neither a program of this machine nor does it begin with #!",
        errno.EACCES: "it is not executable for the container's user, or on a filesystem mounted noexec",
        errno.E2BIG: "command, args and env together are longer than the kernel takes",
    }.get(error.errno or 0, "")
