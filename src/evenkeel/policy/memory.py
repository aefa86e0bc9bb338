"""Memory amounts of the documents (C2)."""

from evenkeel.quantity import Quantity

PAGE_BYTES = 4096
_NANO = 10**9


def high_bytes(base_bytes: int, factor: float) -> int:
    """`memory.high`: base × factor, down to a whole page. The factor is the decimal that was written, not the float
    nearest to it, so that 100Mi × 0.8 is 80Mi and not a page less."""
    factor_nanos = Quantity.parse(repr(factor)).nanos
    return base_bytes * factor_nanos // (_NANO * PAGE_BYTES) * PAGE_BYTES
