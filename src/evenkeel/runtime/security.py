"""A pod's security context: the capabilities, filter and privileges of a container, and the refusals. Pure.

Both runtimes use it. If a manifest asks for a restriction, the restriction applies, or the pod is refused with a
message. More rights than the default are granted only if their effect stays inside the container.
"""

from collections.abc import Iterator
from typing import NamedTuple

from evenkeel.api.container import Container, SeccompProfile, SecurityContext
from evenkeel.api.pod import Pod, PodSecurityContext
from evenkeel.runtime import syscalls
from evenkeel.runtime.environment import identity

# As manifests write them.
DEFAULT_CAPABILITIES = frozenset(map(str.upper, syscalls.DEFAULT_CAPABILITIES))
GRANTABLE_CAPABILITIES = frozenset(map(str.upper, syscalls.GRANTABLE_CAPABILITIES))
_KNOWN_CAPABILITIES = frozenset(map(str.upper, syscalls.CAPABILITIES))
_ALL = "ALL"
_UNCONFINED, _RUNTIME_DEFAULT = "Unconfined", "RuntimeDefault"
# The sysctls that Kubernetes calls safe: each belongs to a namespace of the pod, and reaches nothing else.
NETWORK_SYSCTL = "net."
SAFE_SYSCTLS = frozenset(
    ("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
     "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
     "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
     "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem")
)  # fmt: skip


class Privileges(NamedTuple):
    """The rights of a container, apart from its user."""

    capabilities: frozenset[str] = DEFAULT_CAPABILITIES
    is_filtered: bool = True  # by the runtime's default seccomp filter
    may_escalate: bool | None = None  # securityContext.allowPrivilegeEscalation; None if it is not set


def privileges(pod: Pod, container: Container) -> Privileges:
    """Returns the rights of a container that is not refused."""
    security = container.security_context
    asked = security.capabilities if security else None
    kept = set(DEFAULT_CAPABILITIES)
    if asked is not None:
        dropped, added = _names(asked.drop), _names(asked.add)
        kept = (set() if _ALL in dropped else kept - dropped) | added
    return Privileges(
        frozenset(kept),
        _filter(pod, container).type != _UNCONFINED,
        security.allow_privilege_escalation if security else None,
    )


def sysctls(pod: Pod) -> dict[str, str]:
    """Returns the kernel settings of a pod that is not refused. A name may have slashes, as in /proc/sys."""
    context = pod.spec.security_context
    return {} if context is None else {one.name.replace("/", "."): one.value for one in context.sysctls}


def refusal(pod: Pod, *, has_own_network: bool) -> str:
    """Returns the first request that cannot be granted, with its field; empty if there is none.

    `has_own_network` is False for a pod that uses the host's network.
    """
    return next(_problems(pod, has_own_network=has_own_network), "")


def _problems(pod: Pod, *, has_own_network: bool) -> Iterator[str]:
    spec = pod.spec
    if spec.runtime_class_name:
        yield (
            f"spec.runtimeClassName: {spec.runtime_class_name} cannot be had: there is one runtime, the agent's; "
            "leave it out"
        )
    if spec.host_users is False:
        yield "spec.hostUsers: false cannot be had: pods get no user namespace here; set runAsUser to a number above 0"
    for field, is_asked in (
        ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc), ("shareProcessNamespace", spec.share_process_namespace)
    ):  # fmt: skip
        if is_asked:
            yield f"spec.{field}: true cannot be had: each container has a namespace of its own; leave it out"
    of_pod = spec.security_context
    if of_pod is not None:
        yield from _sysctl_problems(pod, has_own_network=has_own_network)
        yield from _modules(of_pod, "spec.securityContext")
    for field, container in spec.container_fields:
        yield from _container_problems(pod, container, f"{field}.securityContext")


def _sysctl_problems(pod: Pod, *, has_own_network: bool) -> Iterator[str]:
    field = "spec.securityContext.sysctls"
    for name, value in sysctls(pod).items():
        if name not in SAFE_SYSCTLS:
            yield f"{field}: {name[:80]} cannot be set: it would reach beyond the pod; leave it out"
        elif name.startswith(NETWORK_SYSCTL) and not has_own_network:
            yield f"{field}: {name} needs a network of the pod's own: write hostNetwork: false, or leave it out"
        elif not value or not value.isprintable():
            yield f"{field}: {name} has no value that the kernel could take: write a number"


def _container_problems(pod: Pod, container: Container, field: str) -> Iterator[str]:
    yield from _filter_problems(pod, container, field)
    security = container.security_context
    if security is None:
        return
    if security.privileged:
        yield (
            f"{field}.privileged: true cannot be had: it would be root on the host; name what it needs, as hostPath "
            "volumes and capabilities"
        )
    if security.proc_mount not in ("", "Default"):
        yield f"{field}.procMount: {security.proc_mount} cannot be had; write Default, or leave it out"
    yield from _modules(security, field)
    if security.capabilities is None:
        return
    for name in _names(security.capabilities.drop) - _KNOWN_CAPABILITIES - {_ALL}:
        yield f"{field}.capabilities.drop: {name} is no capability; write one of capabilities(7), or ALL"
    for name in sorted(_names(security.capabilities.add) - GRANTABLE_CAPABILITIES):
        if name in _KNOWN_CAPABILITIES or name == _ALL:
            may = ", ".join(sorted(GRANTABLE_CAPABILITIES - DEFAULT_CAPABILITIES))
            yield f"{field}.capabilities.add: {name} would reach the host; what can be added is {may}"
        else:
            yield f"{field}.capabilities.add: {name} is no capability"


def _filter_problems(pod: Pod, container: Container, field: str) -> Iterator[str]:
    profile = _filter(pod, container)
    if profile.type == _UNCONFINED:
        uid = identity(pod, container).uid
        security = container.security_context
        if not uid or (security and security.allow_privilege_escalation):
            yield (
                f"{field}.seccompProfile.type: Unconfined cannot be had by root, who could take its own limits away; "
                "set runAsUser to a number above 0 and allowPrivilegeEscalation to false, or write RuntimeDefault"
            )
    elif profile.type != _RUNTIME_DEFAULT:
        yield (
            f"{field}.seccompProfile.type: {profile.type} cannot be had: write RuntimeDefault or Unconfined"
        )


def _modules(security: SecurityContext | PodSecurityContext, field: str) -> Iterator[str]:
    """Refuses Linux security modules; none is used here."""
    profile = security.app_armor_profile
    if profile is not None and profile.type != _UNCONFINED:
        yield f"{field}.appArmorProfile.type: {profile.type} cannot be had: containers have no AppArmor profile here"
    if security.se_linux_options is not None and any(security.se_linux_options):
        yield f"{field}.seLinuxOptions: cannot be had: containers have no SELinux label here; leave it out"
    if security.windows_options is not None:
        yield f"{field}.windowsOptions: cannot be had: this is Linux; leave it out"


def _filter(pod: Pod, container: Container) -> SeccompProfile:
    """Returns the container's profile, else the pod's, else the default filter."""
    for security in (container.security_context, pod.spec.security_context):
        if security is not None and security.seccomp_profile is not None:
            return security.seccomp_profile
    return SeccompProfile(_RUNTIME_DEFAULT)


def _names(capabilities: tuple[str, ...]) -> set[str]:
    """Normalises names of capabilities as runtimes do: with or without CAP_, in upper or lower case."""
    return {name.upper().removeprefix("CAP_") for name in capabilities}
