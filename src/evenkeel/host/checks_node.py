"""Checks of the node: reservations, free memory and disk, and other programs that manage memory or pods."""

import time
from collections.abc import Iterator

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.resources import MEMORY
from evenkeel.cgroup import names
from evenkeel.host.checks import Check, CheckFunction, State, not_inspected
from evenkeel.host.machine import Machine, Neighbour
from evenkeel.policy.allocatable import reservation_problems, reserved_of
from evenkeel.policy.amounts import bytes_text
from evenkeel.policy.eviction.conditions import observations, thresholds_met
from evenkeel.policy.eviction.message import readable
from evenkeel.policy.eviction.thresholds import Signal, config_thresholds
from evenkeel.policy.eviction.usage import resource_of
from evenkeel.quantity import ZERO

# Long before this program was written: an earlier time means a clock that was never set.
_UNSET_CLOCK_SECONDS = 1_704_067_200  # 2024-01-01
_MENDS = {
    "earlyoom": "systemctl disable --now earlyoom",
    "nohang": "systemctl disable --now nohang",
    "nohang-desktop": "systemctl disable --now nohang-desktop",
    "oomd": "systemctl disable --now oomd",
    "systemd-oomd": "systemctl disable --now systemd-oomd.service systemd-oomd.socket",
}
_ROOM = {
    Signal.MEMORY_AVAILABLE: "see which processes use it: ps -eo rss,comm --sort=-rss | head",
    Signal.PID_AVAILABLE: "see which programs have them: ps -eo nlwp,comm --sort=-nlwp | head",
}


def reservations(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:
    name = "reservations"
    problems = list(reservation_problems(machine.capacity, config))
    for problem in problems:
        yield Check(
            name,
            State.BROKEN,
            f"{problem.field}: {problem.message}",
            "nothing is left for pods",
            ("B1", "B4"),
            ("--kube-reserved, --system-reserved or --eviction-hard with less",),
            stops_agent=True,
        )
    small = list(_too_small(machine, config))
    yield from small
    if not problems and not small:
        yield Check(name, State.OK, "fit the machine")


def _too_small(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:
    """B14: daemons that use more than is reserved for them are reported, and nothing stops."""
    reserved = reserved_of(config)
    of_path = {
        config.kube_reserved_cgroup: ("--kube-reserved", reserved.kube),
        config.system_reserved_cgroup: ("--system-reserved", reserved.system),
    }
    for cgroup in machine.reserved:
        flag, amounts = of_path[cgroup.path]
        amount = amounts.get(MEMORY, ZERO).value
        if cgroup.memory_bytes is not None and amount and cgroup.memory_bytes > amount:
            seen = f"{cgroup.path} uses {bytes_text(cgroup.memory_bytes)}, and {flag} keeps back {bytes_text(amount)}"
            yield Check(
                "reservations",
                State.NOTE,
                seen,
                "daemons take memory that was promised to pods",
                ("B14",),
                (f"{flag} memory={bytes_text(_rounded(cgroup.memory_bytes))}",),
            )


def _rounded(amount: int) -> int:
    """Rounded up to 64Mi: a reservation need not be exact."""
    step = 64 << 20
    return -(-amount // step) * step


def room(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:
    """Eviction thresholds that are met before there is a single pod."""
    name = "room"
    seen = observations(machine.figures)
    met = {threshold.signal: threshold for threshold in thresholds_met(config_thresholds(config), seen)}
    for signal, threshold in met.items():
        amount = readable(seen[signal].available, resource_of(signal))
        yield Check(
            name,
            State.BROKEN,
            f"{signal} is {amount}, below the threshold {threshold}",
            "pods would be refused and evicted from the start",
            ("B16",),
            (_ROOM.get(signal, f"make room: du -xh {machine.state_directory} | sort -h | tail"),),
        )
    if not met:
        memory, disk = machine.figures.memory, machine.figures.nodefs
        assert memory is not None
        assert disk is not None
        available = bytes_text(memory.available_bytes or 0), bytes_text(disk.available_bytes or 0)
        yield Check(name, State.OK, f"{available[0]} of memory and {available[1]} of disk are available")


def state_directory(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:  # noqa: ARG001
    name = "state directory"
    if not machine.state_refusal:
        yield Check(name, State.OK, machine.state_directory)
    elif machine.uid != 0:
        yield not_inspected(name, machine.state_directory, machine)
    else:
        yield Check(
            name,
            State.BROKEN,
            f"{machine.state_directory}: {machine.state_refusal}",
            "nothing is remembered when the agent ends: which pods run, and why one was evicted",
            ("E6", "E14"),
            (f"mount a disk at {machine.state_directory}", "--state-dir with another place"),
        )


def other_killers(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:  # noqa: ARG001
    name = "other OOM killers"
    found = [neighbour for neighbour in machine.neighbours if neighbour.name in _MENDS]
    for neighbour in found:
        acts_only_on_order = neighbour.name == "systemd-oomd"
        yield Check(
            name,
            State.NOTE if acts_only_on_order else State.BROKEN,
            f"{neighbour.name} runs (process {neighbour.pid})",
            "it kills pods by its own rules where a slice above them says ManagedOOM…=kill"
            if acts_only_on_order
            else "it kills by its own rules, also pods within their request",
            ("A15", "A20", "E12"),
            (_MENDS[neighbour.name],),
        )
    if not found:
        yield Check(name, State.OK, "none" if machine.uid == 0 else "none to be seen")


def kubelet(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:
    name = "kubelet"
    found = [neighbour for neighbour in machine.neighbours if neighbour.name == "kubelet"]
    ours = names.pods_root(config.cgroup_root, per_qos=config.cgroups_per_qos)
    for neighbour in found:
        if names.pods_root(_kubelet_root(neighbour)) == ours:
            yield Check(
                name,
                State.BROKEN,
                f"a kubelet runs (process {neighbour.pid}) with the same cgroup root, {config.cgroup_root}",
                "it removes our pods' cgroups and we its",
                ("E9",),
                ("--cgroup-root /evenkeel", "systemctl disable --now kubelet"),
                stops_agent=True,
            )
        else:
            yield Check(
                name,
                State.NOTE,
                f"a kubelet runs (process {neighbour.pid}) with a cgroup root of its own",
                "both hand out the whole machine unless each is told what to leave",
                ("A6", "B1"),
                ("--system-reserved with what kubelet's pods may use",),
            )
    if not found:
        yield Check(name, State.OK, "none here" if machine.uid == 0 else "none to be seen")


def _kubelet_root(neighbour: Neighbour) -> str:
    arguments = iter(neighbour.arguments)
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if flag == "--cgroup-root":
            return value if equals else next(arguments, "/")
    return "/"


def container_runtime(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:
    endpoint = config.container_runtime_endpoint
    if not endpoint:
        return
    if machine.runtime_pid is not None:
        yield Check("container runtime", State.OK, f"process {machine.runtime_pid} at {endpoint}")
    elif machine.uid != 0:
        yield not_inspected("container runtime", endpoint, machine)
    else:
        yield Check(
            "container runtime",
            State.BROKEN,
            f"nothing answers at {endpoint}",
            "no container can be started",
            ("A24", "E7"),
            ("systemctl start containerd", "--container-runtime-endpoint with the right socket"),
        )


def images(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:
    """With a container runtime, images are its business."""
    if config.container_runtime_endpoint:
        return
    if machine.has_skopeo:
        yield Check("images", State.OK, "skopeo pulls them")
    else:
        yield Check(
            "images",
            State.NOTE,
            "skopeo is not installed",
            "no image can be pulled from a registry; image: host, directories and archives need none",
            mends=("apt install skopeo", "dnf install skopeo"),
        )


def clock(machine: Machine, config: KubeletConfiguration) -> Iterator[Check]:  # noqa: ARG001
    if machine.time_seconds >= _UNSET_CLOCK_SECONDS:
        return
    day = time.strftime("%Y-%m-%d", time.gmtime(machine.time_seconds))
    yield Check(
        "clock",
        State.NOTE,
        f"it is set to {day}",
        "records of evictions and OOM kills have the wrong time",
        ("E6", "E14"),
        ("timedatectl set-ntp true",),
    )


CHECKS: tuple[CheckFunction, ...] = (
    reservations,
    room,
    state_directory,
    other_killers,
    kubelet,
    container_runtime,
    images,
    clock,
)
