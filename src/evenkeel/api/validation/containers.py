"""Containers and init containers: the rules they share, and the few that differ."""

from evenkeel.api.container import Container, ContainerPort, ContainerResizePolicy, EnvVar
from evenkeel.api.pod import PodSpec
from evenkeel.api.resources import CPU, MEMORY
from evenkeel.api.validation.names import dns_label, environment_name, plain_text, port_name
from evenkeel.api.validation.probes import probes
from evenkeel.api.validation.problems import (
    Problems,
    duplicate,
    invalid,
    not_supported,
    required,
    shown,
)
from evenkeel.api.validation.resources import container_requirements
from evenkeel.api.validation.security import user_and_group
from evenkeel.api.validation.volumes import mount_problems

RESTART_POLICIES = ("Always", "OnFailure", "Never")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
_RESIZE_POLICIES = ("NotRequired", "RestartContainer")
_PROTOCOLS = ("TCP", "UDP", "SCTP")


def container_problems(spec: PodSpec) -> Problems:
    if not spec.containers:
        yield required("spec.containers", "a pod needs at least one container")
    volumes = frozenset(volume.name for volume in spec.volumes)
    names: set[str] = set()
    host_ports: set[tuple[str, str, int]] = set()
    for index, container in enumerate(spec.containers):
        path = f"spec.containers[{index}]"
        yield from _container(container, path, spec, volumes, names)
        yield from probes(container, path, allowed=True)
        yield from _ports(container.ports, f"{path}.ports", host_ports)
    for index, container in enumerate(spec.init_containers):
        path = f"spec.initContainers[{index}]"
        yield from _container(container, path, spec, volumes, names)
        yield from probes(container, path, allowed=container.is_sidecar)
        yield from _ports(container.ports, f"{path}.ports", set())  # they run one by one


def _container(
    container: Container, path: str, spec: PodSpec, volumes: frozenset[str], names: set[str]
) -> Problems:
    if not container.name:
        yield required(f"{path}.name", "a container needs a name")
    elif dns_label(container.name):
        yield invalid(f"{path}.name", f"{shown(container.name)} {dns_label(container.name)}")
    elif container.name in names:
        yield duplicate(f"{path}.name", f"another container of this pod is called {shown(container.name)}")
    names.add(container.name)
    if not container.image:
        yield required(f"{path}.image", "name an image; host runs the command on this machine's own files")
    elif container.image != container.image.strip():
        yield invalid(f"{path}.image", f"{shown(container.image)} has spaces at an end: leave them out")
    if container.restart_policy is not None and container.restart_policy not in RESTART_POLICIES:
        yield not_supported(f"{path}.restartPolicy", container.restart_policy, RESTART_POLICIES)
    yield from _choice(f"{path}.imagePullPolicy", container.image_pull_policy, _PULL_POLICIES)
    yield from _choice(
        f"{path}.terminationMessagePolicy", container.termination_message_policy, _MESSAGE_POLICIES
    )
    yield from _texts(container, path)
    yield from _environment(container.env, f"{path}.env")
    yield from mount_problems(container.volume_mounts, volumes, f"{path}.volumeMounts")
    yield from container_requirements(container.resources, f"{path}.resources")
    yield from _resize(container.resize_policy, f"{path}.resizePolicy", spec.restart_policy)
    if container.security_context is not None:
        yield from user_and_group(container.security_context, f"{path}.securityContext")


def _choice(path: str, seen: str, supported: tuple[str, ...]) -> Problems:
    if not seen:
        yield required(path, f"write {' or '.join(supported)}")
    elif seen not in supported:
        yield not_supported(path, seen, supported)


def _texts(container: Container, path: str) -> Problems:
    for name, texts in (("command", container.command), ("args", container.args)):
        for index, text in enumerate(texts):
            if plain_text(text):
                yield invalid(f"{path}.{name}[{index}]", f"{shown(text)} {plain_text(text)}")
    for name, text in (
        ("image", container.image),
        ("workingDir", container.working_dir),
        ("terminationMessagePath", container.termination_message_path),
    ):
        if plain_text(text):
            yield invalid(f"{path}.{name}", f"{shown(text)} {plain_text(text)}")


def _environment(variables: tuple[EnvVar, ...], path: str) -> Problems:
    for index, variable in enumerate(variables):
        if not variable.name:
            yield required(f"{path}[{index}].name", "an environment variable needs a name")
        elif environment_name(variable.name):
            yield invalid(
                f"{path}[{index}].name", f"{shown(variable.name)} {environment_name(variable.name)}"
            )
        if variable.value and variable.value_from is not None:
            yield invalid(f"{path}[{index}].valueFrom", "may not be given together with value")
        if plain_text(variable.value):
            yield invalid(f"{path}[{index}].value", f"{shown(variable.value)} {plain_text(variable.value)}")


def _ports(ports: tuple[ContainerPort, ...], path: str, host_ports: set[tuple[str, str, int]]) -> Problems:
    names: set[str] = set()
    for index, port in enumerate(ports):
        here = f"{path}[{index}]"
        if port.name and port_name(port.name):
            yield invalid(f"{here}.name", f"{shown(port.name)} {port_name(port.name)}")
        elif port.name in names:
            yield duplicate(f"{here}.name", f"another port is called {shown(port.name)}")
        if port.name:
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
                    f"{here}.hostPort", f"another port of this pod is bound to {port.host_port} already"
                )
            host_ports.add(bound)


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
