"""The content of volumes that the agent writes: files of ConfigMaps and Secrets, and fields of the pod. And their files
on disk.

Paths are checked by validation: each is relative, without `..`, and none begins with `..`.

A container always sees all of one version, as with kubelet. The files are in a new directory with the time in its name.
The link `..data` is switched to it by a rename. Each file is a link through `..data` in the volume itself. Containers
have these volumes read-only, so only the agent writes here.
"""

import os
import secrets
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from evenkeel.api.claims import CLAIM, claim_name
from evenkeel.api.container import Container
from evenkeel.api.data_objects import (
    CONFIG_MAP,
    NO_DATA,
    SECRET,
    TOKEN,
    TOKEN_KEY,
    DataObject,
    PodData,
    token_name,
    volume_fields,
)
from evenkeel.api.defaults import DEFAULT_FILE_MODE
from evenkeel.api.pod import Pod
from evenkeel.api.volume_types import DownwardAPIVolumeFile, KeyToPath, Volume
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.environment import amount_of, field_value, object_of
from evenkeel.runtime.start_errors import DataMissing, NoValue
from evenkeel.runtime.tree_removal import remove_tree

_MAPS = {"metadata.labels": "labels", "metadata.annotations": "annotations"}
_DATA, _NEW_DATA = "..data", "..data_tmp"
_DIRECTORY_MODE = 0o755
_OF_GROUP = 0o440  # the rights of the volumes' group (fsGroup) on each file
_writing = (
    threading.Lock()
)  # containers of a pod start at the same time, and each start writes the pod's volumes


class VolumeFile(NamedTuple):
    path: str  # relative to the volume
    content: bytes
    mode: int

    def __repr__(self) -> str:
        return f"<{self.path}>"  # the content may be a secret


def volume_files(pod: Pod, volume: Volume, data: PodData) -> tuple[VolumeFile, ...]:
    """Returns the files of a volume with data. Raises DataMissing and NoValue."""
    found: dict[str, VolumeFile] = {}
    for file in _files(pod, volume, data):
        found[file.path] = file
    return tuple(found.values())


def missing_files(pod: Pod, data: PodData) -> str:
    """Returns which ConfigMap, Secret or claim the volumes of the pod wait for; empty if none is missing."""
    for volume in pod.spec.volumes:
        if (name := claim_name(volume)) and (CLAIM, name) not in data:
            namespace = pod.metadata.namespace or "default"
            return f'volume "{volume.name}": {CLAIM} "{name}" is not there in namespace {namespace}: apply it'
        if volume.has_data:
            try:
                volume_files(pod, volume, data)
            except DataMissing as error:
                return f'volume "{volume.name}": {error.message}'
            except NoValue:
                pass  # the start reports it
    return ""


def files_refusal(pod: Pod, volume: Volume) -> str:
    """Returns why this node has no value for a file of the volume; empty if it has one for each."""
    for item in volume_fields(volume):
        try:
            _value(item, pod, NO_DATA)
        except DataMissing:
            pass  # it may come later
        except NoValue as error:
            return f"{item.path}: {error}"
    return ""


def _files(pod: Pod, volume: Volume, data: PodData) -> Iterator[VolumeFile]:
    if (config_map := volume.config_map) is not None:
        mode = _mode(config_map.default_mode)
        is_optional = bool(config_map.optional)
        yield from _of_object(
            CONFIG_MAP, config_map.name, config_map.items, mode, pod, data, is_optional=is_optional
        )
    if (secret := volume.secret) is not None:
        mode, is_optional = _mode(secret.default_mode), bool(secret.optional)
        yield from _of_object(
            SECRET, secret.secret_name, secret.items, mode, pod, data, is_optional=is_optional
        )
    if volume.downward_api is not None:
        yield from _of_pod(volume.downward_api.items, _mode(volume.downward_api.default_mode), pod, data)
    if volume.projected is not None:
        mode = _mode(volume.projected.default_mode)
        for source in volume.projected.sources:
            for kind, one in ((CONFIG_MAP, source.config_map), (SECRET, source.secret)):
                if one is not None:
                    is_optional = bool(one.optional)
                    yield from _of_object(kind, one.name, one.items, mode, pod, data, is_optional=is_optional)
            if source.downward_api is not None:
                yield from _of_pod(source.downward_api.items, mode, pod, data)
            if (token := source.service_account_token) is not None:
                found = data.get((TOKEN, token_name(pod, token)))
                if not isinstance(found, DataObject):
                    raise DataMissing("the cluster has not issued the token of the pod's service account yet")
                yield VolumeFile(token.path, found.content[TOKEN_KEY], mode)


def _mode(default: int | None) -> int:
    return DEFAULT_FILE_MODE if default is None else default


def _of_object(
    kind: str,
    name: str,
    items: Iterable[KeyToPath],
    mode: int,
    pod: Pod,
    data: PodData,
    *,
    is_optional: bool,
) -> Iterator[VolumeFile]:
    """Yields a file for each item, or for each key if there are no items."""
    found = object_of(kind, name, data, pod, is_optional=is_optional)
    content: Mapping[str, bytes] = {} if found is None else found.content
    chosen = tuple(items) or tuple(KeyToPath(key, key) for key in content)
    for item in chosen:
        if item.key in content:
            yield VolumeFile(item.path, content[item.key], mode if item.mode is None else item.mode)
        elif not is_optional:
            raise DataMissing(f'{kind} "{name}" has no key "{item.key}": add it, or set optional: true')


def _of_pod(
    items: Iterable[DownwardAPIVolumeFile], mode: int, pod: Pod, data: PodData
) -> Iterator[VolumeFile]:
    for item in items:
        value = _value(item, pod, data).encode("utf-8", "surrogateescape")
        yield VolumeFile(item.path, value, mode if item.mode is None else item.mode)


def _value(item: DownwardAPIVolumeFile, pod: Pod, data: PodData) -> str:
    if item.resource_field_ref is not None:
        return amount_of(item.resource_field_ref, pod, Container(), data)
    assert item.field_ref is not None
    field = item.field_ref.field_path
    if field in _MAPS:
        pairs: Mapping[str, str] = getattr(pod.metadata, _MAPS[field])
        return "\n".join(f"{key}={_quoted(value)}" for key, value in sorted(pairs.items()))
    return field_value(field, pod)


def _quoted(text: str) -> str:
    """Returns the text in quotes as Go writes it: kubelet writes labels and annotations so."""
    return '"' + "".join(map(_escaped, text)) + '"'


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r",
            "\t": "\\t", "\v": "\\v"}  # fmt: skip


def _escaped(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    if letter.isprintable():
        return letter
    number = ord(letter)
    if number < 0x80:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


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
