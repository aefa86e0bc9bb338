"""Rules for security contexts, and for namespaces that a pod shares with the host or among its containers."""

import re

from evenkeel.api.container import AppArmorProfile, SeccompProfile, SecurityContext
from evenkeel.api.pod import PodSecurityContext, PodSpec, Sysctl
from evenkeel.api.problems import (
    Problems,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    shown,
    too_long,
    unusable,
)
from evenkeel.api.validation.name_rules import plain_text

_GREATEST_ID = 2**31 - 1
_PROFILES = ("RuntimeDefault", "Localhost", "Unconfined")
_LOCALHOST = "Localhost"
_NAME_NEEDED = "the type Localhost needs the name of a profile"
_ONLY_LOCALHOST = "it is only for the type Localhost: leave it out"
_PROC_MOUNTS = ("Default", "Unmasked")
_GROUP_POLICIES = ("Merge", "Strict")
_CHANGE_POLICIES = ("Always", "OnRootMismatch")
_LONGEST_PROFILE = 4095
_LONGEST_SYSCTL = 253
# Compiled when first needed: few pods set a sysctl.
_SYSCTL = r"[a-z0-9]+([-_]+[a-z0-9]+)*([./][a-z0-9]+([-_]+[a-z0-9]+)*)*"
_OF_IPC = r"kernel\.(shm|msg|sem$)|fs\.mqueue\."  # sysctls of the IPC namespace
_OF_NETWORK = "net."


def pod_security(spec: PodSpec) -> Problems:
    yield from _namespaces(spec)
    context = spec.security_context
    if context is None:
        return
    path = "spec.securityContext"
    yield from _common(context, path)
    yield from _identity(context.fs_group, f"{path}.fsGroup")
    for index, group in enumerate(context.supplemental_groups):
        yield from _identity(group, f"{path}.supplementalGroups[{index}]")
    yield from _choice(
        context.supplemental_groups_policy, f"{path}.supplementalGroupsPolicy", _GROUP_POLICIES
    )
    yield from _choice(context.fs_group_change_policy, f"{path}.fsGroupChangePolicy", _CHANGE_POLICIES)
    yield from _sysctls(context.sysctls, f"{path}.sysctls", spec)


def container_security(context: SecurityContext, path: str, spec: PodSpec) -> Problems:
    yield from _common(context, path)
    yield from _choice(context.proc_mount, f"{path}.procMount", _PROC_MOUNTS)
    if context.proc_mount == "Unmasked" and not spec.has_own_users:
        yield invalid(f"{path}.procMount", "Unmasked needs hostUsers: false, in Kubernetes too")
    if context.allow_privilege_escalation is False:
        if context.privileged:
            yield invalid(path, "privileged: true contradicts allowPrivilegeEscalation: false")
        added = context.capabilities.add if context.capabilities is not None else ()
        if "CAP_SYS_ADMIN" in added:
            yield invalid(path, "capability CAP_SYS_ADMIN contradicts allowPrivilegeEscalation: false")


def _namespaces(spec: PodSpec) -> Problems:
    if spec.share_process_namespace and spec.host_pid:
        yield invalid(
            "spec.shareProcessNamespace",
            "shareProcessNamespace and hostPID cannot both be true: choose one",
        )
    if spec.has_own_users:
        for field, is_asked in (
            ("hostNetwork", spec.host_network), ("HostPID", spec.host_pid), ("HostIPC", spec.host_ipc)
        ):  # fmt: skip
            if is_asked:
                yield forbidden(f"spec.{field}", "it cannot be combined with hostUsers: false")


def _common(context: SecurityContext | PodSecurityContext, path: str) -> Problems:
    yield from _identity(context.run_as_user, f"{path}.runAsUser")
    yield from _identity(context.run_as_group, f"{path}.runAsGroup")
    if context.seccomp_profile is not None:
        yield from _seccomp(context.seccomp_profile, f"{path}.seccompProfile")
    if context.app_armor_profile is not None:
        yield from _app_armor(context.app_armor_profile, f"{path}.appArmorProfile")


def _seccomp(profile: SeccompProfile, path: str) -> Problems:
    yield from _type(profile.type, f"{path}.type")
    name, field = profile.localhost_profile, f"{path}.localhostProfile"
    if profile.type != _LOCALHOST:
        if name is not None:
            yield invalid(field, _ONLY_LOCALHOST)
    elif name is None:
        yield required(field, _NAME_NEEDED)
    elif name.startswith("/") or ".." in name.split("/"):
        yield invalid(field, f"{shown(name)} must be a path below the directory of profiles, without ..")
    elif not name or plain_text(name):
        yield unusable(field, f"{shown(name)} {plain_text(name)}" if name else _NAME_NEEDED)


def _app_armor(profile: AppArmorProfile, path: str) -> Problems:
    yield from _type(profile.type, f"{path}.type")
    name, field = profile.localhost_profile, f"{path}.localhostProfile"
    if profile.type in ("RuntimeDefault", "Unconfined") and name is not None:
        yield invalid(field, _ONLY_LOCALHOST)
    if profile.type != _LOCALHOST:
        return
    if not name:
        yield required(field, _NAME_NEEDED)
        return
    if name != name.strip():
        yield invalid(field, f"{shown(name)} has spaces at an end: leave them out")
    if len(name.encode(errors="replace")) > _LONGEST_PROFILE:
        yield too_long(field, f"must have at most {_LONGEST_PROFILE} bytes")
    if plain_text(name):
        yield unusable(field, f"{shown(name)} {plain_text(name)}")


def _type(seen: str, path: str) -> Problems:
    if not seen:
        yield required(path, f"write {' or '.join(_PROFILES)}")
    else:
        yield from _choice(seen, path, _PROFILES)


def _choice(seen: str | None, path: str, supported: tuple[str, ...]) -> Problems:
    if seen is not None and seen not in supported:
        yield not_supported(path, seen, supported)


def _sysctls(sysctls: tuple[Sysctl, ...], path: str, spec: PodSpec) -> Problems:
    names: set[str] = set()
    for index, sysctl in enumerate(sysctls):
        name, field = sysctl.name, f"{path}[{index}].name"
        if not name:
            yield required(field, "write a name such as net.core.somaxconn")
        elif len(name) > _LONGEST_SYSCTL or not re.fullmatch(_SYSCTL, name):
            yield invalid(
                field,
                f"{shown(name)} must be a name such as net.core.somaxconn, of at most {_LONGEST_SYSCTL} characters",
            )
        elif name in names:
            yield duplicate(field, f"{shown(name)} has a value already")
        names.add(name)
        dotted = name.replace("/", ".")
        if spec.host_network and dotted.startswith(_OF_NETWORK):
            yield invalid(field, f"{shown(name)} would be set for the whole host, since hostNetwork is true")
        elif spec.host_ipc and re.match(_OF_IPC, dotted):
            yield invalid(field, f"{shown(name)} would be set for the whole host, since hostIPC is true")


def _identity(number: int | None, path: str) -> Problems:
    if number is not None and not 0 <= number <= _GREATEST_ID:
        yield invalid(path, f"{number} must be from 0 to {_GREATEST_ID}")
