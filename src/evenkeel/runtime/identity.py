"""Whom a container runs as, as far as its manifest tells. Pure."""

from typing import NamedTuple

from evenkeel.api.container import Container
from evenkeel.api.pod import Pod


class Identity(NamedTuple):
    """Whom a container's manifest, and its pod's, name. None is whoever it would be."""

    uid: int | None
    gid: int | None
    must_not_be_root: bool


def identity(pod: Pod, container: Container) -> Identity:
    """The container's word goes before the pod's."""
    of_pod, of_container = pod.spec.security_context, container.security_context
    found: list[int | bool | None] = []
    for name in ("run_as_user", "run_as_group", "run_as_non_root"):
        value = getattr(of_container, name, None)
        found.append(getattr(of_pod, name, None) if value is None else value)
    uid, gid, must_not_be_root = found
    return Identity(uid, gid, bool(must_not_be_root))


def groups(pod: Pod) -> tuple[int, ...]:
    context = pod.spec.security_context
    if context is None:
        return ()
    of_volumes = () if context.fs_group is None else (context.fs_group,)
    return (*context.supplemental_groups, *of_volumes)
