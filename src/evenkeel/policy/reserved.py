"""What is reserved for daemons: `--kube-reserved` and `--system-reserved` as amounts (B3, B12)."""

from collections.abc import Mapping
from typing import NamedTuple

from evenkeel.api.config import KubeletConfiguration, flag_of
from evenkeel.api.encode import camel
from evenkeel.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, PID, ResourceList
from evenkeel.api.scalars import parse_cpuset
from evenkeel.errors import EvenkeelError, InvalidInput, Problem
from evenkeel.quantity import Quantity

RESERVABLE = (CPU, MEMORY, EPHEMERAL_STORAGE, PID)


class Reserved(NamedTuple):
    kube: ResourceList
    system: ResourceList


def reserved_of(config: KubeletConfiguration) -> Reserved:
    """Both reservations of a configuration; whole CPUs that are set aside are the reservation of cpu."""
    kube = dict(parse_reserved(config.kube_reserved, "kube_reserved"))
    system = dict(parse_reserved(config.system_reserved, "system_reserved"))
    if cpus := parse_cpuset(config.reserved_system_cpus):
        kube.pop(CPU, None)
        system[CPU] = Quantity.of(len(cpus))
    return Reserved(kube, system)


def parse_reserved(settings: Mapping[str, str], attribute: str = "kube_reserved") -> ResourceList:
    """The amounts of one reservation, by kubelet's rules; `InvalidInput` with everything that is wrong."""
    problems: list[Problem] = []
    amounts = {}
    flag = flag_of(attribute)
    for name, text in settings.items():
        at = f"{camel(attribute)}[{name[:60]}]"
        if name not in RESERVABLE:
            problems.append(Problem(at, f"{flag} {_not_reservable(name)}", "FieldValueNotSupported"))
            continue
        try:
            amount = Quantity.parse(text)
        except EvenkeelError as error:
            problems.append(Problem(at, f"{flag}: {error}"))
            continue
        if amount.sign < 0:
            problems.append(
                Problem(at, f"{flag} must not be negative, as {text[:40]} is: write {_EXAMPLES[name]}")
            )
            continue
        amounts[name] = _whole_millis(amount) if name == CPU else amount
    if problems:
        raise InvalidInput(problems)
    return amounts


_EXAMPLES = {CPU: "500m", MEMORY: "1Gi", EPHEMERAL_STORAGE: "10Gi", PID: "1000"}


def _not_reservable(name: str) -> str:
    from evenkeel.api.known_fields import closest

    meant = closest(name, RESERVABLE)
    mend = f"did you mean {meant}?" if meant else f"it can reserve {', '.join(RESERVABLE)}"
    return f'cannot reserve "{name[:60]}"; {mend}'


def _whole_millis(amount: Quantity) -> Quantity:
    """Kubelet's rounding of reserved cpu: up to a millionth, then to the nearest thousandth."""
    millionths = -(-amount.nanos // 1000)
    return Quantity.of_milli((millionths + 500) // 1000, amount.format)
