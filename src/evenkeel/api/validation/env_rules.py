"""Rules for environment variables: their names, and the fields and resources that their values come from."""

from evenkeel.api.container import EnvVar, EnvVarSource, ObjectFieldSelector, ResourceFieldSelector
from evenkeel.api.problems import Problems, invalid, not_supported, required, shown, unusable
from evenkeel.api.resources import CPU, EPHEMERAL_STORAGE, HUGEPAGES_PREFIX, MEMORY
from evenkeel.api.validation.name_rules import environment_name, plain_text, qualified_name

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


def _source(source: EnvVarSource, value: str, path: str) -> Problems:
    field, resource = source.field_ref, source.resource_field_ref
    if field is not None:
        yield from _field(field, f"{path}.fieldRef")
    if resource is not None:
        yield from _resource(resource, f"{path}.resourceFieldRef")
    if field is None and resource is None:
        yield invalid(path, "must hold fieldRef or resourceFieldRef; other sources cannot be had here")
    elif value:
        yield invalid(path, "may not be given together with value")
    elif field is not None and resource is not None:
        yield invalid(path, "must hold one source, and holds both fieldRef and resourceFieldRef")


def _field(selector: ObjectFieldSelector, path: str) -> Problems:
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
    elif field in _OTHER_FIELDS:
        yield not_supported(f"{path}.fieldPath", field, _FIELDS)
    elif field not in (*_FIELDS, "spec.host"):
        yield invalid(f"{path}.fieldPath", f"{shown(field)} is no field that a variable can hold")


def _resource(selector: ResourceFieldSelector, path: str) -> Problems:
    name = selector.resource
    if not name:
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
