"""The diagnosis of a machine: all checks, for `evenkeel doctor` and for the agent before it starts (C5, E7)."""

from evenkeel.api.config import KubeletConfiguration
from evenkeel.errors import EvenkeelError
from evenkeel.host import checks_cgroups, checks_kernel, checks_node
from evenkeel.host.checks import Check, State
from evenkeel.host.machine import Machine
from evenkeel.named_tuples import NamedTuple

_CHECKS = (*checks_cgroups.CHECKS, *checks_kernel.CHECKS, *checks_node.CHECKS)


class Diagnosis(NamedTuple):
    kernel: str
    checks: tuple[Check, ...]

    @property
    def is_sound(self) -> bool:
        return all(check.state != State.BROKEN for check in self.checks)

    def or_raise(self) -> None:
        """Raises one error with everything that keeps the agent from starting (E7)."""
        stopping = [check.sentence for check in self.checks if check.stops_agent]
        if stopping:
            raise EvenkeelError("\n".join(stopping))


def diagnose(machine: Machine, config: KubeletConfiguration) -> Diagnosis:
    return Diagnosis(machine.kernel, tuple(check for run in _CHECKS for check in run(machine, config)))
