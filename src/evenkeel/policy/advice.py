"""Advice: what requests and reservations should be, from the usage over time (B14, B15).

The advice for memory follows the highest usage, because missing memory kills. The advice for cpu follows the usage that
was enough for 95% of the time, because missing cpu only slows a container down. Both get a margin, and small
differences are not reported.
"""

from collections.abc import Iterable, Iterator, Mapping

from evenkeel.api.resources import CPU, MEMORY, ResourceList
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.allocatable import Reserved
from evenkeel.policy.amounts import bytes_text, cores_text
from evenkeel.quantity import ZERO

LEAST_SECONDS = 600.0  # no advice from a shorter observation
_MARGIN = 1.15
_FAR = 2.0  # a request above this many times the suggestion is reported
_LEAST = {MEMORY: 64 << 20, CPU: 100}  # smaller differences are not reported
_STEP = {MEMORY: 16 << 20, CPU: 10}


class UseOverTime(NamedTuple):
    """The observed usage of one cgroup."""

    seconds: float
    memory_most_bytes: int
    millicpu_mostly: int  # the usage was not above it for 95% of the time


class ContainerUse(NamedTuple):
    pod: str
    container: str
    requests: ResourceList
    use: UseOverTime


class Suggestion(NamedTuple):
    """Amounts are in bytes or millicpu."""

    pod: str
    container: str
    resource: str
    requested: int
    used: int
    suggested: int
    text: str  # the suggested amount as a quantity
    reason: str


class ReservationFinding(NamedTuple):
    daemons: str  # the daemons that it is about
    resource: str
    reserved: int
    used: int
    flag: str  # with the right amount; empty if nothing must change
    reason: str
    requirement: str = "B14"


def request_suggestions(containers: Iterable[ContainerUse]) -> tuple[Suggestion, ...]:
    """The suggestions, the largest difference first. A container without a request has none on purpose."""
    found = [
        suggestion
        for one in containers
        if one.use.seconds >= LEAST_SECONDS
        for resource in (MEMORY, CPU)
        if (suggestion := _suggestion(one, resource)) is not None
    ]
    found.sort(key=lambda one: -abs(one.requested - one.suggested) / max(one.suggested, 1))
    return tuple(found)


def _suggestion(one: ContainerUse, resource: str) -> Suggestion | None:
    amount = one.requests.get(resource, ZERO)
    requested = amount.milli if resource == CPU else amount.value
    used = one.use.millicpu_mostly if resource == CPU else one.use.memory_most_bytes
    suggested = _suggested(resource, used)
    if not requested or abs(requested - suggested) < _LEAST[resource]:
        return None
    watched = _time(one.use.seconds)
    if requested < used:
        fate = (
            "above its request it may be evicted"
            if resource == MEMORY
            else "more than its request it has only while others leave it"
        )
        seen = f"used up to {_text(resource, used)}"
        if resource == CPU:
            seen = f"used {_text(resource, used)} or more for a twentieth of the time"
        why = f"it {seen} in {watched} and requests {_text(resource, requested)}: {fate}"
    elif requested > _FAR * suggested:
        seen = "never used more than" if resource == MEMORY else "hardly ever used more than"
        why = (
            f"it {seen} {_text(resource, used)} in {watched} and requests {_text(resource, requested)}:"
            f" the rest is kept from other pods"
        )
    else:
        return None
    return Suggestion(
        one.pod, one.container, resource, requested, used, suggested, _text(resource, suggested), why
    )


def reservation_findings(
    reserved: Reserved, daemons: Mapping[str, UseOverTime], beside_pods: UseOverTime | None
) -> tuple[ReservationFinding, ...]:
    """`daemons` are cgroups by name; `beside_pods` is everything outside of the pods."""
    return tuple(_findings(reserved, daemons, beside_pods))


def _findings(
    reserved: Reserved, daemons: Mapping[str, UseOverTime], beside_pods: UseOverTime | None
) -> Iterator[ReservationFinding]:
    for name, amounts in (("kube-reserved", reserved.kube), ("system-reserved", reserved.system)):
        use = daemons.get(name)
        if use is not None:
            yield from _too_small(name, f"--{name}", amounts, use)
    if beside_pods is not None and "system-reserved" not in daemons:
        both = {
            name: reserved.kube.get(name, ZERO) + reserved.system.get(name, ZERO) for name in (MEMORY, CPU)
        }
        yield from _too_small("everything that is no pod", "--system-reserved", both, beside_pods)
    users = daemons.get("user.slice")
    if users is not None:
        used = users.memory_most_bytes
        yield ReservationFinding(
            "user.slice",
            MEMORY,
            0,
            used,
            "",
            f"people logged in used up to {bytes_text(used)}, which is counted with the system's daemons",
            "B15",
        )


def _too_small(
    whose: str, flag: str, amounts: ResourceList, use: UseOverTime
) -> Iterator[ReservationFinding]:
    if use.seconds < LEAST_SECONDS:
        return
    for resource, used in ((MEMORY, use.memory_most_bytes), (CPU, use.millicpu_mostly)):
        amount = amounts.get(resource, ZERO)
        kept = amount.milli if resource == CPU else amount.value
        if used <= kept:
            continue
        right = _text(resource, _suggested(resource, used))
        seen = "up to" if resource == MEMORY else "a twentieth of the time at least"
        yield ReservationFinding(
            whose,
            resource,
            kept,
            used,
            f"{flag} {resource}={right}",
            f"{whose} used {seen} {_text(resource, used)} in {_time(use.seconds)},"
            f" and {_text(resource, kept) if kept else 'nothing'} is reserved: the rest was promised to pods",
        )


def _suggested(resource: str, used: int) -> int:
    step = _STEP[resource]
    return max(-(-int(used * _MARGIN) // step) * step, step)


def _text(resource: str, amount: int) -> str:
    return bytes_text(amount) if resource == MEMORY else cores_text(amount)


def _time(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} minutes"
    return f"{minutes // 60} hours" if minutes < 48 * 60 else f"{minutes // (24 * 60)} days"
