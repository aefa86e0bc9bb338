"""Rules for volumes, among them volumes with data (configMap, secret, downwardAPI, projected), and for their mounts in
containers.
"""

from collections.abc import Iterable

from evenkeel.api.container import BIDIRECTIONAL, HOST_TO_CONTAINER, NO_PROPAGATION, VolumeMount
from evenkeel.api.pod import Pod
from evenkeel.api.pod_fields import CLUSTER_ONLY
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
from evenkeel.api.validation.annotation_rules import app_armor_annotations
from evenkeel.api.validation.env_rules import amount_problems, field_problems
from evenkeel.api.validation.name_rules import dns_label, dns_subdomain, plain_text
from evenkeel.api.volume_types import (
    ConfigMapVolumeSource,
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    EmptyDirVolumeSource,
    EphemeralVolumeSource,
    HostPathVolumeSource,
    KeyToPath,
    PersistentVolumeClaimVolumeSource,
    ProjectedVolumeSource,
    SecretVolumeSource,
    ServiceAccountTokenProjection,
    Volume,
    VolumeProjection,
)
from evenkeel.errors import NODE_RULE, Problem
from evenkeel.named_tuples import NamedTuple
from evenkeel.quantity import ZERO

_HOST_PATH_TYPES = (
    "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice",
)  # fmt: skip
_GREATEST_MODE = 0o777
_MAPS = ("metadata.annotations", "metadata.labels")
_FIELDS = ("metadata.name", "metadata.namespace", "metadata.uid")
_LONGEST_NAME_BYTES = 255
_SHORTEST_TOKEN_SECONDS, _LONGEST_TOKEN_SECONDS = 600, 1 << 32
_ADDED_BY_CLUSTER = "kube-api-access-"
_TAKE_IT_OUT = (
    "a cluster adds this volume to its pods, and this node is in none; take the volume and its mounts out"
)
_PROPAGATIONS = (BIDIRECTIONAL, HOST_TO_CONTAINER, NO_PROPAGATION)


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
    if volume.ephemeral is not None:
        given.append(("ephemeral", _ephemeral(volume.ephemeral, f"{path}.ephemeral")))
    for index, (name, problems) in enumerate(given):
        if index:
            # The path that Kubernetes has for it is misspelt.
            field = "downwarAPI" if name == "downwardAPI" else name
            yield forbidden(f"{path}.{field}", f"a volume has one source, and {given[0][0]} is there already")
        else:
            yield from problems


def mount_problems(
    mounts: tuple[VolumeMount, ...], volumes: frozenset[str], path: str, *, is_privileged: bool
) -> Problems:
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
        if mount.mount_propagation and mount.mount_propagation not in _PROPAGATIONS:
            yield not_supported(f"{here}.mountPropagation", mount.mount_propagation, _PROPAGATIONS)
        elif mount.mount_propagation == BIDIRECTIONAL and not is_privileged:
            yield forbidden(
                f"{here}.mountPropagation",
                f"{BIDIRECTIONAL} is for privileged containers: write {HOST_TO_CONTAINER}, which sees mounts of the "
                "host and makes none there",
            )
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


def _ephemeral(source: EphemeralVolumeSource, path: str) -> Problems:
    template = source.volume_claim_template
    if template is None or template.spec is None:
        yield required(f"{path}.volumeClaimTemplate", "write its spec, as that of a PersistentVolumeClaim")
        return
    from evenkeel.api.claims import PersistentVolumeClaim
    from evenkeel.api.validation.object_rules import claim_problems

    here = f"{path}.volumeClaimTemplate"
    for problem in claim_problems(PersistentVolumeClaim(spec=template.spec)):
        yield problem._replace(field=f"{here}.{problem.field}")


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


def config_map_problems(source: ConfigMapVolumeSource, path: str) -> Problems:
    yield from _object(source.name, f"{path}.name")
    yield from _mode(source.default_mode, f"{path}.defaultMode")
    yield from _items(source.items, f"{path}.items")


def secret_problems(source: SecretVolumeSource, path: str) -> Problems:
    yield from _object(source.secret_name, f"{path}.secretName")
    yield from _mode(source.default_mode, f"{path}.defaultMode")
    yield from _items(source.items, f"{path}.items")


def downward_problems(source: DownwardAPIVolumeSource, path: str) -> Problems:
    yield from _mode(source.default_mode, f"{path}.defaultMode")
    yield from _fields(source.items, path)


def projected_problems(source: ProjectedVolumeSource, path: str) -> Problems:
    yield from _mode(source.default_mode, f"{path}.defaultMode")
    taken: dict[str, str] = {}
    for index, each in enumerate(source.sources):
        here = f"{path}.sources[{index}]"
        yield from _projection(each, here)
        if each.service_account_token is not None:
            yield from _token(each.service_account_token, path, here)
        for place in _paths(each):
            if place in taken:
                yield invalid(
                    path, f"{shown(place)} is a path of {taken[place]} and of {here}: a file has one"
                )
            elif place:
                taken[place] = here


def _projection(source: VolumeProjection, path: str) -> Problems:
    config_map, secret, downward = source.config_map, source.secret, source.downward_api
    token = source.service_account_token
    given = [one for one in (config_map, secret, downward, token) if one is not None]
    if not given:  # it may have a source that comes from a cluster, which is refused
        yield unusable(path, "must hold one of configMap, secret and downwardAPI")
    elif len(given) > 1:
        yield forbidden(path, "must hold one source, and holds more")
    if config_map is not None:
        yield from _object(config_map.name, f"{path}.configMap.name")
        yield from _items(config_map.items, f"{path}.configMap.items")
    if secret is not None:
        yield from _object(secret.name, f"{path}.secret.name")
        yield from _items(secret.items, f"{path}.secret.items")
    if downward is not None:
        yield from _fields(downward.items, f"{path}.downwardAPI")


def _token(token: ServiceAccountTokenProjection, path: str, source: str) -> Problems:
    yield from _place(token.path, f"{path}.path")  # the path that Kubernetes has for it
    seconds = token.expiration_seconds
    if seconds is not None and not _SHORTEST_TOKEN_SECONDS <= seconds <= _LONGEST_TOKEN_SECONDS:
        yield invalid(
            f"{source}.serviceAccountToken.expirationSeconds",
            f"{seconds} must be from {_SHORTEST_TOKEN_SECONDS} to {_LONGEST_TOKEN_SECONDS}",
        )


def cluster_only_problems(pod: Pod) -> Problems:
    """Refuses fields of a pod in a manifest that only a cluster can honour."""
    if pod.spec.ephemeral_containers:
        why = "they are added to running pods of a cluster (kubectl debug); use evenkeel exec instead"
        yield Problem("spec.ephemeralContainers", f"not supported in a manifest: {why}", NODE_RULE)
    for field, wanted in app_armor_annotations(pod):
        yield Problem(field, f"an annotation has no effect here: {wanted}", NODE_RULE)
    for index, volume in enumerate(pod.spec.volumes):
        for number, source in enumerate(volume.projected.sources if volume.projected is not None else ()):
            if source.service_account_token is not None:
                field = f"spec.volumes[{index}].projected.sources[{number}].serviceAccountToken"
                is_added = volume.name.startswith(_ADDED_BY_CLUSTER)
                yield Problem(
                    field, f"is not supported here: {_TAKE_IT_OUT if is_added else CLUSTER_ONLY}", NODE_RULE
                )


def _paths(source: VolumeProjection) -> Iterable[str]:
    for of_keys in (source.config_map, source.secret):
        if of_keys is not None:
            yield from (item.path for item in of_keys.items)
    if source.downward_api is not None:
        yield from (item.path for item in source.downward_api.items)
    if source.service_account_token is not None:
        yield source.service_account_token.path


def _items(items: tuple[KeyToPath, ...], path: str) -> Problems:
    for index, item in enumerate(items):
        here = f"{path}[{index}]"
        if not item.key:
            yield required(f"{here}.key", "name the key whose value the file has")
        yield from _place(item.path, f"{here}.path")
        yield from _mode(item.mode, f"{here}.mode")


def _fields(items: tuple[DownwardAPIVolumeFile, ...], path: str) -> Problems:
    """The paths are those that Kubernetes has for them: of the volume, without the item."""
    for index, item in enumerate(items):
        yield from _place(item.path, f"{path}.path")
        yield from _mode(item.mode, f"{path}.mode")
        field, amount = item.field_ref, item.resource_field_ref
        if field is not None:
            yield from field_problems(field, f"{path}.fieldRef", _FIELDS, _MAPS)
            if amount is not None:
                yield invalid(path, f"must hold one of fieldRef and resourceFieldRef in item {index}")
        elif amount is not None:
            yield from amount_problems(amount, f"{path}.resourceFieldRef", has_container=False)
        else:
            yield required(path, f"write fieldRef or resourceFieldRef in item {index}")


def _object(name: str, path: str) -> Problems:
    if not name:
        yield required(path, "name the object")
    elif wrong := dns_subdomain(name):
        yield unusable(path, f"{shown(name)} {wrong}")


def _mode(mode: int | None, path: str) -> Problems:
    if mode is not None and not 0 <= mode <= _GREATEST_MODE:
        yield invalid(path, f"{mode} must be from 0 to {_GREATEST_MODE} (0777)")


def _place(place: str, path: str) -> Problems:
    """The path of a file in its volume."""
    parts = place.split("/")
    if not place:
        yield required(path, "write the path of the file in the volume")
    elif place.startswith("/"):
        yield invalid(path, f"{shown(place)} must be relative to the volume, without a / in front")
    elif ".." in parts or place.startswith(".."):
        yield invalid(path, f"{shown(place)} must have no .. and not begin with it")
    elif plain_text(place):
        yield unusable(path, f"{shown(place)} {plain_text(place)}")
    elif any(part in ("", ".") or len(part.encode()) > _LONGEST_NAME_BYTES for part in parts):
        yield unusable(
            path, f"{shown(place)} must be names of up to {_LONGEST_NAME_BYTES} bytes with one / between"
        )
