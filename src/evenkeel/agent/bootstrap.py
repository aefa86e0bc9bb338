"""An agent with everything it stands on: lock, journal, node, runtime, files. `up`, the demonstrations and the tests
start it here."""

import fcntl
import gc
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import closing

from evenkeel.agent.admission import FILE
from evenkeel.agent.agent import Agent
from evenkeel.agent.node.daemons import OTHERS, own_path
from evenkeel.agent.node.node_cgroups import FOUND_BEFORE
from evenkeel.agent.node.node_setup import prepare_node, protect_daemons_of, restore_node
from evenkeel.agent.node.own_cgroup import OwnCgroup, enter
from evenkeel.agent.pod_loop import CGROUPS_MADE
from evenkeel.agent.sources.pod_files import PodFiles
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.pod import Pod
from evenkeel.cgroup.driver import CgroupError, Driver
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.errors import EvenkeelError
from evenkeel.host.capacity import on_this_machine
from evenkeel.journal.store import Journal
from evenkeel.policy.node_view import NodeView
from evenkeel.runtime.interface import Runtime
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.process.process_runtime import ProcessRuntime
from evenkeel.runtime.procfs import start_ticks

NAME = "lock"


class StateLock:
    def __init__(self, descriptor: int) -> None:
        """Use `acquire`."""
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, directory: str) -> "StateLock":
        """Locks `directory`/lock; an EvenkeelError that names the holder if another has it."""
        path = os.path.join(directory, NAME)
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise EvenkeelError(
                    f"cannot lock the state directory {directory}: {(error.strerror or str(error)).lower()}",
                    hint="give one that is yours with --state-dir",
                ) from None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_still_there(path, descriptor):
                    _sign(descriptor)
                    return cls(descriptor)
            except BlockingIOError:
                holder = _holder(descriptor)
                os.close(descriptor)
                raise EvenkeelError(
                    f"another agent{holder} runs with the state directory {directory}",
                    hint="stop it first, or give another --state-dir",
                ) from None
            except OSError as error:
                os.close(descriptor)
                raise EvenkeelError(
                    f"cannot lock {path}: {(error.strerror or str(error)).lower()}",
                    hint="give a state directory on a local file system with --state-dir",
                ) from None
            os.close(descriptor)  # somebody removed the file in the meantime: the next one is the lock

    def release(self) -> None:
        """The file stays: removing it could take the lock from under another."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _is_still_there(path: str, descriptor: int) -> bool:
    ours = os.fstat(descriptor)
    try:
        there = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _sign(descriptor: int) -> None:
    """The holder's pid, for those who are refused; a full disk takes nothing from the lock."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass


def _holder(descriptor: int) -> str:
    try:
        text = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
    except OSError:
        return ""
    return f" (pid {text})" if text.isdigit() else ""


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
    return RunningAgent(agent, journal, lock)


def _runtime(
    node: NodeView, state_directory: str, make_driver: Callable[[], Driver], journal: Journal
) -> Runtime:
    endpoint = node.config.container_runtime_endpoint
    _refuse_other(_CONTAINERS if endpoint else _PROCESSES, journal)
    if not endpoint:
        return ProcessRuntime(state_directory, make_driver, node.config)
    from evenkeel.runtime.cri.endpoint import require_libraries

    require_libraries()
    from evenkeel.runtime.cri.cri_runtime import CriRuntime

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
