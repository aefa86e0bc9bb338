"""What is wrong with a configuration beyond its fields' own rules: amounts that stop the agent at its start.

Kubelet keeps reservations and eviction settings as text and finds out when it starts; their rules live with
the code that reads them, and are only gathered here.
"""

from collections.abc import Callable, Iterator

from evenkeel.api.config import KubeletConfiguration, Profile, flag_of
from evenkeel.api.encode import camel
from evenkeel.api.resources import CPU, MEMORY
from evenkeel.errors import EvenkeelError, InvalidInput, Problem
from evenkeel.policy.eviction.thresholds import config_thresholds
from evenkeel.policy.reserved import parse_reserved, reserved_of
from evenkeel.quantity import ZERO


def startup_problems(config: KubeletConfiguration) -> Iterator[Problem]:
    """Every setting of reservations and eviction that cannot be used, each with its field and flag."""
    yield from _problems(lambda: config_thresholds(config))
    for attribute in ("kube_reserved", "system_reserved"):
        yield from _problems(lambda name=attribute: parse_reserved(getattr(config, name), name))  # type: ignore[misc]
    yield from _qos_reserved(config)
    yield from _static_cpus(config)


def _problems(read: Callable[[], object]) -> Iterator[Problem]:
    try:
        read()
    except InvalidInput as error:
        yield from error.problems


def _qos_reserved(config: KubeletConfiguration) -> Iterator[Problem]:
    flag = flag_of("qos_reserved")
    for name, text in config.qos_reserved.items():
        at = f"{camel('qos_reserved')}[{name[:60]}]"
        number = text.removesuffix("%")
        if name != MEMORY:
            yield Problem(at, f'{flag} can reserve memory only, not "{name[:60]}"', "FieldValueNotSupported")
        elif number == text or not (
            number.isascii() and number.isdigit() and len(number) < 4 and int(number) <= 100
        ):
            yield Problem(at, f'{flag} must be a whole number from 0% to 100%, not "{text[:40]}"')


def _static_cpus(config: KubeletConfiguration) -> Iterator[Problem]:
    """Kubelet does not start with the static policy and no cpu kept back; A23 asks for no such thing."""
    if config.rulebook is not Profile.KUBERNETES or config.cpu_manager_policy != "static":
        return
    try:
        reserved = reserved_of(config)
    except EvenkeelError:
        return  # reported with its own field
    if not (reserved.kube.get(CPU, ZERO) + reserved.system.get(CPU, ZERO)):
        yield Problem(
            "cpuManagerPolicy, kubeReserved",
            "--cpu-manager-policy static hands out whole CPUs, so some must be kept back: give"
            " --kube-reserved or --system-reserved a cpu, or name --reserved-cpus",
            "FieldValueRequired",
        )
