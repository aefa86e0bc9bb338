"""The agent's own loops beside the pod loop: events of the runtime, names of Services, drift of cgroups, the journal's
file, free memory, and the manifest files."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterator

from evenkeel.agent.adoption import Adoption
from evenkeel.agent.desired_pods import DesiredPods
from evenkeel.agent.desired_workloads import DesiredWorkloads
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.file_updates import ServiceNames
from evenkeel.agent.node.node_cgroups import NodeCgroups
from evenkeel.agent.node.process_audit import ProcessAudit
from evenkeel.agent.pod_store import PodStore
from evenkeel.agent.sources.pod_files import PodFiles
from evenkeel.agent.step_requests import Exited, StepRequests
from evenkeel.host.allocator import give_back_memory
from evenkeel.host.node_figures import NodeClock
from evenkeel.host.ticks import next_tick
from evenkeel.journal.records import NORMAL, WARNING
from evenkeel.journal.store import Journal, JournalError
from evenkeel.runtime import interface
from evenkeel.runtime.interface import Runtime

log = logging.getLogger(__name__)

_HEAL_SECONDS = 10.0
_LIMITS_SECONDS = 1.0
_CHECKPOINT_SECONDS = 60.0
_FAULT_SECONDS = 5.0  # until the next checkpoint, if something is wrong with the journal
_GIVE_BACK_SECONDS = 30.0
_PLACE_SECONDS = 1.0  # between checks that the journal's file is still in place
_FILES_RETRY_SECONDS = 5.0  # after a failed write to the journal


class BackgroundLoops:
    """`journal_fault` says what is wrong with the journal's file; it is empty while nothing is."""

    def __init__(
        self,
        runtime: Runtime,
        service_names: ServiceNames,
        journal: Journal,
        cgroups: NodeCgroups,
        process_audit: ProcessAudit,
        pod_store: PodStore,
        desired_pods: DesiredPods,
        desired_workloads: DesiredWorkloads,
        files: PodFiles | None,
        adoption: Adoption,
        event_recorder: EventRecorder,
        steps: StepRequests,
        clock: NodeClock,
    ) -> None:
        self.journal_fault = ""
        self._runtime = runtime
        self._service_names = service_names
        self._journal = journal
        self._cgroups = cgroups
        self._process_audit = process_audit
        self._pod_store = pod_store
        self._desired_pods = desired_pods
        self._desired_workloads = desired_workloads
        self._files = files
        self._adoption = adoption
        self._event_recorder = event_recorder
        self._steps = steps
        self._clock = clock

    def all(self) -> Iterator[Coroutine[None, None, None]]:
        """Each runs until it is cancelled."""
        yield self._listen()
        yield self._service_names.run()
        yield self._heal()
        yield self._look_at_journal()
        yield self._give_back_memory()
        if self._files is not None:
            yield self._read_files(self._files)

    async def _listen(self) -> None:
        async for event in self._runtime.events():
            if isinstance(event, interface.Exited):
                self._steps.report(Exited(event.attempt, event.exit))
            elif isinstance(event, interface.ImageNoted):
                self._note_image(event)
            else:
                type_, reason = (NORMAL, "RuntimeBack") if event.is_back else (WARNING, "RuntimeLost")
                self._event_recorder.record(type_, reason, event.why)
                await self._adoption.adopt(await self._runtime.containers())

    def _note_image(self, event: interface.ImageNoted) -> None:
        record = self._pod_store.of_attempt(event.attempt)
        if record is not None:
            self._event_recorder.record(
                NORMAL, event.reason, event.message, record.pod, event.attempt.container
            )
            self._steps.want_step()  # the step commits the event

    async def _heal(self) -> None:
        # Not at the same moment as the looks at sockets, every 20 s, in a thread: both would wait for the interpreter.
        due = time.monotonic() + _HEAL_SECONDS / 2
        while True:
            await next_tick(_LIMITS_SECONDS)
            self._cgroups.heal_limits()
            if time.monotonic() >= due:
                due = time.monotonic() + _HEAL_SECONDS
                self._cgroups.heal()
                await self._process_audit.look()
            if self._event_recorder.mark() or self._clock.was_set():
                self._steps.want_step()  # the step commits the events, and follows the clock

    async def _look_at_journal(self) -> None:
        """Writes the journal to the disk, so that a crash of the machine loses no more than the last moment. Makes
        checkpoints, for the journal's write-ahead log would grow without them. A thread does both, because they wait
        for the disk. A removed journal is reported at once. A damaged one is reported when the damage is found."""
        due = time.monotonic() + _CHECKPOINT_SECONDS
        while True:
            await next_tick(_PLACE_SECONDS)
            try:
                self._journal.check_place()
                if not self._journal.is_synced:
                    await asyncio.to_thread(self._journal.sync())
                if time.monotonic() < due:
                    continue
                due = time.monotonic() + _CHECKPOINT_SECONDS
                await asyncio.to_thread(self._journal.checkpoint)
            except JournalError as error:
                # A checkpoint also fails if the file was removed meanwhile: that is one fault, with one message.
                fault = self._place_fault() or str(error)
                if fault != self.journal_fault:
                    log.error("%s", fault)  # noqa: TRY400 the message is enough
                self.journal_fault = fault
                due = time.monotonic() + _FAULT_SECONDS  # it may pass, as a shortage of descriptors does
            else:
                self.journal_fault = ""

    def _place_fault(self) -> str:
        try:
            self._journal.check_place()
        except JournalError as error:
            return str(error)
        return ""

    async def _give_back_memory(self) -> None:
        """While many pods start at once, the agent needs more memory than afterwards. The last of them may run long
        after all of them came, and what its start needed is free a little later."""
        before: set[tuple[str, ...]] = set()
        was_changed = False
        while True:
            await next_tick(_GIVE_BACK_SECONDS)
            now = {(record.uid, *record.state.running) for record in self._pod_store}
            is_changed = now != before
            if is_changed or was_changed:
                await asyncio.to_thread(give_back_memory)
            before, was_changed = now, is_changed

    async def _read_files(self, files: PodFiles) -> None:
        async for found in files:
            while True:
                try:
                    self._desired_pods.files_are(found)
                    self._desired_workloads.files_are(found)
                    break
                except JournalError as error:
                    log.error("%s", error)  # noqa: TRY400 the message is enough
                    await asyncio.sleep(_FILES_RETRY_SECONDS)
