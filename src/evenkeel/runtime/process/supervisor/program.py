"""The program of a container, its directory and its user, looked up in the container's own files."""

import errno
import os
from typing import NamedTuple

from evenkeel.errors import EvenkeelError, reason

_MOST_BYTES = 1 << 20
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


def look_up(uid: int | None, gid: int | None, passwd_text: str) -> User:
    """Returns the user to run as. Without `uid`, it is our own user.

    Without `gid`, the group is the user's own. A user that is not known gets root's group, as in container runtimes.
    """
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


class Program(NamedTuple):
    path: str
    argv: tuple[str, ...]
    env: dict[str, str]


def enter_directory(directory: str) -> None:
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
