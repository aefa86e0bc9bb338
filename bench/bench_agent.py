"""The agent with real pods: one started, a hundred at once, 110 kept for a while, and taken over after a restart.

A start is timed to the first instruction of the program, which prints the time. Beside it, in turns: the same program
cloned into the same namespaces and a cgroup that is there already, by a C program (start_reference.c) that does nothing
else; and `podman run` of it, with the host's network and a root filesystem that is a directory. Before each start the
machine is idle for a moment. A process that enters a cgroup just after another one need not wait for an RCU grace
period, which is the larger part of a bare start. Without the pause, one start would profit from the other."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from tests.machines import Unavailable
from tests.machines.packages import require

from bench.figure import Figure, against, ratio_at_most, value_at_least, value_at_most
from bench.processes import run_seconds
from bench.reference import compiled
from evenkeel.api.config import KubeletConfiguration, defaulted
from evenkeel.cgroup.drivers.detect import detect, driver_for
from evenkeel.cli.client import Client, NoAgent

STARTS = 31
PODMAN_STARTS = 7
BURST = 100
BURSTS = 3
KEPT = 110
IDLE_SECONDS = 60.0  # long enough to contain work that is done once a minute
PATIENCE_SECONDS = 120.0
SETTLED_SECONDS = 0.2
MIB = 1 << 20
PODMAN = ("podman", "runc")  # crun, its usual partner, refuses hybrid cgroups
# Also where root may not raise limits.
FEW_FILES = ("--ulimit", "nofile=1024:4096", "--ulimit", "nproc=4096:4096")


class Agent:
    """`evenkeel up` in a directory and a cgroup root of its own."""

    def __init__(self, directory: Path) -> None:
        self.state = directory / "state"
        self.times = directory / "times"
        self.times.mkdir()
        self.program = compiled("start_reference", directory, "-static")
        self.client = Client(str(self.state))
        self.cgroup_root = f"/evenkeel-bench-{os.getpid()}"
        self._log = directory / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *flags: str) -> None:
        command = [sys.executable, "-m", "evenkeel", "up", "--state-dir", str(self.state)]
        node = [
            "--cgroup-root",
            self.cgroup_root,
            "--node",
            "8Gi,16cpu",
            "--eviction-hard=",
            "--max-pods",
            "250",
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *node, *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        eventually(self._answers)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        try:
            self.client.get("/healthz")
        except NoAgent:
            return False
        return True

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def supervisor_pid(self) -> int:
        """The process that is the containers' parent. The state directory is among its arguments, and among those of
        the processes that it has just forked for containers."""
        state = os.fsencode(os.path.realpath(self.state))
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if state in (path / "cmdline").read_bytes().split(b"\0") and int(path.name) != self.pid:
                    found[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        return next(pid for pid, parent in found.items() if parent not in found)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self.start("--stop-pods")
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_SECONDS)
        driver = driver_for(detect(), defaulted(KubeletConfiguration(cgroup_root=self.cgroup_root)))
        driver.remove(self.cgroup_root)
        driver.close()

    def apply(self, *names: str) -> float:
        """Applies pods that print when their program began, and run on. Returns the time before they were applied."""
        pods = [self._pod(name) for name in names]
        at = time.time()
        self.client.apply({"apiVersion": "v1", "kind": "List", "items": pods})
        return at

    def _pod(self, name: str) -> dict[str, Any]:
        command = [str(self.program), "first", f"/tmp/{name}", "stay"]
        resources = {"requests": {"cpu": "100m", "memory": "16Mi"}}
        container = {"name": "main", "image": "host", "command": command, "resources": resources}
        spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

    def began(self, name: str) -> float:
        """When the pod's program began."""
        written = f"*/main.1/upper/{name}"
        return said_time(eventually(lambda: next((self.state / "pods").glob(written), None)))

    def delete(self, *names: str) -> None:
        for name in names:
            self.client.delete("default", name, 0)
        eventually(
            lambda: not {pod["metadata"]["name"] for pod in self.client.pods()} & set(names), pause=0.05
        )

    def happened(self, name: str, reason: str) -> float:
        reported = self.client.lines("/events", pod=f"default/{name}")
        return float(next(one["at"] for one in reported if one["reason"] == reason))

    def procs(self, name: str) -> list[str]:
        """The files that take a process into the cgroup of the pod's container."""
        uid = self.client.pod("default", name)["metadata"]["uid"]
        launch = json.loads((self.state / "pods" / uid / "main.1" / "launch").read_text())
        return [str(Path(file).with_name("cgroup.procs")) for file in launch["procs"]]


def figures() -> Iterator[Figure]:
    with agent() as one:
        yield from starts(one)
        yield burst(one)
        yield from kept(one)
        yield taking_over(one)


@contextmanager
def agent() -> Iterator[Agent]:
    with tempfile.TemporaryDirectory(
        dir="/var/lib", prefix="evenkeel-bench-"
    ) as directory:  # pods see it there
        one = Agent(Path(directory))
        one.start()
        try:
            yield one
        finally:
            one.close()


def timed_start(one: Agent, name: str) -> tuple[float, float]:
    """Starts a pod; the milliseconds to its first instruction, since it was applied and since it was admitted."""
    time.sleep(SETTLED_SECONDS)
    at = one.apply(name)
    began = one.began(name)
    return (began - at) * 1000, (began - one.happened(name, "Admitted")) * 1000


def starts(one: Agent) -> Iterator[Figure]:
    applied: list[float] = []
    admitted: list[float] = []
    bare: list[float] = []
    podman: list[float] = []
    problem = podman_problem()
    for number in range(STARTS):
        name = f"start-{number}"
        since_apply, since_admission = timed_start(one, name)
        applied.append(since_apply)
        admitted.append(since_admission)
        bare.append(bare_start(one, name) * 1000)
        if len(podman) < PODMAN_STARTS and not problem:
            try:
                podman.append(podman_start(one, f"podman-{number}") * 1000)
            except (OSError, subprocess.CalledProcessError, AssertionError) as error:
                problem = f"podman cannot be measured here: {said(error)}"
        one.delete(name)
    yield against("a pod from admission to its first instruction", admitted, bare, "ms", ratio_at_most(5))
    yield against("a pod from apply to its first instruction", applied, bare, "ms", None)
    name = "a pod from admission to its first instruction, beside podman run"
    if problem:
        yield Figure(f"{name} ({problem})", median(admitted), "ms", None, None, None)
    else:
        yield against(name, admitted, podman, "ms", ratio_at_most(0.1))


def podman_problem() -> str:
    """Why podman cannot be used here; empty if it can."""
    try:
        require(PODMAN)
    except Unavailable as error:
        return f"podman cannot be used: {error}"
    return ""


def bare_start(one: Agent, name: str) -> float:
    """The program alone, in the cgroup where the pod already is."""
    target = one.times / f"bare-{name}"
    command = [str(one.program), "spawn", *one.procs(name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(SETTLED_SECONDS)
        said_before, _ = process.communicate(f"{target}\n", PATIENCE_SECONDS)
    return said_time(target) - int(said_before) / 1e9


def podman_start(one: Agent, name: str) -> float:
    image = one.times.parent / "image"
    if not image.exists():
        for directory in ("proc", "sys", "dev", "etc", "run", "tmp"):
            (image / directory).mkdir(parents=True)
        shutil.copy(one.program, image / "program")
    command = ["podman", "--runtime", "runc", "run", "--rm", "--network", "host", *FEW_FILES]
    mounts = ["--volume", f"{one.times}:/times", "--rootfs", str(image)]
    time.sleep(SETTLED_SECONDS)
    at = time.time()
    subprocess.run(
        [*command, *mounts, "/program", "first", f"/times/{name}"],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return said_time(one.times / name) - at


def burst(one: Agent) -> Figure:
    rates = []
    for round_ in range(BURSTS):
        names = [f"burst-{round_}-{number}" for number in range(BURST)]
        reported = one.client.lines("/events", follow="true")
        next(reported)  # the events of before
        time.sleep(SETTLED_SECONDS)
        at = one.apply(*names)
        waiting = set(names)
        for event in reported:
            if event["reason"] == "Started":
                waiting.discard(event["pod"].partition("/")[2])
            if not waiting:
                break
        rates.append(BURST / (time.time() - at))
        one.delete(*names)
    return Figure(
        f"{BURST} pods at once, from apply until all run",
        median(rates),
        "pods/s",
        None,
        None,
        value_at_least(100),
    )


def kept(one: Agent) -> Iterator[Figure]:
    names = [f"kept-{number}" for number in range(KEPT)]
    one.apply(*names)
    for name in names:
        one.began(name)
    eventually(lambda: all(pod["status"]["phase"] == "Running" for pod in one.client.pods()), pause=0.1)
    time.sleep(2.0)  # work that follows the start (reading each pod, giving back memory) is not idle time
    pids = {"the agent": one.pid, "the supervisor": one.supervisor_pid}
    before, since = {name: run_seconds(pid) for name, pid in pids.items()}, time.monotonic()
    time.sleep(IDLE_SECONDS)
    lasted = time.monotonic() - since
    for name, pid in pids.items():
        share = 100 * (run_seconds(pid) - before[name]) / lasted
        is_agent = name == "the agent"
        yield Figure(
            f"{name}, idle with {KEPT} pods",
            share,
            "% of a core",
            None,
            None,
            value_at_most(0.5) if is_agent else None,
        )
        resident = resident_mib(pid)
        yield Figure(
            f"{name}'s memory with {KEPT} pods",
            resident,
            "MiB",
            None,
            None,
            value_at_most(64) if is_agent else None,
        )


def taking_over(one: Agent) -> Figure:
    """The time of a takeover: from the exec of a new agent, after the old one was killed, until it answers with every
    pod running."""
    one.kill()
    at = time.monotonic()
    one.start()
    eventually(
        lambda: sum(pod["status"].get("phase") == "Running" for pod in one.client.pods()) == KEPT, pause=0.01
    )
    return Figure(
        f"{KEPT} pods taken over by a new agent", (time.monotonic() - at) * 1000, "ms", None, None, None
    )


def said_time(path: Path) -> float:
    def read() -> float | None:
        with suppress(OSError):
            text = path.read_text()
            return int(text) / 1e9 if text.endswith("\n") else None
        return None

    return float(eventually(read))


def eventually(probe: Any, *, pause: float = 0.001) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (answer := probe()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(pause)
    return answer


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def said(error: Exception) -> str:
    text = (
        error.stderr.decode(errors="replace").strip()
        if isinstance(error, subprocess.CalledProcessError)
        else ""
    )
    return text.splitlines()[-1] if text else str(error)
