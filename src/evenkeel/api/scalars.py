"""Scalars of the API beside quantities: durations (`1m30s`), sets of CPUs (`0-3,8`), cgroup paths and bounded
numbers."""

import re
from collections.abc import Iterable
from typing import Annotated, NewType, TypeAlias

from evenkeel.errors import EvenkeelError

_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_LONGEST = 2**63 - 1


class Duration(int):
    """A number of nanoseconds. Its text is the one that Go prints."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> "Duration":
        """The duration that Go's `time.ParseDuration` reads from `text`."""
        sign, rest = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
        if rest == "0":
            return cls(0)
        total = 0
        position = 0
        while position < len(rest):
            part = _PART.match(rest, position)
            if not part or not (part[1] or part[2]) or len(part[0]) > 40:
                break
            unit = _NANOSECONDS[part[3]]
            fraction = part[2] or ""
            # A fraction of a nanosecond is dropped, as Go does.
            total += int(part[1] or "0") * unit + int(fraction or "0") * unit // 10 ** len(fraction)
            position = part.end()
        if position < len(rest) or not rest or total > _LONGEST:
            raise EvenkeelError(
                f'"{text[:60]}" is not a duration: write a number and a unit, such as 30s, 1m30s or 100ms'
            )
        return cls(sign * total)

    @property
    def seconds(self) -> float:
        return self / 10**9

    def __str__(self) -> str:
        nanoseconds = abs(int(self))
        sign = "-" if self < 0 else ""
        if nanoseconds < 10**9:
            for unit in ("ms", "µs"):
                if nanoseconds >= _NANOSECONDS[unit]:
                    return f"{sign}{_decimal(nanoseconds, _NANOSECONDS[unit])}{unit}"
            return f"{sign}{nanoseconds}ns" if nanoseconds else "0s"
        hours, rest = divmod(nanoseconds, _NANOSECONDS["h"])
        minutes, rest = divmod(rest, _NANOSECONDS["m"])
        text = f"{_decimal(rest, 10**9)}s"
        if hours or minutes:
            text = f"{minutes}m{text}"
        if hours:
            text = f"{hours}h{text}"
        return sign + text


def _decimal(number: int, unit: int) -> str:
    whole, rest = divmod(number, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else str(whole)


# The most CPUs that a Linux kernel can support. A larger set is a mistake and must not cost memory.
_MOST_CPUS = 8192


_CPU = re.compile(r"\+?[0-9]{1,40}", re.ASCII)
_GREATEST_INT64 = 2**63 - 1


def parse_cpuset(text: str) -> tuple[int, ...]:
    """The numbers in `text`, in order. An empty text is an empty set."""
    cpus: set[int] = set()
    text = text.strip()
    if fault := cpuset_fault(text):
        raise EvenkeelError(fault)
    for part in text.split(",") if text else ():
        low, high = _cpu_range(part)
        if high >= _MOST_CPUS:
            raise EvenkeelError(
                f'"{part[:40]}" is not a range of CPUs: it must end below {_MOST_CPUS}; write 0-3,8'
            )
        cpus.update(range(low, high + 1))
    return tuple(sorted(cpus))


def cpuset_fault(text: str) -> str:
    """What is wrong with the text of a set of CPUs, by kubelet's rules; empty if it is valid."""
    for part in text.split(",") if text else ():
        bounds = part.split("-")
        if len(bounds) > 2 or not all(map(_CPU.fullmatch, bounds)):
            return f'"{part[:40]}" is not a CPU or a range of CPUs: write 0-3,8'
        low, high = _cpu_range(part)
        if low > high or high > _GREATEST_INT64:
            return f'"{part[:40]}" is not a range of CPUs: it must rise; write 0-3,8'
    return ""


def _cpu_range(part: str) -> tuple[int, int]:
    first, _, last = part.partition("-")
    return int(first), int(last or first)


def format_cpuset(cpus: Iterable[int]) -> str:
    """The shortest text for `cpus`, as the kernel prints it."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


# The characters that systemd allows in the name of a unit, and so in the name of a cgroup.
_ODD_CHARACTER = re.compile(r"[^A-Za-z0-9_.:@\\/-]")


def path_fault(path: str) -> str:
    """What is wrong with `path` and what would be right, as words that follow "it"; empty if the path is valid.

    Names of systemd (`slice:prefix:name`, or a unit without its path) are not valid, as in document B.
    """
    if not path.startswith("/"):
        if ":" in path or path.endswith((".slice", ".scope", ".service")):
            slice_name = path.partition(":")[0][:60]
            return (
                f'must be an absolute path, not a name of systemd such as "{path[:60]}": write /{slice_name}'
            )
        mend = "" if path_fault(f"/{path}") else f": write /{path[:60]}"
        return f'must be an absolute path, not "{path[:60]}"{mend}'
    if any(part in (".", "..") for part in path.split("/")):
        return f'must be a plain path without . and .., not "{path[:60]}"'
    if "//" in path:
        return f'must be a plain path without //, not "{path[:60]}"'
    if odd := _ODD_CHARACTER.search(path):
        return f"must hold letters, digits and - _ . : @ only, not {odd[0]!r}"
    return ""


def is_within(path: str, other: str) -> bool:
    """Whether the cgroup at `path` is the one at `other`, or below it."""
    return f"{path.rstrip('/')}/".startswith(f"{other.rstrip('/')}/")


# A whole number that Kubernetes stores in 32 bits. Its decoder refuses a larger one.
Int32: TypeAlias = Annotated[int, "int32"]
Amount = NewType("Amount", int)
