"""The documents' promises about CPU: shares by request, limits, fair sharing, exclusive cores, burst.

What is asserted are proportions of the processor time that the kernel says cgroups had. They hold however busy the
machine is otherwise; a busy machine only takes longer to hand out as much time as they are measured over.
"""

import os
import time
from pathlib import Path

import pytest

from evenkeel.api.scalars import Duration
from tests.kernel import planned
from tests.kernel.cgroups import Cgroup
from tests.kernel.planned import LIMITED_SECONDS, MakeNode, cpu_quota, cpu_seconds, pod, throttles
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("v1", "v2")
make_node = planned.make_node

# Seconds of processor time: some hundred turns for each process. An emulated machine needs more: while the emulator
# waits for a processor, the kernel charges that time to the process that was running.
MEASURED_SECONDS = 4.0 if os.environ.get("EVENKEEL_MACHINE") == "host" else 8.0
WARM_UP_SECONDS = 0.1  # of each
AT_ONCE_SECONDS = 0.005 if os.environ.get("EVENKEEL_MACHINE") == "host" else 0.05
PATIENCE_SECONDS = 180.0


def used_by_now(cgroups: list[Cgroup]) -> list[float]:
    """The processor time of each cgroup, read at one moment. If the reader is interrupted between two reads, it reads
    all again."""

    def read_at_once() -> list[float]:
        began = time.monotonic()
        used = [cpu_seconds(cgroup) for cgroup in cgroups]
        return used if time.monotonic() - began < AT_ONCE_SECONDS else []

    return eventually(read_at_once, within_seconds=PATIENCE_SECONDS)


def wait_for_use(cgroups: list[Cgroup], seconds: float) -> list[float]:
    """What each has used by the time that they have used `seconds` together."""
    before = used_by_now(cgroups)
    deadline = time.monotonic() + PATIENCE_SECONDS
    used = [0.0]
    while sum(used) < seconds:
        assert time.monotonic() < deadline, f"{used} s of processor time within {PATIENCE_SECONDS:g} s"
        time.sleep(seconds / 20)  # looking takes processor time too
        used = [now - start for now, start in zip(used_by_now(cgroups), before, strict=True)]
        # A report of a failure shows it: whether one went short once, or all the time.
        print(f"{time.monotonic():.3f} used {' '.join(f'{each:.4f}' for each in used)} s")
    return used


def settle(cgroups: list[Cgroup]) -> None:
    """Waits until each has had its turns. A newcomer may begin with a debt: as long as the kernel does not know its
    load, its weight is small, and its first turns count as long ones. Half a second without any was seen."""
    before = used_by_now(cgroups)
    eventually(
        lambda: all(
            now - start > WARM_UP_SECONDS for now, start in zip(used_by_now(cgroups), before, strict=True)
        ),
        within_seconds=PATIENCE_SECONDS,
    )


def proportions(*cgroups: Cgroup) -> list[float]:
    """How busy cgroups divide among themselves what they get."""
    used = wait_for_use(list(cgroups), MEASURED_SECONDS)
    return [each / sum(used) for each in used]


def settled_proportions(*cgroups: Cgroup) -> list[float]:
    settle(list(cgroups))
    return proportions(*cgroups)


def idle_seconds(cpu: int) -> float:
    """How long the processor has had nothing to do."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *times = line.split()
        if name == f"cpu{cpu}":
            return (int(times[3]) + int(times[4])) / os.sysconf("SC_CLK_TCK")
    raise AssertionError(f"there is no cpu{cpu}")


@pytest.mark.req("A4", "A11")
def test_two_pods_split_all_of_a_processor_in_proportion_to_their_requests(make_node: MakeNode):
    node = make_node()
    node.apply(pod("much", c="{requests: {cpu: 600m}}"), pod("less", c="{requests: {cpu: 300m}}"))
    for name in ("much/c", "less/c"):
        node.start(name, "spin").answer()
    idle, began = idle_seconds(0), time.monotonic()

    much, less = settled_proportions(node.pod("much"), node.pod("less"))

    assert much / less == pytest.approx(2, rel=0.05)
    # The last tenth, which no pod requested, is used as well.
    assert idle_seconds(0) - idle < 0.05 * (time.monotonic() - began)


@pytest.mark.req("A4", "A11")
def test_pods_of_different_classes_split_a_processor_by_request_and_best_effort_gets_a_sliver(
    make_node: MakeNode,
):
    node = make_node(cpu_cfs_quota=False)  # or the Guaranteed one would stop at its limit
    node.apply(
        pod("promised", c="{limits: {cpu: 600m, memory: 16Mi}}"),
        pod("burstable", c="{requests: {cpu: 300m}}"),
        pod("scavenger", c="{}"),
    )
    # A pod with more processes gets no more of the processor.
    programs = []
    for name in ("scavenger/c", "scavenger/c", "scavenger/c", "promised/c", "burstable/c"):
        programs.append(node.start(name, "spin"))
        programs[-1].answer()  # beside the others a scavenger would hardly get to say it

    settle([node.pod("promised"), node.pod("burstable")])  # a sliver takes too long to add up
    promised, burstable, scavenger = proportions(*map(node.pod, ("promised", "burstable", "scavenger")))

    assert promised / burstable == pytest.approx(2, rel=0.05)
    assert scavenger < 0.02
    for program in reversed(programs):  # nor would it get to die
        program.kill()


@pytest.mark.req("A4")
def test_a_container_is_throttled_at_its_limit(make_node: MakeNode):
    node = make_node()
    node.apply(pod("limited", c="{requests: {cpu: 50m}, limits: {cpu: 200m}}"))
    limited = node.container("limited/c")
    node.start("limited/c", "spin").answer()
    eventually(lambda: throttles(limited) > 0, within_seconds=PATIENCE_SECONDS)
    # The clock is read before and after the usage, so an interruption of the reader cannot make the time too short.
    began, throttled, before = time.monotonic(), throttles(limited), cpu_seconds(limited)

    time.sleep(LIMITED_SECONDS)  # the measurement

    used, passed = cpu_seconds(limited) - before, time.monotonic() - began
    assert used <= 0.2 * passed * 1.05
    # On a busy machine it may get less than its limit for a while.
    eventually(lambda: throttles(limited) > throttled, within_seconds=PATIENCE_SECONDS)


@pytest.mark.req("A4")
def test_a_container_without_a_limit_uses_what_is_idle(make_node: MakeNode):
    node = make_node()
    node.apply(pod("free", c="{requests: {cpu: 50m}}"))
    free = node.container("free/c")
    node.start("free/c", "spin").answer()
    idle, before, began = idle_seconds(0), cpu_seconds(free), time.monotonic()

    wait_for_use([free], 2.0)

    passed = time.monotonic() - began
    assert cpu_quota(free) is None
    assert throttles(free) == 0
    assert idle_seconds(0) - idle < 0.05 * passed
    assert cpu_seconds(free) - before > 2 * 0.05 * passed


@pytest.mark.req("A21")
def test_fair_sharing_gives_each_its_request_and_an_equal_part_of_the_rest(make_node: MakeNode):
    node = make_node(fair_cpu_sharing=True)
    node.apply(pod("requester", c="{requests: {cpu: 500m}}"), pod("scavenger", c="{}"))
    for name in ("requester/c", "scavenger/c"):
        node.start(name, "spin").answer()

    requester, scavenger = settled_proportions(node.pod("requester"), node.pod("scavenger"))

    assert requester == pytest.approx(0.75, rel=0.05)
    assert scavenger == pytest.approx(0.25, rel=0.05)


@pytest.mark.req("A21")
def test_fair_sharing_goes_on_among_the_containers_of_a_pod(make_node: MakeNode):
    node = make_node(fair_cpu_sharing=True)
    node.apply(pod("p", asks="{requests: {cpu: 500m}}", silent="{}"))
    for name in ("p/asks", "p/silent"):
        node.start(name, "spin").answer()

    assert settled_proportions(node.container("p/asks"), node.container("p/silent")) == [
        pytest.approx(0.75, rel=0.05),
        pytest.approx(0.25, rel=0.05),
    ]


@pytest.mark.req("A21")
def test_fair_shares_follow_as_pods_come_and_go(make_node: MakeNode):
    node = make_node(fair_cpu_sharing=True)
    requester, scavenger, other = (
        pod("requester", c="{requests: {cpu: 500m}}"),
        pod("scavenger", c="{}"),
        pod("other", c="{}"),
    )
    node.apply(requester, scavenger, other)
    for name in ("other/c", "scavenger/c", "requester/c"):
        node.start(name, "spin").answer()
    sixth = 1 / 6

    assert settled_proportions(*map(node.pod, ("requester", "scavenger", "other"))) == [
        pytest.approx(0.5 + sixth, rel=0.05),
        pytest.approx(sixth, rel=0.05),
        pytest.approx(sixth, rel=0.05),
    ]

    node.apply(requester, scavenger)

    assert settled_proportions(node.pod("requester"), node.pod("scavenger")) == [
        pytest.approx(0.75, rel=0.05),
        pytest.approx(0.25, rel=0.05),
    ]


@pytest.mark.req("A23")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one processor: none can be anybody's own")
def test_whole_core_containers_have_cores_of_their_own_and_no_quota(make_node: MakeNode):
    node = make_node(cpus=2, cpu_manager_policy="static")
    node.apply(
        pod("pinned", c="{limits: {cpu: 1, memory: 16Mi}}"),
        pod("fraction", c="{limits: {cpu: 500m, memory: 16Mi}}"),
        pod("scavenger", c="{}"),
    )
    names = ("pinned/c", "fraction/c", "scavenger/c")
    programs = {name: node.start(name, "spin") for name in names}
    for program in programs.values():
        program.answer()

    assert {name: os.sched_getaffinity(programs[name].pid) for name in names} == {
        "pinned/c": {1},
        "fraction/c": {0},
        "scavenger/c": {0},
    }
    pinned = node.container("pinned/c")
    assert cpu_quota(pinned) is None
    assert cpu_quota(node.container("fraction/c")) == 0.5
    wait_for_use([pinned], 1.0)
    assert throttles(pinned) == 0
    assert throttles(node.pod("pinned")) == 0


@pytest.mark.req("A23", "E10")
@pytest.mark.parametrize("percent", [0, 100])
def test_time_saved_in_idle_periods_may_be_used_at_once_where_burst_is_on(make_node: MakeNode, percent: int):
    # The longest period there is, so that turns of others and the ticks of a slow machine's clock are small beside it.
    node = make_node(cpu_burst=percent, cpu_cfs_quota_period=Duration(10**9))
    node.apply(pod("limited", c="{requests: {cpu: 50m}, limits: {cpu: 100m}}"))
    limited = node.container("limited/c")
    burst = "cpu.max.burst" if limited.has("cpu.max.burst") else "cpu.cfs_burst_us"
    assert int(limited.read(burst)) == 100_000 * percent // 100
    program = node.start("limited/c", "work")

    def periods() -> int:
        return limited.counters("cpu.stat")["nr_periods"]

    def was_within_a_period() -> bool:
        """A quota and a half was used, or refused, in one period; on a busy machine it may take longer than one, and
        says nothing then. With burst there are two."""
        before = periods()
        while periods() == before:  # to begin with a new one
            program.ask("work 200")  # periods are counted while somebody works
            time.sleep(0.02)
        began = periods()
        program.ask("work 150000")
        return throttles(limited) > 0 or periods() == began

    eventually(was_within_a_period, within_seconds=PATIENCE_SECONDS)
    assert (throttles(limited) > 0) == (percent == 0)
