"""Containers: their specification, with environment, ports, mounts and probes."""

from typing import Any

from evenkeel.api.resources import NOTHING_REQUIRED, ResourceRequirements
from evenkeel.api.scalars import Int32
from evenkeel.named_tuples import NamedTuple
from evenkeel.quantity import Quantity


class ObjectFieldSelector(NamedTuple):
    field_path: str = ""
    api_version: str = ""


class ResourceFieldSelector(NamedTuple):
    resource: str = ""
    container_name: str = ""
    divisor: Quantity | None = None

    @property
    def is_limit(self) -> bool:
        return self.resource.startswith("limits.")


class ConfigMapKeySelector(NamedTuple):
    name: str = ""
    key: str = ""
    optional: bool | None = None


class SecretKeySelector(NamedTuple):
    name: str = ""
    key: str = ""
    optional: bool | None = None


class FileKeySelector(NamedTuple):
    volume_name: str = ""
    path: str = ""
    key: str = ""
    optional: bool | None = None


class EnvVarSource(NamedTuple):
    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    config_map_key_ref: ConfigMapKeySelector | None = None
    secret_key_ref: SecretKeySelector | None = None
    file_key_ref: FileKeySelector | None = None


class EnvVar(NamedTuple):
    name: str = ""
    value: str = ""
    value_from: EnvVarSource | None = None


class ConfigMapEnvSource(NamedTuple):
    name: str = ""
    optional: bool | None = None


class SecretEnvSource(NamedTuple):
    name: str = ""
    optional: bool | None = None


class EnvFromSource(NamedTuple):
    prefix: str = ""
    config_map_ref: ConfigMapEnvSource | None = None
    secret_ref: SecretEnvSource | None = None


NO_PROPAGATION, HOST_TO_CONTAINER, BIDIRECTIONAL = "None", "HostToContainer", "Bidirectional"


class VolumeMount(NamedTuple):
    name: str = ""
    mount_path: str = ""
    sub_path: str = ""
    read_only: bool = False
    sub_path_expr: str = ""
    mount_propagation: str = ""

    @property
    def propagates(self) -> bool:
        """Whether mounts that are made later are seen across the border of the container."""
        return self.mount_propagation in (HOST_TO_CONTAINER, BIDIRECTIONAL)


class ContainerPort(NamedTuple):
    container_port: Int32 = 0
    name: str = ""
    protocol: str = ""
    host_port: Int32 = 0
    host_ip: str = ""


class Capabilities(NamedTuple):
    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class SeccompProfile(NamedTuple):
    type: str = ""
    localhost_profile: str | None = None


class AppArmorProfile(NamedTuple):
    type: str = ""
    localhost_profile: str | None = None


class SELinuxOptions(NamedTuple):
    user: str = ""
    role: str = ""
    type: str = ""
    level: str = ""


class WindowsSecurityContextOptions(NamedTuple):
    gmsa_credential_spec_name: str = ""
    gmsa_credential_spec: str = ""
    run_as_user_name: str = ""
    host_process: bool | None = None


class SecurityContext(NamedTuple):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    read_only_root_filesystem: bool | None = None
    capabilities: Capabilities | None = None
    privileged: bool | None = None
    allow_privilege_escalation: bool | None = None
    proc_mount: str | None = None
    seccomp_profile: SeccompProfile | None = None
    app_armor_profile: AppArmorProfile | None = None
    se_linux_options: SELinuxOptions | None = None
    windows_options: WindowsSecurityContextOptions | None = None


class ExecAction(NamedTuple):
    command: tuple[str, ...] = ()


class HTTPHeader(NamedTuple):
    name: str = ""
    value: str = ""


class HTTPGetAction(NamedTuple):
    port: int | str = 0
    path: str = ""
    host: str = ""
    scheme: str = ""
    http_headers: tuple[HTTPHeader, ...] = ()


class TCPSocketAction(NamedTuple):
    port: int | str = 0
    host: str = ""


class GRPCAction(NamedTuple):
    port: Int32 = 0
    service: str = ""


class SleepAction(NamedTuple):
    seconds: int = 0


class LifecycleHandler(NamedTuple):
    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    sleep: SleepAction | None = None


class Lifecycle(NamedTuple):
    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None


class Probe(NamedTuple):
    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: GRPCAction | None = None
    initial_delay_seconds: Int32 = 0
    timeout_seconds: Int32 = 0
    period_seconds: Int32 = 0
    success_threshold: Int32 = 0
    failure_threshold: Int32 = 0
    termination_grace_period_seconds: int | None = None


class ContainerRestartRuleOnExitCodes(NamedTuple):
    operator: str = ""
    values: tuple[Int32, ...] = ()


RESTART_ALL = "RestartAllContainers"
RESTART_ACTIONS = ("Restart", RESTART_ALL)


class ContainerRestartRule(NamedTuple):
    action: str = ""  # one of RESTART_ACTIONS
    exit_codes: ContainerRestartRuleOnExitCodes | None = None


class ContainerResizePolicy(NamedTuple):
    resource_name: str = ""
    restart_policy: str = ""


class Container(NamedTuple):
    """One container. An init container with `restart_policy: Always` is a sidecar."""

    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    resources: ResourceRequirements = NOTHING_REQUIRED
    restart_policy: str | None = None
    resize_policy: tuple[ContainerResizePolicy, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    security_context: SecurityContext | None = None
    ports: tuple[ContainerPort, ...] = ()
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    image_pull_policy: str = ""
    termination_message_path: str = ""
    termination_message_policy: str = ""
    env_from: tuple[EnvFromSource, ...] = ()
    lifecycle: Lifecycle | None = None
    restart_policy_rules: tuple[ContainerRestartRule, ...] = ()
    stdin: bool = False
    stdin_once: bool = False  # the first client that leaves ends the standard input
    tty: bool = False

    @property
    def pre_stop(self) -> LifecycleHandler | None:
        return self.lifecycle.pre_stop if self.lifecycle is not None else None

    @property
    def post_start(self) -> LifecycleHandler | None:
        return self.lifecycle.post_start if self.lifecycle is not None else None

    @property
    def is_sidecar(self) -> bool:
        """Whether it is a restartable init container: it starts in its turn and then runs beside the others."""
        return self.restart_policy == "Always"


class EphemeralContainer(NamedTuple):
    """A container that is added to a running pod, to look into it. It has no resources, ports, probes or hooks."""

    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    security_context: SecurityContext | None = None
    image_pull_policy: str = ""
    termination_message_path: str = ""
    termination_message_policy: str = ""
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    target_container_name: str = ""  # the container whose process namespace it enters

    @property
    def container(self) -> Container:
        """The same as an ordinary container, which is never started again."""
        shared: dict[str, Any] = self._asdict()
        del shared["target_container_name"]
        return Container(**shared, restart_policy="Never")
