"""Tar streams of `evenkeel cp`, to a container and from one.

A stream from a container is not trusted: the container's `tar` may be any program. Only plain files and directories are
written, only below the target, through descriptors of the directories and never through a symbolic link. Everything
else is skipped or refused with a sentence."""

import os
import posixpath
import stat
import sys
import tarfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import IO

from evenkeel.cli.output import printable
from evenkeel.cli.tar_reader import DIRECTORY, FILE, LINK, TarReader
from evenkeel.errors import EvenkeelError, reason

_MOST_WARNINGS = 20  # of entries that are skipped
_MOST_CLOSED = 10_000  # directories that their owner may not write to
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST_SHOWN = 200
_MODES = 0o777  # neither set-user-ID nor sticky
_OPEN = 0o700  # what a directory needs to take its files


def write_tree(source: str, name: str, file: IO[bytes]) -> None:
    """Writes a file or directory as a tar stream in which it is called `name`. Raises EvenkeelError."""

    def ours(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            warn(f"{member.name} is neither a file nor a directory, and is skipped")
            return None
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    try:
        with tarfile.open(fileobj=file, mode="w|", format=tarfile.GNU_FORMAT) as stream:
            stream.add(source, name, filter=ours)
    except BrokenPipeError:
        raise  # the container's tar has ended, and says why
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise EvenkeelError(f"cp: {where}{reason(error)}") from None


def read_tree(file: IO[bytes], name: str, target: str) -> int:
    """Writes the entry `name` of a tar stream, and all below it, to `target`. Returns the number of entries written.

    Raises EvenkeelError.
    """
    count = skipped = 0
    closed: list[tuple[str, int]] = []
    reader = TarReader(file)
    try:
        for entry in reader.entries():
            below = relative_path(entry.name, name)
            mode = entry.mode & _MODES
            if entry.kind == DIRECTORY:
                if _make_directory(target, below):
                    if mode & _OPEN == _OPEN:
                        _set_mode(target, below, mode)
                    elif len(closed) == _MOST_CLOSED:
                        raise EvenkeelError(
                            f"the container's tar stream has more than {_MOST_CLOSED} directories that not even their"
                            " owner may write to"
                        )
                    else:
                        closed.append((below, mode))
            elif entry.kind == FILE:
                _write_file(target, below, reader.content(), mode)
            else:
                skipped += 1
                if skipped <= _MOST_WARNINGS:
                    kind = "a link" if entry.kind == LINK else "no file"
                    warn(f"{entry.name[:_LONGEST_SHOWN]} is {kind}, and is skipped")
                continue
            count += 1
        # At the end: a read-only directory must take its files first.
        for below, mode in reversed(closed):
            _set_mode(target, below, mode)
    except OSError as error:
        where = error.filename or target
        raise EvenkeelError(f"cp: {where!s}: {reason(error)}") from None
    finally:
        if skipped > _MOST_WARNINGS:
            warn(f"{skipped - _MOST_WARNINGS} more are skipped")
    return count


def relative_path(member: str, name: str) -> str:
    """The path of an entry below the target; empty for the target itself. Raises EvenkeelError. Pure."""
    if member.startswith("/") or "\0" in member or ".." in member.split("/"):
        raise EvenkeelError(f"the container's tar stream leads out of the target: {member[:200]!r}")
    path, root = posixpath.normpath(member), posixpath.normpath(name)
    if root == ".":
        return "" if path == "." else path
    if path == root:
        return ""
    if not path.startswith(f"{root}/"):
        raise EvenkeelError(
            f"the container's tar stream has an entry that was not asked for: {member[:200]!r}"
        )
    return path[len(root) + 1 :]


def warn(message: str) -> None:
    """Prints it. Names of files come from the container."""
    print(printable(f"evenkeel: {message}"), file=sys.stderr)


def _make_directory(target: str, below: str) -> bool:
    """Returns whether it is new. A link of this name is neither followed nor replaced."""
    is_new = True

    def make(parent: int, last: str) -> None:
        nonlocal is_new
        try:
            os.mkdir(last, 0o700, dir_fd=parent)
        except FileExistsError:
            is_new = False
            if not stat.S_ISDIR(os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode):
                raise

    _at_parent(target, below, make)
    return is_new


def _set_mode(target: str, below: str, mode: int) -> None:
    def change(parent: int, last: str) -> None:
        directory = os.open(last, _DIRECTORY, dir_fd=parent)
        try:
            os.fchmod(directory, mode)
        finally:
            os.close(directory)

    _at_parent(target, below, change)


def _write_file(target: str, below: str, content: Iterable[bytes], mode: int) -> None:
    def write(parent: int, last: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(last, flags, 0o600, dir_fd=parent), "wb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise EvenkeelError(f"{posixpath.join(target, below)} exists and is not a file")
            file.writelines(content)
            os.fchmod(file.fileno(), mode)

    _at_parent(target, below, write)


def _at_parent(target: str, below: str, act: Callable[[int, str], None]) -> None:
    """Calls `act` with a descriptor of the parent directory and the last name. Directories below the target are opened
    one by one, and a symbolic link among them is an error."""
    first, *rest = [target, *below.split("/")] if below else [target]
    head, last = os.path.split(first.rstrip("/") or "/")
    with ExitStack() as opened:
        parent = os.open(head or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, parent)
        for name in rest:
            parent = os.open(last or ".", _DIRECTORY, dir_fd=parent)
            opened.callback(os.close, parent)
            last = name
        act(parent, last or ".")
