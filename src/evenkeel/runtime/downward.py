"""Variables whose value is a field of the pod or an amount of a container (`valueFrom`), as in Kubernetes."""

import os
import re
from collections.abc import Mapping

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
    """It cannot be had here."""


def value_of(source: EnvVarSource, pod: Pod, container: Container) -> str:
    """Raises NoValue."""
    if source.field_ref is not None:
        return _field(source.field_ref.field_path, pod)
    if source.resource_field_ref is not None:
        return _amount(source.resource_field_ref, pod, container)
    raise NoValue("only fieldRef and resourceFieldRef can be had here; write value instead")


def refusal(pod: Pod, container: Container) -> str:
    """Why a variable of the container's cannot be had; empty if all can."""
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
        return pod.spec.node_name or os.uname().nodename  # it is asked on the machine that runs the pod
    plain = {
        "metadata.name": metadata.name,
        "metadata.namespace": metadata.namespace,
        "metadata.uid": metadata.uid,
    }
    if path not in plain:
        raise NoValue(f'fieldPath "{path}" cannot be had here: there are {_FIELDS}')
    return plain[path]


def _amount(selector: ResourceFieldSelector, pod: Pod, container: Container) -> str:
    """In units of the divisor, rounded up."""
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
