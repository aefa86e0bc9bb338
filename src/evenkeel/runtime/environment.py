"""The environment of a container: its variables, its command with `$(NAME)` expanded, and its user.

The rules are those of Kubernetes.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evenkeel.api.container import Container, EnvVarSource, ResourceFieldSelector
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU
from evenkeel.errors import EvenkeelError
from evenkeel.quantity import Quantity

_KEYED = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_FIELDS = (
    "metadata.name, metadata.namespace, metadata.uid, metadata.labels['KEY'], metadata.annotations['KEY'] and "
    "spec.nodeName"
)


class NoValue(EvenkeelError):
    """A variable has a source that this node cannot provide."""


def value_of(source: EnvVarSource, pod: Pod, container: Container) -> str:
    """Returns the value of a variable with valueFrom. Raises NoValue."""
    if source.field_ref is not None:
        return _field(source.field_ref.field_path, pod)
    if source.resource_field_ref is not None:
        return _amount(source.resource_field_ref, pod, container)
    raise NoValue("only fieldRef and resourceFieldRef can be had here; write value instead")


def refusal(pod: Pod, container: Container) -> str:
    """Returns why the node has no value for a variable of the container; empty if it has one for each."""
    for index, variable in enumerate(container.env):
        if variable.value_from is not None:
            try:
                value_of(variable.value_from, pod, container)
            except NoValue as error:
                return f"env[{index}].valueFrom: {error}"
    return ""


def _field(path: str, pod: Pod) -> str:
    metadata = pod.metadata
    keyed = _KEYED.fullmatch(path)
    if keyed:
        every: Mapping[str, str] = metadata.labels if keyed[1] == "labels" else metadata.annotations
        value = every.get(keyed[2], "")
        if "\0" in value:
            raise NoValue(f"{path} holds a NUL character, which no variable can")
        return value
    if path == "spec.nodeName":
        return pod.spec.node_name or os.uname().nodename  # this is the machine that runs the pod
    plain = {
        "metadata.name": metadata.name,
        "metadata.namespace": metadata.namespace,
        "metadata.uid": metadata.uid,
    }
    if path not in plain:
        raise NoValue(f'fieldPath "{path}" cannot be had here: there are {_FIELDS}')
    return plain[path]


def _amount(selector: ResourceFieldSelector, pod: Pod, container: Container) -> str:
    """Returns the amount in units of the divisor, rounded up."""
    name = selector.container_name or container.name
    of = next((each for each in pod.spec.every_container if each.name == name), None)
    if of is None:
        raise NoValue(f'the pod has no container "{name}"')
    kind, _, resource = selector.resource.partition(".")
    if kind not in ("limits", "requests") or not resource:
        raise NoValue(f'resource "{selector.resource}" is neither limits.NAME nor requests.NAME')
    amount = (of.resources.limits if kind == "limits" else of.resources.requests).get(resource)
    if amount is None:
        if kind == "limits":
            raise NoValue(f"container {name} has no limit of {resource}")
        amount = Quantity.of(0)
    divisor = selector.divisor or Quantity.of(1)
    if resource == CPU:
        return str(-(-amount.milli // divisor.milli))
    return str(-(-amount.value // divisor.value))


PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

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


def environment(pod: Pod, container: Container, hostname: str) -> dict[str, str]:
    """Returns all variables of the container, and none of the agent's. A variable may refer to those before it."""
    return {"PATH": PATH, "HOSTNAME": hostname, **declared(pod, container)}


def declared(pod: Pod, container: Container) -> dict[str, str]:
    """Returns the variables of the manifest. Raises NoValue."""
    env: dict[str, str] = {}
    for variable in container.env:
        if variable.value_from is not None:
            env[variable.name] = value_of(variable.value_from, pod, container)
        else:
            env[variable.name] = expanded(variable.value, env)
    return env


def arguments(pod: Pod, container: Container) -> tuple[str, ...]:
    """Returns the program and its arguments.

    Image directories have no entrypoint, so the manifest must name the command.
    """
    known = declared(pod, container)
    return _expanded_all(container.command, known) + _expanded_all(container.args, known)


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
