"""Sets of CPUs as the kernel and Kubernetes write them: `0-3,8`."""

from collections.abc import Iterable

from evenkeel.errors import EvenkeelError

# The most CPUs a Linux kernel can be built for; a set of more is a mistake, and must not cost memory.
_MOST_CPUS = 8192


def parse_cpuset(text: str) -> tuple[int, ...]:
    """The numbers in `text`, in order; an empty text is an empty set."""
    cpus: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        first, dash, last = part.partition("-")
        bounds = (first, last) if dash else (first, first)
        if not all(bound.isascii() and bound.isdigit() and len(bound) < 6 for bound in bounds):
            raise EvenkeelError(f'"{part[:40]}" is not a CPU or a range of CPUs: write 0-3,8')
        low, high = int(bounds[0]), int(bounds[1])
        if low > high or high >= _MOST_CPUS:
            raise EvenkeelError(
                f'"{part}" is not a range of CPUs: it must rise, and end below {_MOST_CPUS}; write 0-3,8'
            )
        cpus.update(range(low, high + 1))
    return tuple(sorted(cpus))


def format_cpuset(cpus: Iterable[int]) -> str:
    """The shortest spelling of `cpus`, as the kernel prints it."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
