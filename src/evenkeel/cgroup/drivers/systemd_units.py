"""Cgroups as units of systemd: the name of the unit at a path, and the property that stands for a file.

systemd restores its own values whenever it is reloaded, and whenever another unit needs another controller. So a value
that must last has to be one of its properties; `can_hold` says whether it can. The others (files without a property,
quotas that are not whole percents) are written beside systemd.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from evenkeel.api.scalars import format_cpuset, parse_cpuset
from evenkeel.cgroup.driver import CgroupError
from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple

SLICE, SCOPE = ".slice", ".scope"
UNLIMITED = 2**64 - 1

_UNIT_TYPES = (SLICE, SCOPE, ".service", ".socket", ".mount", ".swap")
_ROOT_SLICE = "-.slice"
_ODD_CHARACTER = re.compile(r"[^A-Za-z0-9:_.\\@-]")
_LONGEST_UNIT = 255
# systemd gives a unit whose name could be a file of the kernel another name for its cgroup.
_FILE_LIKE = re.compile(r"[_.]|(cgroup|cpu|cpuacct|cpuset|io|blkio|memory|devices|pids|bpf-[a-z-]+)\.")

_SECOND_US = 1_000_000
_PERCENT_US = _SECOND_US // 100
_SHORTEST_US = 1000  # of quota and period, for systemd as for the kernel
_USUAL_PERIOD_US = 100_000
_MOST_PERCENT = 2**31 - 1

# file: property, and the least value that systemd takes
_AMOUNTS = {
    "memory.min": ("MemoryMin", 0),
    "memory.low": ("MemoryLow", 0),
    "memory.high": ("MemoryHigh", 1),
    "memory.max": ("MemoryMax", 1),
    "memory.swap.max": ("MemorySwapMax", 0),
    "pids.max": ("TasksMax", 1),
}
_QUOTA, _PERIOD = "CPUQuotaPerSecUSec", "CPUQuotaPeriodUSec"
_WEIGHT, _LEAST_WEIGHT, _MOST_WEIGHT = "CPUWeight", 1, 10_000
_CPUS = "AllowedCPUs"


class Property(NamedTuple):
    """One property of a unit; `signature` is its type on the bus."""

    name: str
    signature: str
    value: bool | int | str | bytes | tuple[int, ...]


def unit_of(path: str) -> str | None:
    """The unit whose cgroup is at `path`; None where systemd has none, as inside a scope that it has delegated.

    Raises CgroupError if systemd would put a unit of this name elsewhere.
    """
    *above, unit = path.removeprefix("/").split("/")
    if not unit.endswith(_UNIT_TYPES) or any(
        name.endswith(_UNIT_TYPES) and not _is_slice(name) for name in above
    ):
        return None
    if fault := _name_fault(unit):
        raise CgroupError(f'systemd has no unit "{unit[:80]}" for cgroup {path[:80]}: {fault}', path=path)
    if _is_slice(unit) and (place := slice_path(unit)) != path:
        raise CgroupError(
            f"{unit} is not at {path}: systemd has it at {place}",
            path=path,
            hint="a slice's name begins with those of the slices above it: /a.slice/a-b.slice",
        )
    return unit


def slice_path(unit: str) -> str:
    """The path of the slice: `a-b.slice` is at `/a.slice/a-b.slice`."""
    if unit == _ROOT_SLICE:
        return "/"
    parts = unit.removesuffix(SLICE).split("-")
    return "".join(f"/{'-'.join(parts[: depth + 1])}{SLICE}" for depth in range(len(parts)))


def parent_slice(path: str) -> str:
    """The slice that contains the unit at `path`."""
    return path.rpartition("/")[0].rpartition("/")[2] or _ROOT_SLICE


def object_path(unit: str) -> str:
    """The object path of the unit on the bus, with all characters escaped except letters and digits."""
    label = "".join(
        chr(byte)
        if chr(byte).isalnum() and not (chr(byte).isdigit() and index == 0) and byte < 128
        else f"_{byte:02x}"
        for index, byte in enumerate(unit.encode())
    )
    return f"/org/freedesktop/systemd1/unit/{label or '_'}"


def first_properties(path: str) -> tuple[Property, ...]:
    """The first properties of a unit of ours: the controllers that it needs, and the values of a new cgroup."""
    unit = path.rpartition("/")[2]
    found = [
        Property("Description", "s", f"{'Pods' if _is_slice(unit) else 'A container'} kept by Evenkeel"),
        Property("CollectMode", "s", "inactive-or-failed"),  # a unit that has ended leaves nothing behind
        Property("MemoryAccounting", "b", True),
        Property("TasksAccounting", "b", True),
        Property(_WEIGHT, "t", 100),
        Property("TasksMax", "t", UNLIMITED),  # for scopes systemd has a default of its own
    ]
    if not _is_slice(unit):
        found.append(Property("Slice", "s", parent_slice(path)))
        # systemd must not touch the processes and cgroups inside a container.
        found.append(Property("Delegate", "b", True))
    return tuple(found)


def properties(file: str, value: str) -> tuple[Property, ...]:
    """The properties that stand for `value` in `file`; none where systemd has none. They may be less exact
    (`can_hold`)."""
    if file in _AMOUNTS:
        name, least = _AMOUNTS[file]
        amount = _amount(value)
        return () if amount is None or amount < least else (Property(name, "t", amount),)
    if file == "cpu.weight":
        weight = _amount(value)
        fits = weight is not None and _LEAST_WEIGHT <= weight <= _MOST_WEIGHT
        return (Property(_WEIGHT, "t", weight),) if fits and weight is not None else ()
    if file == "cpu.max":
        return _quota(value)
    if file == "cpuset.cpus":
        try:
            return (Property(_CPUS, "ay", _mask(parse_cpuset(value))),)
        except EvenkeelError:
            return ()
    return ()


def file_value(file: str, unit_properties: Mapping[str, object]) -> str | None:
    """The value that systemd writes into `file` of a unit with these properties; None if it does not write it."""
    if file in _AMOUNTS:
        return _text(unit_properties.get(_AMOUNTS[file][0]))
    if file == "cpu.weight":
        weight = unit_properties.get(_WEIGHT)
        return "100" if weight == UNLIMITED else _text(weight)
    if file == "cpu.max":
        return _quota_text(unit_properties.get(_QUOTA), unit_properties.get(_PERIOD))
    if file == "cpuset.cpus":
        mask = unit_properties.get(_CPUS)
        return format_cpuset(_cpus(mask)) if isinstance(mask, bytes) else None
    return None


@lru_cache(maxsize=4096)  # the same few values are checked in every pass
def can_hold(file: str, value: str) -> bool:
    """Whether systemd restores exactly this value after a reload."""
    found = properties(file, value)
    return bool(found) and file_value(file, {one.name: one.value for one in found}) == value


def _is_slice(unit: str) -> bool:
    return unit.endswith(SLICE)


def _name_fault(unit: str) -> str:
    name = unit.rpartition(".")[0]
    if odd := _ODD_CHARACTER.search(unit):
        return f"a unit's name holds letters, digits and : - _ . \\ @ only, not {odd[0]!r}"
    if len(unit) > _LONGEST_UNIT:
        return f"a unit's name has at most {_LONGEST_UNIT} characters, this one {len(unit)}"
    if not name:
        return "it has no name"
    if _FILE_LIKE.match(unit):
        return "it looks like a file of the kernel's, and systemd would call its cgroup otherwise"
    if _is_slice(unit) and unit != _ROOT_SLICE and "" in name.split("-"):
        return "a slice's name has single dashes, and none at its ends"
    return ""


def _amount(value: str) -> int | None:
    if value == "max":
        return UNLIMITED
    if not (value.isascii() and value.isdigit()) or len(value) > 20:
        return None
    amount = int(value)
    return amount if amount < UNLIMITED else None


def _text(amount: object) -> str | None:
    if not isinstance(amount, int):
        return None
    return "max" if amount == UNLIMITED else str(amount)


def _quota(value: str) -> tuple[Property, ...]:
    limit, _, rest = value.partition(" ")
    quota_us, period_us = _amount(limit), _amount(rest or str(_USUAL_PERIOD_US))
    if quota_us is None or period_us is None or not _SHORTEST_US <= period_us <= _SECOND_US:
        return ()
    if quota_us == UNLIMITED:
        return (Property(_QUOTA, "t", UNLIMITED), Property(_PERIOD, "t", period_us))
    # After a reload only whole percents of a CPU are left, so the property is rounded up: a little more until the exact
    # value is written again, rather than less than the limit (E10), or no limit at all below one percent.
    percent = -(-quota_us * 100 // period_us)
    if quota_us < _SHORTEST_US or percent > _MOST_PERCENT:
        return ()
    return (Property(_QUOTA, "t", percent * _PERCENT_US), Property(_PERIOD, "t", period_us))


def _quota_text(per_second_us: object, period_us: object) -> str | None:
    if not isinstance(per_second_us, int) or not isinstance(period_us, int):
        return None
    if per_second_us == UNLIMITED:
        return f"max {_USUAL_PERIOD_US}"
    period_us = _USUAL_PERIOD_US if period_us == UNLIMITED else period_us
    long_enough_us = _SHORTEST_US * _SECOND_US // per_second_us if per_second_us else _SECOND_US
    period_us = min(max(period_us, _SHORTEST_US, long_enough_us), _SECOND_US)
    return f"{max(per_second_us * period_us // _SECOND_US, _SHORTEST_US)} {period_us}"


def _mask(cpus: tuple[int, ...]) -> bytes:
    """A bit mask of the CPUs. The first CPU is the lowest bit of the first byte."""
    bits = sum(1 << cpu for cpu in cpus)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _cpus(mask: bytes) -> tuple[int, ...]:
    bits = int.from_bytes(mask, "little")
    return tuple(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)
