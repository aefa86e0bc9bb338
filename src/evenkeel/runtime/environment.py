"""The environment of a container: its variables, its command with `$(NAME)` expanded, and its user.

The rules are those of Kubernetes. Variables from ConfigMaps and Secrets get their values at the start of the container
and not before, so that no record of the agent has them.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from evenkeel.api.container import Container, EnvFromSource, EnvVarSource, ResourceFieldSelector
from evenkeel.api.data_objects import (
    CONFIG_MAP,
    NO_DATA,
    NODE_AMOUNTS,
    SECRET,
    DataObject,
    NodeAmounts,
    PodData,
    variable_references,
)
from evenkeel.api.pod import Pod, PodStatus
from evenkeel.api.resources import CPU, is_hugepages
from evenkeel.api.validation.name_rules import environment_name
from evenkeel.named_tuples import NamedTuple
from evenkeel.quantity import ZERO, Quantity
from evenkeel.runtime.env_files import file_keys, file_value
from evenkeel.runtime.start_errors import DataMissing, NotYet, NoValue

_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_LONGEST_HOSTNAME = 63
_FIELDS = (
    "metadata.name, metadata.namespace, metadata.uid, metadata.labels['KEY'], metadata.annotations['KEY'], "
    "spec.nodeName, spec.serviceAccountName, status.hostIP and status.podIP"
)


def value_of(source: EnvVarSource, pod: Pod, container: Container, data: PodData = NO_DATA) -> str | None:
    """Returns the value of a variable with valueFrom; None if an optional one is missing. Raises NoValue and
    DataMissing."""
    if source.field_ref is not None:
        return field_value(source.field_ref.field_path, pod)
    if source.resource_field_ref is not None:
        return amount_of(source.resource_field_ref, pod, container, data)
    if source.file_key_ref is not None:
        return file_value(source.file_key_ref, data)
    for kind, selector in ((CONFIG_MAP, source.config_map_key_ref), (SECRET, source.secret_key_ref)):
        if selector is not None:
            found = object_of(kind, selector.name, data, pod, is_optional=bool(selector.optional))
            if found is None:
                return None
            value = found.texts.get(selector.key)
            if value is None and not selector.optional:
                raise no_key(found, selector.key)
            return None if value is None else _text(value, found, selector.key)
    raise NoValue("this source is not supported here; write value instead")


def object_of(kind: str, name: str, data: PodData, pod: Pod, *, is_optional: bool) -> DataObject | None:
    """Returns an object that the pod refers to; None if it is missing and optional. Raises DataMissing."""
    found = data.get((kind, name))
    if not isinstance(found, DataObject) and not is_optional:
        namespace = pod.metadata.namespace or "default"
        raise DataMissing(
            f'{kind} "{name}" is not there in namespace {namespace}: apply it, or set optional: true'
        )
    return found if isinstance(found, DataObject) else None


def no_key(found: DataObject, key: str) -> DataMissing:
    binary = " (it is in binaryData, which no variable can hold)" if key in found.binary else ""
    return DataMissing(
        f'{found.kind} "{found.metadata.name}" has no key "{key}"{binary}: add it, or set optional: true'
    )


def problems(pod: Pod, container: Container) -> Iterator[str]:
    """Why the node has no value for variables of the container."""
    for index, variable in enumerate(container.env):
        if variable.value_from is not None:
            try:
                value_of(variable.value_from, pod, container)
            except (DataMissing, NotYet):
                pass  # it may come later
            except NoValue as error:
                yield f"env[{index}].valueFrom: {error}"


def sub_paths(pod: Pod, container: Container, data: PodData = NO_DATA) -> dict[int, str]:
    """Returns the subPath of each mount that has one, by its index, with variables in subPathExpr expanded. Raises
    NoValue and DataMissing."""
    found = {index: mount.sub_path for index, mount in enumerate(container.volume_mounts) if mount.sub_path}
    expressions = [
        (index, mount.sub_path_expr)
        for index, mount in enumerate(container.volume_mounts)
        if mount.sub_path_expr
    ]
    known = declared(pod, container, data) if expressions else {}
    for index, expression in expressions:
        path = expanded(expression, known)
        if missing := _UNKNOWN.search(path):
            raise NoValue(f"subPathExpr {expression}: there is no variable {missing[1]}")
        if path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise NoValue(f"subPathExpr {expression}: its variables lead out of the volume")
        found[index] = path
    return found


_UNKNOWN = re.compile(r"\$\(([^)]*)\)")


def missing_data(pod: Pod, container: Container, data: PodData) -> str:
    """Returns what is missing of the ConfigMaps and Secrets that the container takes variables from; empty if nothing
    is."""
    if not any(True for _ in variable_references(container)):
        return ""
    if any(True for _ in file_keys(container)):  # the runtime reads the files
        variables = [
            one for one in container.env if one.value_from is None or not one.value_from.file_key_ref
        ]
        container = container._replace(env=tuple(variables))
    try:
        declared(pod, container, data)
    except DataMissing as error:
        return error.message
    except NoValue:
        pass  # the start reports it
    return ""


def _text(value: bytes, found: DataObject, key: str) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise DataMissing(
            f'the value of key "{key}" of {found.kind} "{found.metadata.name}" is not text, so no variable can have '
            "it: mount it as a file"
        )
    return text


def field_value(path: str, pod: Pod) -> str:
    """Returns the value of a field of the pod. Raises NoValue."""
    metadata, status = pod.metadata, pod.status
    keyed = _KEYED.fullmatch(path)
    if keyed:
        every: Mapping[str, str] = metadata.labels if keyed[1] == "labels" else metadata.annotations
        value = every.get(keyed[2], "")
        if "\0" in value:
            raise NoValue(f"{path} holds a NUL character, which no variable can")
        return value
    if path == "spec.nodeName":
        return pod.spec.node_name or os.uname().nodename  # this is the machine that runs the pod
    addresses = {
        "status.hostIP": status.host_ip,
        "status.hostIPs": ",".join(one.ip for one in status.host_ips),
        "status.podIP": status.pod_ip,
        "status.podIPs": ",".join(one.ip for one in status.pod_ips),
    }
    if path in addresses:
        if not addresses[path]:
            raise NotYet(f"{path}: the address is not known")
        return addresses[path]
    plain = {
        "metadata.name": metadata.name,
        "metadata.namespace": metadata.namespace,
        "metadata.uid": metadata.uid,
        "spec.serviceAccountName": pod.spec.service_account_name or "default",
    }
    if path not in plain:
        raise NoValue(f'fieldPath "{path}" is not supported here: there are {_FIELDS}')
    return plain[path]


def hostname(pod: Pod) -> str:
    """The host name of the pod's containers. As in kubelet it is the machine's if the pod asks for its network."""
    if pod.spec.host_network:
        return os.uname().nodename
    name = pod.spec.hostname_override or pod.spec.hostname or pod.metadata.name
    return name[:_LONGEST_HOSTNAME].rstrip("-.")


def wants_addresses(container: Container) -> bool:
    """Returns whether a variable of the container has an address of the pod or the host."""
    return any(
        variable.value_from is not None
        and variable.value_from.field_ref is not None
        and variable.value_from.field_ref.field_path.startswith("status.")
        for variable in container.env
    )


def with_addresses(pod: Pod, host: str, own: tuple[str, ...] | None) -> Pod:
    """Returns the pod with addresses in its status. `own` are those of its own network; None: it uses the host's."""
    return pod._replace(status=PodStatus().with_addresses(host, own))


def amount_of(
    selector: ResourceFieldSelector, pod: Pod, container: Container, data: PodData = NO_DATA
) -> str:
    """Returns a request or limit in units of the divisor, rounded up. Raises NoValue and DataMissing."""
    name = selector.container_name or container.name
    of = next((each for each in pod.spec.every_container if each.name == name), None)
    if of is None:
        raise NoValue(f'the pod has no container "{name}"')
    kind, _, resource = selector.resource.partition(".")
    if kind not in ("limits", "requests") or not resource:
        raise NoValue(f'resource "{selector.resource}" is neither limits.NAME nor requests.NAME')
    amount = (
        _limit(resource, pod, of, data) if selector.is_limit else of.resources.requests.get(resource, ZERO)
    )
    divisor = selector.divisor or Quantity.of(1)
    if resource == CPU:
        return str(-(-amount.milli // divisor.milli))
    return str(-(-amount.value // divisor.value))


def _limit(resource: str, pod: Pod, container: Container, data: PodData) -> Quantity:
    """Returns the container's limit. As in kubelet, one that has none has the limit of its pod, else all that the node
    can give to pods; huge pages have no such default."""
    of_pod = pod.spec.resources.limits if pod.spec.resources is not None else {}
    limit = container.resources.limits.get(resource) or of_pod.get(resource)
    if limit or is_hugepages(resource):
        return limit or ZERO
    node = data.get(NODE_AMOUNTS)
    if not isinstance(node, NodeAmounts):
        raise DataMissing("the node's allocatable amounts are not known yet")
    return node.allocatable.get(resource, ZERO)


# The default PATH: the owner's own programs first, then those of the distribution.
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
PATH = f"/usr/local/sbin:/usr/local/bin:{SYSTEM_PATH}"

# $$ is a $, and $(NAME) is a reference. All other text after a $ stays unchanged, also an unclosed $(.
_DOLLAR = re.compile(r"\$(?:(\$)|\(([^)]*)\)|(.))", re.DOTALL)


def expanded(text: str, known: Mapping[str, str]) -> str:
    """Replaces each `$(NAME)` in `text` by its value. An unknown NAME stays unchanged."""
    if "$" not in text:
        return text

    def replacement(match: re.Match[str]) -> str:
        dollar, name, _ = match.groups()
        if dollar:
            return "$"
        return known.get(name, match[0]) if name is not None else match[0]

    return _DOLLAR.sub(replacement, text)


def environment(
    pod: Pod,
    container: Container,
    hostname: str,
    data: PodData = NO_DATA,
    image_env: Iterable[tuple[str, str]] = (),
) -> dict[str, str]:
    """Returns all variables of the container, and none of the agent's. A variable may refer to those before it."""
    return {"PATH": PATH, **dict(image_env), "HOSTNAME": hostname, **declared(pod, container, data)}


def declared(pod: Pod, container: Container, data: PodData = NO_DATA) -> dict[str, str]:
    """Returns the variables of the manifest. `env` comes after `envFrom` and may replace its variables. Raises NoValue
    and DataMissing."""
    env: dict[str, str] = {}
    for each in container.env_from:
        env.update(_all_of(each, pod, data))
    for variable in container.env:
        if variable.value_from is not None:
            value = value_of(variable.value_from, pod, container, data)
            if value is not None:
                env[variable.name] = value
        else:
            env[variable.name] = expanded(variable.value, env)
    return env


def _all_of(source: EnvFromSource, pod: Pod, data: PodData) -> dict[str, str]:
    """Returns a variable for each key of the object. As in kubelet, a key that cannot name a variable is left out."""
    for kind, reference in ((CONFIG_MAP, source.config_map_ref), (SECRET, source.secret_ref)):
        if reference is not None:
            found = object_of(kind, reference.name, data, pod, is_optional=bool(reference.optional))
            texts = {} if found is None else found.texts
            return {
                f"{source.prefix}{key}": _text(value, found, key)
                for key, value in texts.items()
                if found is not None and not environment_name(f"{source.prefix}{key}")
            }
    return {}


def arguments(
    pod: Pod,
    container: Container,
    data: PodData = NO_DATA,
    entrypoint: Sequence[str] = (),
    command: Sequence[str] = (),
) -> tuple[str, ...]:
    """Returns the program and its arguments. `entrypoint` and `command` are the image's; `args` replaces the second,
    and `command` of the manifest replaces both."""
    known = declared(pod, container, data)
    args = _expanded_all(container.args, known)
    if container.command:
        return _expanded_all(container.command, known) + args
    return (*entrypoint, *(args or command))


def _expanded_all(words: Sequence[str], known: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(expanded(word, known) for word in words)


class Identity(NamedTuple):
    """The user and group in the manifest. None: the default of the runtime."""

    uid: int | None
    gid: int | None
    must_not_be_root: bool


def identity(pod: Pod, container: Container) -> Identity:
    """Returns the user and group. The container's security context takes precedence over the pod's."""
    of_pod, of_container = pod.spec.security_context, container.security_context
    found: list[int | bool | None] = []
    for name in ("run_as_user", "run_as_group", "run_as_non_root"):
        value = getattr(of_container, name, None)
        found.append(getattr(of_pod, name, None) if value is None else value)
    uid, gid, must_not_be_root = found
    return Identity(uid, gid, bool(must_not_be_root))


def groups(pod: Pod) -> tuple[int, ...]:
    context = pod.spec.security_context
    if context is None:
        return ()
    of_volumes = () if context.fs_group is None else (context.fs_group,)
    return (*context.supplemental_groups, *of_volumes)


def merges_groups(pod: Pod) -> bool:
    """Whether a user also has the groups that the image's /etc/group gives it (supplementalGroupsPolicy)."""
    context = pod.spec.security_context
    return context is None or context.supplemental_groups_policy != "Strict"
