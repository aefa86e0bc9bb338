"""The parts of the kernel tests that `make kernel` runs: which tests on which machine, and which of them alone."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


def _files(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/kernel/test_{name}.py" for name in names)


def _without(*files: str) -> tuple[str, ...]:
    return tuple(f"--ignore={file}" for file in files)


ALONE = _files("storms", "cpu_promises")
CLUSTER_LONG = ("tests/cluster/test_proxy.py", "tests/cluster/test_scale.py")


class Part(NamedTuple):
    """`tests` are the arguments of pytest. Nothing else runs beside a part that `is_alone`. One that `gives_way` has
    the processor time that the others leave, and takes no place of theirs. The time limit is for a machine that hangs,
    so a slow one must not reach it. `usual_seconds` is what it takes on two processors beside the others."""

    name: str
    machine: str
    time_limit_seconds: float
    usual_seconds: float
    tests: tuple[str, ...] = ("tests/kernel",)
    cpus: int = 1
    variables: Mapping[str, str] = MappingProxyType({})
    is_alone: bool = False
    gives_way: bool = False

    @property
    def lane(self) -> str:
        """Of the parts of a lane so many run beside each other as it has places."""
        return "rest" if self.gives_way else "host" if self.machine == "host" else "guests"

    @property
    def needs_kernel(self) -> bool:
        """Fuzzers need neither root nor cgroups."""
        return not any(test.startswith("tests/fuzz") for test in self.tests)

    @property
    def needs_control_plane(self) -> bool:
        return any(test.startswith("tests/cluster") for test in self.tests)


# The host's tests mostly wait, so they are divided among parts that run beside each other. What is named in none of
# these and is no attack is in the part `host`.
HOST_PRESSURE = _files(
    "cpu_live", "disk_pressure", "evictions", "limits_kept", "pid_pressure", "self_protection"
)
HOST_CONTAINERS = _files(
    "barrage", "containers", "crashes", "demos", "figures", "page", "shared_limits_agent"
)

# Of the tests without an agent these need processes, mounts and cgroups of any kernel, and no memory that is short. The
# kernel in user mode runs them for a fraction of what they cost where the processor is emulated.
USER_MODE_OTHERS = _files(
    "container_filesystem",
    "container_volumes",
    "containerd",
    "drivers",
    "entry",
    "ephemeral_containers",
    "journal_disk",
    "oom_scores",
    "process_runtime",
    "process_runtime_user",
    "removal_of_containers",
)

# This one waits for deadlines of the code, and so needs its share of a processor. It mostly sleeps.
FUZZ_STORIES = (
    "tests/fuzz/test_cri_answers.py::"
    "test_a_runtime_that_answers_anything_for_a_while_loses_no_container_and_doubles_none"
)
A_MINUTE_EACH = MappingProxyType({"EVENKEEL_FUZZ_SECONDS": "60"})

# Started in this order: those that take longest come first, so that the last ones end together.
PARTS = (
    Part(
        "fuzz",
        "host",
        1800,
        505,
        ("tests/fuzz", "--deselect", FUZZ_STORIES),
        variables=A_MINUTE_EACH,
        gives_way=True,
    ),
    # Nodes of a real control plane. They mostly wait, too.
    Part("cluster", "host", 3600, 690, ("tests/cluster", *_without(*CLUSTER_LONG))),
    Part(
        "host",
        "host",
        3600,
        700,
        ("tests/kernel", *_without(*HOST_PRESSURE, *HOST_CONTAINERS, *ALONE)),
    ),
    Part("host-pressure", "host", 3600, 420, HOST_PRESSURE),
    Part("host-containers", "host", 3600, 420, HOST_CONTAINERS),
    Part("host-attacks", "host", 3600, 600, ("tests/attacks",)),
    Part("fuzz-stories", "host", 600, 70, (FUZZ_STORIES,), variables=A_MINUTE_EACH),
    # A kernel in user mode runs an agent for less than half of what it costs where the processor is emulated.
    Part("user-mode-agents", "user-mode", 3600, 400, ("tests/kernel", "-m", "agent and not whole_kernel")),
    # One processor: they wait for each other, and a second one that is emulated costs a fifth more (475 s to 402 s).
    Part("v2-agents", "v2", 3600, 400, ("tests/kernel", "tests/attacks", "-m", "agent and whole_kernel")),
    Part(
        "v2-others",
        "v2",
        3600,
        250,
        (
            "tests/kernel",
            "-m",
            "not agent",
            *_without("tests/kernel/test_cpu_promises.py", *USER_MODE_OTHERS),
        ),
        cpus=2,
    ),
    Part("user-mode-attacks", "user-mode", 3600, 300, ("tests/attacks", "-m", "agent and not whole_kernel")),
    Part("systemd", "systemd", 1200, 200),
    Part("user-mode-others", "user-mode", 1800, 70, (*USER_MODE_OTHERS, "-m", "not agent")),
    Part("v1", "v1", 900, 60, _files("huge_pages", "swap", "drivers_v1", "reconcile"), cpus=2),
    # Which pod goes in a storm, and which gets what of a processor, is not to depend on what emulators leave of either.
    Part("host-alone", "host", 900, 90, ALONE, is_alone=True),
    # Of the long tests these storms are short enough to be emulated each time.
    Part(
        "v2-alone",
        "v2",
        900,
        140,
        (*ALONE, "-k", "not cri"),
        cpus=2,
        variables=MappingProxyType({"EVENKEEL_LONG": "1"}),
        is_alone=True,
    ),
)
# Crashes, storms and barrages in a guest as well: most of an hour, so that `make kernel` leaves it out.
LONG = Part(
    "v2-long",
    "v2",
    7200,
    3000,
    ("tests/kernel", "-m", "long"),
    cpus=2,
    variables=MappingProxyType({"EVENKEEL_LONG": "1"}),
)
# With containers as well, on cgroup v2: containerd runs on the kernel in user mode, too.
CONTAINERS = Part(
    "user-mode-containers",
    "user-mode",
    7200,
    1800,
    ("tests/kernel", "-m", "agent and not whole_kernel and not long", "-k", "cri"),
    variables=MappingProxyType({"EVENKEEL_LONG": "1"}),
)
# Tests of the cluster that `make soak` repeats for hours.
CLUSTER_SOAK = Part("cluster-long", "host", 43200, 900, (*CLUSTER_LONG, "-s"))
# Beside the real kubelet, which Go builds once.
KUBELET = Part("kubelet", "host", 3600, 80, ("tests/kubelet", "-s"))
BY_NAME = {part.name: part for part in (*PARTS, LONG, CONTAINERS, CLUSTER_SOAK, KUBELET)}
