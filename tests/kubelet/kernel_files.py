"""What a node has written into the kernel: every file of its cgroups that can be written, under names that two nodes
share."""

import json
from collections.abc import Mapping
from pathlib import Path

from tests.kernel.cgroups import Cgroup
from tests.kernel.live_tree import cgroups_below, processes_in
from tests.machines.containerd import Containerd

# Files that hold no setting: actions, counters that can be reset, and processes.
NO_SETTINGS = (
    "cgroup.", "tasks", "notify_on_release", "release_agent", "freezer.state", "memory.force_empty",
    "memory.reclaim", "memory.peak", "memory.swap.peak", "memory.pressure_level", "cpuacct.usage",
    "devices.",
)  # fmt: skip
NO_SETTINGS_ENDINGS = (".pressure", "failcnt", "max_usage_in_bytes", ".reset_stats", ".events")
SANDBOX = "sandbox"

Files = dict[tuple[str, str], str]


def kernel_files(root: Cgroup, containerd: Containerd, suffix: str = "") -> Files:
    """The settings by cgroup and file, and the OOM scores of first processes. A pod's cgroup is named after the pod,
    less `suffix`, and a container's after the container."""
    names = _names(containerd, suffix)
    found: Files = {}
    for top in root.paths():
        for directory in (top / "kubepods", *cgroups_below(top / "kubepods")):
            place = "/".join(
                names.get(part.removeprefix("pod"), part) for part in directory.relative_to(top).parts
            )
            for file in sorted(directory.iterdir()):
                if file.is_file() and file.stat().st_mode & 0o200 and not _is_no_setting(file.name):
                    found[place, file.name] = file.read_text().strip()
            for pid in sorted(processes_in(directory))[:1]:
                found[place, "oom_score_adj"] = Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
    return found


def _is_no_setting(name: str) -> bool:
    return name.startswith(NO_SETTINGS) or name.endswith(NO_SETTINGS_ENDINGS)


def _names(containerd: Containerd, suffix: str) -> Mapping[str, str]:
    names: dict[str, str] = {}
    for one in containerd.containers():
        labels = json.loads(containerd.ctr("containers", "info", one))["Labels"]
        names[labels["io.kubernetes.pod.uid"]] = labels["io.kubernetes.pod.name"].removesuffix(suffix)
        names[one] = labels.get("io.kubernetes.container.name", SANDBOX)
    return names
