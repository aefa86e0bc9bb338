"""An agent with everything it stands on: lock, journal, node, runtime, files. `up`, the demonstrations and the tests
start it here."""

import gc
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import closing

from evenkeel.agent.admitting import FILE
from evenkeel.agent.agent import Agent
from evenkeel.agent.cgroups import FOUND_BEFORE
from evenkeel.agent.daemons import OTHERS, own_path
from evenkeel.agent.journal import Journal
from evenkeel.agent.lock import StateLock
from evenkeel.agent.node_setup import prepare_node, protect_daemons_of, restore_node
from evenkeel.agent.own_cgroup import OwnCgroup, enter
from evenkeel.agent.sources import PodFiles
from evenkeel.agent.sync import CGROUPS_MADE
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.errors import EvenkeelError
from evenkeel.policy.node import NodeView
from evenkeel.runtime.interface import Runtime
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.proc_stat import start_ticks
from evenkeel.runtime.process.client import ProcessRuntime

log = logging.getLogger(__name__)

_RUNTIME_KIND = "runtime"  # where the journal keeps who runs the containers
_PROCESSES, _CONTAINERS = "processes", "containers"


class Assembled:
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
) -> Assembled:
    """Raises EvenkeelError, and then nothing was started, and what runs from before runs on. With `own_cgroup` this
    process goes into a cgroup of its own beside that of the pods."""
    gc.enable()  # commands do without, since they end soon
    state = StatePaths(_made(state_directory))
    lock = StateLock.acquire(state.root)
    own: OwnCgroup | None = None
    try:
        journal = Journal.open(state.journal)
        try:
            for note in (*journal.notes, *prepare_node(node.config, state.root, journal)):
                log.warning("%s", note)
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
            agent = Agent(node, runtime, journal, make_driver, _files(node, paths, journal))
            agent.before_removal = lambda: _leave(own)
            await agent.open()
        except BaseException:
            journal.close()
            if own is not None:
                own.step_out()
            raise
    except BaseException:
        lock.release()
        raise
    return Assembled(agent, journal, lock)


def _runtime(
    node: NodeView, state_directory: str, make_driver: Callable[[], Driver], journal: Journal
) -> Runtime:
    endpoint = node.config.container_runtime_endpoint
    _refuse_other(_CONTAINERS if endpoint else _PROCESSES, journal)
    if not endpoint:
        return ProcessRuntime(state_directory, make_driver, node.config)
    from evenkeel.runtime.cri.endpoint import require_libraries

    require_libraries()
    from evenkeel.runtime.cri.client import CriRuntime

    return CriRuntime(endpoint, state_directory, make_driver, node.config)


def _refuse_other(kind: str, journal: Journal) -> None:
    """What another kind of runtime has started, this one does not know: it would all be started a second time."""
    before = journal.value(_RUNTIME_KIND)
    running = [
        f"{held.pod.key}/{name}"
        for held in (journal.pods() if before not in (None, kind) else ())
        for name, life in held.life.containers.items()
        if life.is_running and life.pid and start_ticks(life.pid) == life.pid_start_ticks
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


def _leave(own: OwnCgroup | None) -> None:
    note = own.leave() if own is not None else ""
    if note:
        log.warning("%s", note)


def _made(directory: str) -> str:
    """The state directory, for nobody but its owner: whoever can write here decides what runs as root."""
    path = os.path.abspath(directory)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        seen = os.stat(path)
        if seen.st_uid != os.geteuid():
            raise EvenkeelError(
                f"--state-dir {path} belongs to user {seen.st_uid}, and the agent runs as user {os.geteuid()}",
                hint=f"chown {os.geteuid()} {path}, or name another directory",
            )
        if seen.st_mode & 0o077:
            os.chmod(path, 0o700)
    except OSError as error:
        raise EvenkeelError(
            f"--state-dir {path} cannot be made: {(error.strerror or str(error)).lower()}"
        ) from None
    return path


def _files(node: NodeView, paths: Sequence[str], journal: Journal) -> PodFiles:
    """What files held when a former agent read them last is kept while they cannot be read."""
    before: dict[str, list[Pod]] = {}
    for held in journal.pods():
        if held.source.startswith(FILE):
            before.setdefault(held.source.removeprefix(FILE), []).append(held.pod)
    return PodFiles(paths, node.profile, before)
