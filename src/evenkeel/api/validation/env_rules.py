"""Rules for environment variables: their names, and the fields, resources and objects that their values come from."""

from collections.abc import Mapping

from evenkeel.api.container import (
    ConfigMapKeySelector,
    Container,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    FileKeySelector,
    ObjectFieldSelector,
    ResourceFieldSelector,
    SecretKeySelector,
)
from evenkeel.api.problems import Problems, invalid, not_found, not_supported, required, shown, unusable
from evenkeel.api.resources import CPU, EPHEMERAL_STORAGE, HUGEPAGES_PREFIX, MEMORY
from evenkeel.api.validation.name_rules import (
    data_key,
    dns_label,
    dns_subdomain,
    environment_name,
    plain_text,
    qualified_name,
)
from evenkeel.api.volume_types import Volume

_API_VERSION = "v1"
_FIELDS = (
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
    "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
)  # fmt: skip
# Fields that the API knows and that cannot be the value of a variable.
_OTHER_FIELDS = (
    "metadata.annotations", "metadata.labels", "spec.restartPolicy", "spec.schedulerName", "status.phase",
)  # fmt: skip
_KINDS = ("limits", "requests")
_RESOURCES = tuple(f"{kind}.{name}" for kind in _KINDS for name in (CPU, MEMORY, EPHEMERAL_STORAGE))
_HUGE = tuple(f"{kind}.{HUGEPAGES_PREFIX}" for kind in _KINDS)
_CPU_DIVISORS: tuple[str, ...] = ("1m", "1")
_BYTE_DIVISORS = (
    "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
)  # fmt: skip


def environment(variables: tuple[EnvVar, ...], path: str) -> Problems:
    for index, variable in enumerate(variables):
        here = f"{path}[{index}]"
        if not variable.name:
            yield required(f"{here}.name", "an environment variable needs a name")
        elif environment_name(variable.name):
            yield invalid(f"{here}.name", f"{shown(variable.name)} {environment_name(variable.name)}")
        if variable.value_from is not None:
            yield from _source(variable.value_from, variable.value, f"{here}.valueFrom")
        if plain_text(variable.value):
            yield unusable(f"{here}.value", f"{shown(variable.value)} {plain_text(variable.value)}")


def environment_sources(sources: tuple[EnvFromSource, ...], path: str) -> Problems:
    """The rules for `envFrom`."""
    for index, source in enumerate(sources):
        here = f"{path}[{index}]"
        if source.prefix and (wrong := environment_name(source.prefix)):
            yield invalid(f"{here}.prefix", f"{shown(source.prefix)} {wrong}")
        config_map, secret = source.config_map_ref, source.secret_ref
        if (config_map is None) == (secret is None):
            # The path that Kubernetes has for it, without the index.
            yield invalid(path, f"must hold one of configMapRef and secretRef in item {index}")
        if config_map is not None:
            yield from _object_name(config_map.name, f"{here}.configMapRef.name")
        if secret is not None:
            yield from _object_name(secret.name, f"{here}.secretRef.name")


def _source(source: EnvVarSource, value: str, path: str) -> Problems:
    given = []
    if source.field_ref is not None:
        given.append("fieldRef")
        yield from field_problems(source.field_ref, f"{path}.fieldRef", _FIELDS)
    if source.resource_field_ref is not None:
        given.append("resourceFieldRef")
        yield from amount_problems(source.resource_field_ref, f"{path}.resourceFieldRef")
    if source.config_map_key_ref is not None:
        given.append("configMapKeyRef")
        yield from _key(source.config_map_key_ref, f"{path}.configMapKeyRef")
    if source.secret_key_ref is not None:
        given.append("secretKeyRef")
        yield from _key(source.secret_key_ref, f"{path}.secretKeyRef")
    if source.file_key_ref is not None:
        given.append("fileKeyRef")
        yield from _file_key(source.file_key_ref, f"{path}.fileKeyRef")
    if not given:
        yield invalid(
            path, "must hold fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef or fileKeyRef"
        )
    elif value:
        yield invalid(path, "may not be given together with value")
    elif len(given) > 1:
        yield invalid(path, f"must hold one source, and holds {' and '.join(given)}")


def _key(selector: ConfigMapKeySelector | SecretKeySelector, path: str) -> Problems:
    if wrong := dns_subdomain(selector.name):
        yield invalid(f"{path}.name", f"{shown(selector.name)} {wrong}")
    if not selector.key:
        yield required(f"{path}.key", "name the key whose value the variable gets")
    elif wrong := data_key(selector.key):
        yield invalid(f"{path}.key", f"{shown(selector.key)} {wrong}")


def _file_key(selector: FileKeySelector, path: str) -> Problems:
    if not selector.volume_name:
        yield required(f"{path}.volumeName", "name an emptyDir volume of the pod")
    elif wrong := dns_label(selector.volume_name):
        yield invalid(f"{path}.volumeName", f"{shown(selector.volume_name)} {wrong}")
    yield from _file_place(selector.path, f"{path}.path")
    if not selector.key:
        yield required(f"{path}.key", "name the key whose value the variable gets")
    elif wrong := environment_name(selector.key):
        yield invalid(f"{path}.key", f"{shown(selector.key)} {wrong}")


def _file_place(place: str, path: str) -> Problems:
    if not place:
        yield required(path, "write the path of the file in the volume")
    elif place.startswith("/"):
        yield invalid(path, f"{shown(place)} must be relative to the volume, without a / in front")
    elif place.startswith("..") or ".." in place.split("/"):
        yield invalid(path, f"{shown(place)} must have no .. and not begin with it")
    elif plain_text(place):
        yield unusable(path, f"{shown(place)} {plain_text(place)}")


def file_volume_problems(container: Container, volumes: Mapping[str, Volume], path: str) -> Problems:
    """Files for variables come from emptyDir volumes of the pod. As in Kubernetes the container need not mount them."""
    for index, variable in enumerate(container.env):
        selector = variable.value_from.file_key_ref if variable.value_from is not None else None
        if selector is None or dns_label(selector.volume_name):
            continue
        volume, here = (
            volumes.get(selector.volume_name),
            f"{path}[{index}].valueFrom.fileKeyRef.volumeName",
        )
        if volume is None:
            yield not_found(here, f"the pod has no volume {shown(selector.volume_name)}")
        elif volume.empty_dir is None:
            yield invalid(here, f"{shown(selector.volume_name)} must be an emptyDir volume")


def _object_name(name: str, path: str) -> Problems:
    if not name:
        yield required(path, "name the object")
    elif wrong := dns_subdomain(name):
        yield invalid(path, f"{shown(name)} {wrong}")


def field_problems(
    selector: ObjectFieldSelector, path: str, fields: tuple[str, ...], maps: tuple[str, ...] = ()
) -> Problems:
    """The rules for a fieldRef. `fields` are the fields that it may name, beside single labels and annotations; `maps`
    are those with many lines."""
    field = selector.field_path
    if not field:
        yield required(f"{path}.fieldPath", "name a field of the pod, such as metadata.name")
        return
    outer, bracket, rest = field.partition("['")
    key = rest.removesuffix("']") if bracket and outer and field.endswith("']") else None
    if selector.api_version not in ("", _API_VERSION):
        yield invalid(f"{path}.fieldPath", f"{shown(selector.api_version)} must be {_API_VERSION}, the pod's")
    elif key is not None:
        if outer == "metadata.annotations":
            key = key.lower()
        elif outer != "metadata.labels":
            yield invalid(f"{path}.fieldPath", f"{shown(field)}: only labels and annotations have keys")
            return
        if wrong := qualified_name(key):
            yield invalid(path, f"{shown(key)} {wrong}")
    elif field in {*_FIELDS, *_OTHER_FIELDS} - {*fields, *maps}:
        yield not_supported(f"{path}.fieldPath", field, (*fields, *maps))
    elif field not in (*_FIELDS, *maps, "spec.host"):
        yield invalid(f"{path}.fieldPath", f"{shown(field)} is no field that a variable can hold")


def amount_problems(selector: ResourceFieldSelector, path: str, *, has_container: bool = True) -> Problems:
    """The rules for a resourceFieldRef. A variable has a container; a volume has none, and names it."""
    name = selector.resource
    if not has_container and not selector.container_name:
        yield required(f"{path}.containerName", "name the container: a volume has none")
    elif not name:
        yield required(f"{path}.resource", "name a resource of the container, such as limits.memory")
    elif name not in _RESOURCES and not name.startswith(_HUGE):
        yield not_supported(f"{path}.resource", name, _RESOURCES)
    if not selector.divisor:
        return
    if name.endswith(f".{CPU}"):
        divisors = _CPU_DIVISORS
    elif name in _RESOURCES or name.startswith(_HUGE):
        divisors = _BYTE_DIVISORS
    else:
        return
    if str(selector.divisor) not in divisors:
        yield invalid(
            f"{path}.divisor", f"{selector.divisor} must be one of {', '.join(divisors)} for {name}"
        )
