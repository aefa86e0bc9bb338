"""A node's size from what somebody wrote: `--node 32Gi,8cpu`, or a Node object's status."""

import re
from collections.abc import Mapping

from evenkeel.api.node import Node
from evenkeel.api.resources import CPU, EPHEMERAL_STORAGE, HUGEPAGES_PREFIX, MEMORY, is_hugepages
from evenkeel.errors import EvenkeelError
from evenkeel.policy.allocatable import DEFAULT_PIDS, NodeCapacity
from evenkeel.quantity import Quantity

# What a node that was only half described has for the rest.
_MIDDLING = {CPU: Quantity("4"), MEMORY: Quantity("16Gi"), EPHEMERAL_STORAGE: Quantity("100Gi")}

PIDS = "pids"
_LARGEST = 2**63 - 1
_BARE_CPU = re.compile(r"([0-9.]+m?)\s*(?:c|cpus?|cores?)", re.ASCII | re.IGNORECASE).fullmatch
_EXAMPLE = "write 32Gi,8cpu or memory=32Gi,cpu=8,ephemeral-storage=100Gi"


def parse_node(text: str, flag: str = "--node") -> NodeCapacity:
    """The size that `text` describes; what it leaves out is that of a middling machine."""
    try:
        return _capacity({**_MIDDLING, **_amounts(text)})
    except EvenkeelError as error:
        raise EvenkeelError(f"{flag}: {error}") from None


def capacity_of(node: Node) -> NodeCapacity:
    """The size that a Node object states in `status.capacity`. Storage it does not state is not counted."""
    stated = {
        name: amount for name, amount in node.status.capacity.items() if name in _KNOWN or is_hugepages(name)
    }
    try:
        return _capacity(stated)
    except EvenkeelError as error:
        raise EvenkeelError(f"status.capacity of the node {node.metadata.name}: {error}") from None


_KNOWN = (CPU, MEMORY, EPHEMERAL_STORAGE, PIDS)


def _amounts(text: str) -> dict[str, Quantity]:
    amounts: dict[str, Quantity] = {}
    for part in text.split(","):
        name, amount = _part(part.strip())
        if name in amounts:
            raise EvenkeelError(f"{name} stands twice: name it once")
        amounts[name] = amount
    return amounts


def _part(part: str) -> tuple[str, Quantity]:
    name, equals, text = (word.strip() for word in part.partition("="))
    if equals:
        if name in _KNOWN or is_hugepages(name):
            return name, Quantity.parse(text)
        from evenkeel.api.known_fields import closest

        meant = closest(name, _KNOWN)
        mend = f"did you mean {meant}?" if meant else f"there are {', '.join(_KNOWN)} and hugepages-2Mi"
        raise EvenkeelError(f'"{name[:40]}" is nothing a node has here; {mend}')
    if bare := _BARE_CPU(part):
        return CPU, Quantity.parse(bare[1])
    if not part or part.isdigit():
        raise EvenkeelError(f'"{part[:40]}" does not say what it is an amount of: {_EXAMPLE}')
    try:
        return MEMORY, Quantity.parse(part)
    except EvenkeelError as error:
        raise EvenkeelError(f"{error}; {_EXAMPLE}") from None


def _capacity(amounts: Mapping[str, Quantity]) -> NodeCapacity:
    for name in (CPU, MEMORY):
        if name not in amounts:
            raise EvenkeelError(f"{name} is missing: write cpu and memory, such as 8 and 32Gi")
    for name, amount in amounts.items():
        least = 1 if name in (CPU, MEMORY, PIDS) else 0
        if amount.sign < least or amount.milli > _LARGEST:
            wanted = "more than nothing" if least else "not negative"
            raise EvenkeelError(f"{name} must be {wanted} and fit a machine, which {amount} is not")
    pages = dict(_pages(name, amount) for name, amount in amounts.items() if is_hugepages(name))
    if sum(size * count for size, count in pages.items()) > amounts[MEMORY].value:
        raise EvenkeelError(f"huge pages take up more than the memory of {amounts[MEMORY]}: {_EXAMPLE}")
    storage = amounts.get(EPHEMERAL_STORAGE)
    pids = amounts.get(PIDS)
    return NodeCapacity(
        millicpu=amounts[CPU].milli,
        memory_bytes=amounts[MEMORY].value,
        ephemeral_storage_bytes=None if storage is None else storage.value,
        hugepages=pages,
        pids=DEFAULT_PIDS if pids is None else pids.value,
    )


def _pages(name: str, amount: Quantity) -> tuple[int, int]:
    size = Quantity.parse(name.removeprefix(HUGEPAGES_PREFIX)).value
    if size < 4096 or size & (size - 1):
        raise EvenkeelError(f"{name} names no size of huge pages: write hugepages-2Mi or hugepages-1Gi")
    if amount.value % size:
        raise EvenkeelError(f"{name} must be a whole number of pages, which {amount} is not")
    return size, amount.value // size
