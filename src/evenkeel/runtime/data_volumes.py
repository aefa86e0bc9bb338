"""Writes volumes with data so that a container always sees all of one version, as kubelet does.

The files are in a new directory with the time in its name. The link `..data` is switched to it by a rename. Each file
is a link through `..data` in the volume itself. Containers have these volumes read-only, so only the agent writes here.
"""

import os
import secrets
import stat
import threading
import time
from collections.abc import Sequence

from evenkeel.runtime.tree_removal import remove_tree
from evenkeel.runtime.volume_content import VolumeFile

_DATA, _NEW_DATA = "..data", "..data_tmp"
_DIRECTORY_MODE = 0o755
_OF_GROUP = 0o440  # what the group of the volumes may do with each file: fsGroup
_writing = (
    threading.Lock()
)  # containers of a pod start at the same time, and each start writes the pod's volumes


def write(directory: str, files: Sequence[VolumeFile], group: int | None) -> bool:
    """Brings the volume at `directory`, which exists, up to date. Returns whether something was changed. Raises
    OSError."""
    wanted = {
        file.path: (file.content, file.mode | (_OF_GROUP if group is not None else 0)) for file in files
    }
    with _writing:
        current = _link(f"{directory}/{_DATA}")
        if current and _content(f"{directory}/{current}") == wanted:
            _tidy(directory, current, wanted)
            return False
        name = f"..{time.strftime('%Y_%m_%d_%H_%M_%S', time.gmtime())}.{secrets.randbelow(10**10):010d}"
        _fill(f"{directory}/{name}", wanted, group)
        _switch(directory, name)
        _tidy(directory, name, wanted)
        return True


_Files = dict[str, tuple[bytes, int]]  # by path: content and mode


def _fill(directory: str, files: _Files, group: int | None) -> None:
    _make_directory(directory, group)
    for path, (content, mode) in files.items():
        parent = directory
        for part in path.split("/")[:-1]:
            parent = f"{parent}/{part}"
            if not os.path.isdir(parent):
                _make_directory(parent, group)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(f"{directory}/{path}", flags, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            if group is not None:
                os.fchown(descriptor, -1, group)
            os.fchmod(descriptor, mode)


def _make_directory(path: str, group: int | None) -> None:
    os.mkdir(path, _DIRECTORY_MODE)
    if group is not None:
        os.chown(path, -1, group)
    os.chmod(path, _DIRECTORY_MODE | (stat.S_ISGID if group is not None else 0))


def _switch(directory: str, name: str) -> None:
    new = f"{directory}/{_NEW_DATA}"
    if os.path.lexists(new):  # left by an agent that was killed
        os.unlink(new)
    os.symlink(name, new)
    os.rename(new, f"{directory}/{_DATA}")


def _tidy(directory: str, current: str, files: _Files) -> None:
    """Makes the links of all files, and removes old versions and links of files that are gone."""
    tops = {path.split("/")[0] for path in files}
    for name in os.listdir(directory):
        path = f"{directory}/{name}"
        if name.startswith("..") and name not in (_DATA, current):
            if os.path.islink(path):
                os.unlink(path)
            else:
                remove_tree(path)
        elif not name.startswith("..") and name not in tops:
            os.unlink(path)
    for name in tops:
        if _link(f"{directory}/{name}") != f"{_DATA}/{name}":
            os.symlink(f"{_DATA}/{name}", f"{directory}/{name}")


def _content(directory: str) -> _Files:
    found: _Files = {}
    for place, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(place, name)
            with open(path, "rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                found[os.path.relpath(path, directory)] = (file.read(), mode)
    return found


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
