"""Rules for containers and init containers, with their probes, ports and resize policies."""

from evenkeel.api.container import (
    Container,
    ContainerPort,
    ContainerResizePolicy,
    Probe,
)
from evenkeel.api.pod import PodSpec
from evenkeel.api.problems import (
    Problems,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    shown,
    unusable,
)
from evenkeel.api.resources import CPU, MEMORY
from evenkeel.api.validation.env_rules import environment, environment_sources, file_volume_problems
from evenkeel.api.validation.lifecycle_rules import (
    command_problems,
    hook_problems,
    http_get_problems,
    port_problems,
    restart_rule_problems,
)
from evenkeel.api.validation.name_rules import dns_label, plain_text, port_name
from evenkeel.api.validation.resource_rules import container_requirements
from evenkeel.api.validation.security_rules import container_security
from evenkeel.api.validation.volume_rules import mount_problems

RESTART_POLICIES = ("Always", "OnFailure", "Never")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
_RESIZE_POLICIES = ("NotRequired", "RestartContainer")
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_HANDLERS = "exec, httpGet, tcpSocket or grpc"


def container_problems(spec: PodSpec, volumes: frozenset[str]) -> Problems:
    """Every problem of the pod's containers. `volumes` are the names that can be mounted."""
    if not spec.containers:
        yield required("spec.containers", "a pod needs at least one container")
    names: set[str] = set()
    host_ports: set[tuple[str, str, int]] = set()
    for index, container in enumerate(spec.containers):
        path = f"spec.containers[{index}]"
        yield from _container(container, path, spec, volumes, names)
        yield from _probes(container, path, allowed=True)
        yield from hook_problems(container, path, spec.termination_grace_period_seconds, allowed=True)
        names.add(container.name)
        yield from _ports(container.ports, f"{path}.ports", host_ports)
        if spec.host_network:
            yield from _same_ports(container.ports, f"{path}.ports")
    for index, container in enumerate(spec.init_containers):
        path = f"spec.initContainers[{index}]"
        yield from _container(container, path, spec, volumes, names, is_init=True)
        yield from _probes(container, path, allowed=container.is_sidecar)
        yield from hook_problems(
            container, path, spec.termination_grace_period_seconds, allowed=container.is_sidecar
        )
        if container.name:
            names.add(container.name)
        # They run one by one, so each has its own host ports. Kubernetes names the first one in the path.
        yield from _ports(container.ports, f"{path}.ports", set(), "spec.initContainers[0].ports")
        if not container.is_sidecar:
            yield from _no_restart_on_resize(container.resize_policy, f"{path}.resizePolicy")

    yield from _ephemeral(spec, volumes, names)


def _ephemeral(spec: PodSpec, volumes: frozenset[str], names: set[str]) -> Problems:
    known = {one.name for one in spec.sized_containers}  # as in Kubernetes: a sidecar may be the target
    for index, one in enumerate(spec.ephemeral_containers):
        path = f"spec.ephemeralContainers[{index}]"
        yield from _container(one.container, path, spec, volumes, names)
        names.add(one.name)
        for number, mount in enumerate(one.volume_mounts):
            if mount.sub_path or mount.sub_path_expr:
                yield forbidden(
                    f"{path}.volumeMounts[{number}].subPath",
                    "an ephemeral container mounts whole volumes: leave it out",
                )
        target = one.target_container_name
        if target and target not in known:
            yield invalid(
                f"{path}.targetContainerName",
                f"{shown(target)} is no container of this pod: name one of them",
            )


def _container(
    container: Container,
    path: str,
    spec: PodSpec,
    volumes: frozenset[str],
    names: set[str],
    *,
    is_init: bool = False,
) -> Problems:
    if not container.name:
        yield required(f"{path}.name", "a container needs a name")
    elif dns_label(container.name):
        yield invalid(f"{path}.name", f"{shown(container.name)} {dns_label(container.name)}")
    if container.name in names:
        yield duplicate(f"{path}.name", f"another container of this pod is called {shown(container.name)}")
    if not container.image:
        yield required(f"{path}.image", "name an image; host runs the command on this machine's own files")
    elif container.image != container.image.strip():
        yield invalid(f"{path}.image", f"{shown(container.image)} has spaces at an end: leave them out")
    if container.restart_policy is not None and container.restart_policy not in RESTART_POLICIES:
        yield not_supported(f"{path}.restartPolicy", container.restart_policy, RESTART_POLICIES)
    yield from restart_rule_problems(container, path, is_init=is_init)
    yield from _choice(f"{path}.imagePullPolicy", container.image_pull_policy, _PULL_POLICIES)
    yield from _choice(
        f"{path}.terminationMessagePolicy", container.termination_message_policy, _MESSAGE_POLICIES
    )
    yield from _texts(container, path)
    yield from environment(container.env, f"{path}.env")
    yield from file_volume_problems(container, {one.name: one for one in spec.volumes}, f"{path}.env")
    yield from environment_sources(container.env_from, f"{path}.envFrom")
    security = container.security_context
    yield from mount_problems(
        container.volume_mounts,
        volumes,
        f"{path}.volumeMounts",
        is_privileged=bool(security and security.privileged),
    )
    yield from container_requirements(container.resources, f"{path}.resources")
    yield from _resize(container.resize_policy, f"{path}.resizePolicy", spec.restart_policy)
    if container.security_context is not None:
        yield from container_security(container.security_context, f"{path}.securityContext", spec)


def _choice(path: str, seen: str, supported: tuple[str, ...]) -> Problems:
    if not seen:
        yield required(path, f"write {' or '.join(supported)}")
    elif seen not in supported:
        yield not_supported(path, seen, supported)


def _texts(container: Container, path: str) -> Problems:
    for name, texts in (("command", container.command), ("args", container.args)):
        for index, text in enumerate(texts):
            if plain_text(text):
                yield unusable(f"{path}.{name}[{index}]", f"{shown(text)} {plain_text(text)}")
    for name, text in (
        ("image", container.image),
        ("workingDir", container.working_dir),
        ("terminationMessagePath", container.termination_message_path),
    ):
        if plain_text(text):
            yield unusable(f"{path}.{name}", f"{shown(text)} {plain_text(text)}")


def _ports(
    ports: tuple[ContainerPort, ...],
    path: str,
    host_ports: set[tuple[str, str, int]],
    host_path: str = "",
) -> Problems:
    names: set[str] = set()
    for index, port in enumerate(ports):
        here = f"{path}[{index}]"
        if port.name and port_name(port.name):
            yield invalid(f"{here}.name", f"{shown(port.name)} {port_name(port.name)}")
        elif port.name in names:
            yield duplicate(f"{here}.name", f"another port is called {shown(port.name)}")
        elif port.name:
            names.add(port.name)
        if port.container_port == 0:
            yield required(f"{here}.containerPort", "write a number from 1 to 65535")
        elif not 1 <= port.container_port <= 65535:
            yield invalid(f"{here}.containerPort", f"{port.container_port} must be from 1 to 65535")
        if port.host_port and not 1 <= port.host_port <= 65535:
            yield invalid(f"{here}.hostPort", f"{port.host_port} must be from 1 to 65535")
        yield from _choice(f"{here}.protocol", port.protocol, _PROTOCOLS)
        if port.host_port:
            bound = (port.protocol, port.host_ip, port.host_port)
            if bound in host_ports:
                yield duplicate(
                    f"{host_path or path}[{index}].hostPort",
                    f"{here} and another port of this pod are both bound to {port.host_port}",
                )
            host_ports.add(bound)


def _same_ports(ports: tuple[ContainerPort, ...], path: str) -> Problems:
    for index, port in enumerate(ports):
        if port.host_port != port.container_port:
            yield invalid(
                f"{path}[{index}].hostPort",
                f"{port.host_port} must be the containerPort {port.container_port}, since hostNetwork is true",
            )


def _resize(policies: tuple[ContainerResizePolicy, ...], path: str, pod_restart_policy: str) -> Problems:
    resources: set[str] = set()
    for index, policy in enumerate(policies):
        if policy.resource_name in resources:
            yield duplicate(f"{path}[{index}]", f"{shown(policy.resource_name)} has a policy already")
        resources.add(policy.resource_name)
        yield from _choice(path, policy.resource_name, (CPU, MEMORY))
        yield from _choice(path, policy.restart_policy, _RESIZE_POLICIES)
        if pod_restart_policy == "Never" and policy.restart_policy != "NotRequired":
            yield invalid(
                path,
                f"{shown(policy.restart_policy)} must be NotRequired, since the pod's restartPolicy is Never",
            )


def _no_restart_on_resize(policies: tuple[ContainerResizePolicy, ...], path: str) -> Problems:
    for index, policy in enumerate(policies):
        if policy.restart_policy == "RestartContainer":
            yield invalid(
                f"{path}[{index}].restartPolicy",
                "an init container that runs to its end is not restarted to be resized: write NotRequired",
            )


# Probes


def _probes(container: Container, path: str, *, allowed: bool) -> Problems:
    for name, probe in (
        ("livenessProbe", container.liveness_probe),
        ("readinessProbe", container.readiness_probe),
        ("startupProbe", container.startup_probe),
    ):
        if probe is None:
            continue
        here = f"{path}.{name}"
        if not allowed:
            yield forbidden(here, "an init container has no probes unless its restartPolicy is Always")
            continue
        yield from _handler(probe, here)
        yield from _times(probe, here)
        if name != "readinessProbe" and probe.success_threshold != 1:
            yield invalid(f"{here}.successThreshold", f"{probe.success_threshold} must be 1 in a {name}")
        if name == "readinessProbe" and probe.termination_grace_period_seconds is not None:
            yield invalid(
                f"{here}.terminationGracePeriodSeconds",
                "a readiness probe ends nothing, so it has no grace period: leave it out",
            )


def _handler(probe: Probe, path: str) -> Problems:
    given = [
        name
        for name, handler in (
            ("exec", probe.exec),
            ("httpGet", probe.http_get),
            ("tcpSocket", probe.tcp_socket),
            ("grpc", probe.grpc),
        )
        if handler is not None
    ]
    if not given:
        yield required(path, f"a probe needs one of {_HANDLERS}")
        return
    for extra in given[1:]:
        yield forbidden(f"{path}.{extra}", f"a probe has one handler, and {given[0]} is there already")
    if given[0] == "exec" and probe.exec is not None:
        yield from command_problems(probe.exec, f"{path}.exec")
    elif given[0] == "httpGet" and probe.http_get is not None:
        yield from http_get_problems(probe.http_get, f"{path}.httpGet")
    elif probe.tcp_socket is not None:
        yield from port_problems(probe.tcp_socket.port, f"{path}.tcpSocket.port")
    elif probe.grpc is not None:
        yield from port_problems(probe.grpc.port, f"{path}.grpc.port")


def _times(probe: Probe, path: str) -> Problems:
    for name, value in (
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ):
        if value < 0:
            yield invalid(f"{path}.{name}", f"{value} must be 0 or more")
    grace = probe.termination_grace_period_seconds
    if grace is not None and grace <= 0:
        yield invalid(f"{path}.terminationGracePeriodSeconds", f"{grace} must be 1 or more")
