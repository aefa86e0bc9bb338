"""Amounts: requests and limits as numbers for cgroup files, and as people read them.

CPU shares, weight, quota and burst, and `memory.high` (A11, A21, A23, C2, E10, E11).
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from evenkeel.api.resources import CPU, EPHEMERAL_STORAGE, MEMORY, STORAGE, is_hugepages
from evenkeel.quantity import Quantity

SHARES_PER_CORE = 1024
MIN_SHARES, MAX_SHARES = 2, 262144
MIN_WEIGHT, MAX_WEIGHT = 1, 10000
DEFAULT_WEIGHT = 100
DEFAULT_PERIOD_US = 100_000
MIN_QUOTA_US = 1000
NO_QUOTA = -1


def shares(millicpu: int) -> int:
    """cgroup v1 `cpu.shares` for a request (A11): 1024 for each core, and never less than the kernel's minimum."""
    return min(max(millicpu * SHARES_PER_CORE // 1000, MIN_SHARES), MAX_SHARES)


def millicpu_from_shares(cpu_shares: int) -> int:
    """The request that `cpu_shares` stands for, to report the resources in effect (E17)."""
    return -(-cpu_shares * 1000 // SHARES_PER_CORE) if cpu_shares >= MIN_SHARES else 0


def weight_keeping_ratio(cpu_shares: int) -> int:
    """cgroup v2 `cpu.weight`, proportional to shares: the defaults 1024 shares and weight 100 match (E11).

    The kernel divides cpu in proportion to weight, so only a straight line through zero keeps the proportion of
    requests (A4: 600m and 300m share idle cpu 2:1; the quadratic conversion would give weights of 67 and 40).
    """
    return min(max(_rounded(cpu_shares * DEFAULT_WEIGHT, SHARES_PER_CORE), MIN_WEIGHT), MAX_WEIGHT)


def weight_quadratic(cpu_shares: int) -> int:
    """The weight that newer runc and crun write for a container. Minimum, default and maximum match; between them it is
    a curve."""
    if cpu_shares == 0:
        return 0  # not set
    if cpu_shares <= MIN_SHARES:
        return MIN_WEIGHT
    if cpu_shares >= MAX_SHARES:
        return MAX_WEIGHT
    log = math.log2(cpu_shares)
    return math.ceil(10 ** ((log * log + 125 * log) / 612.0 - 7.0 / 34.0))


def weight_linear(cpu_shares: int) -> int:
    """The weight that kubelet writes for its own cgroups: the range 2…262144 mapped to 1…10000."""
    return MIN_WEIGHT + (cpu_shares - MIN_SHARES) * (MAX_WEIGHT - MIN_WEIGHT) // (MAX_SHARES - MIN_SHARES)


def quota_us(millicpu: int, period_us: int = DEFAULT_PERIOD_US) -> int:
    """Microseconds of cpu in each period under a limit; 0 if there is no limit."""
    return max(millicpu * period_us // 1000, MIN_QUOTA_US) if millicpu else 0


def burst_us(quota: int, percent: int) -> int:
    """The CPU time that a container may save from idle periods (A23, E10): at most one quota, which is the kernel's
    maximum."""
    return quota * min(percent, 100) // 100


def capped_shares(cpu_shares: int, *, capacity_millicpu: int, reserved_millicpu: int) -> int:
    """The shares of the pods' root, limited so that system cgroups of default weight keep their reserved cpu (E11).

    1024 ÷ (1024 + shares) must not be below reserved ÷ capacity.
    """
    if not 0 < reserved_millicpu < capacity_millicpu:
        return cpu_shares
    most = SHARES_PER_CORE * (capacity_millicpu - reserved_millicpu) // reserved_millicpu
    return max(min(cpu_shares, most), MIN_SHARES)


def fair_shares(requests_millicpu: Sequence[int], capacity_millicpu: int) -> list[int]:
    """A21: each pod gets its request and an equal part of the unrequested cpu, as shares.

    Example: on one core a pod that requests half a core and a pod without a request get 75 % and 25 % if both are busy.
    """
    if not requests_millicpu:
        return []
    spare = max(capacity_millicpu - sum(requests_millicpu), 0)
    count = len(requests_millicpu)
    return [
        min(max((request * count + spare) * SHARES_PER_CORE // (1000 * count), MIN_SHARES), MAX_SHARES)
        for request in requests_millicpu
    ]


def _rounded(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)


# Memory

PAGE_BYTES = 4096
# The memory of a pod's cgroup that no container uses: a small placeholder process, and for each child cgroup the
# kernel's own data, most of it for each processor. Measured with Linux 6.1 and 6.18: 8 KiB, and 2 KiB for each
# processor. Twice as much is kept, for later kernels.
_INFRASTRUCTURE_BYTES = 1 << 20
_CGROUP_BYTES = 16 << 10
_CGROUP_BYTES_PER_CPU = 4 << 10
_NANO = 10**9


def high_bytes(base_bytes: int, factor: float) -> int:
    """`memory.high`: base × factor, rounded down to a page. The factor counts as the decimal that was written and not
    as the nearest float, so that 100Mi × 0.8 is 80Mi and not one page less."""
    return base_bytes * _nanos(factor) // (_NANO * PAGE_BYTES) * PAGE_BYTES


@lru_cache(maxsize=16)  # a configuration has one factor
def _nanos(factor: float) -> int:
    return Quantity.parse(repr(factor)).nanos


def pod_own_bytes(children: int, cpus: int) -> int:
    """The memory that a pod with this many child cgroups needs besides its containers."""
    return _INFRASTRUCTURE_BYTES + children * (_CGROUP_BYTES + cpus * _CGROUP_BYTES_PER_CPU)


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
