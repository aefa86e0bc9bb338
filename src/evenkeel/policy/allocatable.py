"""Node allocatable: what a node has, what is reserved, and what pods may request together (B1, B3, B7, B8, B12).

    allocatable = capacity − kube-reserved − system-reserved − hard eviction threshold

Admission and scheduling count with allocatable. The limit of the pods' cgroup is larger by the threshold, because pods
must be evicted at the threshold, before the kernel's OOM killer acts there. The formulas are the same in both profiles.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from evenkeel.api.config import (
    KUBE_RESERVED,
    KUBE_RESERVED_COMPRESSIBLE,
    PODS_ENFORCED,
    SYSTEM_RESERVED,
    SYSTEM_RESERVED_COMPRESSIBLE,
    KubeletConfiguration,
    Profile,
    defaulted,
    flag_of,
)
from evenkeel.api.config_start_rules import start_problems
from evenkeel.api.encode import camel
from evenkeel.api.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    HUGEPAGES_PREFIX,
    MEMORY,
    NO_RESOURCES,
    PID,
    PODS,
    ResourceList,
    is_hugepages,
)
from evenkeel.api.scalars import parse_cpuset
from evenkeel.errors import EvenkeelError, InvalidInput, Problem
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy import amounts
from evenkeel.policy.eviction.thresholds import (
    Signal,
    config_thresholds,
    parse_thresholds,
    threshold_quantity,
)
from evenkeel.quantity import ZERO, BinarySI, Quantity

_NO_PAGES: Mapping[int, int] = MappingProxyType({})
DEFAULT_PIDS = 4_194_304  # the most that a 64-bit Linux can have


class NodeCapacity(NamedTuple):
    """A machine's size. Without `ephemeral_storage_bytes` storage is neither counted nor reported."""

    millicpu: int
    memory_bytes: int
    ephemeral_storage_bytes: int | None = None
    hugepages: Mapping[int, int] = _NO_PAGES  # page size in bytes → number of pages
    pids: int = DEFAULT_PIDS
    swap_bytes: int = 0
    online_cpus: tuple[int, ...] = ()  # empty where only their number is known

    @property
    def cpu_numbers(self) -> tuple[int, ...]:
        return self.online_cpus or tuple(range(self.millicpu // 1000))


class CgroupLimits(NamedTuple):
    """The limits of a top-level cgroup. None leaves the kernel's value as it is."""

    millicpu: int | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    hugepage_bytes: Mapping[int, int] = _NO_PAGES  # page size → bytes

    @property
    def cpu_shares(self) -> int | None:
        return None if self.millicpu is None else amounts.shares(self.millicpu)


class ReservedLimits(NamedTuple):
    """The limits on the two cgroups of daemons, each None if it is not enforced or nothing is reserved."""

    kube: CgroupLimits | None
    system: CgroupLimits | None


def node_allocatable(capacity: NodeCapacity, config: KubeletConfiguration) -> ResourceList:
    """The amounts that pods may request together (B1, B2). They are never below zero."""
    kept_back = reservation(capacity, config)
    allocatable = {
        name: _at_least_zero(amount - kept_back.get(name, ZERO))
        for name, amount in node_capacity(capacity, config).items()
    }
    # Huge pages reduce memory as soon as they are set up, even while no pod uses them.
    for name, amount in allocatable.items():
        if is_hugepages(name):
            allocatable[MEMORY] = _at_least_zero(allocatable[MEMORY] - amount)
    return allocatable


def node_capacity(capacity: NodeCapacity, config: KubeletConfiguration) -> ResourceList:
    """The capacity as the node's status reports it, with the number of pods."""
    full = defaulted(config)
    pods = full.max_pods
    if full.pods_per_core > 0:
        pods = min(full.pods_per_core * (capacity.millicpu // 1000), pods)
    return {**_resources(capacity, config), PODS: Quantity.of(pods)}


def reservation(capacity: NodeCapacity, config: KubeletConfiguration) -> ResourceList:
    """Everything that is kept back from pods, by resource. A resource with nothing kept back is absent."""
    reserved = reserved_of(config)
    thresholds = _threshold_reservation(capacity, config)
    kept_back = {}
    for name in _resources(capacity, config):
        amount = ZERO + reserved.system.get(name, ZERO) + reserved.kube.get(name, ZERO)
        amount += thresholds.get(name, ZERO)
        if amount:
            kept_back[name] = amount
    return kept_back


def memory_less_reserved(capacity: NodeCapacity, config: KubeletConfiguration) -> int:
    """The memory that kubelet uses for cgroup values: capacity less reservations. The eviction threshold is not
    subtracted there."""
    reserved = reserved_of(config)
    kept_back = reserved.system.get(MEMORY, ZERO) + reserved.kube.get(MEMORY, ZERO)
    return max(capacity.memory_bytes - kept_back.value, 0)


def pods_cgroup_limits(capacity: NodeCapacity, config: KubeletConfiguration) -> CgroupLimits:
    """The limits on the pods' cgroup: allocatable plus the eviction threshold (B8).

    If `pods` is not enforced, they are the size of the machine. Without them the kernel's default cpu weight would
    apply, which is too little for all pods together.
    """
    resources = {**_resources(capacity, config), PID: Quantity.of(capacity.pids)}
    resources.pop(EPHEMERAL_STORAGE, None)
    if config.cgroups_per_qos and config.enforces(PODS_ENFORCED):
        reserved = reserved_of(config)
        resources = {
            name: _at_least_zero(amount - reserved.system.get(name, ZERO) - reserved.kube.get(name, ZERO))
            for name, amount in resources.items()
        }
    limits = _limits(resources)
    pages = {size: resources[_hugepages_name(size)].value for size in capacity.hugepages}
    return limits._replace(hugepage_bytes=pages)


def reserved_cgroup_limits(config: KubeletConfiguration) -> ReservedLimits:
    """The limits that enforceNodeAllocatable puts on the cgroups of daemons (B4)."""
    reserved = reserved_of(config)
    return ReservedLimits(
        kube=_enforced(config, reserved.kube, KUBE_RESERVED, KUBE_RESERVED_COMPRESSIBLE),
        system=_enforced(config, reserved.system, SYSTEM_RESERVED, SYSTEM_RESERVED_COMPRESSIBLE),
    )


def _resources(capacity: NodeCapacity, config: KubeletConfiguration) -> dict[str, Quantity]:
    found = {
        CPU: Quantity.of_milli(capacity.millicpu),
        MEMORY: Quantity.of(capacity.memory_bytes, BinarySI),
    }
    for size, pages in sorted(capacity.hugepages.items()):
        found[_hugepages_name(size)] = Quantity.of(size * pages, BinarySI)
    if capacity.ephemeral_storage_bytes is not None and config.local_storage_capacity_isolation:
        found[EPHEMERAL_STORAGE] = Quantity.of(capacity.ephemeral_storage_bytes, BinarySI)
    return found


def _hugepages_name(size: int) -> str:
    return f"{HUGEPAGES_PREFIX}{Quantity.of(size, BinarySI)}"


def _threshold_reservation(capacity: NodeCapacity, config: KubeletConfiguration) -> ResourceList:
    if config.experimental_node_allocatable_ignore_eviction_threshold:  # B7
        return NO_RESOURCES
    of_signal = {
        Signal.MEMORY_AVAILABLE: (MEMORY, capacity.memory_bytes),
        Signal.NODEFS_AVAILABLE: (EPHEMERAL_STORAGE, capacity.ephemeral_storage_bytes or 0),
    }
    found = {}
    for threshold in parse_thresholds(hard=defaulted(config).eviction_hard):
        if threshold.signal in of_signal:
            name, total = of_signal[threshold.signal]
            found[name] = threshold_quantity(threshold.value, total)
    return found


def _enforced(
    config: KubeletConfiguration, reserved: ResourceList, key: str, compressible_key: str
) -> CgroupLimits | None:
    if not reserved or not config.enforces(key, compressible_key):
        return None  # B4: an empty reservation is not enforced
    if config.enforces(key):
        return _limits(reserved)
    return CgroupLimits(millicpu=_limits(reserved).millicpu)


def _limits(resources: ResourceList) -> CgroupLimits:
    return CgroupLimits(
        millicpu=resources[CPU].milli if CPU in resources else None,
        memory_bytes=resources[MEMORY].value if MEMORY in resources else None,
        pids=resources[PID].value if PID in resources else None,
    )


def _at_least_zero(amount: Quantity) -> Quantity:
    return amount if amount.sign >= 0 else Quantity.of(0, amount.format)


# Reservations


RESERVABLE = (CPU, MEMORY, EPHEMERAL_STORAGE, PID)
_EXAMPLES = {CPU: "500m", MEMORY: "1Gi", EPHEMERAL_STORAGE: "10Gi", PID: "1000"}


class Reserved(NamedTuple):
    """The reservations for Kubernetes daemons and for the other daemons of the machine."""

    kube: ResourceList
    system: ResourceList


def reserved_of(config: KubeletConfiguration) -> Reserved:
    """Both reservations of a configuration. `reservedSystemCPUs` replaces the cpu of both."""
    kube = dict(parse_reserved(config.kube_reserved, "kube_reserved"))
    system = dict(parse_reserved(config.system_reserved, "system_reserved"))
    if cpus := parse_cpuset(config.reserved_system_cpus):
        kube.pop(CPU, None)
        system[CPU] = Quantity.of(len(cpus))
    return Reserved(kube, system)


def parse_reserved(settings: Mapping[str, str], attribute: str = "kube_reserved") -> ResourceList:
    """The amounts of one reservation, by kubelet's rules. Raises `InvalidInput` with every problem."""
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


def _not_reservable(name: str) -> str:
    from evenkeel.api.known_fields import closest

    meant = closest(name, RESERVABLE)
    mend = f"did you mean {meant}?" if meant else f"it can reserve {', '.join(RESERVABLE)}"
    return f'cannot reserve "{name[:60]}"; {mend}'


def _whole_millis(amount: Quantity) -> Quantity:
    """Kubelet's rounding of reserved cpu: up to a millionth, then to the nearest thousandth."""
    millionths = -(-amount.nanos // 1000)
    return Quantity.of_milli((millionths + 500) // 1000, amount.format)


# Problems that stop the agent at its start: kubelet keeps these settings as text and checks them only then


def startup_problems(config: KubeletConfiguration) -> Iterator[Problem]:
    """Every reservation and eviction setting that is not valid, with field and flag."""
    yield from start_problems(config)
    yield from _problems(lambda: config_thresholds(config))
    for attribute in ("kube_reserved", "system_reserved"):
        yield from _problems(lambda name=attribute: parse_reserved(getattr(config, name), name))  # type: ignore[misc]
    yield from _qos_reserved(config)
    yield from _static_cpus(config)


def reservation_problems(capacity: NodeCapacity, config: KubeletConfiguration) -> Iterator[Problem]:
    """Resources of which more is kept back than the node has."""
    have = _resources(capacity, config)
    reserved = reserved_of(config)
    thresholds = _threshold_reservation(capacity, config)
    for name, amount in reservation(capacity, config).items():
        if amount > have[name]:
            parts = {
                "--kube-reserved": reserved.kube.get(name, ZERO),
                "--system-reserved": reserved.system.get(name, ZERO),
                "--eviction-hard": thresholds.get(name, ZERO),
            }
            sum_of = " + ".join(f"{flag} {part}" for flag, part in parts.items() if part)
            yield Problem(
                name,
                f"{sum_of} is more than the {have[name]} that the node has: reserve less",
                "FieldValueInvalid",
            )


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
    """Kubelet does not start with the static policy and no reserved cpu. A23 has no such rule."""
    if config.rulebook is not Profile.KUBERNETES or config.cpu_manager_policy != "static":
        return
    try:
        reserved = reserved_of(config)
    except EvenkeelError:
        return  # reported elsewhere, with its own field
    if not (reserved.kube.get(CPU, ZERO) + reserved.system.get(CPU, ZERO)):
        yield Problem(
            "cpuManagerPolicy, kubeReserved",
            "--cpu-manager-policy static hands out whole CPUs, so some must be kept back: give"
            " --kube-reserved or --system-reserved a cpu, or name --reserved-cpus",
            "FieldValueRequired",
        )
