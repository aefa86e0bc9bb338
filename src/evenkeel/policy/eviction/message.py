"""The eviction message: why a pod was evicted, as data and as sentences for its status, with the figures (E14).

The text of a message is recorded with the decision and compared when the decision is replayed. A change of the wording
belongs into `_EARLIER_WORDS` too, so that old decisions still replay the same.
"""

from collections.abc import Collection, Sequence

from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.eviction.conditions import Observation
from evenkeel.policy.eviction.rank import Need, Order, Ranked
from evenkeel.policy.eviction.thresholds import Signal, Threshold, threshold_amount
from evenkeel.policy.eviction.usage import DiskPart, LimitExceeded, Part, Resource, resource_of, usage_by_part

_NEXT_IN_RANK = 3
# The wording of earlier versions, and the wording of today.
_EARLIER_WORDS = (
    (", and goes first by ", ", and is first in rank by "),
    ("No other pod could go.", "No other pod could be evicted."),
    ("nobody above its request could go", "no pod above its request could be evicted"),
)
_UNITS = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class Crossed(NamedTuple):
    """A signal and the threshold that it crossed."""

    signal: str
    threshold: str
    threshold_amount: int
    available: int
    capacity: int
    hard: bool = True
    grace_period_seconds: float = 0.0
    min_reclaim_amount: int = 0


class Considered(NamedTuple):
    """A pod with the figures of the ranking. `usage` is None if it was not measured."""

    pod: str
    qos_class: str
    priority: int
    usage: int | None
    request: int
    above_request: bool


class Shortage(NamedTuple):
    """Why this pod was evicted and no other."""

    resource: str
    crossed: Crossed | None
    victim: Considered
    parts: tuple[Part, ...]
    order: str
    need: str
    next_in_rank: tuple[Considered, ...]
    others_in_rank: int


def crossed(threshold: Threshold, seen: Observation) -> Crossed:
    reclaim = threshold.min_reclaim
    return Crossed(
        signal=threshold.signal,
        threshold=str(threshold.value),
        threshold_amount=threshold_amount(threshold.value, seen.capacity),
        available=seen.available,
        capacity=seen.capacity,
        hard=threshold.hard,
        grace_period_seconds=threshold.grace_period_seconds,
        min_reclaim_amount=0 if reclaim is None else threshold_amount(reclaim, seen.capacity),
    )


def shortage(
    resource: Resource,
    below: Crossed | None,
    candidates: Sequence[Ranked],
    on_disk: Collection[DiskPart],
    order: Order,
    need: Need,
) -> Shortage:
    """The reason for the eviction of the first of `candidates`."""
    victim, *others = candidates
    return Shortage(
        resource=resource,
        crossed=below,
        victim=considered(victim),
        parts=usage_by_part(victim.seen, resource, on_disk),
        order=order,
        need=need,
        next_in_rank=tuple(map(considered, others[:_NEXT_IN_RANK])),
        others_in_rank=len(others[_NEXT_IN_RANK:]),
    )


def considered(one: Ranked) -> Considered:
    return Considered(one.pod.key, one.qos, one.priority, one.usage, one.request.value, one.above_request)


def shortage_message(reason: Shortage) -> str:
    resource = Resource(reason.resource)
    sentences = [_crossed_sentence(reason.crossed)] if reason.crossed is not None else []
    parts = _parts(reason.parts, resource)
    sentences.append(f"{_figures(reason.victim, resource, parts)}, and is first in rank {_rule(reason)}.")
    if reason.next_in_rank:
        following = "; ".join(_figures(one, resource) for one in reason.next_in_rank)
        more = f"; and {reason.others_in_rank} more" if reason.others_in_rank else ""
        sentences.append(f"Next in rank: {following}{more}.")
    else:
        sentences.append("No other pod could be evicted.")
    return " ".join(sentences)


def in_todays_words(recorded: str) -> str:
    """A recorded message of any version, as it is written now."""
    for earlier, now in _EARLIER_WORDS:
        recorded = recorded.replace(earlier, now)
    return recorded


def limit_message(pod: str, exceeded: LimitExceeded) -> str:
    parts = _parts(exceeded.parts, Resource.STORAGE)
    used = readable(exceeded.usage_bytes, Resource.STORAGE)
    return f"{pod} is above its own limit: {exceeded.what} of {exceeded.limit}, in use {used}{parts}."


def readable(amount: int, resource: Resource) -> str:
    """`1.5Gi` for bytes, with two decimals; a plain number for everything else."""
    if resource not in (Resource.MEMORY, Resource.STORAGE):
        return str(amount)
    scale = 0
    while scale < len(_UNITS) and abs(amount) >= 1024 ** (scale + 1):
        scale += 1
    number = f"{amount / 1024**scale:.2f}".rstrip("0").rstrip(".")
    return number + _UNITS[scale - 1] if scale else str(amount)


def _crossed_sentence(below: Crossed) -> str:
    resource = resource_of(Signal(below.signal))
    available = readable(below.available, resource)
    due = readable(below.threshold_amount, resource)
    if available == due and below.available != below.threshold_amount:
        available, due = str(below.available), str(below.threshold_amount)
    share = f" ({below.threshold} of {readable(below.capacity, resource)})" if "%" in below.threshold else ""
    kind = "hard" if below.hard else "soft"
    lasting = "" if below.hard else f" for {below.grace_period_seconds:g} s or longer"
    if below.available < below.threshold_amount:
        return f"{below.signal} is {available}, below the {kind} threshold of {due}{share}{lasting}."
    reclaim = readable(below.min_reclaim_amount, resource)
    return (
        f"{below.signal} is {available}: it fell below the {kind} threshold of {due}{share},"
        f" and {reclaim} above that are to be reclaimed."
    )


def _figures(one: Considered, resource: Resource, parts: str = "") -> str:
    noun = {Resource.MEMORY: "memory", Resource.STORAGE: "disk"}.get(resource, resource.value)
    if one.usage is None:
        used = f"has no figures of its {noun}"
    else:
        unit = f"of {noun}" if resource in (Resource.MEMORY, Resource.STORAGE) else noun
        used = f"uses {readable(one.usage, resource)} {unit}{parts}"
    return f"{one.pod} ({one.qos_class}, priority {one.priority}) {used}, {_against_request(one, resource)}"


def _against_request(one: Considered, resource: Resource) -> str:
    if resource not in (Resource.MEMORY, Resource.STORAGE):
        return "which cannot be requested"
    if not one.request:
        return "requested none"
    request = readable(one.request, resource)
    if one.usage is None:
        return f"requested {request}"
    if not one.above_request:
        return f"within its request of {request}"
    return f"{readable(one.usage - one.request, resource)} above its request of {request}"


def _rule(reason: Shortage) -> str:
    by_class = reason.order == Order.CLASS
    rule = "by class and usage over request" if by_class else "by priority and usage over request"
    if reason.victim.above_request or reason.victim.usage is None or reason.need != Need.SYSTEM:
        return rule
    if reason.resource == Resource.MEMORY:
        return f"{rule}; for the system's need: the pods together use no more than they requested"
    return f"{rule}; for the system's need: no pod above its request could be evicted"


def _parts(parts: Sequence[Part], resource: Resource) -> str:
    if not parts:
        return ""
    return f" ({', '.join(f'{part.name} {readable(part.amount, resource)}' for part in parts)})"
