"""ConfigMaps, Secrets, Services and claims: those of files, those that were applied over the socket, and those of a
cluster.

An applied object is on disk, readable by its owner only, before its client has an answer. Objects of files stay in
their files, and those of a cluster in memory. Claims are on disk in any case, and stay with their data when their file
goes. When an object changes, the pods that refer to it get a step: a pod that waits for it starts.

Pods of a cluster get objects of the cluster only, and other pods get none of them. The same name may exist in both, and
access to one of them is no access to the other.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.step_requests import StepRequests
from evenkeel.api.claims import CLAIM, PersistentVolumeClaim
from evenkeel.api.data_objects import (
    NO_DATA,
    NODE_AMOUNTS,
    DataKey,
    DataObject,
    NodeAmounts,
    PodData,
    references,
    wants_node_amounts,
)
from evenkeel.api.decode import Findings
from evenkeel.api.pod import Pod
from evenkeel.api.resources import ResourceList
from evenkeel.api.services import SERVICE, Service
from evenkeel.api.stored_objects import (
    OBJECT_KINDS,
    StoredObject,
    change_problems,
    key_of_object,
    manifest_of,
    read_stored,
)
from evenkeel.errors import EvenkeelError, InvalidInput, reason
from evenkeel.host.files import write_own
from evenkeel.journal.records import CLUSTER, FILE
from evenkeel.policy.lifecycle.pod_status import timestamp

log = logging.getLogger(__name__)

API = "api"
_LARGEST_BYTES = 8 << 20  # of an object's file; base64 and escapes make it larger than the object


class DataStore:
    """For the agent's event loop. `directory` has the applied objects."""

    def __init__(
        self,
        directory: str,
        pod_store: PodStore,
        steps: StepRequests,
        services_changed: asyncio.Event,
        clock: Callable[[], float],
        allocatable: ResourceList,
    ) -> None:
        self._directory = directory
        self._pod_store = pod_store
        self._steps = steps
        self._services_changed = services_changed
        self._services: tuple[Service, ...] | None = None  # None: not collected yet
        self._clock = clock
        self._node_amounts = {NODE_AMOUNTS: NodeAmounts(allocatable)}
        self._objects: dict[DataKey, tuple[StoredObject, str]] = {}  # with the source: api, or file:PATH
        self._of_cluster: dict[DataKey, StoredObject] = {}
        self._references: dict[str, tuple[Pod, frozenset[tuple[str, str]]]] = {}  # by the pod's UID
        self._read_applied()

    # Reading

    def get(self, key: DataKey) -> StoredObject | None:
        found = self._objects.get(key)
        return None if found is None else found[0]

    def listed(self, kind: str) -> tuple[StoredObject, ...]:
        """All objects of the kind, by namespace and name."""
        return tuple(one for key, (one, _) in sorted(self._objects.items()) if key.kind == kind)

    @property
    def services(self) -> tuple[Service, ...]:
        if self._services is None:
            self._services = tuple(one for one in self.listed(SERVICE) if isinstance(one, Service))
        return self._services

    def of_pod(self, pod: Pod) -> PodData:
        """The objects that the pod refers to, as far as they are there."""
        names = self._names(pod)
        of_node: PodData = self._node_amounts if wants_node_amounts(pod) else NO_DATA
        if not names:
            return of_node
        namespace = pod.metadata.namespace or "default"
        record = self._pod_store.get(pod.metadata.uid)
        get = self._of_cluster.get if record is not None and record.source == CLUSTER else self.get
        found = ((name, get(DataKey(name[0], namespace, name[1]))) for name in names)
        objects = {name: one for name, one in found if isinstance(one, DataObject | PersistentVolumeClaim)}
        return {**objects, **of_node}

    def forget(self, uid: str) -> None:
        self._references.pop(uid, None)

    def _names(self, pod: Pod) -> frozenset[tuple[str, str]]:
        known = self._references.get(pod.metadata.uid)
        if known is None or known[0] is not pod:
            known = self._references[pod.metadata.uid] = (pod, references(pod))
        return known[1]

    # Files

    def files_are(self, found: Iterable[tuple[StoredObject, str]]) -> list[str]:
        """Updates the objects to the present content of the files: pairs of an object and its path. Returns a sentence
        for each problem."""
        wanted = {key_of_object(one): (one, FILE + path) for one, path in found}
        notes = []
        for key, (one, source) in list(wanted.items()):
            before = self._objects.get(key)
            if key.kind == CLAIM:
                wanted[key] = (self._kept(one), source)
            elif before is not None and not before[1].startswith(FILE):
                notes.append(
                    f"{source.removeprefix(FILE)}: {key} was handed in over the socket; delete that one first"
                )
                del wanted[key]
            elif before is not None and (problems := [*change_problems(before[0], one)]):
                notes.append(f"{source.removeprefix(FILE)}: {key}: {problems[0]}")
                wanted[key] = before
            else:
                wanted[key] = (self._dated(one), source)
        gone = [
            key for key, (_, source) in self._objects.items() if source.startswith(FILE) and key not in wanted
        ]
        changed = {key for key, (one, _) in wanted.items() if self.get(key) != one}
        for key in gone:
            one = self._objects.pop(key)[0]
            if key.kind == CLAIM:
                self._objects[key] = (one, API)
        self._objects.update(wanted)
        self._announce({*changed, *gone})
        return notes

    # A cluster

    def cluster_has(self, key: DataKey, one: DataObject | None) -> None:
        """Keeps an object of the cluster for the pods that refer to it; None if the cluster does not have it."""
        if one == self._of_cluster.get(key):
            return
        if one is None:
            del self._of_cluster[key]
        else:
            self._of_cluster[key] = one
        self._announce({key})

    def ensure(self, claims: Iterable[PersistentVolumeClaim]) -> None:
        """Adds the claims of a StatefulSet's pod that are not there yet. Raises EvenkeelError."""
        self.apply([claim for claim in claims if self.get(key_of_object(claim)) is None])

    def _kept(self, claim: StoredObject) -> StoredObject:
        """Writes a claim of a file to disk if it is new or has changed. If that fails, it is written the next time."""
        if _is_same(before := self.get(key_of_object(claim)), claim):
            assert before is not None
            return before
        dated = self._dated(claim)
        try:
            self._write(dated)
        except OSError as error:
            log.error("%s: %s", key_of_object(claim), reason(error))  # noqa: TRY400 the message is enough
        return dated

    # The socket

    def apply(self, objects: Sequence[StoredObject]) -> dict[DataKey, StoredObject | None]:
        """Applies all of the objects or none. Returns what was there before, for `put_back`. They are on disk when it
        returns. Raises EvenkeelError."""
        for one in objects:
            known = self._objects.get(key_of_object(one))
            if known is None:
                continue
            if known[1].startswith(FILE):
                raise EvenkeelError(
                    f"{key_of_object(one)} stands in {known[1].removeprefix(FILE)}",
                    hint="change it there; it follows the file",
                )
            if problems := [
                problem._replace(source=str(key_of_object(one))) for problem in change_problems(known[0], one)
            ]:
                raise InvalidInput(problems)
        before = {key_of_object(one): self.get(key_of_object(one)) for one in objects}
        changed = [self._dated(one) for one in objects if not _is_same(before[key_of_object(one)], one)]
        try:
            for one in changed:
                self._write(one)
                self._objects[key_of_object(one)] = (one, API)
            if changed:
                self._sync()
        except OSError as error:
            self.put_back(before)
            raise EvenkeelError(
                f"the objects cannot be written to {self._directory}: {reason(error)}"
            ) from None
        self._announce({key_of_object(one) for one in changed})
        return before

    def put_back(self, before: Mapping[DataKey, StoredObject | None]) -> None:
        """Undoes `apply`."""
        for key, one in before.items():
            with suppress(OSError):
                if one is None:
                    self._objects.pop(key, None)
                    os.unlink(self._path(key))
                elif self.get(key) != one:
                    self._objects[key] = (one, API)
                    self._write(one)
        self._announce(set(before))

    def _may_be_deleted(self, key: DataKey) -> bool:
        """False if there is no such object. Raises EvenkeelError if it is in a file, or a claim that a pod has."""
        known = self._objects.get(key)
        if known is None:
            return False
        if known[1].startswith(FILE):
            path = known[1].removeprefix(FILE)
            raise EvenkeelError(
                f"{key} stands in {path}", hint="take it out of that file, or remove the file"
            )
        if user := next((record for record in self._pod_store if self._uses(record.pod, key)), None):
            raise EvenkeelError(f"pod {user.pod.key} has {key}", hint="delete the pod first, or its workload")
        return True

    def delete(self, key: DataKey) -> bool:
        """Deletes an applied object; False if there is none. Raises EvenkeelError. The directory of a claim is the
        runtime's to remove."""
        if not self._may_be_deleted(key):
            return False
        try:
            with suppress(FileNotFoundError):
                os.unlink(self._path(key))
            self._sync()
        except OSError as error:
            raise EvenkeelError(f"{key} cannot be removed from {self._directory}: {reason(error)}") from None
        del self._objects[key]
        self._announce({key})
        return True

    def _uses(self, pod: Pod, key: DataKey) -> bool:
        """Whether the pod uses the claim. The claim's files must stay as long as the pod exists."""
        namespace = pod.metadata.namespace or "default"
        return key.kind == CLAIM and key.namespace == namespace and (CLAIM, key.name) in self._names(pod)

    def _announce(self, changed: set[DataKey]) -> None:
        if any(key.kind == SERVICE for key in changed):
            self._services = None
            self._services_changed.set()
        for record in self._pod_store if changed else ():
            namespace = record.pod.metadata.namespace or "default"
            if any(DataKey(kind, namespace, name) in changed for kind, name in self._names(record.pod)):
                self._steps.want_step(record.uid)

    def _dated(self, one: StoredObject) -> StoredObject:
        known = self.get(key_of_object(one))
        since = known.metadata.creation_timestamp if known is not None else timestamp(self._clock())
        return one._replace(metadata=one.metadata._replace(creation_timestamp=since))

    # The files of applied objects

    def _path(self, key: DataKey) -> str:
        # Names are checked when an object is read: they have no slash, no underscore, and no dot at the beginning.
        return os.path.join(self._directory, f"{key.kind}_{key.namespace}_{key.name}.json")

    def _write(self, one: StoredObject) -> None:
        with suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)
        path = self._path(key_of_object(one))
        write_own(f"{path}.new", json.dumps(manifest_of(one)).encode(), is_lasting=True)
        os.rename(f"{path}.new", path)

    def _sync(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _read_applied(self) -> None:
        for path, one in _applied(self._directory):
            if one is None:
                log.error("%s cannot be read: apply its object again", path)
            else:
                self._objects[key_of_object(one)] = (one, API)


def _is_same(before: StoredObject | None, after: StoredObject) -> bool:
    if before is None:
        return False
    since = before.metadata.creation_timestamp
    return before == after._replace(metadata=after.metadata._replace(creation_timestamp=since))


def _applied(directory: str) -> Iterator[tuple[str, StoredObject | None]]:
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return
    for name in names:
        if not name.endswith(".json"):
            continue
        path = os.path.join(directory, name)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            with open(descriptor, "rb") as file:
                value = json.loads(file.read(_LARGEST_BYTES))
            kind = str(value.pop("kind"))
            value.pop("apiVersion", None)
            value.pop("status", None)
            yield path, read_stored(kind, value, "", Findings()) if kind in OBJECT_KINDS else None
        except (OSError, ValueError, KeyError, AttributeError, RecursionError):
            yield path, None
