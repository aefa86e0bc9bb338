"""ConfigMaps and Secrets: data that pods take as variables and as files.

Both are read into one value, with the content as bytes. The content of a Secret is in no message, and not in the text
that `repr` makes: only `manifest_of` gives it out.
"""

import binascii
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

from evenkeel.api.claims import CLAIM, PersistentVolumeClaim, claim_name
from evenkeel.api.container import Container
from evenkeel.api.decode import Findings, decode
from evenkeel.api.encode import encode
from evenkeel.api.pod import NO_LABELS, ObjectMeta, Pod
from evenkeel.api.problems import Problems, invalid, join
from evenkeel.api.resources import ResourceList
from evenkeel.api.volume_types import DownwardAPIVolumeFile, ServiceAccountTokenProjection, Volume
from evenkeel.named_tuples import NamedTuple

CONFIG_MAP, SECRET = "ConfigMap", "Secret"
DATA_KINDS = (CONFIG_MAP, SECRET)
# A token of a service account, bound to one pod. It is no object of an API: the node requests it, and keeps it as one.
TOKEN = "ServiceAccountToken"  # noqa: S105 a kind
TOKEN_KEY = "token"  # noqa: S105 a key
ENV_FILE = "EnvFile"  # a file of the pod's own, which the runtime reads; no object of an API either
OPAQUE = "Opaque"
_NO_CONTENT: Mapping[str, bytes] = MappingProxyType({})


T = TypeVar("T")


class DataKey(NamedTuple):
    """Identifies an object. Two objects of different kinds may have the same name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class DataObject(NamedTuple):
    """A ConfigMap or a Secret. `binary` are the keys that a ConfigMap has in `binaryData`: no variable can hold
    them."""

    kind: str
    metadata: ObjectMeta = ObjectMeta()
    content: Mapping[str, bytes] = _NO_CONTENT
    binary: frozenset[str] = frozenset()
    type: str = ""  # of a Secret
    is_immutable: bool = False

    @property
    def key(self) -> DataKey:
        return DataKey(self.kind, self.metadata.namespace or "default", self.metadata.name)

    @property
    def texts(self) -> Mapping[str, bytes]:
        """The values that variables can have."""
        return {key: value for key, value in self.content.items() if key not in self.binary}

    def __repr__(self) -> str:
        return f"<{self.key}>"


class NodeAmounts(NamedTuple):
    """The node's allocatable amounts. If a pod asks for the limit of a container that has none, it gets these."""

    allocatable: ResourceList


class EnvFile(NamedTuple):
    """A file of an emptyDir volume that variables come from, as it was when the container started."""

    text: str | None = None  # None: it is not there
    problem: str = ""  # why it cannot be read


# The objects that a pod refers to, by kind and name. All are in the pod's namespace; the node has no name. The name of
# a file is that of its volume and its path.
PodData = Mapping[tuple[str, str], DataObject | PersistentVolumeClaim | NodeAmounts | EnvFile]
NO_DATA: PodData = MappingProxyType({})
NODE_AMOUNTS = ("Node", "")


def references(pod: Pod) -> frozenset[tuple[str, str]]:
    """Kind and name of each object that the pod takes data from, and of its claims."""
    variables = (one for each in pod.spec.every_container for one in variable_references(each))
    files = (one for volume in pod.spec.volumes for one in volume_references(volume))
    passwords = ((SECRET, each.name) for each in pod.spec.image_pull_secrets)
    tokens = ((TOKEN, token_name(pod, each)) for each in pod_tokens(pod))
    return frozenset((*variables, *files, *passwords, *tokens))


def pod_tokens(pod: Pod) -> Iterator[ServiceAccountTokenProjection]:
    """Each token of its service account that the pod has in a volume."""
    for volume in pod.spec.volumes:
        for source in volume.projected.sources if volume.projected is not None else ():
            if source.service_account_token is not None:
                yield source.service_account_token


def token_name(pod: Pod, token: ServiceAccountTokenProjection) -> str:
    """The name of a token: it is the pod's own, so that no other pod can name it."""
    return f"{pod.metadata.uid}/{token.expiration_seconds or 0}/{token.audience}"


def wants_node_amounts(pod: Pod) -> bool:
    """Whether a variable or a file of the pod has a limit, which may be the node's."""
    variables = (one.value_from for each in pod.spec.every_container for one in each.env)
    files = (one for volume in pod.spec.volumes for one in volume_fields(volume))
    return any(
        one is not None and one.resource_field_ref is not None and one.resource_field_ref.is_limit
        for one in (*variables, *files)
    )


def volume_fields(volume: Volume) -> Iterator[DownwardAPIVolumeFile]:
    """Each file of the volume that has a field of the pod."""
    if volume.downward_api is not None:
        yield from volume.downward_api.items
    for source in volume.projected.sources if volume.projected is not None else ():
        if source.downward_api is not None:
            yield from source.downward_api.items


def volume_references(volume: Volume) -> Iterator[tuple[str, str]]:
    """Kind and name of each object that the volume has files of, and of its claim."""
    if volume.config_map is not None:
        yield CONFIG_MAP, volume.config_map.name
    if volume.secret is not None:
        yield SECRET, volume.secret.secret_name
    for source in volume.projected.sources if volume.projected is not None else ():
        if source.config_map is not None:
            yield CONFIG_MAP, source.config_map.name
        if source.secret is not None:
            yield SECRET, source.secret.name
    if name := claim_name(volume):
        yield CLAIM, name


def variable_references(container: Container) -> Iterator[tuple[str, str]]:
    """Kind and name of each object that the container takes variables from."""
    for variable in container.env:
        if (source := variable.value_from) is not None:
            if source.config_map_key_ref is not None:
                yield CONFIG_MAP, source.config_map_key_ref.name
            if source.secret_key_ref is not None:
                yield SECRET, source.secret_key_ref.name
    for each in container.env_from:
        if each.config_map_ref is not None:
            yield CONFIG_MAP, each.config_map_ref.name
        if each.secret_ref is not None:
            yield SECRET, each.secret_ref.name


def takes_secrets(container: Container) -> bool:
    """Whether variables of the container have values of Secrets."""
    return any(kind == SECRET for kind, _ in variable_references(container))


class _ConfigMap(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    data: Mapping[str, str] = NO_LABELS
    binary_data: Mapping[str, str] = NO_LABELS
    immutable: bool | None = None


class _Secret(NamedTuple):
    metadata: ObjectMeta = ObjectMeta()
    data: Mapping[str, str] = NO_LABELS
    string_data: Mapping[str, str] = NO_LABELS
    type: str = ""
    immutable: bool | None = None


def read_object(kind: str, value: Mapping[str, object], path: str, findings: Findings) -> DataObject | None:
    """The object in a manifest without `apiVersion` and `kind`. None if it has problems, which are in `findings`."""
    own = Findings()
    content: dict[str, bytes] = {}
    binary: frozenset[str] = frozenset()
    type_ = ""
    if kind == CONFIG_MAP:
        config_map = _decoded(_ConfigMap, value, path, own)
        metadata, is_immutable = config_map.metadata, bool(config_map.immutable)
        content = _from_texts(config_map.data, join(path, "data"), own)
        more = _from_base64(config_map.binary_data, join(path, "binaryData"), own)
        for key in sorted(content.keys() & more.keys()):
            own.problems.append(
                invalid(join(path, f"binaryData[{key}]"), "is a key of data too: take one out")
            )
        content, binary = {**content, **more}, frozenset(more)
    else:
        secret = _decoded(_Secret, value, path, own)
        metadata, is_immutable, type_ = secret.metadata, bool(secret.immutable), secret.type or OPAQUE
        content = {
            **_from_base64(secret.data, join(path, "data"), own),
            **_from_texts(secret.string_data, join(path, "stringData"), own),
        }
    metadata = metadata._replace(namespace=metadata.namespace or "default")
    findings.problems += own.problems
    findings.not_honoured += own.not_honoured
    return None if own.problems else DataObject(kind, metadata, content, binary, type_, is_immutable)


def manifest_of(one: DataObject) -> dict[str, object]:
    """The object as a manifest, with its content."""
    text = _base64_of if one.kind == SECRET else _text_of
    plain = {key: text(value) for key, value in one.content.items() if key not in one.binary}
    binary = {key: _base64_of(value) for key, value in one.content.items() if key in one.binary}
    found: dict[str, object] = {"apiVersion": "v1", "kind": one.kind, "metadata": encode(one.metadata)}
    if plain:
        found["data"] = plain
    if binary:
        found["binaryData"] = binary
    if one.type:
        found["type"] = one.type
    if one.is_immutable:
        found["immutable"] = True
    return found


def change_problems(before: DataObject, after: DataObject) -> Problems:
    """Why `before` must not become `after`."""
    if before.type != after.type:
        yield invalid(
            "type", f"{after.type} is not {before.type}: delete the {before.kind} to change its type"
        )
    if not before.is_immutable:
        return
    if not after.is_immutable:
        yield invalid("immutable", f"cannot be taken back: delete the {before.kind} and make it anew")
    if before.content != after.content or before.binary != after.binary:
        yield invalid(
            "data", f"cannot change, because the {before.kind} is immutable: make one of another name"
        )


def _from_texts(values: Mapping[str, str], path: str, findings: Findings) -> dict[str, bytes]:
    found = {}
    for key, value in values.items():
        try:
            found[key] = value.encode()
        except UnicodeEncodeError:
            findings.wrong_shape(f"{path}[{key}]", "must be Unicode, without halves of surrogate pairs")
    return found


def _from_base64(values: Mapping[str, str], path: str, findings: Findings) -> dict[str, bytes]:
    found = {}
    for key, value in values.items():
        try:
            found[key] = binascii.a2b_base64(value.translate(_LINE_ENDS), strict_mode=True)
        except (binascii.Error, ValueError):
            findings.wrong_shape(f"{path}[{key}]", "is not base64, such as `base64 -w0 FILE` prints")
    return found


_LINE_ENDS = {ord("\r"): None, ord("\n"): None}


def _decoded(cls: type[T], value: Mapping[str, object], path: str, findings: Findings) -> T:
    """Decodes the manifest. Problems with data do not quote the data: it may be a secret."""
    own = Findings()
    found = decode(cls, value, own, path)
    data = tuple(join(path, name) for name in ("data", "binaryData", "stringData"))
    for problem in own.problems:
        if problem.field in data:
            problem = problem._replace(message="must be a mapping from keys to values")
        elif problem.field.startswith(tuple(f"{field}[" for field in data)):
            problem = problem._replace(message="must be a string: put it in quotes")
        findings.problems.append(problem)
    findings.not_honoured += own.not_honoured
    return found


def _base64_of(value: bytes) -> str:
    return binascii.b2a_base64(value, newline=False).decode("ascii")


def _text_of(value: bytes) -> str:
    return value.decode()
