"""Amounts as short texts for people. Programs get Kubernetes' canonical form."""

from functools import lru_cache

from evenkeel.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, STORAGE, is_hugepages
from evenkeel.quantity import Quantity

_BINARY = (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))
_DECIMAL = (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3))
_LONGEST_EXACT = 9999
_LARGEST_WITH_UNIT = 10**6 << 40


@lru_cache(maxsize=4096)
def bytes_text(amount: int) -> str:
    """`512Mi`, `384M`: exact if few digits are enough; otherwise with one decimal (`28.9Gi`)."""
    if abs(amount) <= _LONGEST_EXACT:
        return str(amount)
    for unit, size in (*_BINARY, *_DECIMAL):
        if amount % size == 0 and abs(amount) <= _LONGEST_EXACT * size:
            return f"{amount // size}{unit}"
    if abs(amount) >= _LARGEST_WITH_UNIT:  # no machine has it, but a manifest may
        return f"{'-' if amount < 0 else ''}{str(abs(amount))[0]}e{len(str(abs(amount))) - 1}"
    for unit, size in _BINARY:
        if abs(amount) >= size:
            return f"{amount / size:.1f}{unit}"
    return str(amount)


def cores_text(millicpu: int) -> str:
    """`500m`, `2`."""
    return f"{millicpu}m" if millicpu % 1000 else f"{millicpu // 1000}"


def resource_text(name: str, amount: Quantity) -> str:
    """An amount of the resource `name`: `500m` of cpu, `23.5Gi` of memory, `110` pods."""
    if name == CPU:
        return cores_text(amount.milli)
    if name in (MEMORY, EPHEMERAL_STORAGE, STORAGE) or is_hugepages(name):
        return bytes_text(amount.value)
    return str(amount.value)
