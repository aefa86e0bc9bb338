"""Looking at a live tree, in which others make and remove things meanwhile: cgroups, or files of an agent.

An entry that disappears during the walk is left out. `Path.glob`, `rglob` and `iterdir` raise FileNotFoundError there,
so no test calls them on a cgroup, and none reads what they find below a live agent."""

import errno
import os
import stat
from fnmatch import fnmatch
from pathlib import Path

# The last two: of a cgroup that was removed, or a process that ended, after its file was opened.
GONE = (errno.ENOENT, errno.ENODEV, errno.ESRCH)


def cgroups_below(top: Path, name: str = "*", *, deepest_first: bool = False) -> list[Path]:
    """Every cgroup below `top`, at any depth, whose name fits the pattern `name`."""
    walked = os.walk(top, topdown=not deepest_first)  # leaves out what it cannot read any more
    found = (Path(directory) for directory, _, _ in walked)
    return [path for path in found if path != top and fnmatch(path.name, name)]


def children(top: Path, name: str = "*") -> list[Path]:
    """The cgroups that are in `top` itself."""
    _, names, _ = next(os.walk(top), ("", [], []))
    return [top / one for one in names if fnmatch(one, name)]


def files_below(top: Path, *, of_one_device: bool = False) -> list[Path]:
    """Every plain file below `top`, at any depth; or those of its file system, without what is mounted there."""
    device = _device(top)
    found: list[Path] = []
    for directory, names, files in os.walk(top):
        if of_one_device:
            names[:] = [name for name in names if _device(Path(directory, name)) == device]
        found += [Path(directory, name) for name in files]
    seen = ((path, status(path)) for path in found)
    return [
        path
        for path, one in seen
        if one and stat.S_ISREG(one.st_mode) and not (of_one_device and one.st_dev != device)
    ]


def _device(path: Path) -> int | None:
    found = status(path)
    return found and found.st_dev


def status(file: Path) -> os.stat_result | None:
    """The status of the file itself, not of its link target; None if it is gone."""
    try:
        return file.lstat()
    except OSError as error:
        _raise_unless_gone(error)
        return None


def raw_content(file: Path) -> bytes | None:
    """None if the file is gone."""
    try:
        return file.read_bytes()
    except OSError as error:
        _raise_unless_gone(error)
        return None


def content(file: Path) -> str | None:
    """The content of a file without the last newline; None if the file or its cgroup is gone."""
    text = raw_content(file)
    return None if text is None else text.decode().removesuffix("\n")


def _raise_unless_gone(error: OSError) -> None:
    if error.errno not in GONE:
        raise error


def processes_in(cgroup: Path) -> list[int]:
    """The processes in this one cgroup; none if it is gone. One that is being released is listed as 0: a kill
    of that would kill the tests themselves."""
    return [pid for pid in map(int, (content(cgroup / "cgroup.procs") or "").split()) if pid > 0]
