"""A container beside its `memory.high` (cgroup v2), read at one moment."""

import os

from evenkeel.host.memory_events import parse_memory_events
from evenkeel.host.pressure import Resource, cgroup_file, parse_pressure
from evenkeel.policy.memory_stall import UNLIMITED, StallSample


def read_at_mark(directory: str, now: float) -> StallSample | None:
    """None if the cgroup is gone. A kernel without pressure figures says nothing of waiting: then there is none."""
    high = _read(f"{directory}/memory.high")
    try:
        usage = int(_read(f"{directory}/memory.current"))
        mark = UNLIMITED if high == "max" else int(high)
    except ValueError:
        return None
    events = parse_memory_events(_read(f"{directory}/memory.events"))
    full = parse_pressure(_read(cgroup_file(directory, Resource.MEMORY))).full.total_us
    return StallSample(now, usage, mark, full, events.get("high", 0))


def _read(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 4096).decode("ascii", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)
