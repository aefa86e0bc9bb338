"""Adoption: updates the records of containers that changed while no agent was running, or the runtime did not answer.

The journal has the requested attempts, and the runtime has their present state. If the runtime does not know a
requested attempt, the attempt was never started. It is started now. If the runtime no longer knows a running attempt,
the attempt has ended while it was not watched.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from evenkeel.agent.admission import FILE
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.pod_loop import PodLoop
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.step_requests import Exited, Started, StepRequests
from evenkeel.api.pod import Pod
from evenkeel.errors import EvenkeelError
from evenkeel.journal.codec import Unreadable, from_text, to_text
from evenkeel.journal.records import WARNING, PodRecord
from evenkeel.journal.store import Journal
from evenkeel.policy.lifecycle.pod_state import ContainerRecord, PodState
from evenkeel.pressure.protocol import PodObserver
from evenkeel.runtime.interface import UNKNOWN_EXIT, Attempt, Exit, Record, Runtime
from evenkeel.runtime.paths import StatePaths, UnsafeName

_NAME = "pod.json"  # cannot be an attempt's directory: its name ends with a number
_LARGEST_BYTES = 16 << 20


class PodCopy(NamedTuple):
    pod: Pod
    source: str


class PodCopies(PodObserver):
    def __init__(self, paths: StatePaths) -> None:
        self._paths = paths
        self._written: dict[str, PodCopy] = {}

    def settled(self, uid: str, record: PodRecord | None) -> None:
        if record is None:
            self._written.pop(uid, None)
        elif any(container.is_running for container in record.state.containers.values()):
            self._save(uid, PodCopy(record.pod, record.source))

    def cleaned(self, uid: str) -> None:
        self._written.pop(uid, None)

    def _save(self, uid: str, copy: PodCopy) -> None:
        """Writes the copy of a running pod, whose directory therefore exists. If the copy cannot be written, the pod is
        still in the journal."""
        known = self._written.get(uid)
        if known is not None and known.pod is copy.pod and known.source == copy.source:
            return
        path = os.path.join(self._paths.pod(uid), _NAME)
        try:
            descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(to_text(copy))
            os.rename(f"{path}.new", path)
        except (OSError, UnicodeEncodeError):
            return
        self._written[uid] = copy

    def read(self, uid: str) -> PodCopy | None:
        try:
            with open(os.path.join(self._paths.pod(uid), _NAME), encoding="utf-8") as file:
                copy = from_text(PodCopy, file.read(_LARGEST_BYTES))
        except (OSError, UnicodeDecodeError, Unreadable, UnsafeName):
            return None
        return copy if copy.pod.metadata.uid == uid else None


BOOT = "boot"  # in the journal: the machine's boot ID; a new journal has none


class Adoption:
    def __init__(
        self,
        runtime: Runtime,
        journal: Journal,
        pod_store: PodStore,
        copies: PodCopies,
        event_recorder: EventRecorder,
        steps: StepRequests,
        pod_loop: PodLoop,
        clock: Callable[[], float],
    ) -> None:
        self._runtime = runtime
        self._journal = journal
        self._pod_store = pod_store
        self._copies = copies
        self._clock = clock
        self._event_recorder = event_recorder
        self._steps = steps
        self._pod_loop = pod_loop

    async def adopt(self, records: Mapping[Attempt, Record]) -> None:
        """Updates the pods' records from `records`, the runtime's. Containers that belong to no pod are stopped and
        removed."""
        self._recover(records)
        self._pod_loop.take_outcomes()  # else a start could be reported twice
        for pod in self._pod_store:
            for found in begun(pod, records):
                self._steps.report(Started(found))
        self._pod_loop.take_outcomes()
        for pod in self._pod_store:
            for attempt, exit_ in unseen_ends(pod, records):
                self._steps.report(Exited(attempt, exit_))
        self._pod_loop.take_outcomes()
        uids = {pod.uid for pod in self._pod_store}
        for found in strays(uids, records):
            message = (
                f"container {found.attempt.container} of pod {found.attempt.uid} runs, and nobody wants it"
            )
            self._event_recorder.record(WARNING, "Stray", f"{message}: it is stopped")
            try:
                await self._runtime.stop(found.attempt, 0)
            except EvenkeelError as error:
                self._event_recorder.record(WARNING, "FailedKill", str(error))
        for uid in await self._runtime.pods() - uids:
            try:
                await self._runtime.remove(uid)
                await self._runtime.remove_logs(uid)
            except EvenkeelError as error:  # tried again at the next adoption
                self._event_recorder.record(
                    WARNING, "Leftover", f"pod {uid} is gone, and something of it is left: {error}"
                )

    def _recover(self, records: Mapping[Attempt, Record]) -> None:
        """Recovers running pods that the journal has lost, from their copies. Raises EvenkeelError if the journal is
        new and a running pod has no copy: a new journal must not end running pods."""
        uids = {pod.uid for pod in self._pod_store}
        unknown = []
        for uid in dict.fromkeys(record.attempt.uid for record in strays(uids, records)):
            copy = self._copies.read(uid)
            state = state_from_containers(copy.pod, records) if copy is not None else None
            if copy is None or state is None or self._pod_store.by_key(copy.pod.key) is not None:
                unknown.append(uid)
            elif not copy.source.startswith(FILE):  # a file's pod is not recovered: it ends if no file has it
                record = self._pod_store.add(copy.pod, copy.source, self._clock())
                self._pod_store.put(record._replace(is_admitted=True, state=state))
                message = "it runs, and the journal did not have it: it was recovered from its copy"
                self._event_recorder.record(WARNING, "Recovered", message, copy.pod)
                self._steps.want_step(uid)
        if unknown and self._journal.value(BOOT) is None:
            raise EvenkeelError(
                f"the journal {self._journal.path} is new, and containers run that it does not know, of pod"
                f" {', '.join(unknown[:3])}{' and others' if len(unknown) > 3 else ''}",
                hint="put back a copy of the journal, or end those containers first",
            )


def unseen_ends(record: PodRecord, records: Mapping[Attempt, Record]) -> Iterator[tuple[Attempt, Exit]]:
    """The exits of the pod's attempts that have ended, but still run according to the journal."""
    for name, state in record.state.containers.items():
        if not state.is_running:
            continue
        attempt = Attempt(record.pod.metadata.uid, name, state.attempt)
        found = records.get(attempt)
        if found is None:
            started_at = state.started_at or 0.0
            yield attempt, Exit(UNKNOWN_EXIT, 0, started_at, time.time(), is_known=False)
        elif found.exit is not None:
            yield attempt, found.exit


def begun(record: PodRecord, records: Mapping[Attempt, Record]) -> Iterator[Record]:
    """The pod's attempts that have started, but are only requested according to the journal."""
    for name, state in record.state.containers.items():
        found = records.get(Attempt(record.pod.metadata.uid, name, state.attempt))
        if state.is_asked_for and found is not None:
            yield found


def state_from_containers(pod: Pod, records: Mapping[Attempt, Record]) -> PodState | None:
    """The state of a pod that the journal has lost, from its containers; None if none of them runs."""
    latest: dict[str, Record] = {}
    names = {container.name for container in pod.spec.every_container}
    for attempt, found in records.items():
        known = latest.get(attempt.container)
        is_ours = attempt.uid == pod.metadata.uid and attempt.container in names
        if is_ours and (known is None or known.attempt.number < attempt.number):
            latest[attempt.container] = found
    if not any(found.exit is None for found in latest.values()):
        return None
    state = PodState(accepted_at=min(found.started_at for found in latest.values()))
    for name, found in latest.items():
        # The attempt is marked as just requested. Its start and end are then found as for any other attempt.
        state = state.with_container(name, ContainerRecord(attempt=found.attempt.number, is_asked_for=True))
    return state


def strays(uids: set[str], records: Mapping[Attempt, Record]) -> Iterator[Record]:
    """The running containers that belong to no pod of `uids`."""
    return (found for found in records.values() if found.attempt.uid not in uids and found.exit is None)
