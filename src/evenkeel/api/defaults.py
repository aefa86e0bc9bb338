"""Defaults of a pod: the values of fields that its author did not write.

Kubernetes applies them twice: the decoder to each object, and the API server again to pods that it receives. Only the
second step completes pod-level resources, so a static pod, which the node reads from a file, does not get it. The
documents profile has only limits at pod level and completes nothing there (D1).
"""

from evenkeel.api.config import Profile
from evenkeel.api.container import (
    Container,
    ContainerPort,
    EphemeralContainer,
    HTTPGetAction,
    Lifecycle,
    LifecycleHandler,
    Probe,
)
from evenkeel.api.pod import CRITICAL_PRIORITIES, Pod, PodSpec, container_limits, container_requests
from evenkeel.api.resources import (
    NO_RESOURCES,
    NOTHING_REQUIRED,
    ResourceList,
    ResourceRequirements,
    is_hugepages,
    is_pod_level,
)
from evenkeel.api.volume_types import Volume

DEFAULT_NAMESPACE = "default"
DEFAULT_GRACE_PERIOD_SECONDS = 30
DEFAULT_FILE_MODE = 0o644
_SHORTEST_GRACE_SECONDS = 1  # Kubernetes replaces a negative number by it


def default_pod(pod: Pod, profile: Profile, *, static: bool = False) -> Pod:
    """`pod` with every default that a node needs. To apply it twice changes nothing."""
    metadata = pod.metadata
    if not metadata.namespace:
        metadata = metadata._replace(namespace=DEFAULT_NAMESPACE)
    spec = default_resources(pod.spec, profile, static=static)
    grace = spec.termination_grace_period_seconds
    priority = spec.priority
    spec = spec._replace(
        containers=tuple(_container(one, spec) for one in spec.containers),
        init_containers=tuple(_container(one, spec) for one in spec.init_containers),
        ephemeral_containers=tuple(_ephemeral(one, spec) for one in spec.ephemeral_containers),
        restart_policy=spec.restart_policy or "Always",
        termination_grace_period_seconds=(
            DEFAULT_GRACE_PERIOD_SECONDS if grace is None else _SHORTEST_GRACE_SECONDS if grace < 0 else grace
        ),
        priority=CRITICAL_PRIORITIES.get(spec.priority_class_name, 0) if priority is None else priority,
        volumes=tuple(map(_volume, spec.volumes)),
    )
    return pod._replace(metadata=metadata, spec=spec)


def stable_uid(namespace: str, name: str) -> str:
    """A UID for a pod that has none. The same name has the same UID, so that a plan can be compared with the last one.

    It is FNV-1a with 128 bits. It protects no secret, and two pods with one UID are refused anyway. The import of a
    cryptographic hash would take a tenth of the time of a short command.
    """
    digest = 0x6C62272E07BB014262B821756295C58D
    for byte in f"{namespace}/{name}".encode():
        digest = ((digest ^ byte) * 0x0000000001000000000000000000013B) & (2**128 - 1)
    text = f"{digest:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def default_resources(spec: PodSpec, profile: Profile, *, static: bool = False) -> PodSpec:
    """The defaults of requests and limits only."""
    spec = spec._replace(
        containers=tuple(map(_container_resources, spec.containers)),
        init_containers=tuple(map(_container_resources, spec.init_containers)),
        overhead=_rounded(spec.overhead),
    )
    resources = spec.resources
    if resources is None:
        return spec
    resources = ResourceRequirements(_rounded(resources.requests), _rounded(resources.limits))
    if profile == Profile.KUBERNETES and not static and (resources.requests or resources.limits):
        resources = _pod_level(spec, resources)
    return spec._replace(resources=resources)


def _pod_level(spec: PodSpec, own: ResourceRequirements) -> ResourceRequirements:
    """A pod with some pod-level resources gets the others from its containers.

    Huge pages first: they cannot be overcommitted, so the pod gets their limit, and the request is that limit. Then
    requests. Then limits of resources that every container limits; if such a limit is below the pod's request, the
    request becomes the limit.
    """
    requests = dict(own.requests)
    limits = dict(own.limits)
    limits_of_containers = container_limits(spec)
    for name, amount in limits_of_containers.items():
        if is_hugepages(name) and name not in requests:
            limits.setdefault(name, amount)
    for name, amount in container_requests(spec).items():
        if is_pod_level(name) and not is_hugepages(name):
            requests.setdefault(name, amount)
    for name, amount in limits.items():
        if is_pod_level(name):
            requests.setdefault(name, amount)
    for name, amount in limits_of_containers.items():
        if is_pod_level(name) and name not in limits and _all_limit(spec, name):
            limits[name] = max(amount, requests.get(name, amount))
    return ResourceRequirements(requests, limits)


def _all_limit(spec: PodSpec, resource: str) -> bool:
    return all(resource in container.resources.limits for container in spec.sized_containers)


def _container_resources(container: Container) -> Container:
    resources = container.resources
    if resources is NOTHING_REQUIRED:
        return container
    limits = _rounded(resources.limits)
    requests = _rounded(resources.requests)
    if any(name not in requests for name in limits):
        requests = {**limits, **requests}  # A2: a limit without a request
    return container._replace(resources=ResourceRequirements(requests, limits))


def _rounded(resources: ResourceList) -> ResourceList:
    """Kubernetes stores amounts in thousandths of a unit and nothing finer."""
    if not resources:
        return NO_RESOURCES
    return {name: amount.round_up_milli() for name, amount in resources.items()}


def _container(container: Container, spec: PodSpec) -> Container:
    return container._replace(
        image_pull_policy=container.image_pull_policy or _pull_policy(container.image),
        termination_message_path=container.termination_message_path or "/dev/termination-log",
        termination_message_policy=container.termination_message_policy or "File",
        ports=tuple(_port(port, has_host_network=bool(spec.host_network)) for port in container.ports),
        liveness_probe=_probe(container.liveness_probe),
        readiness_probe=_probe(container.readiness_probe),
        startup_probe=_probe(container.startup_probe),
        lifecycle=_lifecycle(container.lifecycle),
    )


def _ephemeral(one: EphemeralContainer, spec: PodSpec) -> EphemeralContainer:
    full = _container(one.container, spec)
    return one._replace(
        image_pull_policy=full.image_pull_policy,
        termination_message_path=full.termination_message_path,
        termination_message_policy=full.termination_message_policy,
    )


def _volume(volume: Volume) -> Volume:
    """Files of ConfigMaps, Secrets and fields have mode 0644 if the manifest names no other."""
    if not volume.has_data:
        return volume
    mode = DEFAULT_FILE_MODE
    config_map, secret, downward, projected = (
        volume.config_map,
        volume.secret,
        volume.downward_api,
        volume.projected,
    )
    if config_map is not None and config_map.default_mode is None:
        volume = volume._replace(config_map=config_map._replace(default_mode=mode))
    if secret is not None and secret.default_mode is None:
        volume = volume._replace(secret=secret._replace(default_mode=mode))
    if downward is not None and downward.default_mode is None:
        volume = volume._replace(downward_api=downward._replace(default_mode=mode))
    if projected is not None and projected.default_mode is None:
        volume = volume._replace(projected=projected._replace(default_mode=mode))
    return volume


def _pull_policy(image: str) -> str:
    """`Always` for an image without a digest and without a tag other than `latest`."""
    if "@" in image:
        return "IfNotPresent"
    _, _, tag = image.rpartition("/")[2].partition(":")
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _port(port: ContainerPort, *, has_host_network: bool) -> ContainerPort:
    if has_host_network and not port.host_port:
        port = port._replace(host_port=port.container_port)
    return port if port.protocol else port._replace(protocol="TCP")


def _probe(probe: Probe | None) -> Probe | None:
    if probe is None:
        return None
    return probe._replace(
        http_get=_http_get(probe.http_get),
        timeout_seconds=probe.timeout_seconds or 1,
        period_seconds=probe.period_seconds or 10,
        success_threshold=probe.success_threshold or 1,
        failure_threshold=probe.failure_threshold or 3,
    )


def _lifecycle(lifecycle: Lifecycle | None) -> Lifecycle | None:
    if lifecycle is None:
        return None
    return Lifecycle(_hook(lifecycle.post_start), _hook(lifecycle.pre_stop))


def _hook(handler: LifecycleHandler | None) -> LifecycleHandler | None:
    return None if handler is None else handler._replace(http_get=_http_get(handler.http_get))


def _http_get(action: HTTPGetAction | None) -> HTTPGetAction | None:
    if action is None:
        return None
    return action._replace(path=action.path or "/", scheme=action.scheme or "HTTP")
