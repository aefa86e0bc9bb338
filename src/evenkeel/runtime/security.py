"""A pod's security context: the capabilities, filter and privileges of a container, and the refusals. Pure.

Both runtimes use it. If a manifest asks for a restriction, the restriction applies, or the pod is refused with a
message. More rights than the default are granted only if their effect stays inside the container, or if the operator
allows them (allowedHostAccess).
"""

from collections.abc import Iterator

from evenkeel.api.config import HOST_IPC, HOST_PID, PRIVILEGED, flag_of
from evenkeel.api.container import AppArmorProfile, Container, SeccompProfile, SecurityContext, SELinuxOptions
from evenkeel.api.pod import Pod, PodSecurityContext
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.admission import Refusal
from evenkeel.runtime import syscalls
from evenkeel.runtime.environment import identity
from evenkeel.runtime.id_ranges import LENGTH

# As manifests write them.
DEFAULT_CAPABILITIES = frozenset(map(str.upper, syscalls.DEFAULT_CAPABILITIES))
GRANTABLE_CAPABILITIES = frozenset(map(str.upper, syscalls.GRANTABLE_CAPABILITIES))
_KNOWN_CAPABILITIES = frozenset(map(str.upper, syscalls.CAPABILITIES))
_ALL = "ALL"
_TRACING = frozenset(("SYS_PTRACE",))
UNCONFINED, RUNTIME_DEFAULT, LOCALHOST = "Unconfined", "RuntimeDefault", "Localhost"
UNMASKED = "Unmasked"  # of procMount
# The sysctls that Kubernetes calls safe: each belongs to a namespace of the pod, and reaches nothing else.
NETWORK_SYSCTL = "net."
SAFE_SYSCTLS = frozenset(
    ("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
     "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
     "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
     "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem")
)  # fmt: skip


class Granted(NamedTuple):
    """The rights that a node grants to pods that ask for them. A text says why it does not grant one; it is empty if it
    does."""

    has_own_network: bool = False  # of this pod: False if it uses the host's network
    host_access: tuple[str, ...] = ()  # allowedHostAccess of the configuration
    no_privileged: str = ""
    no_app_armor: str = ""
    has_default_app_armor: bool = True  # the runtime has a profile of its own
    no_user_namespace: str = ""
    has_se_linux: bool = False  # the runtime labels containers, where the machine has SELinux
    # The runtime has several ways to run a pod, and spec.runtimeClassName chooses one.
    has_handlers: bool = False


class Privileges(NamedTuple):
    """The rights of a container, apart from its user."""

    capabilities: frozenset[str] = DEFAULT_CAPABILITIES
    seccomp: SeccompProfile = SeccompProfile(RUNTIME_DEFAULT)
    may_escalate: bool | None = None  # securityContext.allowPrivilegeEscalation; None if it is not set
    is_privileged: bool = False
    app_armor: AppArmorProfile | None = None  # None: the default of the runtime
    is_unmasked: bool = False  # procMount

    @property
    def is_filtered(self) -> bool:
        return self.seccomp.type != UNCONFINED


def privileges(pod: Pod, container: Container, *, may_trace: bool = False) -> Privileges:
    """Returns the rights of a container that is not refused. `may_trace`: see `withheld`."""
    security = container.security_context
    asked = security.capabilities if security else None
    kept = set(DEFAULT_CAPABILITIES)
    if asked is not None:
        dropped, added = _names(asked.drop), _names(asked.add)
        kept = (set() if _ALL in dropped else kept - dropped) | (
            added - withheld(pod, container, may_trace=may_trace)
        )
    is_privileged = bool(security and security.privileged)
    return Privileges(
        frozenset(_KNOWN_CAPABILITIES if _ALL in kept else kept),
        # As in Kubernetes, a privileged container has no filter.
        SeccompProfile(UNCONFINED) if is_privileged else seccomp_profile(pod, container),
        security.allow_privilege_escalation if security else None,
        is_privileged,
        _app_armor(pod, container),
        bool(security and security.proc_mount == UNMASKED),
    )


def reaches_host(granted: Granted) -> bool:
    """Whether pods get the rights of the host's root if they ask for them."""
    return PRIVILEGED in granted.host_access and not granted.no_privileged


def withheld(pod: Pod, container: Container, *, may_trace: bool = False) -> frozenset[str]:
    """The capabilities that an ephemeral container asks for and runs without, instead of being refused.

    kubectl debug asks for SYS_PTRACE by default. With it a container could read and steer the processes of the runtime
    that enter its process namespace for others, and these are root's. So it is granted only if the operator gives pods
    the rights of root (`may_trace`, from `reaches_host`). A privileged container has all capabilities."""
    security = container.security_context
    if may_trace or security is None or security.capabilities is None or security.privileged:
        return frozenset()
    is_ephemeral = pod.spec.ephemeral(container.name) is not None
    return _TRACING & _names(security.capabilities.add) if is_ephemeral else frozenset()


def seccomp_profile(pod: Pod, container: Container) -> SeccompProfile:
    """Returns the container's profile, else the pod's, else the default filter."""
    for security in (container.security_context, pod.spec.security_context):
        if security is not None and security.seccomp_profile is not None:
            return security.seccomp_profile
    return SeccompProfile(RUNTIME_DEFAULT)


def may_be_root(pod: Pod, container: Container) -> bool:
    """Whether it runs as root, as far as the manifest says, or may become root by a set-user-ID program. Root of the
    pod's own users is not root of the machine."""
    if pod.spec.has_own_users:
        return False
    security = container.security_context
    return not identity(pod, container).uid or bool(security and security.allow_privilege_escalation)


def sysctls(pod: Pod) -> dict[str, str]:
    """Returns the kernel settings of a pod that is not refused. A name may have slashes, as in /proc/sys."""
    context = pod.spec.security_context
    return {} if context is None else {one.name.replace("/", "."): one.value for one in context.sysctls}


def problems(pod: Pod, granted: Granted) -> Iterator[str]:
    """Every request that cannot be granted, with its field."""
    spec = pod.spec
    if spec.runtime_class_name and not granted.has_handlers:
        yield (
            f"spec.runtimeClassName: {spec.runtime_class_name} is not supported: there is one runtime, the agent's; "
            "leave it out"
        )
    if spec.has_own_users:
        if granted.no_user_namespace:
            yield f"spec.hostUsers: false is not supported: {granted.no_user_namespace}"
        yield from _number_problems(pod)
    for name, is_asked in ((HOST_PID, spec.host_pid), (HOST_IPC, spec.host_ipc)):
        if is_asked and name not in granted.host_access:
            yield f"spec.{name}: true {_not_allowed(name)}"
    of_pod = spec.security_context
    if of_pod is not None:
        yield from _sysctl_values(pod)
        yield from _modules(of_pod, "spec.securityContext", granted)
    for field, container in spec.container_fields:
        yield from _container_problems(pod, container, f"{field}.securityContext", granted)


def _number_problems(pod: Pod) -> Iterator[str]:
    """A pod with users of its own has the numbers below 65536."""
    contexts: list[tuple[str, PodSecurityContext | SecurityContext | None]] = [
        ("spec.securityContext", pod.spec.security_context),
        *((f"{field}.securityContext", one.security_context) for field, one in pod.spec.container_fields),
    ]
    for field, context in contexts:
        if context is None:
            continue
        numbers = [("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)]
        if isinstance(context, PodSecurityContext):
            numbers += [
                ("fsGroup", context.fs_group),
                *(("supplementalGroups", one) for one in context.supplemental_groups),
            ]
        for name, number in numbers:
            if number is not None and number >= LENGTH:
                yield (
                    f"{field}.{name}: {number} cannot be combined with hostUsers: false: the pod's own users and "
                    f"groups are 0 to {LENGTH - 1}"
                )


def _not_allowed(name: str) -> str:
    return (
        f"reaches the host, and the operator of this node has not allowed it: start the agent with "
        f"{flag_of('allowed_host_access')}={name}, or leave it out"
    )


def sysctl_refusal(pod: Pod, granted: Granted) -> Refusal | None:
    """Returns the first sysctl that would reach beyond the pod, with kubelet's reason and words, and what to do."""
    for name in sysctls(pod):
        if name not in SAFE_SYSCTLS:
            return _forbidden(f'"{name[:80]}" not allowlisted: it would reach beyond the pod; leave it out')
        if name.startswith(NETWORK_SYSCTL) and not granted.has_own_network:
            mend = "write hostNetwork: false, or leave it out"
            return _forbidden(f'"{name}" not allowed with host net enabled: {mend}')
    return None


def _forbidden(what: str) -> Refusal:
    return Refusal("SysctlForbidden", f"forbidden sysctl: {what} (spec.securityContext.sysctls)")


def _sysctl_values(pod: Pod) -> Iterator[str]:
    for name, value in sysctls(pod).items():
        if not value or not value.isprintable():
            yield f"spec.securityContext.sysctls: {name} has no value that the kernel could take: write a number"


def _container_problems(pod: Pod, container: Container, field: str, granted: Granted) -> Iterator[str]:
    security = container.security_context
    may_reach_host = reaches_host(granted)
    if not may_reach_host:
        yield from _filter_problems(pod, container, field)
    if security is None:
        return
    if security.privileged and not may_reach_host:
        why = (
            f"is not supported: {granted.no_privileged}"
            if granted.no_privileged
            else _not_allowed(PRIVILEGED)
        )
        yield f"{field}.privileged: true {why}"
    yield from _modules(security, field, granted)
    if security.capabilities is None:
        return
    for name in _names(security.capabilities.drop) - _KNOWN_CAPABILITIES - {_ALL}:
        yield f"{field}.capabilities.drop: {name} is no capability; write one of capabilities(7), or ALL"
    added = _names(security.capabilities.add) - withheld(pod, container)
    for name in sorted(added - GRANTABLE_CAPABILITIES):
        if name not in _KNOWN_CAPABILITIES and name != _ALL:
            yield f"{field}.capabilities.add: {name} is no capability"
        elif not may_reach_host:
            may = ", ".join(sorted(GRANTABLE_CAPABILITIES - DEFAULT_CAPABILITIES))
            yield f"{field}.capabilities.add: {name} would reach the host; what can be added is {may}"


def _filter_problems(pod: Pod, container: Container, field: str) -> Iterator[str]:
    if seccomp_profile(pod, container).type == UNCONFINED and may_be_root(pod, container):
        yield (
            f"{field}.seccompProfile.type: Unconfined is not allowed for root, who could take its own limits away; "
            "set runAsUser to a number above 0 and allowPrivilegeEscalation to false, or write RuntimeDefault"
        )


def _modules(security: SecurityContext | PodSecurityContext, field: str, granted: Granted) -> Iterator[str]:
    """Refuses Linux security modules that this node does not have."""
    profile = security.app_armor_profile
    if profile is not None and profile.type != UNCONFINED:
        asked = f"{field}.appArmorProfile.type: {profile.type}"
        if granted.no_app_armor:
            yield f"{asked} is not supported: {granted.no_app_armor}"
        elif profile.type == RUNTIME_DEFAULT and not granted.has_default_app_armor:
            yield (
                f"{asked} is not supported: processes have no default profile; write Localhost with the name of a "
                "loaded profile"
            )
    if security.se_linux_options is not None and any(security.se_linux_options) and not granted.has_se_linux:
        yield f"{field}.seLinuxOptions: is not supported: processes have no SELinux label here; leave it out"


def _app_armor(pod: Pod, container: Container) -> AppArmorProfile | None:
    """Returns the container's profile, else the pod's."""
    for security in (container.security_context, pod.spec.security_context):
        if security is not None and security.app_armor_profile is not None:
            return security.app_armor_profile
    return None


def se_linux_options(pod: Pod, container: Container | None = None) -> SELinuxOptions | None:
    """Returns the container's options, else the pod's. As in Kubernetes they have no meaning without SELinux."""
    for security in (container.security_context if container else None, pod.spec.security_context):
        if security is not None and security.se_linux_options is not None:
            return security.se_linux_options
    return None


def _names(capabilities: tuple[str, ...]) -> set[str]:
    """Normalises names of capabilities as runtimes do: with or without CAP_, in upper or lower case."""
    return {name.upper().removeprefix("CAP_") for name in capabilities}
