"""The documents' promises when memory runs out: which processes are killed, which survive, and what a kill covers."""

import signal
from pathlib import Path

import pytest

from tests.kernel import planned
from tests.kernel.cgroups import Cgroup
from tests.kernel.planned import (
    MIB,
    MakeNode,
    SmallNode,
    memory_bytes,
    memory_limit,
    oom_kills,
    peak_bytes,
    pod,
)
from tests.kernel.processes import Program, Spawn
from tests.kernel.waiting import eventually

make_node = planned.make_node
shared_directory = planned.shared_directory


def oom_score_adj(program: Program) -> int:
    return int(Path(f"/proc/{program.pid}/oom_score_adj").read_text())


@pytest.mark.cgroup("v1", "v2")
@pytest.mark.req("A12")
def test_processes_start_with_the_score_of_their_container(make_node: MakeNode):
    node = make_node(memory_mib=256)
    node.apply(
        pod("burstable", small="{requests: {memory: 16Mi}}", large="{requests: {memory: 64Mi}}", none="{}"),
        pod("scavenger", c="{}"),
    )
    names = ("burstable/small", "burstable/large", "burstable/none", "scavenger/c")
    programs = {name: node.start(name, "memory") for name in names}
    for program in programs.values():
        program.ask("free")

    assert {name: oom_score_adj(program) for name, program in programs.items()} == {
        "burstable/small": 1000 - 62,
        "burstable/large": 1000 - 250,
        "burstable/none": 1000,
        "scavenger/c": 1000,
    }


@pytest.mark.cgroup("v2")
@pytest.mark.req("A12")
def test_guaranteed_containers_and_pod_infrastructure_start_with_a_negative_score(make_node: MakeNode):
    node = make_node()
    node.apply(pod("promised", c="{limits: {memory: 16Mi, cpu: 100m}}"))
    for name in ("promised/c", "promised/infrastructure"):
        program = node.start(name, "memory")
        program.ask("free")
        assert oom_score_adj(program) == -999


@pytest.mark.cgroup("v1", "v2")
@pytest.mark.req("A16", "B8")
def test_all_pods_together_stay_within_the_limit_of_their_root_and_others_survive(
    make_node: MakeNode, cgroup_root: Cgroup, spawn: Spawn
):
    node = make_node(memory_mib=192, system_reserved={"memory": "64Mi"}, memory_throttling_factor=1.0)
    node.apply(*(pod(name, c="{}") for name in ("a", "b", "c")))
    assert memory_limit(node.pods_root) == 128 * MIB
    outside = spawn("memory", cgroup=cgroup_root.child("daemon"))  # with the score that every process has: 0
    outside.ask(f"allocate {48 * MIB}")
    programs = [node.start(f"{name}/c", "memory") for name in ("a", "b", "c")]
    programs[2].give_way()  # to whoever is killed for it, until all of that memory is back (see `holding`)

    for program in programs:  # each fits, and two of them together
        assert program.ask(f"allocate {56 * MIB}") == f"allocated {56 * MIB}"

    assert peak_bytes(node.pods_root) <= 128 * MIB
    eventually(lambda: [program.is_alive() for program in programs].count(False) == 1)
    assert outside.ask("touch") == f"touched {48 * MIB}"
    assert programs[2].ask("touch") == f"touched {56 * MIB}"


PROCESSES = 4


def holding(node: SmallNode, **sizes_mib: int) -> dict[str, list[Program]]:
    """Programs in the container of each pod, with that much memory together.

    Several: a process that ends is no longer waited for shortly before its last pages are free (exit_mmap sets
    MMF_OOM_SKIP, and frees what it gathered after that). On a slow machine with one processor whoever is short of
    memory may run in between, and would have the next pod killed were this one's only process that far.
    """
    programs = {name: [node.start(f"{name}/c", "memory") for _ in range(PROCESSES)] for name in sizes_mib}
    for name, size in sizes_mib.items():
        for program in programs[name]:
            program.ask(f"allocate {size * MIB // PROCESSES}")
    return programs


def killed(programs: dict[str, list[Program]]) -> set[str]:
    return {name for name, some in programs.items() if not all(program.is_alive() for program in some)}


def touched_mib(programs: list[Program]) -> int:
    return sum(int(program.ask("touch").removeprefix("touched ")) for program in programs) // MIB


@pytest.mark.cgroup("v1", "v2")
@pytest.mark.req("A5", "A12")
def test_best_effort_is_killed_first_then_burstable_above_its_request_and_no_pod_within_it(
    make_node: MakeNode, shared_directory: Path
):
    node = make_node(memory_mib=192, memory_throttling_factor=1.0)
    node.apply(
        pod("scavenger", c="{}"),
        pod("greedy", c="{requests: {memory: 8Mi}}"),
        pod("modest", c="{requests: {memory: 48Mi}}"),
        pod("filler", c="{requests: {memory: 120Mi}}"),
        pod("promised", c="{limits: {memory: 16Mi, cpu: 100m}}"),
    )
    programs = holding(node, scavenger=48, greedy=40, modest=32, promised=12)

    # The filler takes up to what it requested, in files: one process with much memory would only be killed itself.
    for size, dead in ((44, set()), (36, {"scavenger"}), (38, {"scavenger", "greedy"})):
        filler = node.start("filler/c", "cache", shared_directory / str(size))
        assert filler.ask(f"write {size * MIB}") == f"wrote {size * MIB}"
        eventually(lambda dead=dead: killed(programs) == dead)

    assert memory_bytes(node.pod("filler")) <= 120 * MIB
    assert touched_mib(programs["modest"]) == 32
    assert touched_mib(programs["promised"]) == 12


@pytest.mark.cgroup("v2")
@pytest.mark.req("A12")
def test_if_no_pod_is_above_its_request_burstable_is_killed_before_guaranteed(
    make_node: MakeNode, cgroup_root: Cgroup, spawn: Spawn, shared_directory: Path
):
    # More than is reserved is used outside of pods, where nothing can be killed to get it back: files in memory.
    node = make_node(memory_mib=112, enforce_node_allocatable=(), memory_throttling_factor=1.0)
    node.apply(
        pod("modest", c="{requests: {memory: 48Mi}}"),
        pod("promised", c="{limits: {memory: 48Mi, cpu: 100m}}"),
    )
    programs = holding(node, modest=24, promised=40)

    daemon = spawn("cache", shared_directory / "file", cgroup=cgroup_root.child("daemon"))
    assert (
        daemon.ask(f"write {68 * MIB}") == f"wrote {68 * MIB}"
    )  # 4 MiB more than there is, and what the kernel needs

    eventually(lambda: killed(programs) == {"modest"})
    assert touched_mib(programs["promised"]) == 40


@pytest.mark.cgroup("v2")
@pytest.mark.req("A19")
def test_a_container_is_killed_whole_and_its_neighbours_in_the_pod_are_not(make_node: MakeNode):
    node = make_node()
    node.apply(pod("p", c="{limits: {memory: 32Mi}}", neighbour="{limits: {memory: 32Mi}}"))
    bystander, eater, neighbour = (node.start(f"p/{name}", "memory") for name in ("c", "c", "neighbour"))
    bystander.ask(f"allocate {2 * MIB}")
    neighbour.ask(f"allocate {2 * MIB}")

    eater.tell(f"allocate {40 * MIB}")

    assert eater.wait() == -signal.SIGKILL
    assert bystander.wait() == -signal.SIGKILL
    assert neighbour.ask("touch") == f"touched {2 * MIB}"
    assert node.container("p/c").counters("memory.events")["oom_group_kill"] == 1


@pytest.mark.cgroup("v2")
@pytest.mark.req("A19", "A16")
def test_a_container_is_killed_whole_also_where_all_pods_together_have_too_much(make_node: MakeNode):
    node = make_node(memory_mib=96, memory_throttling_factor=1.0)
    node.apply(pod("scavenger", c="{}"), pod("burstable", c="{requests: {memory: 64Mi}}"))
    whole = [node.start("scavenger/c", "memory") for _ in range(3)]
    for program in whole:
        program.ask(f"allocate {12 * MIB}")

    burstable = node.start("burstable/c", "memory")

    assert burstable.ask(f"allocate {64 * MIB}") == f"allocated {64 * MIB}"
    assert [program.wait() for program in whole] == [-signal.SIGKILL] * 3


@pytest.mark.cgroup("v2")
@pytest.mark.req("E5", "A19")
@pytest.mark.parametrize("node_wide", [True, False])
def test_what_an_oom_kill_takes_is_a_containers_own_choice(make_node: MakeNode, node_wide: bool):
    node = make_node(oom_group_kill=node_wide)
    other = "process" if node_wide else "container"
    node.apply(
        pod(
            "p",
            annotations=f"{{evenkeel.dev/oom-kill.chooses: {other}}}",
            chooses="{limits: {memory: 24Mi}}",
            follows="{limits: {memory: 24Mi}}",
        )
    )
    survives = {}
    for name in ("chooses", "follows"):
        bystander, eater = (node.start(f"p/{name}", "memory") for _ in range(2))
        bystander.ask(f"allocate {2 * MIB}")
        eater.tell(f"allocate {32 * MIB}")
        assert eater.wait() == -signal.SIGKILL
        kills = oom_kills(node.container(f"p/{name}"))
        survives[name] = kills == 1 and bystander.ask("touch") == f"touched {2 * MIB}"
        if not survives[name]:
            assert bystander.wait() == -signal.SIGKILL

    assert survives == {"chooses": node_wide, "follows": not node_wide}
