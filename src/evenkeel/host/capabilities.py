"""Which of root's powers a process has, from /proc/PID/status. In a container even root lacks some."""

from typing import NamedTuple

_BITS = {
    "CAP_KILL": 5,
    "CAP_IPC_LOCK": 14,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_RESOURCE": 24,
    "CAP_SYSLOG": 34,
}


class Capabilities(NamedTuple):
    """Of those that matter to us: `effective` is what the process can do, `bounding` what it could if it were root."""

    effective: frozenset[str] = frozenset()
    bounding: frozenset[str] = frozenset()


def parse_capabilities(status: str) -> Capabilities:
    masks = {}
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name in ("CapEff", "CapBnd"):
            masks[name] = int(value.strip() or "0", 16)
    return Capabilities(_named(masks.get("CapEff", 0)), _named(masks.get("CapBnd", 0)))


def _named(mask: int) -> frozenset[str]:
    return frozenset(name for name, bit in _BITS.items() if mask >> bit & 1)
