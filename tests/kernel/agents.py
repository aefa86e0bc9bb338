"""`evenkeel up` as a process of its own, on a small node in a test's cgroup; killed and started as tests please.

The same tests are for both runtimes: what is a process of the host (`image: host`) with the one is a container with
the same programs with the other, in the containerd that the tests of a run share.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from evenkeel.cgroup.drivers.processes import is_dead
from evenkeel.cli.client import AgentRefused, Client, NoAgent
from evenkeel.errors import EvenkeelError
from evenkeel.journal.store import Journal
from evenkeel.pressure.decision_records import made_again
from evenkeel.pressure.watch.guard import NAME as GUARD
from evenkeel.pressure.watch.process import NAME as WATCH
from evenkeel.runtime.process.supervisor.supervisor import __name__ as SUPERVISOR  # noqa: N812
from tests.kernel.cgroups import Cgroup, named_hierarchies
from tests.kernel.forked import Forked
from tests.kernel.live_tree import children, processes_in, raw_content
from tests.kernel.waiting import PATIENCE_SECONDS, eventually
from tests.machines.container_images import TEST
from tests.machines.containerd import Containerd

MIB = 1 << 20
READY_SECONDS = 120.0  # an emulated machine imports Python for seconds
RUNTIMES = ("process", "cri")
MACHINE = os.environ.get("EVENKEEL_MACHINE", "")
LOG_TAIL = 3000  # characters of an agent's log that a failure tells

open_agents: list["Up"] = []  # started, and not closed yet


class Pid(int):
    """The number of a process, and when that was born: another one may have the number later."""

    born: int

    @classmethod
    def of(cls, pid: int) -> "Pid":
        made = cls(pid)
        made.born = _relations(pid)[1]
        return made


class Up:
    """An agent, its state directory and its directory of manifests."""

    def __init__(
        self,
        root: Cgroup,
        directory: Path,
        *flags: str,
        node: str = "384Mi,2cpu",
        containerd: Containerd | None = None,
        within: tuple[str, ...] = (),
    ) -> None:
        """`within` is a command that executes its arguments, in another namespace. Without `node` the whole machine is
        the node."""
        self.root = root
        self._within = within
        self.containerd = containerd
        self.state = directory / "state"
        self.manifests = directory / "pods"
        self.manifests.mkdir(exist_ok=True)
        self.client = Client(str(self.state))
        self.log = directory / "agent.log"
        self.flags = [
            "--cgroup-root",
            f"/{root.paths()[0].name.removesuffix('.slice')}",
            *(["--node", node] if node else []),
            "--eviction-hard=",
            *(["--runtime-endpoint", containerd.endpoint] if containerd else []),
            *flags,
        ]
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._stops_pods = True

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *more: str, stop_pods: bool = True) -> None:
        """`stop_pods` is what Ctrl-C does to them; a kill does nothing to them in any case."""
        assert not self.is_running
        if self not in open_agents:
            open_agents.append(self)
        more = (*more, "--stop-pods") if stop_pods else more
        self._stops_pods = stop_pods
        arguments = ["up", str(self.manifests), "--state-dir", str(self.state), *self.flags, *more]
        self._process = started(arguments, self.log, within=self._within)
        eventually(self._answers, within_seconds=READY_SECONDS)

    def _answers(self) -> bool:
        assert self.is_running, f"the agent ended: {self.log_tail()}"
        try:
            self.client.get("/healthz")
        except NoAgent:
            return False
        return True

    def kill(self) -> None:
        """Kills the agent (SIGKILL) at any moment."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Ends the agent as Ctrl-C does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        try:
            return self._process.wait(READY_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the agent does not end: {self.log_tail()}") from None

    def write(self, name: str, *texts: str) -> Path:
        """A manifest that is there at once, as an editor's rename makes it."""
        path = self.manifests / name
        temporary = self.manifests / f".{name}"
        temporary.write_text("\n---\n".join(map(self._in_image, texts)))
        temporary.rename(path)
        return path

    def apply(self, *pods: dict[str, Any]) -> None:
        everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(pods)})
        self.client.apply(json.loads(self._in_image(everything)))

    def _in_image(self, text: str) -> str:
        """A manifest as the runtime can run it."""
        if self.containerd is None:
            return text
        return re.sub(r"""(\bimage"?: *"?)host\b""", rf"\g<1>{TEST}", text)

    def pod(self, name: str) -> dict[str, Any]:
        return self.client.pod_or_none("default", name) or {}

    def status(self, name: str) -> dict[str, Any]:
        return self.pod(name).get("status", {})

    def phase(self, name: str) -> str:
        return self.status(name).get("phase", "")

    def restarts(self, name: str) -> int:
        """The restarts of its first container."""
        status = self.status(name)
        assert status.get("containerStatuses"), self.details_of(name)
        return _restarts(status)

    def await_restarts(
        self, name: str, at_least: int, *, within_seconds: float = PATIENCE_SECONDS
    ) -> dict[str, Any]:
        """Its status then. The pod need not have containers yet."""
        return self.await_that(
            name, lambda status: _restarts(status) >= at_least, within_seconds=within_seconds
        )

    def await_that(
        self,
        name: str,
        holds: Callable[[dict[str, Any]], object],
        *,
        within_seconds: float = PATIENCE_SECONDS,
    ) -> dict[str, Any]:
        """The first status of the pod for which something holds: the next one may be another."""

        def found() -> dict[str, Any] | None:
            status = self.status(name)
            return status if holds(status) else None

        return eventually(found, within_seconds=within_seconds, details=lambda: self.details_of(name))

    def await_phase(self, name: str, phase: str, *, within_seconds: float = READY_SECONDS) -> dict[str, Any]:
        """Its status then."""
        return self.await_that(
            name, lambda status: status.get("phase") == phase, within_seconds=within_seconds
        )

    def await_evicted(self, name: str) -> dict[str, Any]:
        """Its status, once the pod has ended. It must have been evicted, and not have ended by itself."""
        status = self.await_phase(name, "Failed")
        assert status.get("reason") == "Evicted", self.details_of(name)
        return status

    def await_gone(self, name: str) -> None:
        eventually(
            lambda: not self.pod(name), within_seconds=READY_SECONDS, details=lambda: self.details_of(name)
        )

    def delete_all(self, *, within_seconds: float = READY_SECONDS) -> None:
        """Deletes all pods, and waits until they are gone. A pod that was already ending may be gone before its
        turn."""
        for one in self.client.pods():
            try:
                self.client.delete("default", one["metadata"]["name"], 0)
            except AgentRefused as refusal:
                if not refusal.is_not_found:
                    raise
        eventually(lambda: not self.client.pods(), within_seconds=within_seconds, details=self.log_tail)

    def asked(self, path: str, seconds: float) -> IO[bytes]:
        """The answer to a GET. An agent that hangs is waited for so long."""
        return self.client._asked("GET", path, {}, seconds=seconds)  # noqa: SLF001 no other call has a time limit

    def not_ready(self, seconds: float) -> str:
        """The reason why the agent is not ready; empty if it is ready."""
        try:
            self.asked("/readyz", seconds).close()
        except AgentRefused as refusal:
            return str(refusal)
        return ""

    def log_tail(self) -> str:
        return (raw_content(self.log) or b"").decode(errors="replace")[-LOG_TAIL:]

    def details_of(self, name: str) -> str:
        """Details of a pod for the message of a failed test."""
        try:
            said = json.dumps(self.pod(name).get("status"))
        except (EvenkeelError, OSError) as error:
            said = f"not known: {error}"
        return f"{name} is {said}\n{self.log_tail()}"

    def cli(self, *arguments: str) -> str:
        with tempfile.TemporaryDirectory() as directory:
            said, errors = Path(directory, "said"), Path(directory, "errors")
            status = started([*arguments, "--state-dir", str(self.state)], said, errors).wait(READY_SECONDS)
            assert status == 0, errors.read_text()
            return said.read_text()

    def cgroup(self, *names: str) -> Cgroup:
        """A cgroup below the pods' root."""
        return Cgroup({key: path.joinpath("kubepods", *names) for key, path in self.root.directories.items()})

    def of_pod(self, name: str) -> Cgroup:
        """The cgroup of a pod that is there."""
        found = eventually(lambda: self.pod(name))
        return self.of_uid(found["metadata"]["uid"], found["status"]["qosClass"])

    def of_uid(self, uid: str, qos_class: str) -> Cgroup:
        """The cgroup of a pod of that class."""
        branch = {"Guaranteed": (), "Burstable": ("burstable",), "BestEffort": ("besteffort",)}
        return self.cgroup(*branch[qos_class], f"pod{uid}")

    def container(self, name: str, container: str = "main") -> Cgroup:
        """The cgroup of the container's present run; a runtime for containers names it after that."""
        pod = self.of_pod(name)
        place = container
        if self.containerd is not None:
            containerd, uid = self.containerd, self.pod(name)["metadata"]["uid"]
            found: list[str] = []

            def is_one() -> bool:
                known = containerd.containers(
                    io__kubernetes__pod__uid=uid, io__kubernetes__container__name=container
                )
                found[:] = [one for one in known if (pod.paths()[0] / one).exists()] or known[-1:]
                return len(found) == 1

            # The first is made a while after its pod is known, and the one before may be on its way out.
            eventually(is_one, details=lambda: f"of {container} there are {found}\n{self.details_of(name)}")
            (place,) = found
        return Cgroup({key: path / place for key, path in pod.directories.items()})

    def placed(self, name: str) -> tuple[tuple[str, str], ...] | None:
        """What a runtime for containers has called the cgroups of a pod with one container: its own, and that of the
        pod's infrastructure, which is the other one there."""
        if self.containerd is None:
            return None
        whole, mine = self.of_pod(name).paths()[0], self.container(name).paths()[0]
        others: list[Path] = []

        def is_tidy() -> bool:
            others[:] = [path for path in children(whole) if path != mine]
            return len(others) == 1

        def beside() -> str:
            return f"beside the container of {name} there are {_inhabited(others)}\n{self.log_tail()}"

        # What was being made when an agent was killed is removed by the next one, after it has looked.
        eventually(is_tidy, within_seconds=READY_SECONDS, details=beside)
        return (("main", mine.name), ("", others[0].name))

    def supervisor_pid(self) -> int | None:
        """The supervisor's process. Its children have the same arguments until they become containers, and a new watch
        has the same name until it sets its own."""
        found = {pid: parent_of(pid) for pid, _, program in self._processes() if SUPERVISOR in program}
        return next((pid for pid, parent in found.items() if parent not in found), None)

    def watch_pid(self, *, other_than: int | None = None) -> int | None:
        """The process that watches memory, once it listens."""
        pids = [pid for pid, name, _ in self._processes() if name == WATCH and pid != other_than]
        return pids[0] if pids and (self.state / "watch.sock").exists() else None

    def await_watch(self) -> int:
        """The process that watches memory, once it has its settings and targets: an agent that is killed before has
        given it nothing to watch."""

        eventually(
            lambda: not self.not_ready(READY_SECONDS), within_seconds=READY_SECONDS, details=self.log_tail
        )
        watch = self.watch_pid()
        assert watch is not None, self.log_tail()
        return watch

    def guard_pid(self, *, killed: int = 0) -> int | None:
        """The guard, a child of the watch. It has its name once it listens. A killed guard keeps the name until the
        watch has reaped it."""
        watch = self.watch_pid()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                pid = int(path.name)
                if pid != killed and (path / "comm").read_text().strip() == GUARD and parent_of(pid) == watch:
                    return pid
        return None

    def beside(self) -> list[int]:
        """The processes beside the agent that work for it, also those that have no name yet."""
        return [pid for pid, *_ in self._processes()]

    def _processes(self) -> Iterator[tuple[int, str, str]]:
        """The processes beside the agent that have its state directory among their arguments, with their names and
        command lines."""
        state = os.fsencode(os.path.realpath(self.state))
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (path / "cmdline").read_bytes()
                if state in command.split(b"\0") and int(path.name) != self.pid:
                    yield int(path.name), (path / "comm").read_text().strip(), os.fsdecode(command)

    def close(self) -> None:
        """Ends the agent and everything it started, whatever the test left."""
        for file in self.manifests.iterdir():
            file.unlink()
        if not self.is_running or not self._stops_pods:
            if self.is_running:
                self.kill()
            self.start()
        if self in open_agents:
            open_agents.remove(self)
        assert self.stop() == 0, self.log_tail()
        self.check_decisions()
        if self.containerd is not None:
            left = self.containerd.containers(io__evenkeel__state=os.path.realpath(self.state))
            reported = "\n".join(self.containerd.details_of(one) for one in left)
            assert not left, f"containers left behind: {left}\n{self.log_tail()}\n{reported}"
            name = self.root.paths()[0].name
            left = [str(path) for top in named_hierarchies() for path in children(top / name)]
            assert not left, f"cgroups left behind: {', '.join(left)}"

    def check_decisions(self) -> None:
        """Replays every decision of the journal, and checks that each has the same result."""
        with Journal.read(str(self.state / "journal.db")) as journal:
            others = [again for again in made_again(journal) if again.unreadable or again.differs]
        assert not others, f"{len(others)} decisions differ when replayed, the first is {others[0]}"


def started(
    arguments: list[str], output: Path, errors: Path | None = None, *, within: Sequence[str] = ()
) -> subprocess.Popen[bytes] | Forked:
    """`evenkeel` as a process of its own, by the command `within` if there is one; where the processor is emulated,
    without its imports."""
    if MACHINE != "host" and not within:
        return Forked(arguments, output, errors)
    with output.open("ab") as said, (errors or output).open("ab") as complained:
        return subprocess.Popen(
            [*within, sys.executable, "-m", "evenkeel", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=complained,
        )


MakeUp = Callable[..., Up]


@pytest.fixture(params=RUNTIMES)
def up(request: pytest.FixtureRequest, cgroup_root: Cgroup, tmp_path: Path) -> Iterator[MakeUp]:
    """Makes agents; a second one is another node, with a state of its own."""
    made: list[Up] = []
    containerd = request.getfixturevalue("containerd") if request.param == "cri" else None

    def make(*flags: str, **options: Any) -> Up:
        directory = tmp_path / f"agent{len(made)}"
        directory.mkdir()
        agent = Up(cgroup_root, directory, *flags, **{"containerd": containerd, **options})
        made.append(agent)
        return agent

    try:
        yield make
    finally:
        for agent in made:
            agent.close()


def with_host_path(one: dict[str, Any], *paths: Path, at: str = "") -> dict[str, Any]:
    """A pod that sees directories of the host under their own names, or one of them at `at`."""
    names = {f"host{number}": str(path) for number, path in enumerate(paths)}
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in names.items()]
    mounts = [{"name": name, "mountPath": at or path} for name, path in names.items()]
    one["spec"].setdefault("volumes", []).extend(volumes)
    for container in (*one["spec"].get("initContainers", ()), *one["spec"]["containers"]):
        container.setdefault("volumeMounts", []).extend(mounts)
    return one


def pod(name: str, command: list[str], *, uid: str = "", **spec: Any) -> dict[str, Any]:
    """A pod with one container `main`. `resources` and `spec` are as in a manifest."""
    container = {"name": "main", "image": "host", "command": command, **spec.pop("container", {})}
    metadata = {"name": name, **({"uid": uid} if uid else {})}
    body = {"terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def processes_of(cgroup: Cgroup) -> list[Pid]:
    return list(map(Pid.of, processes_in(cgroup.paths()[0])))


def _restarts(status: dict[str, Any]) -> int:
    """The restarts of the first container; 0 if there is none."""
    first, *_ = status.get("containerStatuses") or [{}]
    return int(first.get("restartCount", 0))


def first_of(cgroup: Cgroup) -> Pid:
    """The container's own first process: the oldest with a parent outside, as a probe's command has, too. Numbers begin
    anew after the largest."""
    seen = {pid: parent_of(pid) for pid in processes_of(cgroup)}
    entered = [(pid.born, pid) for pid, parent in seen.items() if parent not in (0, *seen)]
    assert entered, f"nothing runs in {cgroup}"
    return min(entered)[1]


def parent_of(pid: int) -> int:
    """0 if it has ended."""
    return _relations(pid)[0]


def _relations(pid: int) -> tuple[int, int]:
    """Its parent, and when it was born, in ticks since the boot; zeros if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    return int(fields[1]), int(fields[19])


def _inhabited(cgroups: list[Path]) -> dict[str, list[str]]:
    """What runs in cgroups, by their names."""
    return {path.name: [_command_of(pid) for pid in processes_in(path)] for path in cgroups}


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "(ended)"


def is_alive(pid: int) -> bool:
    """Whether the process runs. A zombie does not, nor does a process whose PID now belongs to another one."""
    return not is_dead(pid) and (not isinstance(pid, Pid) or _relations(pid)[1] == pid.born)
