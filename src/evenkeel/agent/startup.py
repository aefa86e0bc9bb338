"""Starts an agent: takes the state directory's lock, opens the journal, enters its cgroup, and makes the runtime.

`evenkeel up` and the demonstrations start an agent here. `bootstrap` constructs its parts.
"""

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from evenkeel.agent.agent import Agent
from evenkeel.agent.bootstrap import assemble
from evenkeel.agent.node.daemons import OTHERS, own_path
from evenkeel.agent.node.node_setup import (
    StateLock,
    made_state_directory,
    prepare_node,
    protect_daemons_of,
    restore_node,
)
from evenkeel.agent.node.own_cgroup import OwnCgroup, enter
from evenkeel.agent.pod_cgroups import CGROUPS_MADE, FOUND_BEFORE
from evenkeel.agent.sources.pod_files import PodFile, PodFiles
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.pod import Pod
from evenkeel.api.workloads import Workload
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.errors import EvenkeelError
from evenkeel.host.allocator import keep_little, keep_tls_buffers_small
from evenkeel.host.capacity import on_this_machine
from evenkeel.journal.records import FILE
from evenkeel.journal.store import Journal
from evenkeel.policy.node_view import NodeView
from evenkeel.runtime.interface import Runtime
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.procfs import start_ticks

log = logging.getLogger(__name__)

_RUNTIME_KIND = "runtime"  # journal key of the kind of container runtime
_PROCESSES, _CONTAINERS = "processes", "containers"


class RunningAgent:
    """A running agent with its journal and its lock, which are closed after it."""

    def __init__(self, agent: Agent, journal: Journal, lock: StateLock) -> None:
        self.agent = agent
        self._journal = journal
        self._lock = lock

    async def close(self, *, stop_pods: bool = False) -> None:
        """Ends the agent. With `stop_pods`, only the state directory is left on the machine."""
        try:
            await self.agent.close(stop_pods=stop_pods)
            if stop_pods:
                restore_node(self._journal)
        finally:
            self._journal.close()
            self._lock.release()


async def start(
    node: NodeView,
    state_directory: str,
    paths: Sequence[str] = (),
    *,
    own_cgroup: bool = False,
    labels: Mapping[str, str] | None = None,
) -> RunningAgent:
    """Starts an agent. Raises EvenkeelError if it cannot; then nothing was started, and running pods continue. With
    `own_cgroup`, this process moves into its own cgroup beside the pods' cgroup. `labels` are those that the
    node compares with pods; without them, this machine's own."""
    gc.enable()  # it is off in commands, because they end soon
    keep_little()
    keep_tls_buffers_small()
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
            agent = assemble(node, runtime, journal, make_driver, files, own, labels=labels)
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


def _runtime(
    node: NodeView, state_directory: str, make_driver: Callable[[], Driver], journal: Journal
) -> Runtime:
    endpoint = node.config.container_runtime_endpoint
    _refuse_other(_CONTAINERS if endpoint else _PROCESSES, journal)
    # Only the modules of the chosen runtime are imported: each of the two takes more than a MiB.
    if not endpoint:
        from evenkeel.runtime.process.process_runtime import ProcessRuntime

        return ProcessRuntime(state_directory, make_driver, node.config)
    from evenkeel.runtime.cri.endpoints import require_libraries

    require_libraries()
    from evenkeel.runtime.cri.cri_runtime import CriRuntime

    return CriRuntime(endpoint, state_directory, make_driver, node.config)


def _refuse_other(kind: str, journal: Journal) -> None:
    """Refuses to start while containers of another kind of runtime run. The new runtime does not know them, and would
    start all of them a second time."""
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
    """The pods of the manifest files. While a file cannot be read, the pods that a former agent read from it are
    kept."""
    pods: dict[str, list[Pod]] = {}
    for record in journal.pods():
        if record.source.startswith(FILE):
            pods.setdefault(record.source.removeprefix(FILE), []).append(record.pod)
    workloads: dict[str, list[Workload]] = {}
    for one in journal.workloads():
        if one.source.startswith(FILE):
            workloads.setdefault(one.source.removeprefix(FILE), []).append(one.workload)
    before = {
        path: PodFile(path, tuple(pods.get(path, ())), workloads=tuple(workloads.get(path, ())))
        for path in (*pods, *workloads)
    }
    return PodFiles(paths, node.profile, before)
