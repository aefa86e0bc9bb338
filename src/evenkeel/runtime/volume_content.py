"""The content of volumes that the agent writes: files of ConfigMaps and Secrets, and fields of the pod. Pure.

Paths are checked by validation: each is relative, without `..`, and none begins with `..`.
"""

from collections.abc import Iterable, Iterator, Mapping

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
from evenkeel.runtime.environment import DataMissing, NoValue, amount_of, field_value, object_of

_MAPS = {"metadata.labels": "labels", "metadata.annotations": "annotations"}


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
