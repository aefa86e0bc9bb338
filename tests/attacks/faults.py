"""Storms of faults: processes and disks that an agent needs are killed, stopped, filled or removed at random, under a
changing load of pods.

A storm is made from a seed alone. After each fault everything must become as it should be, and at the end nothing may
be left."""

import errno
import os
import random
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from evenkeel.cli.client import AgentRefused, NoAgent
from tests.attacks.hostile import hostile, not_ready
from tests.kernel.agents import READY_SECONDS, Up, is_alive, processes_of
from tests.kernel.cgroups import named_hierarchies
from tests.kernel.crashes import Story, Wanted
from tests.kernel.live_tree import cgroups_below, content, processes_in
from tests.kernel.small_disk import fill
from tests.kernel.waiting import eventually

MOST_PODS = 6
MOST_PROCESSES = 48  # processes of a pod (podPidsLimit)
SHORT_SECONDS = 1.0  # a process that is stopped so long is not taken for hung
LONG_SECONDS = 20.0  # a supervisor that is stopped so long is replaced


class Load(Story):
    """Pods that run on. If a container's parent was killed, its exit code is not known."""

    most_processes = MOST_PROCESSES

    def _add(self) -> None:
        self._count += 1
        name = f"p{self._count}"
        kind = self.random.choice(["service", "burstable", "init"])
        self._put(Wanted(name, self._manifest(name, kind, None), None, in_file=self.random.random() < 0.3))

    def _remove(self) -> None:
        before = dict(self.wanted)
        try:
            super()._remove()
        except (AgentRefused, NoAgent):  # on a full disk nothing is deleted
            self.wanted = before

    def _put(self, one: Wanted) -> None:
        """Applies a pod. If it is refused, the pod from before is still wanted."""
        before = self.wanted.get(one.name)
        try:
            super()._put(one)
        except (AgentRefused, NoAgent):
            self.wanted.pop(one.name)
            if before is not None:
                self.wanted[one.name] = before

    def _unsettled(self) -> list[str]:
        """A pod that is being replaced still runs with its last manifest."""
        wrong = super()._unsettled()
        for pod in self.up.client.pods():
            name, metadata = pod["metadata"]["name"], pod["metadata"]
            wanted = self.wanted.get(name)
            if wanted is None or metadata.get("deletionTimestamp"):
                wrong.append(f"{name} is leaving")
                continue
            (wanted_main,), (main,) = wanted.manifest["spec"]["containers"], pod["spec"]["containers"]
            if _changeable(wanted_main) != _changeable(main):
                wrong.append(f"{name} is not as it was changed to be")
        return wrong


class FaultStorm:
    """`place` is a small filesystem of its own with the agent's state, if there is one."""

    def __init__(self, agent: Up, directory: Path, seed: int, place: Path | None = None) -> None:
        self.agent = agent
        self.random = random.Random(seed)
        self.load = Load(agent, directory, seed, MOST_PODS)
        self._place = place
        self.is_patient = bool(os.environ.get("EVENKEEL_FAULTS"))  # `make soak` has the time for long stops

    def faults(self) -> list[Callable[[], None]]:
        found = [
            self._kill_agent,
            self._kill_watch,
            self._kill_guard,
            self._stop_agent,
            self._stop_watch,
            self._stop_guard,
            self._fork_without_end,
        ]
        if self.agent.containerd is None:
            found += [self._kill_supervisor, self._kill_supervisor_and_agent, self._stop_supervisor]
        else:
            found += [self._kill_containerd, self._stop_containerd]
        return found

    def faults_of_the_disk(self) -> list[Callable[[], None]]:
        assert self._place is not None
        breaks = [self._make_disk_read_only] if can_break(self._place) else []
        return [self._fill_disk, self._take_disk_away, *breaks]

    def run(self, faults: list[Callable[[], None]], rounds: int) -> None:
        """Each fault once, in any order, and then any of them."""
        order = self.random.sample(faults, len(faults))
        for number in range(rounds):
            fault = order[number] if number < len(order) else self.random.choice(faults)
            print(f"  fault {number}: {fault.__name__.strip('_').replace('_', ' ')}")
            for _ in range(self.random.randint(1, 3)):
                self.load.step()
            fault()
            self.load.step()
            self.check()
        self.load.end()
        self._check_nothing_left()

    def check(self) -> None:
        eventually(
            lambda: not not_ready(self.agent),
            within_seconds=READY_SECONDS,
            details=lambda: f"{not_ready(self.agent)}\n{self.agent.log_tail()}",
        )
        self.load.settle()
        self.load.check()
        assert not self._frozen(), "something is frozen"

    def _check_nothing_left(self) -> None:
        state = self.agent.state
        eventually(lambda: not list((state / "copies").glob("*")))
        mounts = Path("/proc/self/mountinfo").read_text()
        assert f"{os.path.realpath(state)}/" not in mounts

    def _frozen(self) -> list[str]:
        cgroups = (path for top in self.agent.root.paths() for path in cgroups_below(top))
        files = (path / name for path in cgroups for name in ("freezer.state", "cgroup.freeze"))
        return [str(file) for file in files if file.exists() and content(file) in ("FROZEN", "FREEZING", "1")]

    # Processes

    def _restart(self) -> None:
        if not self.agent.is_running:
            self.agent.start()

    def _kill_agent(self) -> None:
        self.agent.kill()
        self._restart()

    def _kill_supervisor(self) -> None:
        _signal(self.agent.supervisor_pid(), signal.SIGKILL)

    def _kill_supervisor_and_agent(self) -> None:
        supervisor = self.agent.supervisor_pid()
        self.agent.kill()
        _signal(supervisor, signal.SIGKILL)
        self._restart()

    def _kill_watch(self) -> None:
        _signal(self.agent.watch_pid(), signal.SIGKILL)

    def _kill_guard(self) -> None:
        _signal(self.agent.guard_pid(), signal.SIGKILL)

    def _kill_containerd(self) -> None:
        assert self.agent.containerd is not None
        self.agent.containerd.kill()
        self.load.step()
        self.agent.containerd.start()

    def _stop_agent(self) -> None:
        self._stopped(self.agent.pid, SHORT_SECONDS)

    def _stop_watch(self) -> None:
        self._stopped(self.agent.watch_pid(), self._most_seconds())

    def _stop_guard(self) -> None:
        self._stopped(self.agent.guard_pid(), SHORT_SECONDS)

    def _stop_supervisor(self) -> None:
        self._stopped(self.agent.supervisor_pid(), self._most_seconds())

    def _most_seconds(self) -> float:
        return LONG_SECONDS if self.is_patient and self.random.random() < 0.3 else SHORT_SECONDS

    def _fork_without_end(self) -> None:
        """A pod that makes processes as fast as it can. It is deleted while it does, and nothing of it is left."""
        limits = {"resources": {"limits": {"cpu": "200m", "memory": "32Mi"}}}
        self.agent.apply(
            hostile(self.agent, "bomb", "bomb", container=limits, terminationGracePeriodSeconds=0)
        )
        self.agent.await_phase("bomb", "Running")
        cgroup = self.agent.container("bomb")
        pids = eventually(lambda: len(found := processes_of(cgroup)) >= MOST_PROCESSES // 2 and found)
        self.load.step()
        self.agent.client.delete("default", "bomb", 0)
        self.agent.await_gone("bomb")
        assert not any(path.exists() for path in cgroup.paths())
        assert not any(map(is_alive, pids))

    def _stop_containerd(self) -> None:
        assert self.agent.containerd is not None
        self.agent.containerd.pause()
        try:
            time.sleep(self.random.random() * SHORT_SECONDS)  # how long it hangs is part of the story
        finally:
            self.agent.containerd.resume()

    def _stopped(self, pid: int | None, most_seconds: float) -> None:
        if pid is None:
            return
        _signal(pid, signal.SIGSTOP)
        try:
            if pid != self.agent.pid:
                self.load.step()
            time.sleep(self.random.random() * most_seconds)
        finally:
            _signal(pid, signal.SIGCONT)

    # The disk

    def _fill_disk(self) -> None:
        assert self._place is not None
        filler = fill(self._place)
        try:
            for _ in range(3):
                self.load.step()
            if self.random.random() < 0.5:
                self.agent.kill()
        finally:
            filler.unlink()
        self._restart()

    def _make_disk_read_only(self) -> None:
        """The kernel finds an error on the disk and writes no more to it. The agent reports it, keeps its pods running
        and accepts no others. The disk can be used again only when all processes that used it have ended, as after a
        restart of the machine. Then exactly the accepted pods are there again."""
        assert self._place is not None
        _run("sync", "--file-system", str(self._place))  # on disk within a second at the latest
        lasting = self._lasting()
        break_disk(self._place)
        phases = self._lasting()
        assert [uid for uid, phase in lasting.items() if phase == "Running" != phases.get(uid, phase)] == []
        # The state as committed last. Before that a pod may have started or ended; now nothing more can be committed.
        running = sorted(self._running())
        self.load.step()
        eventually(lambda: not_ready(self.agent), within_seconds=READY_SECONDS)
        self.load.step()
        assert sorted(self._running()) == running
        before = {name: _first(self.agent.status(name)).get("containerID") for name in running}
        restart_machine(self.agent, self._place)
        if self.agent.containerd is not None:
            # The agent waits a moment until the runtime reports how each container ended. Until then its status is
            # Running.
            for name, ended in before.items():
                self.agent.await_that(name, lambda status: _runs_without(status, ended))  # noqa: B023 called here

    def _lasting(self) -> dict[str, str]:
        """The phases of pods that run on until they are deleted, by UID; without those that are being deleted."""
        return {
            one["metadata"]["uid"]: one["status"]["phase"]
            for one in self.agent.client.pods()
            if "deletionTimestamp" not in one["metadata"]
            and (wanted := self.load.wanted.get(one["metadata"]["name"])) is not None
            and wanted.exit_code is None
        }

    def _running(self) -> list[str]:
        return [
            one["metadata"]["name"] for one in self.agent.client.pods() if one["status"]["phase"] == "Running"
        ]

    def _take_disk_away(self) -> None:
        """The agent notices. When the disk is back, an agent that is started there knows all pods."""
        assert self._place is not None
        device = _device(self._place)
        with _held(device):
            _run("umount", "--lazy", str(self._place))
            try:
                eventually(
                    lambda: "state directory" in self.agent.log.read_text(), within_seconds=READY_SECONDS
                )
            finally:
                self.agent.kill()
                _run("mount", device, str(self._place))
        self._restart()


def _changeable(container: dict[str, Any]) -> tuple[object, object]:
    """The fields of a container that a story changes."""
    return container.get("env"), container.get("resources", {}).get("requests", {}).get("memory")


def _first(status: dict[str, Any]) -> dict[str, Any]:
    """The first of its container statuses."""
    first, *_ = status.get("containerStatuses") or [{}]
    return first


def _runs_without(status: dict[str, Any], ended: str | None) -> bool:
    """Whether the pod runs another container than the one that has ended, or does not run."""
    first = _first(status)
    is_other = "running" in first.get("state", {}) and first.get("containerID") != ended
    return status.get("phase") != "Running" or is_other


def _signal(pid: int | None, number: int) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _error_trigger(place: Path) -> Path:
    """A write there is an error of the filesystem, for ext4."""
    return Path(f"/sys/fs/ext4/{Path(_device(place)).name}/trigger_fs_error")


def can_break(place: Path) -> bool:
    return _error_trigger(place).exists()


def break_disk(place: Path) -> None:
    """Makes the filesystem read-only. Data that is not on the disk yet is lost."""
    _error_trigger(place).write_text("a test")


def flushes(place: Path) -> int:
    """How often a process has waited until all data was on the disk."""
    statistics = Path(f"/sys/class/block/{Path(_device(place)).name}/stat").read_text().split()
    return int(statistics[15])


def restart_machine(agent: Up, place: Path) -> None:
    """Ends the agent and everything that it has started, removes its cgroups, and starts it with what the disk has.

    That is a copy of the disk: the kernel keeps a broken filesystem for as long as it is mounted in any mount namespace
    of this machine."""
    image = Path(f"/sys/class/block/{Path(_device(place)).name}/loop/backing_file").read_text().strip()
    copy = f"{image}.{secrets.token_hex(3)}"
    agent.kill()
    if agent.containerd is not None:
        agent.containerd.kill()
    tops = [*agent.root.paths(), *(top / agent.root.paths()[0].name for top in named_hierarchies())]
    eventually(lambda: _all_ended(agent), within_seconds=READY_SECONDS)
    eventually(lambda: all(map(_is_cleared, tops)), within_seconds=READY_SECONDS)
    _run("umount", "--recursive", "--lazy", str(place))
    shutil.copyfile(image, copy)
    checked = subprocess.run(["e2fsck", "-fy", copy], check=False, capture_output=True, text=True)
    assert checked.returncode in (0, 1), checked.stdout  # 1: errors were found, and mended
    _run("mount", "-o", "loop,errors=remount-ro", copy, str(place))
    if agent.containerd is not None:
        agent.containerd.start()
    agent.start(stop_pods=False)


def _all_ended(agent: Up) -> bool:
    (top, *_) = agent.root.paths()
    pods = [pid for cgroup in (top, *cgroups_below(top)) for pid in processes_in(cgroup)]
    left = [*pods, *agent.beside()]
    for pid in left:
        _signal(pid, signal.SIGKILL)
    return not left


def _is_cleared(top: Path) -> bool:
    """Removes the cgroups below. The kernel counts a process for a moment after it lists it no more."""
    for cgroup in cgroups_below(top, deepest_first=True):
        try:
            cgroup.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
    return True


@contextmanager
def _held(device: str) -> Iterator[None]:
    """Keeps a loop device open: it would be removed when its last user closes it."""
    held = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        os.close(held)


def _device(place: Path) -> str:
    found: Any = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return next(device for device, point, *_ in found if point == str(place))
