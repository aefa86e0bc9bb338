"""What about a machine would break a promise: `evenkeel doctor`, and the agent before it starts (C5, E7).

A check is data: what was looked at, what was seen, the promise that does not hold because of it, and the mend. Checks
are functions of a `Machine` and a configuration; they read nothing themselves.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

from evenkeel.api.config import KubeletConfiguration
from evenkeel.errors import EvenkeelError
from evenkeel.host.machine import FEATURE_FILES, Machine


class State(StrEnum):
    OK = "ok"
    NOTE = "note"  # every promise holds, but by a detour, or once the agent has done its part
    BROKEN = "broken"
    UNKNOWN = "unknown"  # could not be seen


class Check(NamedTuple):
    name: str
    state: State
    seen: str
    promise: str = ""  # what does not hold, or in which way it does
    requirements: tuple[str, ...] = ()
    mends: tuple[str, ...] = ()  # commands to type or flags to give; any one of them is enough
    stops_agent: bool = False  # the agent refuses to start


class Diagnosis(NamedTuple):
    kernel: str
    checks: tuple[Check, ...]

    @property
    def is_sound(self) -> bool:
        return all(check.state != State.BROKEN for check in self.checks)

    def or_raise(self) -> None:
        """Raises what keeps the agent from starting, all of it at once (E7)."""
        stopping = [check for check in self.checks if check.stops_agent]
        if stopping:
            raise EvenkeelError("\n".join(map(sentence, stopping)))


def diagnose(machine: Machine, config: KubeletConfiguration) -> Diagnosis:
    from evenkeel.host import checks_cgroups, checks_kernel, checks_node

    every: tuple[Callable[[Machine, KubeletConfiguration], Iterator[Check]], ...] = (
        *checks_cgroups.CHECKS,
        *checks_kernel.CHECKS,
        *checks_node.CHECKS,
    )
    return Diagnosis(machine.kernel, tuple(check for find in every for check in find(machine, config)))


def has_feature(machine: Machine, feature: str) -> bool | None:
    """Whether the kernel has it: as seen, or where there was no cgroup to see it in, by the kernel's version."""
    seen = machine.features.get(feature)
    since = _version(FEATURE_FILES.get(feature, ""))
    version = _version(machine.kernel)
    return seen if seen is not None or since is None or version is None else version >= since


def _version(release: str) -> tuple[int, int] | None:
    first, _, rest = release.partition(".")
    second = "".join(character for character in rest.partition(".")[0] if character.isdigit())
    return (int(first), int(second)) if first.isdecimal() and second else None


def boot_with(words: str, machine: Machine) -> str:
    """The mend that is a word on the kernel's command line."""
    if machine.boot_tool == "update-grub":
        line = f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {words}"'
        return f"echo '{line}' >> /etc/default/grub.d/evenkeel.cfg && update-grub && reboot"
    if machine.boot_tool == "grubby":
        return f"grubby --update-kernel=ALL --args='{words}' && reboot"
    return f"boot with {words} on the kernel's command line"


def unseen(name: str, what: str, machine: Machine) -> Check:
    return Check(
        name, State.UNKNOWN, f"{what}: cannot be seen as user {machine.uid}", mends=("sudo evenkeel doctor",)
    )


def sentence(check: Check) -> str:
    """One line for a log: what is wrong and what to do."""
    broken = f"; {check.promise}" if check.promise else ""
    mend = f" (mend: {', or '.join(check.mends)})" if check.mends else ""
    return f"{check.name}: {check.seen}{broken}{mend}"
