"""What is allowed and still hardly meant."""

from evenkeel.api.container import EnvVar
from evenkeel.api.pod import Pod
from evenkeel.api.resources import EPHEMERAL_STORAGE, MEMORY, ResourceList
from evenkeel.api.validation.names import dns_label
from evenkeel.api.validation.problems import Problems, shown
from evenkeel.errors import Problem

WARNING = "Warning"


def warnings(pod: Pod) -> Problems:
    """What to tell the author of a valid pod; nothing of it stands in the pod's way."""
    spec = pod.spec
    if pod.metadata.name and dns_label(pod.metadata.name):
        yield Problem("metadata.name", "it becomes the pod's hostname: better have no . in it", WARNING)
    yield from _fractions(spec.overhead, "spec.overhead")
    for field, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for index, container in enumerate(containers):
            path = f"spec.{field}[{index}]"
            yield from _fractions(container.resources.limits, f"{path}.resources.limits")
            yield from _fractions(container.resources.requests, f"{path}.resources.requests")
            yield from _hidden(container.env, f"{path}.env")


def _fractions(resources: ResourceList, path: str) -> Problems:
    for name in (MEMORY, EPHEMERAL_STORAGE):
        amount = resources.get(name)
        if amount is not None and amount.milli % 1000:
            yield Problem(
                f"{path}[{name}]",
                f"{amount} is not a whole number of bytes: m stands for thousandths",
                WARNING,
            )


def _hidden(variables: tuple[EnvVar, ...], path: str) -> Problems:
    seen: set[str] = set()
    for index, variable in enumerate(variables):
        reference = f"$({variable.name})"
        if variable.name in seen and (variable.value == reference or reference not in variable.value):
            yield Problem(f"{path}[{index}]", f"hides an earlier value of {shown(variable.name)}", WARNING)
        seen.add(variable.name)
