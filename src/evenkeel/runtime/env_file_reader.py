"""Reads the files of emptyDir volumes that variables come from. All functions block."""

import errno
import os
import stat

from evenkeel.api.data_objects import EnvFile
from evenkeel.errors import reason
from evenkeel.runtime.env_files import file_keys, file_name, file_value
from evenkeel.runtime.interface import Launch
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.start_errors import DataMissing, WrongConfig
from evenkeel.runtime.sub_paths import open_below
from evenkeel.runtime.volumes import source_path

_MOST_BYTES = 1 << 20


def with_env_files(launch: Launch, paths: StatePaths) -> Launch:
    """Returns the launch with the files that the container's variables come from. Raises WrongConfig if a value is
    missing: as in kubelet, the container waits for it."""
    volumes = {volume.name: volume for volume in launch.pod.spec.volumes}
    data = dict(launch.data)
    for selector in file_keys(launch.container):
        name = file_name(selector)
        if name not in data:
            directory = source_path(launch.pod, volumes[selector.volume_name], paths)
            data[name] = read_env_file(directory, selector.path)
        try:
            file_value(selector, data)
        except DataMissing as missing:
            raise WrongConfig(missing.message) from None
    return launch._replace(data=data)


def read_env_file(directory: str, path: str) -> EnvFile:
    """Reads a file of a volume. The pod's containers may have put anything there: a symlink that leads out, a pipe, a
    file without end."""
    try:
        content = _content(directory, path)
    except FileNotFoundError:
        return EnvFile()
    except OSError as error:
        if error.errno == errno.EXDEV:
            return EnvFile(problem="leads out of the volume")
        return EnvFile(problem=f"cannot be read: {reason(error)}")
    if content is None:
        return EnvFile(problem="is not a plain file")
    if len(content) > _MOST_BYTES:
        return EnvFile(problem="has more than 1 MiB")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    return EnvFile(problem="is not text") if "\0" in text else EnvFile(text)


def _content(directory: str, path: str) -> bytes | None:
    """The beginning of the file, a byte more than it may have; None if it is not a plain file. Raises OSError."""
    volume = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = open_below(volume, path)
    finally:
        os.close(volume)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            return None
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # it waits for no lease on the file
        with open(os.open(f"/proc/self/fd/{found}", flags), "rb") as file:
            return file.read(_MOST_BYTES + 1)
    finally:
        os.close(found)
