"""Constructs the agent: `assemble` makes its parts, `start` also what it stands on (lock, journal, runtime, files).

`evenkeel up`, the demonstrations and the tests start an agent here.
"""

import asyncio
import gc
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from evenkeel.agent.admission import FILE, Admission, DeferredResizes
from evenkeel.agent.adoption import Adoption, PodCopies
from evenkeel.agent.agent import Agent, Watches
from evenkeel.agent.desired_pods import DesiredPods
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.node.daemons import OTHERS, own_path
from evenkeel.agent.node.kernel_events import KernelEvents
from evenkeel.agent.node.node_cgroups import NodeCgroups
from evenkeel.agent.node.node_setup import prepare_node, protect_daemons_of, restore_node
from evenkeel.agent.node.oom_kills import OomKills
from evenkeel.agent.node.own_cgroup import OwnCgroup, enter
from evenkeel.agent.node.process_audit import ProcessAudit
from evenkeel.agent.node.state_directory import StateLock, made_state_directory
from evenkeel.agent.observe import history_file
from evenkeel.agent.observe.history import History
from evenkeel.agent.observe.node_snapshot import NodeSnapshots
from evenkeel.agent.observe.sweep import Sweeper
from evenkeel.agent.pod_cgroups import CGROUPS_MADE, FOUND_BEFORE, PodCgroups
from evenkeel.agent.pod_loop import PodLoop
from evenkeel.agent.pod_store import PodStatuses, PodStore
from evenkeel.agent.pod_updates import Evictions, PodUpdates
from evenkeel.agent.pod_worker import PodWorker
from evenkeel.agent.prober import Prober
from evenkeel.agent.sources.pod_files import PodFiles
from evenkeel.agent.step_requests import StepRequests
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.errors import EvenkeelError
from evenkeel.host.capacity import on_this_machine
from evenkeel.host.node_figures import machine_oom_kills
from evenkeel.journal.store import Journal
from evenkeel.policy.lifecycle.pod_state import settings_of
from evenkeel.policy.node_view import NodeView
from evenkeel.pressure.cpu_pressure import CpuPressure
from evenkeel.pressure.disk import disk_pressure
from evenkeel.pressure.disk.disk_pressure import DiskPressure
from evenkeel.pressure.eviction_backoff import EvictionBackoff
from evenkeel.pressure.eviction_recorder import EvictionRecorder, NodeConditions
from evenkeel.pressure.guard_client import GuardClient
from evenkeel.pressure.intents import Intents
from evenkeel.pressure.memory import memory_pressure
from evenkeel.pressure.memory.memory_pressure import MemoryPressure
from evenkeel.pressure.memory.memory_reports import MemoryReports
from evenkeel.pressure.memory.throttle import Throttle
from evenkeel.pressure.memory_stalls import MemoryStalls
from evenkeel.pressure.watch_thread import LoopCalls
from evenkeel.runtime.interface import Runtime
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.process.process_runtime import ProcessRuntime
from evenkeel.runtime.procfs import start_ticks

log = logging.getLogger(__name__)

_RUNTIME_KIND = "runtime"  # where the journal keeps who runs the containers
_PROCESSES, _CONTAINERS = "processes", "containers"


class RunningAgent:
    """A running agent, and what is closed after it."""

    def __init__(self, agent: Agent, journal: Journal, lock: StateLock) -> None:
        self.agent = agent
        self._journal = journal
        self._lock = lock

    async def close(self, *, stop_pods: bool = False) -> None:
        """With `stop_pods` nothing of ours is left on the machine but the state directory."""
        try:
            await self.agent.close(stop_pods=stop_pods)
            if stop_pods:
                restore_node(self._journal)
        finally:
            self._journal.close()
            self._lock.release()


async def start(
    node: NodeView, state_directory: str, paths: Sequence[str] = (), *, own_cgroup: bool = False
) -> RunningAgent:
    """Raises EvenkeelError, and then nothing was started, and what runs from before runs on. With `own_cgroup` this
    process goes into a cgroup of its own beside that of the pods."""
    gc.enable()  # commands do without, since they end soon
    node = on_this_machine(node)
    state = StatePaths(made_state_directory(state_directory))
    lock = StateLock.acquire(state.root)
    own: OwnCgroup | None = None
    try:
        journal = Journal.open(state.journal)
        try:
            for note in (*journal.notes, *prepare_node(node.config, state.root, journal)):
                log.warning("%s", note)
            known = len(journal.notes)
            machine = detect()
            found = journal.value(FOUND_BEFORE)
            restored = tuple(found) if isinstance(found, dict) else ()

            def make_driver() -> Driver:
                readable = (*OTHERS, *filter(None, [own_path(node.config, machine.version)]))
                return driver_for(machine, node.config, readable, restored)

            with closing(make_driver()) as driver:
                for note in protect_daemons_of(node.config, driver):
                    log.warning("%s", note)
                own = _entered(node.config, driver, journal) if own_cgroup else None
            runtime = _runtime(node, state.root, make_driver, journal)
            files = _files(node, paths, journal)
            agent = assemble(node, runtime, journal, make_driver, files, own)
            for note in journal.notes[known:]:
                log.warning("%s", note)
            await agent.open()
        except BaseException:
            journal.close()
            if own is not None:
                own.step_out()
            raise
    except BaseException:
        lock.release()
        raise
    return RunningAgent(agent, journal, lock)


def assemble(
    node: NodeView,
    runtime: Runtime,
    journal: Journal,
    make_driver: Callable[[], Driver],
    files: PodFiles | None = None,
    own_cgroup: OwnCgroup | None = None,
    clock: Callable[[], float] = time.time,
    machine_oom_kills: Callable[[], int | None] = machine_oom_kills,
) -> Agent:
    """Constructs the whole agent. Each part is constructed once, with all it needs, after the parts that it needs. Call
    it in the event loop in which the agent is to run.

    Three things come first and are passed to many, so that no two parts need each other: `steps`, where every part asks
    for a step of the pod loop; `calls`, by which other threads call into the loop; and `evicted_or_relieved`, which
    wakes the back-off of evictions.
    """
    settings = settings_of(node.config)
    records = journal.pods()
    uids = [record.uid for record in records]
    steps = StepRequests(uids)
    calls = LoopCalls(asyncio.get_running_loop())
    evicted_or_relieved = asyncio.Event()

    # What is known, and the tree of cgroups
    events = EventRecorder(journal, clock)
    admission = Admission(node)
    resizes = DeferredResizes(journal, admission, uids)
    pods = PodStore(journal, records, PodStatuses(node, settings, resizes, clock))
    cgroups = NodeCgroups(node, make_driver, events)
    oom_kills = OomKills(cgroups, machine_oom_kills)

    # What is done to pods
    worker = PodWorker(runtime, steps)
    evictions = Evictions(pods, worker, steps, evicted_or_relieved)
    desired_pods = DesiredPods(node.profile, journal, pods, admission, resizes, worker, events, steps, clock)

    # The watches over pressure
    intents = Intents(os.path.dirname(journal.path))
    conditions = NodeConditions(events, steps, evicted_or_relieved)
    memory_recorder, disk_recorder = (
        EvictionRecorder(source, journal, intents, pods, evictions, conditions, events, steps)
        for source in (memory_pressure.SOURCE, disk_pressure.SOURCE)
    )
    guard = GuardClient(partial(calls.call, memory_recorder.noted))
    throttle = Throttle(guard, journal, cgroups, pods, events, steps)
    reports = MemoryReports(calls, pods, events, steps, memory_recorder, throttle)
    memory = MemoryPressure(
        node, make_driver, intents, pods, memory_recorder, guard, throttle, reports, clock
    )
    disk = DiskPressure(node, runtime, make_driver, intents, pods, disk_recorder, calls, clock)
    cpu = CpuPressure(node, journal, cgroups, pods, evictions, conditions, events, steps, clock)
    stalls = MemoryStalls(node, journal, cgroups, pods, events, steps, clock)
    backoff = EvictionBackoff(evicted_or_relieved, journal, pods, evictions, conditions, events, steps, clock)

    # What else hears of pods
    kernel_events = KernelEvents(journal, cgroups, oom_kills, pods, events, steps)
    prober = Prober(runtime.execute, pods, events, steps, clock)

    # The loop, and its observers. Their order: `memory` hears of an exit before the record has it. On v1,
    # `kernel_events` has to listen in a new cgroup before anything else is done for the tree. `desired_pods` is last:
    # it may put another pod in the place of one that is gone, when no other part has anything of that one any more.
    copies = PodCopies(StatePaths(os.path.dirname(journal.path)))
    observers = (kernel_events, memory, disk, stalls, prober, copies, desired_pods)
    pod_cgroups = PodCgroups(node, journal, cgroups, pods, events, worker, steps, observers)
    updates = PodUpdates(settings, pods, oom_kills, events, steps, observers, clock)
    pod_loop = PodLoop(
        node,
        settings,
        runtime,
        admission,
        conditions,
        pods,
        cgroups,
        oom_kills,
        pod_cgroups,
        events,
        worker,
        updates,
        steps,
        observers,
        clock,
    )
    adoption = Adoption(runtime, journal, pods, copies, events, steps, pod_loop, clock)

    # What is shown
    sweeper = Sweeper(node, make_driver, lambda: cgroups.tree, runtime, clock, runtime.daemon)
    history = History(node, clock(), os.path.join(os.path.dirname(journal.path), history_file.NAME))
    snapshots = NodeSnapshots(node, runtime, journal, conditions, pods, sweeper, disk, events.counts, clock())

    return Agent(
        view=node,
        runtime=runtime,
        journal=journal,
        clock=clock,
        steps=steps,
        event_recorder=events,
        pod_store=pods,
        desired_pods=desired_pods,
        files=files,
        cgroups=cgroups,
        pod_cgroups=pod_cgroups,
        pod_loop=pod_loop,
        adoption=adoption,
        kernel_events=kernel_events,
        process_audit=ProcessAudit(make_driver, cgroups, pods, events, steps),
        prober=prober,
        watches=Watches(intents, conditions, memory, disk, cpu, stalls, backoff),
        sweeper=sweeper,
        history=history,
        snapshots=snapshots,
        own_cgroup=own_cgroup,
    )


def _runtime(
    node: NodeView, state_directory: str, make_driver: Callable[[], Driver], journal: Journal
) -> Runtime:
    endpoint = node.config.container_runtime_endpoint
    _refuse_other(_CONTAINERS if endpoint else _PROCESSES, journal)
    if not endpoint:
        return ProcessRuntime(state_directory, make_driver, node.config)
    from evenkeel.runtime.cri.cri_connection import require_libraries

    require_libraries()
    from evenkeel.runtime.cri.cri_runtime import CriRuntime

    return CriRuntime(endpoint, state_directory, make_driver, node.config)


def _refuse_other(kind: str, journal: Journal) -> None:
    """What another kind of runtime has started, this one does not know: it would all be started a second time."""
    before = journal.value(_RUNTIME_KIND)
    running = [
        f"{record.pod.key}/{name}"
        for record in (journal.pods() if before not in (None, kind) else ())
        for name, state in record.state.containers.items()
        if state.is_running and state.pid and start_ticks(state.pid) == state.pid_start_ticks
    ]
    if running:
        others = f" and {len(running) - 1} more" if len(running) > 1 else ""
        raise EvenkeelError(
            f"{running[0]}{others} run as {before} of an agent before, and this one would run {kind}",
            hint=f"end them first: evenkeel up {'' if kind == _CONTAINERS else '--runtime-endpoint … '}--stop-pods, "
            "then Ctrl-C",
        )
    if before != kind:
        journal.set_value(_RUNTIME_KIND, kind)


def _entered(config: KubeletConfiguration, driver: Driver, journal: Journal) -> OwnCgroup | None:
    try:
        own = enter(config, driver)
    except CgroupError as error:
        log.info("the agent stays in the cgroup it was started in: %s", error)
        return None
    if own is not None and own.made:
        before = journal.value(CGROUPS_MADE)
        journal.set_value(CGROUPS_MADE, sorted({*(before if isinstance(before, list) else ()), *own.made}))
    return own


def _files(node: NodeView, paths: Sequence[str], journal: Journal) -> PodFiles:
    """What files held when a former agent read them last is kept while they cannot be read."""
    before: dict[str, list[Pod]] = {}
    for record in journal.pods():
        if record.source.startswith(FILE):
            before.setdefault(record.source.removeprefix(FILE), []).append(record.pod)
    return PodFiles(paths, node.profile, before)
