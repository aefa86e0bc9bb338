"""Samples of cgroups that may be stalled at their memory.high (cgroup v2), as `policy.memory_stall` needs them."""

from evenkeel.host.memory_notifications import parse_counters
from evenkeel.host.psi import Resource, cgroup_file, parse_pressure, read_if_there
from evenkeel.policy.memory_stall import UNLIMITED, StallSample


def read_stall_sample(directory: str, now: float) -> StallSample | None:
    """Usage, memory.high and stall time of a cgroup that is throttled at its memory.high; None if it is gone. The stall
    time is 0 without pressure files."""
    high = _text(f"{directory}/memory.high")
    try:
        usage = int(_text(f"{directory}/memory.current"))
        high_bytes = UNLIMITED if high == "max" else int(high)
    except ValueError:
        return None
    events = parse_counters(_text(f"{directory}/memory.events"))
    full = parse_pressure(_text(cgroup_file(directory, Resource.MEMORY))).full.total_us
    return StallSample(now, usage, high_bytes, full, events.get("high", 0))


def _text(path: str) -> str:
    return read_if_there(path).decode("ascii", "replace").strip()
