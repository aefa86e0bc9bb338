"""Adoption: updates the records of containers that changed while no agent was running, or the runtime did not answer.

The journal has the requested attempts, and the runtime has their present state. If the runtime does not know a
requested attempt, the attempt was never started. It is started now. If the runtime no longer knows a running attempt,
the attempt has ended while it was not watched.
"""

import time
from collections.abc import Callable, Iterator, Mapping

from evenkeel.agent.desired_pods import SUCCESSOR
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.pod_copies import PodCopies, PodCopy
from evenkeel.agent.pod_loop import PodLoop
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.step_requests import Exited, Started, StepRequests
from evenkeel.api.encode import encode
from evenkeel.api.pod import Pod
from evenkeel.errors import EvenkeelError
from evenkeel.journal.records import FILE, WARNING, PodRecord
from evenkeel.journal.store import Journal
from evenkeel.policy.lifecycle.pod_state import ContainerRecord, PodState
from evenkeel.runtime.interface import UNKNOWN_EXIT, Attempt, Exit, Record, Runtime

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
        self._runtime.take_note(record.pod for record in self._pod_store)
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
                f"container {found.attempt.container} of pod {found.attempt.uid} runs, and no pod needs it"
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

    def close(self) -> None:
        """Writes the copies of pods that the next agent needs if the journal is lost."""
        self._copies.flush()

    def _recover(self, records: Mapping[Attempt, Record]) -> None:
        """Recovers pods that the journal has lost, from their copies: all of them if it is new, otherwise those whose
        rows cannot be read, and those that run. Raises EvenkeelError if the journal is new or damaged
        and a running pod has no copy: such a journal must not end running pods."""
        uids = {pod.uid for pod in self._pod_store}
        running = {record.attempt.uid for record in strays(uids, records)}
        is_new = self._journal.value(BOOT) is None
        unknown = []
        for uid in sorted((running | self._copies.uids()) - uids):
            if uid not in running and not is_new and uid not in self._journal.set_aside:
                # The journal has forgotten the pod because it was removed, and an agent was killed before the copy was.
                self._copies.drop(uid)
                continue
            copy = self._copies.read(uid)
            if copy is not None and self._pod_store.by_key(copy.pod.key) is None:
                if copy.source.startswith(FILE):  # a file's pod is not recovered: it ends if no file has it
                    self._copies.drop(uid)
                else:
                    self._put_back(copy, state_from_containers(copy.pod, records))
            elif uid in running:
                unknown.append(uid)
            else:
                if copy is None:
                    message = f"pod {uid} was accepted, and neither the journal nor its copy can be read"
                    self._event_recorder.record(WARNING, "Lost", f"{message}: hand it in again")
                self._copies.drop(uid)
        damaged = [] if is_new or not unknown else sorted({*unknown} & self._journal.ever_set_aside())
        if damaged:
            raise EvenkeelError(
                f"the journal {self._journal.path} is damaged, and containers run of pod {damaged[0]}, which can be"
                " read neither there nor in its copy",
                hint="put back a copy of the journal, or end those containers first",
            )
        if unknown and is_new:
            raise EvenkeelError(
                f"the journal {self._journal.path} is new, and containers run that it does not know, of pod"
                f" {', '.join(unknown[:3])}{' and others' if len(unknown) > 3 else ''}",
                hint="put back a copy of the journal, or end those containers first",
            )

    def _put_back(self, copy: PodCopy, found: PodState | None) -> None:
        """Adds a pod as its copy and its containers show it. A pod without containers is admitted anew."""
        uid = copy.pod.metadata.uid
        record = self._pod_store.add(copy.pod, copy.source, self._clock())
        state = (found or PodState())._replace(
            deleted_at=copy.deleted_at, deletion_grace_seconds=copy.deletion_grace_seconds
        )
        if copy.successor is not None:
            kept = {"pod": encode(copy.successor), "source": copy.source}
            self._journal.set_value(SUCCESSOR + uid, kept)
        self._pod_store.put(record._replace(is_admitted=found is not None, state=state))
        message = "the journal did not have it: it was recovered from its copy"
        self._event_recorder.record(WARNING, "Recovered", message, copy.pod)
        self._steps.want_step(uid)
        self._steps.room_appeared()


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
    """The state of a pod that the journal has lost, from its containers; None if the runtime knows none of them."""
    latest: dict[str, Record] = {}
    names = {container.name for container in pod.spec.every_container}
    for attempt, found in records.items():
        known = latest.get(attempt.container)
        is_ours = attempt.uid == pod.metadata.uid and attempt.container in names
        if is_ours and (known is None or known.attempt.number < attempt.number):
            latest[attempt.container] = found
    if not latest:
        return None
    state = PodState(accepted_at=min(found.started_at for found in latest.values()))
    for name, found in latest.items():
        # The attempt is marked as just requested. Its start and end are then found as for any other attempt.
        state = state.with_container(name, ContainerRecord(attempt=found.attempt.number, is_asked_for=True))
    return state


def strays(uids: set[str], records: Mapping[Attempt, Record]) -> Iterator[Record]:
    """The running containers that belong to no pod of `uids`."""
    return (found for found in records.values() if found.attempt.uid not in uids and found.exit is None)
