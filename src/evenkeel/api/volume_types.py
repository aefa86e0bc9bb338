"""Volumes of a pod: the types of each source, and what follows from it."""

from evenkeel.api.container import (
    ObjectFieldSelector,
    ResourceFieldSelector,
)
from evenkeel.api.resources import NO_RESOURCES, ResourceList
from evenkeel.api.scalars import Int32
from evenkeel.named_tuples import NamedTuple
from evenkeel.quantity import Quantity

IN_MEMORY = "Memory"  # the medium of an emptyDir


class EmptyDirVolumeSource(NamedTuple):
    medium: str = ""
    size_limit: Quantity | None = None


class HostPathVolumeSource(NamedTuple):
    path: str = ""
    type: str | None = None


class KeyToPath(NamedTuple):
    key: str = ""
    path: str = ""
    mode: Int32 | None = None


class ConfigMapVolumeSource(NamedTuple):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: Int32 | None = None
    optional: bool | None = None


class SecretVolumeSource(NamedTuple):
    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    default_mode: Int32 | None = None
    optional: bool | None = None


class DownwardAPIVolumeFile(NamedTuple):
    path: str = ""
    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    mode: Int32 | None = None


class DownwardAPIVolumeSource(NamedTuple):
    items: tuple[DownwardAPIVolumeFile, ...] = ()
    default_mode: Int32 | None = None


class ConfigMapProjection(NamedTuple):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool | None = None


class SecretProjection(NamedTuple):
    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool | None = None


class DownwardAPIProjection(NamedTuple):
    items: tuple[DownwardAPIVolumeFile, ...] = ()


class ServiceAccountTokenProjection(NamedTuple):
    """A token of the pod's service account. Only a cluster has them."""

    audience: str = ""
    expiration_seconds: int | None = None
    path: str = ""


class VolumeProjection(NamedTuple):
    config_map: ConfigMapProjection | None = None
    secret: SecretProjection | None = None
    downward_api: DownwardAPIProjection | None = None
    service_account_token: ServiceAccountTokenProjection | None = None


class ProjectedVolumeSource(NamedTuple):
    sources: tuple[VolumeProjection, ...] = ()
    default_mode: Int32 | None = None


class PersistentVolumeClaimVolumeSource(NamedTuple):
    claim_name: str = ""
    read_only: bool = False


class VolumeResourceRequirements(NamedTuple):
    requests: ResourceList = NO_RESOURCES
    limits: ResourceList = NO_RESOURCES


class PersistentVolumeClaimSpec(NamedTuple):
    access_modes: tuple[str, ...] = ()
    resources: VolumeResourceRequirements = VolumeResourceRequirements()
    storage_class_name: str | None = None
    volume_mode: str = ""
    volume_attributes_class_name: str = ""  # without meaning: a directory has no attributes
    # Only to refuse them.
    volume_name: str = ""
    selector: object = None
    data_source: object = None
    data_source_ref: object = None


class PersistentVolumeClaimTemplate(NamedTuple):
    metadata: object = None  # labels and annotations of a claim that is not shown here
    spec: PersistentVolumeClaimSpec | None = None


class EphemeralVolumeSource(NamedTuple):
    """A directory of this node for as long as the pod lives, whatever the template asks for."""

    volume_claim_template: PersistentVolumeClaimTemplate | None = None


class Volume(NamedTuple):
    name: str = ""
    empty_dir: EmptyDirVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None
    config_map: ConfigMapVolumeSource | None = None
    secret: SecretVolumeSource | None = None
    downward_api: DownwardAPIVolumeSource | None = None
    projected: ProjectedVolumeSource | None = None
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None = None
    ephemeral: EphemeralVolumeSource | None = None

    @property
    def is_scratch(self) -> bool:
        """Whether it is a directory on disk that begins empty and is removed with the pod."""
        return self.ephemeral is not None or (self.empty_dir is not None and not self.empty_dir.medium)

    @property
    def is_in_memory(self) -> bool:
        """Whether it is an emptyDir in memory."""
        return self.empty_dir is not None and self.empty_dir.medium == IN_MEMORY

    @property
    def has_data(self) -> bool:
        """Whether the agent writes its files: from ConfigMaps, Secrets, or fields of the pod."""
        return (self.config_map or self.secret or self.downward_api or self.projected) is not None

    @property
    def is_read_only(self) -> bool:
        """Whether no container may write to it, however it is mounted."""
        claim = self.persistent_volume_claim
        return self.has_data or (claim is not None and claim.read_only)

    @property
    def has_secrets(self) -> bool:
        of_projected = self.projected.sources if self.projected is not None else ()
        return self.secret is not None or any(
            (source.secret or source.service_account_token) is not None for source in of_projected
        )
