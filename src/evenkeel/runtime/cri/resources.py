"""From the plan's settings of a container's cgroup to the resources of the container runtime's interface (C6). Pure.

Nothing is computed here: each setting goes where the interface has a field for it, and on cgroup v2 into `unified`
where it has none. What v1 has no field for (pids.max, soft limit, swappiness) the agent writes itself.
"""

from collections.abc import Callable, Iterable

from evenkeel.cgroup.tree import Setting, Version
from evenkeel.runtime.cri import cri_pb2 as pb

_NO_LIMIT = -1
_V1_FIELDS = {
    "cpu.shares": "cpu_shares",
    "cpu.cfs_period_us": "cpu_period",
    "cpu.cfs_quota_us": "cpu_quota",
    "memory.limit_in_bytes": "memory_limit_in_bytes",
    "memory.memsw.limit_in_bytes": "memory_swap_limit_in_bytes",
}


def resources(
    version: Version,
    settings: Iterable[Setting],
    oom_score_adj: int | None = None,
    is_there: Callable[[str], bool] = lambda _: True,
) -> pb.LinuxContainerResources:
    """`is_there` says whether this kernel has a file at all: one that it lacks would be an error of the runtime's."""
    found = pb.LinuxContainerResources(oom_score_adj=oom_score_adj or 0)
    for file, value, _, _ in settings:
        if not is_there(file):
            continue
        if file == "cpuset.cpus":
            found.cpuset_cpus = value  # empty: those of the cgroup above
        elif file.startswith("hugetlb.") and ".rsvd." not in file:
            _add_hugepages(found, file, value)
        elif version == Version.V1:
            if file in _V1_FIELDS:
                setattr(found, _V1_FIELDS[file], int(value))
        elif file == "cpu.max":
            quota, period = value.split()
            found.cpu_quota, found.cpu_period = _number(quota), int(period)
        elif file == "memory.max":
            found.memory_limit_in_bytes = _number(value)
            found.unified[file] = value
        else:
            found.unified[file] = value
    return found


def _add_hugepages(found: pb.LinuxContainerResources, file: str, value: str) -> None:
    if _number(value) != _NO_LIMIT:
        found.hugepage_limits.add(page_size=file.split(".")[1], limit=int(value))


def _number(value: str) -> int:
    return _NO_LIMIT if value == "max" else int(value)
