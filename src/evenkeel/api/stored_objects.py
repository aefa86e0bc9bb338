"""The objects that the agent keeps beside pods and workloads: ConfigMaps, Secrets, Services and claims.

They are read, checked, compared and written in the same way, whatever their kind.
"""

from collections.abc import Iterator, Mapping

from evenkeel.api import data_objects
from evenkeel.api.claims import CLAIM, PersistentVolumeClaim, claim_notes
from evenkeel.api.data_objects import CONFIG_MAP, DATA_KINDS, SECRET, DataKey, DataObject
from evenkeel.api.decode import Findings, decode
from evenkeel.api.encode import encode
from evenkeel.api.problems import Problems
from evenkeel.api.services import SERVICE, Service, service_notes
from evenkeel.api.validation.data_rules import metadata_problems, validate_data
from evenkeel.api.validation.object_rules import claim_problems, service_problems
from evenkeel.named_tuples import NamedTuple

StoredObject = DataObject | Service | PersistentVolumeClaim


class ObjectKind(NamedTuple):
    """The names of a kind for clients. All kinds here are in the core group."""

    plural: str
    short: str


OBJECT_KINDS: Mapping[str, ObjectKind] = {
    CONFIG_MAP: ObjectKind("configmaps", "cm"),
    SECRET: ObjectKind("secrets", ""),
    SERVICE: ObjectKind("services", "svc"),
    CLAIM: ObjectKind("persistentvolumeclaims", "pvc"),
}


def kind_of_object(one: StoredObject) -> str:
    return one.kind if isinstance(one, DataObject) else type(one).__name__


def key_of_object(one: StoredObject) -> DataKey:
    return DataKey(kind_of_object(one), one.metadata.namespace or "default", one.metadata.name)


def read_stored(kind: str, value: Mapping[str, object], path: str, findings: Findings) -> StoredObject | None:
    """The object in a manifest without `apiVersion` and `kind`. None if it cannot be read; why is in `findings`."""
    if kind in DATA_KINDS:
        return data_objects.read_object(kind, value, path, findings)
    own = Findings()
    fields = {name: item for name, item in value.items() if name != "status"}
    type_: type[Service | PersistentVolumeClaim] = Service if kind == SERVICE else PersistentVolumeClaim
    one = decode(type_, fields, own, path)
    findings.problems += own.problems
    findings.not_honoured += own.not_honoured
    metadata = one.metadata._replace(namespace=one.metadata.namespace or "default")
    return None if own.problems else one._replace(metadata=metadata)


def object_problems(one: StoredObject) -> Problems:
    """Every problem of the object; none if it is valid."""
    if isinstance(one, DataObject):
        yield from validate_data(one)
        return
    yield from metadata_problems(one.metadata, kind_of_object(one))
    yield from service_problems(one) if isinstance(one, Service) else claim_problems(one)


def object_notes(one: StoredObject) -> Iterator[tuple[str, str]]:
    """Differences from a cluster: pairs of a field and a sentence."""
    if isinstance(one, Service):
        yield from service_notes(one)
    elif isinstance(one, PersistentVolumeClaim):
        yield from claim_notes(one)


def manifest_of(one: StoredObject) -> dict[str, object]:
    """The object as a manifest, with its content."""
    if isinstance(one, DataObject):
        return data_objects.manifest_of(one)
    fields = encode(one)
    assert isinstance(fields, dict)
    found = {"apiVersion": "v1", "kind": kind_of_object(one), **fields}
    if isinstance(one, PersistentVolumeClaim):
        capacity = {"storage": str(one.size)}
        found["status"] = {"phase": "Bound", "accessModes": [*one.spec.access_modes], "capacity": capacity}
    return found


def change_problems(before: StoredObject, after: StoredObject) -> Problems:
    """Why `before` must not become `after`."""
    if isinstance(before, DataObject) and isinstance(after, DataObject):
        yield from data_objects.change_problems(before, after)
