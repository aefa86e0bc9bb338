"""Figures of what runs beside the pods: by its cgroup where that is its own, else by its process, and none twice."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from evenkeel.agent.node.daemons import AGENT, RUNTIME, Daemons, cgroup_of, process_figures
from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup.driver import Statistics
from evenkeel.cgroup.tree import Cgroup, Kind, Naming, Tree, Version
from evenkeel.host.node_figures import Rates, Sample
from evenkeel.runtime.procfs import Process, process_at
from tests.models.kernel import Kernel
from tests.models.node_snapshots import MIB

OWN = "/evenkeel/agent"
PODS = "/evenkeel/kubepods"
TREE = Tree(Version.V2, Naming.CGROUPFS, (Cgroup(PODS, Kind.ROOT, ()),))
SERVICE = "/system.slice/containerd.service"


class Machine:
    """A machine whose agent is this process, with a runtime, and cgroups of 100 MiB and a second of cpu each."""

    def __init__(self, runtime: Process | None, place: str, agent: str = OWN) -> None:
        self.runtime = runtime
        self.places = {os.getpid(): agent, runtime.pid if runtime else 0: place}
        self.now = 0.0
        self.asked = 0
        self.cpu_us = 1_000_000
        self.looked_at: list[str] = []
        config = KubeletConfiguration(cgroup_root="/evenkeel")
        self.daemons = Daemons(config, self._find, self._place, lambda: self.now)
        self.kernel = Kernel()
        self.kernel.allow_reading = self.looked_at.append  # type: ignore[method-assign, assignment]

    def look(self):
        return self.daemons.look(self.kernel, TREE, self._sampled, Rates({}, 1.0))

    def _find(self) -> Process | None:
        self.asked += 1
        return self.runtime

    def _place(self, pid: int, version: Version) -> str:
        return self.places.get(pid, "")

    def _sampled(self, path: str) -> Sample | None:
        if path not in self.places.values():
            return None
        return Sample(Statistics(100 * MIB, 90 * MIB, 0, 80 * MIB, self.cpu_us, 0, 9))


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def test_a_process_has_figures_until_it_ends_and_no_other_process_has_them(child):
    process = process_at(child.pid)
    assert process is not None
    figures = process_figures(process)
    assert figures is not None
    assert 0 < figures.memory_rss_bytes <= figures.memory_usage_bytes < 100 * MIB
    assert figures.pids == 1
    assert process_figures(process._replace(start_ticks=process.start_ticks - 1)) is None, "a stranger"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_figures(process) is None, "nobody has taken note of its end, and it uses nothing"


def test_cpu_time_is_that_of_every_thread():
    own = process_at(os.getpid())
    assert own is not None
    before = process_figures(own)
    while process_figures(own).cpu_usage_us < before.cpu_usage_us + 50_000:
        sum(range(10000))
    looks = [os.times(), process_figures(own).cpu_usage_us, os.times()]
    used = [one if isinstance(one, int) else round((one.user + one.system) * 100) * 10_000 for one in looks]
    assert used == sorted(used)


@pytest.mark.req("B11")
@pytest.mark.parametrize("place", [SERVICE, "/podruntime", "/runtime.slice/crio.service", "/machine/x.scope"])
def test_a_runtime_with_a_cgroup_of_its_own_has_its_figures(child, place):
    machine = Machine(process_at(child.pid), place)
    reported = machine.look()[RUNTIME]
    assert (reported.path, reported.sample.statistics.memory_usage_bytes) == (place, 100 * MIB)
    assert machine.looked_at == [place]


@pytest.mark.req("B11")
@pytest.mark.parametrize(
    "place",
    [
        "/",
        "/evenkeel",  # the agent and the pods are below it
        PODS,
        f"{PODS}/burstable/podx/daemon",
        OWN,
        "/system.slice",
        "/user.slice/user-0.slice/session-3.scope",
        "/init.scope",
        "",  # not one place
        "/not-there",
    ],
)
def test_a_runtime_that_shares_its_cgroup_has_the_figures_of_its_process(child, place):
    machine = Machine(process_at(child.pid), place)
    if place == "/not-there":
        machine.places.pop(child.pid)
    reported = machine.look()[RUNTIME]
    assert reported.path == ""
    assert 0 < reported.sample.statistics.memory_usage_bytes < 50 * MIB


def test_a_cgroup_in_which_the_runtime_was_started_by_another_is_not_its_own():
    with subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE) as shell:
        pid = int(shell.stdout.readline())
        try:
            machine = Machine(process_at(pid), "/system.slice/runner.service")
            assert machine.look()[RUNTIME].path != ""
            machine.places[shell.pid] = machine.places[pid]
            assert machine.look()[RUNTIME].path == ""
        finally:
            os.kill(pid, signal.SIGKILL)


def test_beside_an_agent_in_the_root_cgroup_a_runtime_has_its_own_all_the_same(child):
    reported = Machine(process_at(child.pid), SERVICE, agent="/").look()
    assert (reported[RUNTIME].path, reported[AGENT].path) == (SERVICE, "")


@pytest.mark.req("B11")
def test_what_runs_in_the_agents_cgroup_is_not_counted_with_the_agent_too(child):
    machine = Machine(process_at(child.pid), OWN)
    reported = machine.look()
    agent, runtime = reported[AGENT].sample.statistics, reported[RUNTIME].sample.statistics
    assert runtime.memory_rss_bytes > 0
    assert agent.memory_usage_bytes + runtime.memory_rss_bytes == 100 * MIB
    assert agent.memory_working_set_bytes + runtime.memory_rss_bytes == 90 * MIB
    assert agent.memory_rss_bytes + runtime.memory_rss_bytes == 80 * MIB
    assert agent.cpu_usage_us + runtime.cpu_usage_us == 1_000_000
    assert agent.pids + runtime.pids == 9
    alone = Machine(process_at(child.pid), SERVICE).look()[AGENT].sample.statistics
    assert (alone.memory_usage_bytes, alone.cpu_usage_us, alone.pids) == (100 * MIB, 1_000_000, 9)


def test_the_agents_cpu_time_never_falls_when_processes_beside_it_start_and_end(child):
    busy = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        machine = Machine(process_at(busy.pid), OWN)
        while machine.look()[RUNTIME].sample.statistics.cpu_usage_us < 100_000:
            pass
        machine.cpu_us = 10_000_000
        before = machine.look()
    finally:
        busy.kill()
        busy.wait()
    machine.runtime, machine.places[child.pid] = process_at(child.pid), OWN
    after = machine.look()
    assert after[RUNTIME].sample.statistics.cpu_usage_us < 100_000
    reported = [one[AGENT].sample.statistics.cpu_usage_us for one in (before, after)]
    assert reported[0] <= reported[1] <= 9_900_000, "what the one before used is not the agent's"


def test_a_runtime_that_was_started_anew_is_found_and_one_that_is_away_is_not_told(child):
    first = subprocess.Popen(["sleep", "1000"])
    machine = Machine(process_at(first.pid), SERVICE)
    for _ in range(3):
        assert RUNTIME in machine.look()
    assert machine.asked == 1, "whom it knows it does not ask for"
    first.kill()
    first.wait()
    machine.runtime = None
    assert RUNTIME not in machine.look()
    assert RUNTIME not in machine.look()
    assert machine.asked == 2
    machine.runtime, machine.places[child.pid] = process_at(child.pid), SERVICE
    machine.now += 5
    assert machine.look()[RUNTIME].path == SERVICE
    machine.runtime = None  # it does not answer just now, and is there
    machine.now += 60
    assert RUNTIME in machine.look()
    assert machine.asked == 4


def test_a_number_that_another_process_has_by_now_is_not_told(child):
    stale = process_at(child.pid)._replace(start_ticks=1)
    machine = Machine(stale, SERVICE)
    assert RUNTIME not in machine.look()


def test_a_process_is_in_one_cgroup_or_in_none_that_counts():
    here = cgroup_of(os.getpid(), Version.V2)
    assert here.startswith("/") or here == ""
    assert cgroup_of(2**22 + 1, Version.V2) == ""
