"""Rules for volumes and for their mounts in containers."""

from evenkeel.api.container import VolumeMount
from evenkeel.api.problems import (
    Problems,
    duplicate,
    forbidden,
    invalid,
    not_found,
    not_supported,
    required,
    shown,
    unusable,
)
from evenkeel.api.resources import is_hugepages
from evenkeel.api.validation.data_volume_rules import (
    config_map_problems,
    downward_problems,
    projected_problems,
    secret_problems,
)
from evenkeel.api.validation.name_rules import dns_label, dns_subdomain, plain_text
from evenkeel.api.volume_types import (
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    PersistentVolumeClaimVolumeSource,
    Volume,
)
from evenkeel.errors import NODE_RULE, Problem
from evenkeel.named_tuples import NamedTuple
from evenkeel.quantity import ZERO

_HOST_PATH_TYPES = (
    "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice",
)  # fmt: skip


class CheckedVolumes(NamedTuple):
    """The names of valid volumes, which can be mounted, and the problems of the others."""

    names: frozenset[str]
    problems: tuple[Problem, ...]


def check_volumes(volumes: tuple[Volume, ...], path: str) -> CheckedVolumes:
    names: set[str] = set()
    problems: list[Problem] = []
    for index, volume in enumerate(volumes):
        found = [*_volume(volume, f"{path}[{index}]", names)]
        if all(problem.kind == NODE_RULE for problem in found):
            names.add(volume.name)
        problems += found
    return CheckedVolumes(frozenset(names), tuple(problems))


def _volume(volume: Volume, path: str, names: set[str]) -> Problems:
    if not volume.name:
        yield required(f"{path}.name", "a volume needs a name")
    elif dns_label(volume.name):
        yield invalid(f"{path}.name", f"{shown(volume.name)} {dns_label(volume.name)}")
    elif volume.name in names:
        yield duplicate(f"{path}.name", f"another volume is called {shown(volume.name)}")
    # A volume without a source is no problem here: it may have a source of Kubernetes that Evenkeel does not support.
    given: list[tuple[str, Problems]] = []
    if volume.empty_dir is not None:
        given.append(("emptyDir", _empty_dir(volume.empty_dir, f"{path}.emptyDir")))
    if volume.host_path is not None:
        given.append(("hostPath", _host_path(volume.host_path, f"{path}.hostPath")))
    if volume.secret is not None:
        given.append(("secret", secret_problems(volume.secret, f"{path}.secret")))
    if volume.downward_api is not None:
        given.append(("downwardAPI", downward_problems(volume.downward_api, f"{path}.downwardAPI")))
    if volume.config_map is not None:
        given.append(("configMap", config_map_problems(volume.config_map, f"{path}.configMap")))
    if volume.projected is not None:
        given.append(("projected", projected_problems(volume.projected, f"{path}.projected")))
    if volume.persistent_volume_claim is not None:
        here = f"{path}.persistentVolumeClaim"
        given.append(("persistentVolumeClaim", _claim(volume.persistent_volume_claim, here)))
    for index, (name, problems) in enumerate(given):
        if index:
            # The path that Kubernetes has for it is misspelt.
            field = "downwarAPI" if name == "downwardAPI" else name
            yield forbidden(f"{path}.{field}", f"a volume has one source, and {given[0][0]} is there already")
        else:
            yield from problems


def mount_problems(mounts: tuple[VolumeMount, ...], volumes: frozenset[str], path: str) -> Problems:
    mounted: set[str] = set()
    for index, mount in enumerate(mounts):
        here = f"{path}[{index}]"
        if not mount.name:
            yield required(f"{here}.name", "name the volume to mount")
        if mount.name not in volumes:
            known = ", ".join(sorted(volumes)) or "there are none"
            yield not_found(
                f"{here}.name", f"no valid volume is called {shown(mount.name)} in spec.volumes ({known})"
            )
        if not mount.mount_path:
            yield required(f"{here}.mountPath", "write the path in the container, such as /data")
        elif plain_text(mount.mount_path):
            yield unusable(f"{here}.mountPath", f"{shown(mount.mount_path)} {plain_text(mount.mount_path)}")
        if mount.mount_path in mounted:
            yield invalid(f"{here}.mountPath", f"something is mounted at {shown(mount.mount_path)} already")
        mounted.add(mount.mount_path)
        if mount.sub_path and (wrong := _not_below(mount.sub_path)):
            # The path that Kubernetes has for it, without the index.
            yield invalid(f"{path}.subPath", f"{shown(mount.sub_path)} of item {index} {wrong}")
        elif plain_text(mount.sub_path):
            yield unusable(f"{here}.subPath", f"{shown(mount.sub_path)} {plain_text(mount.sub_path)}")
        if mount.sub_path_expr and mount.sub_path:
            yield invalid(f"{here}.subPathExpr", "cannot be there together with subPath: take one out")
        if mount.sub_path_expr and (wrong := _not_below(mount.sub_path_expr)):
            yield invalid(f"{path}.subPathExpr", f"{shown(mount.sub_path_expr)} of item {index} {wrong}")
        elif plain_text(mount.sub_path_expr):
            yield unusable(
                f"{here}.subPathExpr", f"{shown(mount.sub_path_expr)} {plain_text(mount.sub_path_expr)}"
            )


def _empty_dir(source: EmptyDirVolumeSource, path: str) -> Problems:
    medium = source.medium
    if medium not in ("", "Memory", "HugePages") and not is_hugepages(medium.lower()):
        yield unusable(
            f"{path}.medium", f"{shown(medium)} is no medium: write Memory, or leave it out for the disk"
        )
    if source.size_limit is not None and source.size_limit < ZERO:
        yield forbidden(f"{path}.sizeLimit", f"{source.size_limit} is negative: write 0 (no limit) or more")


def _claim(source: PersistentVolumeClaimVolumeSource, path: str) -> Problems:
    if not source.claim_name:
        yield required(f"{path}.claimName", "name the claim")
    elif wrong := dns_subdomain(source.claim_name):
        yield unusable(f"{path}.claimName", f"{shown(source.claim_name)} {wrong}")


def _host_path(source: HostPathVolumeSource, path: str) -> Problems:
    if not source.path:
        yield required(f"{path}.path", "write a path of this machine, such as /srv/data")
        return
    if ".." in source.path.split("/"):
        yield invalid(
            f"{path}.path", f"{shown(source.path)} must not contain ..: write the path that it stands for"
        )
    if plain_text(source.path):
        yield unusable(f"{path}.path", f"{shown(source.path)} {plain_text(source.path)}")
    elif not source.path.startswith("/"):
        yield unusable(f"{path}.path", f"{shown(source.path)} must begin with /")
    if source.type and source.type not in _HOST_PATH_TYPES:
        yield not_supported(f"{path}.type", source.type, _HOST_PATH_TYPES)


def _not_below(path: str) -> str:
    if path.startswith("/"):
        return "must be relative to the volume, without a / in front"
    if ".." in path.split("/"):
        return "must stay within the volume, without .."
    return ""
