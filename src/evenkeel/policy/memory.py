"""Memory amounts of the documents (A5, C2)."""

from functools import lru_cache

from evenkeel.quantity import Quantity

PAGE_BYTES = 4096
# What a pod's cgroup is charged besides its containers: a small process that holds the pod's place, and for each cgroup
# in it what the kernel keeps, most of that once for each processor. Measured with Linux 6.1 and 6.18: 8 KiB, and 2 KiB
# a processor; twice as much is left for kernels to come.
_INFRASTRUCTURE_BYTES = 1 << 20
_CGROUP_BYTES = 16 << 10
_CGROUP_BYTES_PER_CPU = 4 << 10
_NANO = 10**9


def high_bytes(base_bytes: int, factor: float) -> int:
    """`memory.high`: base × factor, down to a whole page. The factor is the decimal that was written, not the float
    nearest to it, so that 100Mi × 0.8 is 80Mi and not a page less."""
    return base_bytes * _nanos(factor) // (_NANO * PAGE_BYTES) * PAGE_BYTES


@lru_cache(maxsize=16)  # one configuration has one
def _nanos(factor: float) -> int:
    return Quantity.parse(repr(factor)).nanos


def pod_own_bytes(children: int, cpus: int) -> int:
    """What a pod with so many cgroups in it needs besides what its containers use."""
    return _INFRASTRUCTURE_BYTES + children * (_CGROUP_BYTES + cpus * _CGROUP_BYTES_PER_CPU)
