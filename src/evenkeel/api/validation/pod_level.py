"""`spec.resources`, what a pod sets for itself, held against what its containers set (D1).

Today's Kubernetes has requests and limits there. The documents have limits only, which hold once the init
containers have finished (D3): an init container may want more than the pod has afterwards, a sidecar may not.
"""

from evenkeel.api.aggregate import aggregate, container_limits, container_requests
from evenkeel.api.container import Container
from evenkeel.api.pod import PodSpec
from evenkeel.api.profile import Profile
from evenkeel.api.resources import CPU, MEMORY, ResourceRequirements, is_hugepages
from evenkeel.api.validation.problems import Problems, forbidden, invalid, not_supported
from evenkeel.api.validation.resources import amount_problems, pod_requirements

_PATH = "spec.resources"


def pod_level(spec: PodSpec, profile: Profile) -> Problems:
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
                # Kubernetes' own path for it.
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
    running = spec._replace(init_containers=tuple(filter(_stays, spec.init_containers)))
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
            if field == "initContainers" and not _stays(container):
                continue
            for name, limit in container.resources.limits.items():
                of_pod = own.limits.get(name)
                if of_pod is not None and limit > of_pod:
                    yield invalid(
                        f"spec.{field}[{index}].resources.limits[{name}]",
                        f"{limit} is above the pod's limit {of_pod} ({_PATH}.limits[{name}]): "
                        "lower the one or raise the other",
                    )


def _stays(container: Container) -> bool:
    """An init container that is still there when the pod's limit begins to hold."""
    return container.is_sidecar
