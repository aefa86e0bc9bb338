"""The documents' promises about memory: requests are protected, limits hold, throttling comes before the limit."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.policy.amounts import pod_own_bytes
from tests.kernel import planned
from tests.kernel.cgroups import Cgroup
from tests.kernel.planned import (
    MIB,
    MakeNode,
    SmallNode,
    cached_bytes,
    memory_bytes,
    memory_limit,
    oom_kills,
    pod,
)
from tests.kernel.processes import Program, Spawn
from tests.kernel.waiting import eventually

make_node = planned.make_node


@pytest.fixture
def swap(tmp_path: Path) -> Iterator[None]:
    """96 MiB of swap, for as long as the test runs; in a virtual machine only, for it is the whole machine's."""
    if os.environ["EVENKEEL_MACHINE"] == "host":
        pytest.skip("swap is switched on in virtual machines only")
    file = tmp_path / "swap"
    with file.open("wb") as opened:
        os.posix_fallocate(opened.fileno(), 0, 96 * MIB)
    file.chmod(0o600)
    for command in ("mkswap", "swapon"):
        subprocess.run([command, file], check=True, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        subprocess.run(["swapoff", file], check=True)


def with_cache(node: SmallNode, container: str, path: Path, size_mib: int) -> Program:
    """A program in `container` that has read a file, the cache of which is charged to it."""
    program = node.start(container, "cache", path)
    program.ask(f"write {size_mib * MIB}")
    program.ask("drop")
    assert program.ask("read") == f"read {size_mib * MIB}"
    return program


def await_cached(cgroup: Cgroup, size_bytes: int) -> int:
    """File cache charged to it, once the kernel has counted all of it: it adds up the last pages a moment later."""
    return eventually(lambda: cached if (cached := cached_bytes(cgroup)) >= size_bytes else None)


def stalled_seconds(cgroup: Cgroup) -> float:
    """How long its processes have waited for memory, as the kernel counts (PSI)."""
    some = cgroup.read("memory.pressure").splitlines()[0]
    return int(some.rpartition("total=")[2]) / 1e6


@pytest.mark.cgroup("v1", "v2")
@pytest.mark.req("A5", "C3")
def test_a_container_above_its_memory_limit_is_killed_and_one_within_it_is_not(make_node: MakeNode):
    node = make_node()
    node.apply(pod("p", above="{limits: {memory: 48Mi}}", within="{limits: {memory: 48Mi}}"))
    above, within = node.start("p/above", "memory"), node.start("p/within", "memory")
    assert above.ask(f"allocate {40 * MIB}") == f"allocated {40 * MIB}"
    assert within.ask(f"allocate {40 * MIB}") == f"allocated {40 * MIB}"

    above.tell(f"allocate {16 * MIB}")

    assert above.wait() == -signal.SIGKILL
    assert oom_kills(node.container("p/above")) > 0
    assert within.ask("touch") == f"touched {40 * MIB}"
    assert oom_kills(node.container("p/within")) == 0


@pytest.mark.cgroup("v1", "v2")
@pytest.mark.req("A5")
def test_cache_is_no_reason_to_be_killed(make_node: MakeNode, tmp_path: Path):
    node = make_node()
    node.apply(pod("p", c="{limits: {memory: 32Mi}}"))

    program = with_cache(node, "p/c", tmp_path / "data", 96)

    assert program.is_alive()
    assert oom_kills(node.container("p/c")) == 0
    assert memory_bytes(node.container("p/c")) <= 32 * MIB


@pytest.mark.cgroup("v1", "v2")
@pytest.mark.req("A5", "D2", "D4")
def test_several_containers_may_use_all_they_request_beside_their_pods_infrastructure(
    make_node: MakeNode, tmp_path: Path
):
    """Each to the brim at once, two with cache and one with memory of its own, and the pod has a process as well."""
    node = make_node()
    names = ("first", "second", "third")
    node.apply(pod("p", **dict.fromkeys(names, "{limits: {memory: 24Mi, cpu: 300m}}")))
    held = node.start("p/infrastructure", "memory")
    held.ask("free")
    third = node.start("p/third", "memory")
    third.ask("free")
    full = (24 * MIB - memory_bytes(node.container("p/third"))) // MIB
    assert third.ask(f"allocate {(full - 1) * MIB}")

    cached = [with_cache(node, f"p/{name}", tmp_path / name, 64) for name in names[:2]]

    assert third.ask("touch") == f"touched {(full - 1) * MIB}"
    assert all(program.is_alive() for program in (*cached, held))
    assert [oom_kills(node.container(f"p/{name}")) for name in names] == [0, 0, 0]
    assert memory_bytes(node.pod("p")) > 66 * MIB, "there was need"
    # The pod last: the kernel may give back what it charged ahead at any moment, to a container and its pod at once.
    of_containers = sum(memory_bytes(node.container(f"p/{name}")) for name in names)
    assert memory_bytes(node.pod("p")) - of_containers < pod_own_bytes(4, cpus=1)


@pytest.mark.cgroup("v2")
@pytest.mark.req("A5", "D1")
def test_cache_is_no_reason_to_be_killed_where_a_pods_own_limit_is_all_requested(
    make_node: MakeNode, tmp_path: Path
):
    node = make_node()
    half = "{requests: {memory: 24Mi}}"
    node.apply(pod("p", spec="resources: {limits: {memory: 48Mi}}", a=half, b=half))

    programs = [with_cache(node, f"p/{name}", tmp_path / name, 64) for name in ("a", "b")]

    assert all(program.is_alive() for program in programs)
    assert [oom_kills(node.container(f"p/{name}")) for name in ("a", "b")] == [0, 0]


@pytest.mark.cgroup("v2")
@pytest.mark.req("A5", "C1", "C4")
def test_memory_within_the_request_is_not_reclaimed_for_others(make_node: MakeNode, tmp_path: Path):
    node = make_node(memory_mib=64)
    pods = (pod("keeper", c="{requests: {memory: 24Mi}}"), pod("thrasher", c="{}"))
    node.apply(*pods)
    with_cache(node, "keeper/c", tmp_path / "kept", 16)
    keeper = node.container("keeper/c")
    kept = await_cached(keeper, 16 * MIB)

    thrasher = with_cache(node, "thrasher/c", tmp_path / "thrashed", 80)

    assert node.pods_root.counters("memory.events")["max"] > 0  # there was need
    assert cached_bytes(keeper) >= kept

    # The same need takes the cache away where the request does not protect it.
    node.apply(*pods, feature_gates={"MemoryQoS": False})
    thrasher.ask("read")
    thrasher.ask("read")

    assert cached_bytes(keeper) < kept // 2


@pytest.mark.cgroup("v2")
@pytest.mark.req("A5", "C1")
def test_above_the_request_memory_is_reclaimed_for_others(make_node: MakeNode, tmp_path: Path):
    node = make_node(memory_mib=64)
    node.apply(pod("keeper", c="{requests: {memory: 16Mi}}"), pod("thrasher", c="{}"))
    with_cache(node, "keeper/c", tmp_path / "kept", 40)
    keeper = node.container("keeper/c")

    thrasher = with_cache(node, "thrasher/c", tmp_path / "thrashed", 80)
    thrasher.ask("read")

    assert 16 * MIB * 0.95 <= memory_bytes(keeper) <= 28 * MIB


@pytest.mark.cgroup("v2")
@pytest.mark.req("C1")
def test_every_level_of_the_tree_protects_what_is_requested_below_it(make_node: MakeNode):
    node = make_node(memory_mib=256)
    node.apply(
        pod("promised", c="{limits: {cpu: 100m, memory: 64Mi}}"),
        pod("burstable", a="{requests: {memory: 32Mi}}", b="{requests: {memory: 16Mi}}"),
        pod("scavenger", c="{}"),
    )

    protected = {
        "root": node.root,
        "pods": node.pods_root,
        "promised": node.pod("promised"),
        "burstable branch": node.branch("Burstable"),
        "burstable": node.pod("burstable"),
        "burstable/a": node.container("burstable/a"),
        "best-effort branch": node.branch("BestEffort"),
        "scavenger": node.pod("scavenger"),
    }
    assert {name: int(cgroup.read("memory.min")) // MIB for name, cgroup in protected.items()} == {
        "root": 112,
        "pods": 112,
        "promised": 64,
        "burstable branch": 48,
        "burstable": 48,
        "burstable/a": 32,
        "best-effort branch": 0,
        "scavenger": 0,
    }


@pytest.mark.cgroup("v2")
@pytest.mark.req("C2")
def test_an_allocator_above_the_throttling_mark_is_slowed_and_not_killed(make_node: MakeNode):
    node = make_node()
    node.apply(pod("p", c="{requests: {memory: 16Mi}, limits: {memory: 64Mi}}"))
    container = node.container("p/c")
    high = 64 * MIB * 8 // 10 // 4096 * 4096
    assert int(container.read("memory.high")) == high
    program = node.start("p/c", "memory")
    program.ask(f"allocate {48 * MIB}")
    assert container.counters("memory.events")["high"] == 0
    stalled = stalled_seconds(container)

    program.tell(f"allocate {8 * MIB}")  # would take most of a minute, so much is it slowed

    eventually(lambda: stalled_seconds(container) > stalled + 0.5)
    assert container.counters("memory.events")["high"] > 0
    assert high < memory_bytes(container) < 56 * MIB
    assert program.is_alive()
    assert oom_kills(container) == 0


@pytest.mark.cgroup("v2")
@pytest.mark.req("C2")
def test_cache_is_reclaimed_at_the_throttling_mark(make_node: MakeNode, tmp_path: Path):
    node = make_node()
    node.apply(pod("p", c="{requests: {memory: 16Mi}, limits: {memory: 64Mi}}"))
    container = node.container("p/c")

    with_cache(node, "p/c", tmp_path / "data", 80)

    assert container.counters("memory.events")["high"] > 0
    assert container.counters("memory.events")["max"] == 0  # the limit was never met
    assert memory_bytes(container) <= int(container.read("memory.high")) * 1.05


@pytest.mark.cgroup("v2")
@pytest.mark.req("C2", "C4")
def test_a_throttled_allocator_goes_on_when_memory_qos_is_switched_off(make_node: MakeNode):
    node = make_node()
    manifest = pod("p", c="{requests: {memory: 16Mi}, limits: {memory: 64Mi}}")
    node.apply(manifest)
    container = node.container("p/c")
    program = node.start("p/c", "memory")
    program.tell(f"allocate {60 * MIB}")  # would take most of a minute
    eventually(lambda: container.counters("memory.events")["high"] > 0)

    node.apply(manifest, feature_gates={"MemoryQoS": False})

    assert program.answer() == f"allocated {60 * MIB}"
    assert (container.read("memory.min"), container.read("memory.high")) == ("0", "max")
    assert memory_limit(container) == 64 * MIB

    node.apply(manifest, feature_gates={"MemoryQoS": True})

    assert int(container.read("memory.min")) == 16 * MIB
    assert int(container.read("memory.high")) < 52 * MIB
    assert program.is_alive()


@pytest.mark.cgroup("v1")
@pytest.mark.req("D6")
def test_the_soft_limit_is_the_request(make_node: MakeNode):
    node = make_node()
    node.apply(pod("p", asks="{requests: {memory: 24Mi}, limits: {memory: 64Mi}}", silent="{}"))

    assert int(node.container("p/asks").read("memory.soft_limit_in_bytes")) == 24 * MIB
    assert int(node.container("p/silent").read("memory.soft_limit_in_bytes")) >= 1 << 60  # none


@pytest.mark.cgroup("v1", "v2")
@pytest.mark.req("A18")
def test_containers_with_a_guarantee_are_kept_from_swap_where_it_may_be_on(make_node: MakeNode):
    node = make_node(fail_swap_on=False)
    node.apply(
        pod("promised", c="{limits: {memory: 32Mi, cpu: 100m}}"),
        pod("burstable", c="{requests: {memory: 8Mi}, limits: {memory: 24Mi}}"),
        pod("unlimited", c="{requests: {memory: 8Mi}}"),
        pod("scavenger", c="{}"),
    )
    promised, burstable, unlimited, scavenger = (
        node.container(f"{name}/c") for name in ("promised", "burstable", "unlimited", "scavenger")
    )
    if promised.has("memory.swap.max"):
        every = (promised, burstable, unlimited, scavenger)
        assert [each.read("memory.swap.max") for each in every] == ["0", "0", "0", "max"]
    else:  # of v1's two limits one is on memory and swap together
        both = "memory.memsw.limit_in_bytes"
        assert [int(each.read(both)) // MIB for each in (promised, burstable)] == [32, 24]
        assert int(scavenger.read(both)) >= 1 << 60
        assert [each.read("memory.swappiness") for each in (promised, burstable, unlimited)] == ["0"] * 3
        assert scavenger.read("memory.swappiness") == node.pod("scavenger").read("memory.swappiness") != "0"


@pytest.mark.cgroup("v2")
@pytest.mark.req("A18")
@pytest.mark.usefixtures("swap")
def test_with_swap_on_best_effort_is_swapped_out_and_guaranteed_memory_is_not(make_node: MakeNode):
    # Without MemoryQoS: memory.min would keep swap away as well, but only within the request.
    node = make_node(memory_mib=64, fail_swap_on=False, feature_gates={"MemoryQoS": False})
    node.apply(pod("burstable", c="{requests: {memory: 8Mi}}"), pod("scavenger", c="{}"))
    burstable, scavenger = (node.start(f"{name}/c", "memory") for name in ("burstable", "scavenger"))
    burstable.ask(f"allocate {24 * MIB}")

    assert scavenger.ask(f"allocate {72 * MIB}") == f"allocated {72 * MIB}"

    assert int(node.container("scavenger/c").read("memory.swap.current")) > 16 * MIB
    assert int(node.container("burstable/c").read("memory.swap.current")) == 0
    assert burstable.ask("touch") == f"touched {24 * MIB}"


@pytest.mark.cgroup("v1", "v2")
@pytest.mark.req("E8", "B4")
@pytest.mark.parametrize("protect_only", [True, False])
def test_a_reservation_caps_its_daemons_unless_it_is_only_to_protect_them(
    make_node: MakeNode, cgroup_root: Cgroup, spawn: Spawn, protect_only: bool
):
    node = reserving_node(make_node, cgroup_root, reserved_protect_only=protect_only)
    daemons = cgroup_root.child("daemons")
    node.apply()
    assert memory_limit(daemons) == (None if protect_only else 32 * MIB)
    if daemons.has("memory.min"):
        assert int(daemons.read("memory.min")) == 32 * MIB
    daemon = spawn("memory", cgroup=daemons)

    daemon.tell(f"allocate {48 * MIB}")

    if protect_only:
        assert daemon.answer() == f"allocated {48 * MIB}"
    else:
        assert daemon.wait() == -signal.SIGKILL


@pytest.mark.cgroup("v2")
@pytest.mark.req("E8", "C1")
def test_what_is_reserved_is_not_reclaimed_for_pods(
    make_node: MakeNode, cgroup_root: Cgroup, spawn: Spawn, tmp_path: Path
):
    node = reserving_node(make_node, cgroup_root, reserved_protect_only=True)
    daemons = cgroup_root.child("daemons")
    node.apply(pod("thrasher", c="{}"), pod("other", c="{}"))
    daemon = spawn("cache", tmp_path / "kept", cgroup=daemons)
    daemon.ask(f"write {28 * MIB}")
    kept = await_cached(daemons, 28 * MIB)

    for name in ("thrasher", "other"):  # each may have what is allocatable
        with_cache(node, f"{name}/c", tmp_path / name, 64)

    assert node.root.counters("memory.events")["max"] > 0  # there was need
    assert cached_bytes(daemons) >= kept


def reserving_node(make_node: MakeNode, root: Cgroup, **settings: bool) -> SmallNode:
    """A node that reserves 32 MiB for the daemons in a cgroup of theirs, and nothing holds its pods back from."""
    return make_node(
        memory_mib=80,
        memory_throttling_factor=1.0,
        system_reserved={"memory": "32Mi"},
        system_reserved_cgroup=f"/{root.paths()[0].name}/daemons",
        enforce_node_allocatable=("system-reserved",),
        **settings,
    )
