"""Figures of the node's daemons, each by name (B11, B15): this agent, the container runtime, and cgroups of others.

A daemon with its own cgroup has the figures of that cgroup. Any other daemon has the figures of its process. No daemon
is counted twice: if the runtime is in the agent's cgroup, the agent's figures do not include it.
"""

import os
import time
from collections.abc import Callable, Mapping

from evenkeel.agent.node.own_cgroup import not_the_pods, parse_own
from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.scalars import is_within
from evenkeel.cgroup.driver import Driver, Statistics
from evenkeel.cgroup.tree import Kind, Tree, Version
from evenkeel.errors import EvenkeelError
from evenkeel.host.files import read_text
from evenkeel.host.node_figures import Rates, Sample
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.procfs import Process, Stat, process_at, read_stat

# B15: cgroups of others. Their figures are reported if they exist.
OTHERS = ("/system.slice", "/user.slice")
AGENT = "kubelet"  # the Kubernetes name for this daemon
RUNTIME = "runtime"

_KNOWN_SECONDS = 60.0  # a new process may serve before the old one has ended
_UNKNOWN_SECONDS = 5.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")


class Daemon(NamedTuple):
    path: str  # empty: it has no cgroup of its own, and the figures are of its process
    sample: Sample


class Daemons:
    """For use by one thread. `runtime` returns the process that runs the containers. `place` returns the cgroup of a
    process."""

    def __init__(
        self,
        config: KubeletConfiguration,
        runtime: Callable[[], Process | None],
        place: Callable[[int, Version], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._find = runtime
        self._place = place or cgroup_of
        self._clock = clock
        self._own_path: str | None = None
        self._runtime: Process | None = None
        self._found_at = -_KNOWN_SECONDS
        self._within = _Within()

    def look(
        self, driver: Driver, tree: Tree, sampled: Callable[[str], Sample | None], rates: Rates
    ) -> Mapping[str, Daemon]:
        """Returns the figures of all daemons. `sampled` reads a cgroup, if it exists."""
        config = self._config
        found = {}
        for name, path in (
            ("kube-reserved", config.kube_reserved_cgroup),
            ("system-reserved", config.system_reserved_cgroup),
            *((path[1:], path) for path in OTHERS),
        ):
            sample = sampled(path) if path else None
            if sample is not None:
                found[name] = Daemon(path, sample)
        agent = self._look_at_agent(tree.version, sampled, rates)
        runtime = self._look_at_runtime(driver, tree, sampled, rates)
        if runtime is not None:
            found[RUNTIME] = runtime
        if agent is not None:
            found[AGENT] = self._without_runtime(agent, runtime, tree.version, rates)
        return found

    def _look_at_agent(
        self, version: Version, sampled: Callable[[str], Sample | None], rates: Rates
    ) -> Daemon | None:
        if self._own_path is None:
            self._own_path = own_path(self._config, version, self._place)
        sample = sampled(self._own_path) if self._own_path else None
        if sample is not None:
            return Daemon(self._own_path, sample)
        try:
            own = process_at(os.getpid())
        except OSError:  # no descriptor is left
            own = None
        figures = process_figures(own) if own is not None else None
        return Daemon("", _of_process(own, figures, rates)) if own and figures else None

    def _look_at_runtime(
        self, driver: Driver, tree: Tree, sampled: Callable[[str], Sample | None], rates: Rates
    ) -> Daemon | None:
        figures = process_figures(self._runtime) if self._runtime is not None else None
        now = self._clock()
        if figures is None and self._runtime is not None:
            self._runtime, self._found_at = None, now - _UNKNOWN_SECONDS
        if now - self._found_at >= (_KNOWN_SECONDS if self._runtime is not None else _UNKNOWN_SECONDS):
            self._found_at = now
            there = self._find()
            if there is not None and there != self._runtime:
                self._runtime, figures = there, process_figures(there)
        if self._runtime is None or figures is None:
            return None
        path = self._cgroup_of(self._runtime, tree)
        if path:
            driver.allow_reading(path)
            sample = sampled(path)
            if sample is not None:
                return Daemon(path, sample)
        return Daemon("", _of_process(self._runtime, figures, rates))

    def _cgroup_of(self, process: Process, tree: Tree) -> str:
        """The process's own cgroup; empty if it shares one with other processes, such as its parent."""
        path = self._place(process.pid, tree.version)
        stat = _stat(process.pid)
        if stat is None or self._place(stat.parent, tree.version) == path:
            return ""
        config = self._config
        ours = [one.path for one in tree.cgroups if one.kind == Kind.ROOT]
        ours += [self._own_path] if self._own_path else []
        is_ours = any(is_within(path, one) or is_within(one, path) for one in ours)
        if is_ours or is_within(self._place(os.getpid(), tree.version), path):
            return ""
        if _is_for_many(path) or path in (config.kube_reserved_cgroup, config.system_reserved_cgroup):
            return ""
        return path

    def _without_runtime(
        self, agent: Daemon, runtime: Daemon | None, version: Version, rates: Rates
    ) -> Daemon:
        """The figures of the agent's cgroup without the runtime's process."""
        if not agent.path:
            return agent
        process, figures = self._runtime, None
        if process is not None and runtime is not None and not runtime.path:
            path = self._place(process.pid, version)
            if path and is_within(path, agent.path):
                figures = runtime.sample.statistics
        sample = agent.sample
        alone = self._within.taken_out(sample.statistics, process, figures)
        return Daemon(
            agent.path, sample._replace(statistics=alone, nanocores=rates.of(AGENT, alone.cpu_usage_us))
        )


class _Within:
    """Subtracts the figures of a process from the figures of its cgroup. Such processes start and end over time. The
    kernel counts a process's CPU time in ticks and a cgroup's more finely. Still the reported CPU time never falls."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._used_us = 0
        self._ended_us = 0  # CPU time of processes that have ended
        self._reported_us = 0

    def taken_out(self, whole: Statistics, process: Process | None, figures: Statistics | None) -> Statistics:
        if figures is None or process != self._process:
            self._ended_us += self._used_us
            self._process, self._used_us = None, 0
        if figures is not None:
            self._process, self._used_us = process, figures.cpu_usage_us
        cpu_us = max(whole.cpu_usage_us - self._ended_us - self._used_us, self._reported_us)
        self._reported_us = cpu_us
        if figures is None:
            return whole._replace(cpu_usage_us=cpu_us)
        # The kernel charges file pages to the cgroup that read them first. That may be another cgroup.
        anonymous = figures.memory_rss_bytes
        return whole._replace(
            memory_usage_bytes=max(whole.memory_usage_bytes - anonymous, 0),
            memory_working_set_bytes=max(whole.memory_working_set_bytes - anonymous, 0),
            memory_rss_bytes=max(whole.memory_rss_bytes - anonymous, 0),
            cpu_usage_us=cpu_us,
            pids=max(whole.pids - figures.pids, 0),
        )


def _stat(pid: int) -> Stat | None:
    """None if it has ended, or if no descriptor is left to look."""
    try:
        return read_stat(pid)
    except OSError:
        return None


def process_figures(process: Process) -> Statistics | None:
    """The figures of a process; None if it has ended. As in a cgroup's figures, rss means anonymous memory."""
    try:
        resident, shared = (int(word) for word in read_text(f"/proc/{process.pid}/statm").split()[1:3])
    except EvenkeelError:
        return None
    stat = _stat(process.pid)  # read after statm: proves that statm was of this process
    if stat is None or stat.has_ended or stat.start_ticks != process.start_ticks:
        return None
    used, anonymous = resident * _PAGE_BYTES, max(resident - shared, 0) * _PAGE_BYTES
    faults = stat.minor_faults + stat.major_faults
    return Statistics(
        used, used, 0, anonymous, stat.cpu_ticks * _TICK_US, 0, stat.threads, faults, stat.major_faults
    )


def cgroup_of(pid: int, version: Version) -> str:
    """The cgroup of a process. Empty if it differs between hierarchies, which is possible on v1."""
    try:
        at = parse_own(read_text(f"/proc/{pid}/cgroup"))
    except EvenkeelError:
        return ""
    if version == Version.V2:
        return at.get("", "")
    path = at.get("memory", "")
    return path if at.get("cpuacct") == path else ""


def own_path(
    config: KubeletConfiguration, version: Version, place: Callable[[int, Version], str] = cgroup_of
) -> str:
    """The cgroup of this process and the processes it started; empty if it shares the cgroup with others."""
    path = place(os.getpid(), version)
    return path if path in not_the_pods(config) or path.endswith(".service") else ""


def _of_process(process: Process, figures: Statistics, rates: Rates) -> Sample:
    return Sample(figures, rates.of(f"pid {process.pid} {process.start_ticks}", figures.cpu_usage_us))


def _is_for_many(path: str) -> bool:
    """Whether the cgroup is a systemd slice (a group of units), a login session, or systemd's own scope."""
    name = path.rpartition("/")[2]
    return name.endswith(".slice") or name == "init.scope" or name.startswith("session-")
