"""Rules for requests and limits: names and amounts, 0 ≤ request ≤ limit, and pod-level resources (A1, A3, D1)."""

from collections.abc import Callable

from evenkeel.api.config import Profile
from evenkeel.api.container import Container
from evenkeel.api.pod import PodSpec, aggregate, container_limits, container_requests
from evenkeel.api.problems import Problems, forbidden, invalid, not_supported, required, shown
from evenkeel.api.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    HUGEPAGES_PREFIX,
    MEMORY,
    ResourceList,
    ResourceRequirements,
    is_hugepages,
    is_pod_level,
)
from evenkeel.api.validation.name_rules import qualified_name
from evenkeel.errors import EvenkeelError
from evenkeel.quantity import ZERO, Quantity

_KUBERNETES_NAMESPACE = "kubernetes.io/"
_QUOTA_PREFIX = "requests."

_OF_CONTAINERS = (CPU, MEMORY, EPHEMERAL_STORAGE)
# Names that Kubernetes uses, some of them only in a quota.
_COUNTED = frozenset({
    "pods", "resourcequotas", "services", "replicationcontrollers", "secrets", "configmaps",
    "persistentvolumeclaims", "services.nodeports", "services.loadbalancers",
})  # fmt: skip
_STANDARD = _COUNTED | {
    *_OF_CONTAINERS, "storage", "requests.storage",
    *(f"{kind}.{name}" for kind in ("requests", "limits") for name in _OF_CONTAINERS),
}  # fmt: skip

_NameRule = Callable[[str, str], Problems]


def container_requirements(resources: ResourceRequirements, path: str) -> Problems:
    return _requirements(resources, path, _container_name)


def pod_requirements(resources: ResourceRequirements, path: str) -> Problems:
    """For pod-level resources of today's Kubernetes: cpu, memory and huge pages."""
    return _requirements(resources, path, _pod_level_name)


def overhead(resources: ResourceList, path: str) -> Problems:
    # Kubernetes checks overhead as limits, and has limits in the path.
    return _requirements(ResourceRequirements(limits=resources), path, _container_name)


def amount_problems(name: str, amount: Quantity, path: str) -> Problems:
    if amount < ZERO:
        yield invalid(path, f"{amount} is negative: write 0 or more")
    if (name in _COUNTED or is_extended(name)) and amount.int64_milli % 1000:
        yield invalid(path, f"{amount} is not a whole number: {name} cannot be divided")
    if is_hugepages(name):
        size = _page_size(name)
        if size is None:
            yield invalid(path, f"{shown(name)} names no page size: write something like hugepages-2Mi")
        elif amount.int64_value % size.value:
            yield invalid(path, f"{amount} is not a whole number of pages of {size}")


def can_overcommit(name: str) -> bool:
    return _is_native(name) and not is_hugepages(name)


def is_extended(name: str) -> bool:
    """Whether the resource is not one of Kubernetes, such as `example.com/gpu`."""
    return (
        not _is_native(name)
        and not name.startswith(_QUOTA_PREFIX)
        and not qualified_name(_QUOTA_PREFIX + name)  # its name in a quota must be valid, too
    )


def _requirements(resources: ResourceRequirements, path: str, name_rule: _NameRule) -> Problems:
    limits_path, requests_path = f"{path}.limits", f"{path}.requests"
    for name, limit in resources.limits.items():
        yield from name_rule(name, f"{limits_path}[{name}]")
        yield from amount_problems(name, limit, f"{limits_path}[{name}]")
    for name, request in resources.requests.items():
        yield from name_rule(name, f"{requests_path}[{name}]")
        yield from amount_problems(name, request, f"{requests_path}[{name}]")
        its_limit = resources.limits.get(name)
        if its_limit is None:
            if not can_overcommit(name):
                yield required(
                    limits_path, f"{name} needs a limit, equal to its request: write {name}: {request}"
                )
        elif request != its_limit and not can_overcommit(name):
            yield invalid(requests_path, f"{name}: the request {request} must equal the limit {its_limit}")
        elif request > its_limit:
            yield invalid(
                requests_path,
                f"{name}: the request {request} is above the limit {its_limit}: "
                "lower the one or raise the other",
            )
    names = {*resources.limits, *resources.requests}
    if any(map(is_hugepages, names)) and not names & {CPU, MEMORY}:
        yield forbidden(path, "huge pages cannot stand alone: add a request for cpu or memory")


def _container_name(name: str, path: str) -> Problems:
    malformed = qualified_name(name)
    if malformed:
        yield invalid(path, f"{shown(name)} is not the name of a resource: it {malformed}")
    elif "/" not in name:
        if name not in _OF_CONTAINERS and not is_hugepages(name):
            yield invalid(path, f"{shown(name)} is not a resource of containers{_did_you_mean(name)}")
    elif not _is_native(name) and not is_extended(name):
        yield invalid(
            path, f"{shown(name)} is not the name of a resource: write something like example.com/gpu"
        )


def _pod_level_name(name: str, path: str) -> Problems:
    malformed = qualified_name(name)
    if malformed:
        yield invalid(path, f"{shown(name)} is not the name of a resource: it {malformed}")
    elif (
        "/" not in name
        and name not in _STANDARD
        and not name.removeprefix(_QUOTA_PREFIX).startswith(HUGEPAGES_PREFIX)
    ):
        yield invalid(path, f"{shown(name)} is not a resource of pods: write cpu, memory or hugepages-<size>")
    elif not is_pod_level(name):
        yield not_supported(path, name, ("cpu", "memory", "hugepages-<size>"))


def _did_you_mean(name: str) -> str:
    lowered = name.lower().rstrip("s")
    for known in _OF_CONTAINERS:
        if lowered == known or lowered.endswith(f".{known}"):
            return f": write {known}"
    return ": write cpu, memory, ephemeral-storage, hugepages-<size>, or something like example.com/gpu"


def _is_native(name: str) -> bool:
    return "/" not in name or _KUBERNETES_NAMESPACE in name


def _page_size(name: str) -> Quantity | None:
    try:
        size = Quantity.parse(name.removeprefix(HUGEPAGES_PREFIX))
    except EvenkeelError:
        return None
    return size if size > ZERO and size.milli % 1000 == 0 else None


# Pod-level resources

_PATH = "spec.resources"


def pod_level(spec: PodSpec, profile: Profile) -> Problems:
    """Every problem of the resources that the pod has as a whole."""
    if spec.resources is None:
        return
    if profile == Profile.KUBERNETES:
        yield from pod_requirements(spec.resources, _PATH)
        yield from _of_kubernetes(spec, spec.resources)
    else:
        yield from _of_documents(spec, spec.resources)


def _of_kubernetes(spec: PodSpec, own: ResourceRequirements) -> Problems:
    for name, together in container_requests(spec).items():
        request = own.requests.get(name)
        if request is not None and together > request:
            yield invalid(
                f"{_PATH}.requests[{name}]",
                f"{request} does not cover the {together} that the containers request: "
                f"write {together} or more",
            )
    for name, together in container_limits(spec).items():
        limit = own.limits.get(name)
        if is_hugepages(name) and limit is not None and together > limit:
            yield invalid(
                f"{_PATH}.limits[{name}]",
                f"{limit} does not cover the {together} that the containers have as limits: "
                f"write {together} or more",
            )
    for index, container in enumerate(spec.containers):
        for name, limit in container.resources.limits.items():
            of_pod = own.limits.get(name)
            if of_pod is not None and limit > of_pod:
                # The path that Kubernetes has for it.
                yield invalid(
                    f"{_PATH}.containers[{index}][{name}].limits",
                    f"the limit {limit} of container {container.name} is above the pod's limit {of_pod} "
                    f"({_PATH}.limits[{name}]): lower the one or raise the other",
                )


def _of_documents(spec: PodSpec, own: ResourceRequirements) -> Problems:
    if own.requests:
        yield forbidden(
            f"{_PATH}.requests",
            "a pod as a whole has limits only: put requests on its containers, or set profile: kubernetes",
        )
    for name, limit in own.limits.items():
        path = f"{_PATH}.limits[{name}]"
        if name not in (CPU, MEMORY):
            yield not_supported(path, name, (CPU, MEMORY))
        else:
            yield from amount_problems(name, limit, path)
    running = spec._replace(init_containers=tuple(filter(_keeps_running, spec.init_containers)))
    for name, together in aggregate(running, lambda container: container.resources.requests).items():
        of_pod = own.limits.get(name)
        if of_pod is not None and together > of_pod:
            yield invalid(
                f"{_PATH}.limits[{name}]",
                f"{of_pod} is below the {together} that the containers request together "
                f"(resources.requests[{name}]): write {together} or more, or request less",
            )
    for field, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for index, container in enumerate(containers):
            if field == "initContainers" and not _keeps_running(container):
                continue
            for name, limit in container.resources.limits.items():
                of_pod = own.limits.get(name)
                if of_pod is not None and limit > of_pod:
                    yield invalid(
                        f"spec.{field}[{index}].resources.limits[{name}]",
                        f"{limit} is above the pod's limit {of_pod} ({_PATH}.limits[{name}]): "
                        "lower the one or raise the other",
                    )


def _keeps_running(container: Container) -> bool:
    """Whether the init container still runs when the pod-level limit begins to apply."""
    return container.is_sidecar
