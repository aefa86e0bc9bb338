"""Constructs the agent: `assemble` makes each part once, and gives it the parts that it needs.

`startup` makes what comes before: lock, journal, runtime and files.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping

from evenkeel.agent.admission import Admission, DeferredResizes
from evenkeel.agent.adoption import Adoption
from evenkeel.agent.agent import Agent
from evenkeel.agent.background_loops import BackgroundLoops
from evenkeel.agent.cluster_pods import ClusterDataCopies, ClusterPods
from evenkeel.agent.data_store import DataStore
from evenkeel.agent.desired_pods import DesiredPods
from evenkeel.agent.desired_workloads import DesiredWorkloads, WorkloadStore
from evenkeel.agent.event_recorder import EventRecorder
from evenkeel.agent.file_updates import ServiceNames, VolumeUpdates
from evenkeel.agent.in_place_changes import InPlaceChanges
from evenkeel.agent.launches import Launches
from evenkeel.agent.node.image_collection import ImageCollection, room_at
from evenkeel.agent.node.node_cgroups import NodeCgroups
from evenkeel.agent.node.oom_kills import KernelEvents, OomKills
from evenkeel.agent.node.own_cgroup import OwnCgroup
from evenkeel.agent.node.process_audit import ProcessAudit
from evenkeel.agent.observe import history_file
from evenkeel.agent.observe.history import History
from evenkeel.agent.observe.node_snapshot import NodeSnapshots
from evenkeel.agent.observe.sweep import Sweeper
from evenkeel.agent.pod_cgroups import PodCgroups
from evenkeel.agent.pod_copies import PodCopies
from evenkeel.agent.pod_loop import PodLoop
from evenkeel.agent.pod_store import PodStatuses, PodStore
from evenkeel.agent.pod_updates import Evictions, PodUpdates
from evenkeel.agent.pod_worker import PodWorker
from evenkeel.agent.prober import Prober
from evenkeel.agent.sources.pod_files import PodFiles
from evenkeel.agent.step_requests import StepRequests
from evenkeel.agent.workload_controller import WorkloadController, machine_zone
from evenkeel.cgroup.driver import Driver
from evenkeel.host.node_figures import NodeClock, host_address, machine_oom_kills
from evenkeel.host.node_labels import own_labels
from evenkeel.journal.store import Journal
from evenkeel.policy.image_garbage import garbage_settings
from evenkeel.policy.lifecycle.pod_state import settings_of
from evenkeel.policy.node_view import NodeView
from evenkeel.pressure.cpu_pressure import CpuPressure
from evenkeel.pressure.disk import disk_pressure
from evenkeel.pressure.disk.disk_pressure import DiskPressure
from evenkeel.pressure.eviction_backoff import EvictionBackoff
from evenkeel.pressure.eviction_recorder import EvictionRecorder, NodeConditions
from evenkeel.pressure.intents import Intents
from evenkeel.pressure.memory.memory_pressure import MemoryPressure
from evenkeel.pressure.memory_stalls import MemoryStalls
from evenkeel.pressure.socket_queues import SocketQueues
from evenkeel.pressure.watch_thread import LoopCalls
from evenkeel.pressure.watches import Watches
from evenkeel.runtime.interface import Runtime
from evenkeel.runtime.paths import StatePaths

log = logging.getLogger(__name__)


def assemble(
    node: NodeView,
    runtime: Runtime,
    journal: Journal,
    make_driver: Callable[[], Driver],
    files: PodFiles | None = None,
    own_cgroup: OwnCgroup | None = None,
    machine_oom_kills: Callable[[], int | None] = machine_oom_kills,
    node_clock: NodeClock | None = None,
    labels: Mapping[str, str] | None = None,
) -> Agent:
    """Constructs the whole agent. Each part is constructed once, after the parts that it needs. Call it in the event
    loop in which the agent will run.

    Three objects are constructed first and passed to many parts, so that no two parts need each other. With `steps`, a
    part requests a step of the pod loop. With `calls`, other threads call into the event loop. `evicted_or_relieved`
    wakes the eviction back-off.
    """
    node_clock = node_clock or NodeClock()
    clock = node_clock.now
    settings = settings_of(node.config)
    records = journal.pods()
    uids = [record.uid for record in records]
    steps = StepRequests(uids)
    calls = LoopCalls(asyncio.get_running_loop())
    evicted_or_relieved = asyncio.Event()

    # State, and the cgroup tree
    events = EventRecorder(journal, clock)
    admission = Admission(
        node, lambda pod: runtime.addresses(pod) is None, runtime.refusal, labels or own_labels()
    )
    resizes = DeferredResizes(journal, admission, uids)
    pods = PodStore(
        journal,
        records,
        resizes,
        PodStatuses(node, settings, resizes, runtime.addresses, host_address(), clock),
    )
    cgroups = NodeCgroups(node, make_driver, events)
    oom_kills = OomKills(cgroups, machine_oom_kills)

    # Actions on pods
    worker = PodWorker(runtime, steps)
    services_changed = asyncio.Event()
    objects = StatePaths(os.path.dirname(journal.path)).objects
    data = DataStore(objects, pods, steps, services_changed, clock, node.allocatable)
    service_names = ServiceNames(runtime, data, pods, services_changed)
    evictions = Evictions(pods, worker, steps, evicted_or_relieved)
    in_place = InPlaceChanges(node.profile, cgroups, pods, admission, resizes, events, steps, clock)
    desired_pods = DesiredPods(
        node.profile, journal, pods, resizes, in_place, data, worker, events, steps, clock
    )
    cluster_pods = ClusterPods(pods, in_place, events, steps, clock)
    workload_store = WorkloadStore(journal, journal.workloads())
    desired_workloads = DesiredWorkloads(workload_store, pods, desired_pods, events, steps, clock)
    workload_controller = WorkloadController(
        node.profile,
        workload_store,
        desired_workloads,
        pods,
        desired_pods,
        data,
        steps,
        clock,
        machine_zone,
    )

    # Pressure watches
    intents = Intents(os.path.dirname(journal.path), log.warning)
    conditions = NodeConditions(events, steps, evicted_or_relieved)
    memory = MemoryPressure(
        node, make_driver, journal, intents, cgroups, pods, evictions, conditions, events, steps
    )
    disk_recorder = EvictionRecorder(
        disk_pressure.SOURCE, journal, intents.taken_up, pods, evictions, conditions, events, steps
    )
    disk = DiskPressure(node, runtime, make_driver, intents, pods, disk_recorder, calls, clock)
    cpu = CpuPressure(node, journal, cgroups, pods, evictions, conditions, events, steps, clock)
    stalls = MemoryStalls(node, journal, cgroups, pods, events, steps, clock)
    queues = SocketQueues(cgroups, pods, memory.count_queues, events, steps, clock)
    backoff = EvictionBackoff(evicted_or_relieved, journal, pods, evictions, conditions, events, steps, clock)

    # Other observers of pods
    kernel_events = KernelEvents(journal, cgroups, oom_kills, pods, events, steps)
    prober = Prober(runtime.execute, runtime.addresses, pods, events, steps, clock)

    # The loop and its observers. The order of the observers matters. `memory` is informed of an exit before the record
    # is updated. On v1, `kernel_events` must listen in a new cgroup before any other observer handles the new tree.
    # The last three may replace a removed pod by a new one. By then, all other observers have forgotten the removed
    # one.
    state = StatePaths(os.path.dirname(journal.path))
    copies = PodCopies(state, journal)
    volume_updates = VolumeUpdates(runtime, data, worker.spawn, events, steps)
    cluster_data = ClusterDataCopies(state, data, lambda: cluster_pods.is_joined, worker.spawn)
    cluster_data.take_up(pods)
    watching = (kernel_events, memory, disk, stalls, queues, prober)
    followers = (copies, volume_updates, cluster_data, service_names)
    observers = (*watching, *followers, in_place, desired_pods, workload_controller, cluster_pods)
    pod_cgroups = PodCgroups(node, journal, cgroups, runtime, pods, events, worker, steps, observers)
    updates = PodUpdates(node.profile, settings, pods, oom_kills, events, steps, observers, evictions, clock)
    pod_loop = PodLoop(
        settings,
        runtime,
        admission,
        conditions,
        pods,
        oom_kills,
        pod_cgroups,
        Launches(cgroups, data, service_names, events, runtime.refusal, may_trace=runtime.may_trace),
        events,
        worker,
        updates,
        workload_controller,
        steps,
        observers,
        node_clock,
    )
    adoption = Adoption(runtime, journal, pods, copies, events, steps, pod_loop, clock)
    process_audit = ProcessAudit(make_driver, cgroups, pods, events, steps)
    background_loops = BackgroundLoops(
        runtime,
        service_names,
        journal,
        cgroups,
        process_audit,
        pods,
        desired_pods,
        desired_workloads,
        files,
        adoption,
        events,
        steps,
        node_clock,
    )

    # Observation for clients
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
        data=data,
        desired_workloads=desired_workloads,
        cluster_pods=cluster_pods,
        files=files,
        cgroups=cgroups,
        pod_cgroups=pod_cgroups,
        pod_loop=pod_loop,
        adoption=adoption,
        kernel_events=kernel_events,
        background_loops=background_loops,
        image_collection=ImageCollection(
            runtime, lambda: room_at(runtime.images_path), garbage_settings(node.config), events, steps, clock
        ),
        prober=prober,
        watches=Watches(intents, conditions, memory, disk, cpu, stalls, queues, backoff),
        sweeper=sweeper,
        history=history,
        snapshots=snapshots,
        own_cgroup=own_cgroup,
    )
