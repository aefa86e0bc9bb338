"""/proc/meminfo as numbers."""

from collections.abc import Mapping

from evenkeel.errors import EvenkeelError


def parse_meminfo(text: str) -> Mapping[str, int]:
    """Every line's number: bytes where the kernel writes kB, else what it counts (`HugePages_Total`)."""
    found = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and words and words[0].isdecimal():
            found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def memory_total(meminfo: str) -> int:
    """`MemTotal` of /proc/meminfo, in bytes."""
    return figure(parse_meminfo(meminfo), "MemTotal", "say the node's size with --node 32Gi,8cpu")


def figure(meminfo: Mapping[str, int], name: str, mend: str) -> int:
    """One number that a kernel has had for ten years and something that pretends to be one may not have."""
    try:
        return meminfo[name]
    except KeyError:
        raise EvenkeelError(f"/proc/meminfo has no {name}: {mend}") from None
