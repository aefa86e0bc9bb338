"""Looking at a live cgroup tree, in which others make and remove cgroups meanwhile.

What is gone when it is reached is left out, as if the look had come a moment later. `Path.glob`, `rglob` and `iterdir`
raise FileNotFoundError there, so no test calls them on a cgroup.
"""

import errno
import os
from fnmatch import fnmatch
from pathlib import Path

# A file of a cgroup that was removed after the file was opened.
GONE = (errno.ENOENT, errno.ENODEV)


def cgroups_below(top: Path, name: str = "*", *, deepest_first: bool = False) -> list[Path]:
    """Every cgroup below `top`, at any depth, whose name fits the pattern `name`."""
    walked = os.walk(top, topdown=not deepest_first)  # leaves out what it cannot read any more
    found = (Path(directory) for directory, _, _ in walked)
    return [path for path in found if path != top and fnmatch(path.name, name)]


def children(top: Path, name: str = "*") -> list[Path]:
    """The cgroups that are in `top` itself."""
    _, names, _ = next(os.walk(top), ("", [], []))
    return [top / one for one in names if fnmatch(one, name)]


def content(file: Path) -> str | None:
    """What a file of a cgroup says, without the last newline; None if the cgroup is gone."""
    try:
        return file.read_text().removesuffix("\n")
    except OSError as error:
        if error.errno not in GONE:
            raise
        return None


def processes_in(cgroup: Path) -> list[int]:
    """The processes in this one cgroup; none if it is gone. One that is being released is listed as 0: whoever killed
    that would kill the tests themselves."""
    return [pid for pid in map(int, (content(cgroup / "cgroup.procs") or "").split()) if pid > 0]
