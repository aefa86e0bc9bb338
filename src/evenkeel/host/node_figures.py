"""Figures of the whole machine for summaries and metrics: memory, CPU time, page faults, pressure, network.

Parsing is apart from reading. `Rates` turns CPU time of cgroups into CPU use.
"""

import os
import socket
import time
from collections.abc import Mapping

from evenkeel.cgroup.driver import Statistics
from evenkeel.errors import EvenkeelError
from evenkeel.host.capacity import meminfo_bytes, parse_meminfo
from evenkeel.host.files import read_text
from evenkeel.host.psi import PressureFigures, Resource, node_file, parse_pressure
from evenkeel.named_tuples import NamedTuple

# Fields of the first line of /proc/stat: user, nice, system, irq, softirq and steal.
_BUSY = (1, 2, 3, 6, 7, 8)
_NOTABLE_SECONDS = 0.05
_VMSTAT_BYTES = 16 << 10  # four times what it has now
_ELSEWHERE = ("192.0.2.1", 9)  # RFC 5737: an address that no machine has


def host_address() -> str:
    """The address from which this machine reaches others; the loopback address if it reaches none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unconnected:
        try:
            unconnected.connect(_ELSEWHERE)  # no packet is sent: the kernel only chooses the route
            return str(unconnected.getsockname()[0])
        except OSError:
            return "127.0.0.1"


class NodeClock:
    """The time of the machine, without jumps: if the clock is set, `now` follows only after `follow` was called. So the
    caller of `follow` can move all times that were read before by the jump that it returns."""

    def __init__(self) -> None:
        self._offset_seconds = self._offset()

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) + self._offset_seconds

    def was_set(self) -> bool:
        return abs(self._offset() - self._offset_seconds) > _NOTABLE_SECONDS

    def follow(self) -> float:
        """Returns by how many seconds the clock was set forward; negative if it was set back."""
        if not self.was_set():
            return 0.0
        moved = self._offset() - self._offset_seconds
        self._offset_seconds += moved
        return moved

    @staticmethod
    def _offset() -> float:
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


class Pressures(NamedTuple):
    cpu: PressureFigures = PressureFigures()
    memory: PressureFigures = PressureFigures()
    io: PressureFigures = PressureFigures()


class Interface(NamedTuple):
    """A network interface; it counts from the moment it exists."""

    name: str
    received_bytes: int = 0
    receive_errors: int = 0
    sent_bytes: int = 0
    send_errors: int = 0


class MachineFigures(NamedTuple):
    memory_total_bytes: int
    memory_working_set_bytes: int  # neither free nor inactive file cache, as kubelet counts
    memory_usage_bytes: int
    memory_rss_bytes: int
    swap_total_bytes: int
    swap_used_bytes: int
    cpu_usage_us: int
    page_faults: int
    major_page_faults: int
    booted_at: float
    pressures: Pressures | None  # None if the kernel has no pressure files
    interfaces: tuple[Interface, ...] = ()  # that of the default route first


def machine_figures(proc: str = "/proc", meminfo: Mapping[str, int] | None = None) -> MachineFigures:
    """Reads all figures. `meminfo` is given where /proc/meminfo was read already, so that all figures agree."""
    if meminfo is None:
        meminfo = parse_meminfo(read_text(f"{proc}/meminfo"))
    cpu_usage_us, booted_at = parse_stat(read_text(f"{proc}/stat"), os.sysconf("SC_CLK_TCK"))
    faults = parse_vmstat(read_text(f"{proc}/vmstat"))
    total, free = meminfo_bytes(meminfo, "MemTotal"), meminfo_bytes(meminfo, "MemFree")
    inactive = meminfo_bytes(meminfo, "Inactive(file)")
    return MachineFigures(
        memory_total_bytes=total,
        memory_working_set_bytes=max(total - free - inactive, 0),
        memory_usage_bytes=total - free,
        memory_rss_bytes=meminfo.get("AnonPages", 0),
        swap_total_bytes=meminfo.get("SwapTotal", 0),
        swap_used_bytes=max(meminfo.get("SwapTotal", 0) - meminfo.get("SwapFree", 0), 0),
        cpu_usage_us=cpu_usage_us,
        page_faults=faults.get("pgfault", 0),
        major_page_faults=faults.get("pgmajfault", 0),
        booted_at=booted_at,
        pressures=_pressures(proc),
        interfaces=_interfaces(proc),
    )


def parse_stat(text: str, ticks_a_second: int) -> tuple[int, float]:
    """Microseconds that all CPUs together were busy since boot, and the time of the boot."""
    used, booted = 0, 0.0
    for line in text.splitlines():
        words = line.split()
        if line.startswith("cpu "):
            busy = [words[index] for index in _BUSY if index < len(words)]
            used = sum(int(word) for word in busy if word.isdecimal()) * 1_000_000 // ticks_a_second
        elif line.startswith("btime ") and words[1:2] and words[1].isdecimal():
            booted = float(words[1])
    return used, booted


def parse_vmstat(text: str) -> Mapping[str, int]:
    return {
        name: int(number)
        for name, _, number in (line.partition(" ") for line in text.splitlines())
        if number.isdecimal()
    }


def machine_oom_kills(proc: str = "/proc") -> int | None:
    """The number of OOM kills since the machine was started, in all cgroups. The kernel counts before it kills. None
    before Linux 4.13."""
    # It is read at each start of a container. So only one of its 150 lines is parsed, and the buffer is small: the
    # kernel would have to map a large one, and to clear its pages.
    try:
        descriptor = os.open(f"{proc}/vmstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = b""
        while part := os.read(descriptor, _VMSTAT_BYTES):
            text += part
    except OSError:
        return None
    finally:
        os.close(descriptor)
    _, _, rest = text.partition(b"\noom_kill ")
    counted = rest.partition(b"\n")[0]
    return int(counted) if counted.isdigit() else None


def _pressures(proc: str) -> Pressures | None:
    try:
        return Pressures(*(parse_pressure(read_text(node_file(one, proc))) for one in Resource))
    except EvenkeelError:
        return None


def parse_interfaces(devices: str, routes: str) -> tuple[Interface, ...]:
    """From /proc/net/dev and /proc/net/route, without the loopback interface."""
    found = []
    for line in devices.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        counted = [words[index] for index in (0, 2, 8, 10)] if colon and len(words) >= 16 else []
        if counted and name.strip() != "lo" and all(word.isdecimal() for word in counted):
            found.append(Interface(name.strip(), *map(int, counted)))
    outward = [words[0] for words in map(str.split, routes.splitlines()) if words[1:2] == ["00000000"]]
    return tuple(sorted(found, key=lambda one: one.name not in outward[:1]))


def _interfaces(proc: str) -> tuple[Interface, ...]:
    try:
        return parse_interfaces(read_text(f"{proc}/net/dev"), read_text(f"{proc}/net/route"))
    except EvenkeelError:
        return ()


def boot_id() -> str:
    """Changes with every boot; empty if the kernel does not say."""
    try:
        return read_text("/proc/sys/kernel/random/boot_id").strip()
    except EvenkeelError:
        return ""


RATE_SECONDS = 120.0  # two readings further apart give no rate


class Sample(NamedTuple):
    """One cgroup at one sweep. `nanocores` is its average CPU use since the last sweep; None at the first one."""

    statistics: Statistics
    nanocores: int | None = None
    pressures: Pressures | None = None


class Rates:
    """CPU use between two sweeps, from the CPU time of each cgroup at the last one and the seconds between them."""

    def __init__(self, before_us: Mapping[str, int], seconds: float) -> None:
        self._before_us = before_us
        self._seconds = seconds
        self.seen_us: dict[str, int] = {}

    def of(self, name: str, used_us: int) -> int | None:
        """In billionths of a core; None if there is no recent earlier reading."""
        self.seen_us[name] = used_us
        before = self._before_us.get(name)
        if before is None or used_us < before or not 0 < self._seconds <= RATE_SECONDS:
            return None
        return round((used_us - before) * 1000 / self._seconds)
