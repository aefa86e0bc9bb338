"""The desired pods: pods in files, and pods that were applied over the socket.

If only the requests and limits of a pod change, the pod is resized in place. After any other change it is replaced by a
new pod. The old pod ends first, because both have the same name.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from evenkeel.agent.admission import DeferredResizes
from evenkeel.agent.data_store import DataStore
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.front import Applied
from evenkeel.agent.in_place_changes import InPlaceChanges
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.pod_worker import PodWorker
from evenkeel.agent.sources.pod_files import FileSet
from evenkeel.agent.step_requests import StepRequests
from evenkeel.api.config import Profile
from evenkeel.api.decode import Findings, decode
from evenkeel.api.encode import encode
from evenkeel.api.pod import Pod, PodStatus
from evenkeel.errors import EvenkeelError
from evenkeel.journal.records import CLUSTER, FILE, NORMAL, WARNING, WORKLOAD, PodRecord
from evenkeel.journal.store import Journal
from evenkeel.policy.lifecycle import stops
from evenkeel.policy.lifecycle.pod_state import PodState
from evenkeel.policy.lifecycle.resize import Change, resize
from evenkeel.pressure.protocol import PodObserver

log = logging.getLogger(__name__)

CREATED, CONFIGURED, UNCHANGED = "created", "configured", "unchanged"
_MOST_OVER = 500
SUCCESSOR = "successor:"  # prefix of a journal key, before the UID of the pod that is replaced


class DesiredPods(PodObserver):
    def __init__(
        self,
        profile: Profile,
        journal: Journal,
        pod_store: PodStore,
        deferred: DeferredResizes,
        in_place: InPlaceChanges,
        data: DataStore,
        worker: PodWorker,
        event_recorder: EventRecorder,
        steps: StepRequests,
        clock: Callable[[], float],
    ) -> None:
        self._profile = profile
        self._journal = journal
        self._pod_store = pod_store
        self._deferred = deferred
        self._in_place = in_place
        self._data = data
        self._worker = worker
        self._event_recorder = event_recorder
        self._steps = steps
        self._clock = clock
        self._problems: set[str] = set()  # problems of files, each recorded once
        self._in_files: dict[str, tuple[Pod, str]] = {}  # by namespace/name
        self._is_committing = False

    # Files

    def files_are(self, found: FileSet, lost: Callable[[Pod], PodState | None] | None = None) -> None:
        """Updates the pods to the present content of the files. `lost` returns the state of a running pod that the
        journal does not have."""
        self._record_problems(found)
        for note in self._data.files_are((one, file.path) for file in found.files for one in file.objects):
            self.complain(note)
        self._in_files = {pod.key: (pod, FILE + file.path) for file in found.files for pod in file.pods}
        for pod, source in self._in_files.values():
            record = self._pod_store.by_key(pod.key)
            if record is None:
                self._take(pod, source, lost)
            elif record.state.deleted_at is not None:
                pass  # it is added again when the old pod is gone
            elif record.source.startswith(FILE):
                if record.source != source:
                    record = record._replace(source=source)
                    self._pod_store.put(record)
                self._change(record, pod)
            else:
                self.complain(f"{source}: pod {pod.key} {_owner(record)}; delete that one first")
        for record in self._pod_store:
            if record.source.startswith(FILE) and record.pod.key not in self._in_files:
                self.delete(record, None)
        self._steps.room_appeared()

    def _take(self, pod: Pod, source: str, lost: Callable[[Pod], PodState | None] | None) -> None:
        other = self._pod_store.get(pod.metadata.uid)
        if other is not None:
            self.complain(f"{source}: pod {pod.key} has the uid of {other.pod.key}")
            return
        record = self._pod_store.add(pod, source, self._clock())
        found = lost(pod) if lost is not None else None
        if found is not None:
            self._pod_store.put(record._replace(is_admitted=True, state=found))
        self._steps.want_step(pod.metadata.uid)

    def _record_problems(self, found: FileSet) -> None:
        problems = {problem for file in found.files for problem in (*file.problems, *file.warnings)}
        for problem in sorted((problems | set(found.notes)) - self._problems):
            self._event_recorder.record(WARNING, "ManifestProblem", problem)
            log.warning("%s", problem)
        self._problems = problems | set(found.notes)

    def complain(self, message: str) -> None:
        if message not in self._problems:
            self._problems.add(message)
            self._event_recorder.record(WARNING, "ManifestProblem", message)
            log.warning("%s", message)

    # The socket

    def apply(self, pods: Sequence[Pod], source: str) -> tuple[Applied, ...]:
        """Applies all of the pods or none. All pods are checked before the first change."""
        for pod in pods:
            record = self._pod_store.by_key(pod.key)
            same_uid = self._pod_store.get(pod.metadata.uid)
            if record is not None and record.source.startswith(FILE):
                raise EvenkeelError(
                    f"pod {pod.key} stands in {record.source.removeprefix(FILE)}",
                    hint="change it there; it follows the file",
                )
            if record is not None and record.source.startswith(WORKLOAD):
                kind, _, name = record.source.removeprefix(WORKLOAD).split("/")
                raise EvenkeelError(f"pod {pod.key} belongs to {kind} {name}", hint=f"change that {kind}")
            if record is not None and record.source == CLUSTER:
                raise EvenkeelError(f"pod {pod.key} belongs to the cluster", hint="change it with kubectl")
            if same_uid is not None and same_uid.pod.key != pod.key:
                raise EvenkeelError(
                    f"metadata.uid of pod {pod.key} is that of {same_uid.pod.key}", hint="leave it out"
                )
        applied = []
        for pod in pods:
            self._steps.want_step(pod.metadata.uid)
        with self.all_or_nothing():  # accepted pods are not lost, refused pods are not kept
            for pod in pods:
                record = self._pod_store.by_key(pod.key)
                if record is None:
                    self._pod_store.add(pod, source, self._clock())
                    outcome = CREATED
                elif record.state.deleted_at is not None:
                    self._replace(record, pod)
                    outcome = CONFIGURED
                else:
                    outcome = self._change(record, pod)
                applied.append(Applied(pod.key, outcome))
        self._collect()
        self._steps.room_appeared()
        return tuple(applied)

    def _collect(self) -> None:
        """Deletes old pods that were applied and have ended. The latest are kept, so that clients can read them."""
        over = [
            record
            for record in self._pod_store
            if not record.source.startswith((FILE, WORKLOAD, CLUSTER))
            and record.state.verdict is not None
            and record.state.deleted_at is None
            and not record.state.is_alive
        ]
        for record in over[:-_MOST_OVER]:
            self.delete(record, 0)

    # For files and the socket

    def delete(self, record: PodRecord, given_seconds: float | None) -> None:
        uid = record.pod.metadata.uid
        with self.all_or_nothing():
            if record.state.deleted_at is None:
                self._event_recorder.record(NORMAL, "Deleted", "the pod is to end", record.pod)
            self._journal.set_value(SUCCESSOR + uid, None)
            self._pod_store.put_state(
                uid, stops.deleted(record.pod, record.state, self._clock(), given_seconds)
            )
        self._steps.want_step(uid)

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Commits all changes within it to disk. If that fails, it raises JournalError, and undoes all changes on disk
        and in memory. Inside of another one it does nothing: the outer one commits."""
        if self._is_committing:
            yield
            return
        self._is_committing = True
        try:
            with self._committed():
                yield
        finally:
            self._is_committing = False

    @contextmanager
    def _committed(self) -> Iterator[None]:
        pods, events, deferred = self._pod_store.mark(), self._event_recorder.mark(), self._deferred.mark()
        try:
            with self._journal.transaction():
                yield
                self._pod_store.write()
        except BaseException:
            self._pod_store.back_to(pods)
            self._event_recorder.back_to(events)
            self._deferred.back_to(deferred)
            raise
        self._pod_store.announce()

    def _change(self, record: PodRecord, pod: Pod) -> str:
        uid = record.pod.metadata.uid
        change = resize(record.pod, pod, self._profile)
        since = record.pod.metadata.creation_timestamp
        pod = pod._replace(metadata=pod.metadata._replace(creation_timestamp=since), status=PodStatus())
        if change.kind == Change.UNCHANGED:
            self._in_place.keep_size(uid)
            return UNCHANGED
        is_over = not record.takes_room and not record.state.is_alive
        if is_over and (not record.is_admitted or self._worker.is_clean(uid)):
            self._worker.forget(uid)
            self._pod_store.put(record._replace(pod=pod, is_admitted=False, state=PodState()))
        elif change.kind == Change.IN_PLACE and not is_over and pod.metadata.uid == uid:
            self._in_place.resize(record, pod)
        else:
            self._replace(record, pod)
        self._steps.want_step(uid)
        return CONFIGURED

    def _replace(self, record: PodRecord, successor: Pod) -> None:
        """Ends the old pod. The new pod is kept in the journal until the old one has ended."""
        uid = record.pod.metadata.uid
        self._journal.set_value(SUCCESSOR + uid, {"pod": encode(successor), "source": record.source})
        if record.state.deleted_at is None:
            self._pod_store.put_state(uid, stops.deleted(record.pod, record.state, self._clock()))
            self._event_recorder.record(
                NORMAL, "Replaced", "it was changed: the pod ends and starts anew", successor
            )
        self._steps.want_step(uid)

    def gone(self, record: PodRecord) -> None:
        """Adds the pod that replaces this one, if there is one."""
        uid = record.uid
        self._data.forget(uid)
        waiting = self._in_files.get(record.pod.key)
        kept = self._journal.value(SUCCESSOR + uid)
        if waiting is not None:
            self._pod_store.add(*waiting, self._clock())
            self._steps.want_step(waiting[0].metadata.uid)
        elif isinstance(kept, dict):
            findings = Findings()
            pod = decode(Pod, kept.get("pod"), findings)
            if not findings.problems:
                self._pod_store.add(pod, str(kept.get("source")), self._clock())
                self._steps.want_step(pod.metadata.uid)
        # The successor stays in the journal until a pod with this UID is deleted or replaced again. It is not read
        # before that.


def _owner(record: PodRecord) -> str:
    if record.source == CLUSTER:
        return "belongs to the cluster"
    is_made = record.source.startswith(WORKLOAD)
    return "belongs to a workload" if is_made else "was handed in over the socket"
