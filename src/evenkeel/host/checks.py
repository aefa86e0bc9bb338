"""One check of a machine, as data: what was found, the promise that fails because of it, and the fix.

`checks_cgroups`, `checks_kernel` and `checks_node` hold the checks themselves, `doctor` runs them all. A check is a
function of a `Machine` and a configuration. It does no I/O, so it can be tested for machines that we do not have.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum

from evenkeel.api.config import KubeletConfiguration
from evenkeel.host.machine import FEATURE_FILES, Machine
from evenkeel.named_tuples import NamedTuple


class State(StrEnum):
    OK = "ok"
    NOTE = "note"  # every promise holds, but by other means, or only once the agent has started
    BROKEN = "broken"
    UNKNOWN = "unknown"  # could not be inspected


class Check(NamedTuple):
    name: str
    state: State
    seen: str
    promise: str = ""  # what does not hold, or by which means it holds
    requirements: tuple[str, ...] = ()
    mends: tuple[str, ...] = ()  # commands to type or flags to give; any one of them is enough
    stops_agent: bool = False  # the agent refuses to start

    @property
    def sentence(self) -> str:
        """One line for a log: what is wrong and what to do."""
        broken = f"; {self.promise}" if self.promise else ""
        mend = f" (mend: {', or '.join(self.mends)})" if self.mends else ""
        return f"{self.name}: {self.seen}{broken}{mend}"


CheckFunction = Callable[[Machine, KubeletConfiguration], Iterator[Check]]


def not_inspected(name: str, what: str, machine: Machine) -> Check:
    """The check for something that only root can read."""
    return Check(
        name, State.UNKNOWN, f"{what}: cannot be seen as user {machine.uid}", mends=("sudo evenkeel doctor",)
    )


def has_feature(machine: Machine, feature: str) -> bool | None:
    """Whether the kernel has the feature. Where no cgroup showed it, the kernel's version decides; None if unknown."""
    seen = machine.features.get(feature)
    since = _version(FEATURE_FILES.get(feature, ""))
    version = _version(machine.kernel)
    return seen if seen is not None or since is None or version is None else version >= since


def boot_with(parameters: str, machine: Machine) -> str:
    """The fix that adds `parameters` to the kernel's command line."""
    if machine.boot_tool == "update-grub":
        line = f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {parameters}"'
        return f"echo '{line}' >> /etc/default/grub.d/evenkeel.cfg && update-grub && reboot"
    if machine.boot_tool == "grubby":
        return f"grubby --update-kernel=ALL --args='{parameters}' && reboot"
    return f"boot with {parameters} on the kernel's command line"


def _version(release: str) -> tuple[int, int] | None:
    first, _, rest = release.partition(".")
    second = "".join(character for character in rest.partition(".")[0] if character.isdigit())
    return (int(first), int(second)) if first.isdecimal() and second else None
