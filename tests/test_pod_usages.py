"""Which pods are read for a decision: on files with a kernel's own text."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import Profile
from evenkeel.api.pod import Pod
from evenkeel.policy.eviction.decide import Settings, victim
from evenkeel.policy.eviction.thresholds import Signal
from evenkeel.policy.qos import pod_class
from evenkeel.pressure.memory.sampling import MemorySampler
from evenkeel.pressure.targets import WatchTargets
from tests.eviction_pods import CRITICAL, best_effort, burstable
from tests.models.memory_files import MIB, targets_in, write_v2_memory

GROWTH_MIB = 1000  # a second
SOON_SECONDS = 0.01
GROWN_MIB = int(GROWTH_MIB * SOON_SECONDS)


class Clock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("evenkeel.pressure.memory.pod_usages.time", made)
    return made


def targets_of(directory: Path, *pods: Pod) -> WatchTargets:
    targets = targets_in(directory, 4000, *((pod, 0) for pod in pods))
    return targets._replace(
        pods=tuple(
            one._replace(
                group=(pod_class(one.pod, Profile.DOCUMENTS), one.pod.spec.priority or 0),
                request_bytes=sum(
                    container.resources.requests["memory"].value
                    for container in one.pod.spec.containers
                    if "memory" in container.resources.requests
                ),
            )
            for one in targets.pods
        )
    )


def use(directory: Path, **usages: int) -> None:
    for name, mib in usages.items():
        write_v2_memory(directory / name, mib)


def working_sets(sampler: MemorySampler, now: float) -> dict[str, int]:
    _, snapshot = sampler.snapshot(now)
    return {one.pod.metadata.name: one.stats.memory_working_set_bytes // MIB for one in snapshot.pods}


def first(sampler: MemorySampler, now: float) -> str:
    _, snapshot = sampler.snapshot(now)
    found = victim(Signal.ALLOCATABLE_MEMORY_AVAILABLE, None, snapshot, Settings())
    return "" if found is None else found.pod.metadata.name


@pytest.mark.req("E1")
def test_a_pod_that_cannot_have_become_the_first_is_not_read_again(tmp_path, clock):
    pods = [best_effort(name).pod for name in ("large", "close", "small")]
    sampler = MemorySampler(Profile.DOCUMENTS, GROWTH_MIB * MIB)
    write_v2_memory(tmp_path / "root", 500)
    use(tmp_path, large=200, close=195, small=10)
    sampler.follow(targets_of(tmp_path, *pods))
    assert working_sets(sampler, 1.0) == {"large": 200, "close": 195, "small": 10}
    clock.now += SOON_SECONDS
    use(tmp_path, large=201, close=202, small=11)
    assert working_sets(sampler, 2.0) == {"large": 201, "close": 202, "small": 10}
    assert first(sampler, 3.0) == "close"
    clock.now += 1.0
    assert working_sets(sampler, 4.0) == {"large": 201, "close": 202, "small": 11}
    # A usage that was read meanwhile, and is as before again, is not mistaken for unchanged.
    clock.now += SOON_SECONDS
    use(tmp_path, large=203)
    assert working_sets(sampler, 5.0)["large"] == 203
    clock.now += 1.0
    use(tmp_path, large=201)
    assert working_sets(sampler, 6.0)["large"] == 201
    sampler.close()


@pytest.mark.req("A5", "E1", "E3")
def test_the_victim_is_above_its_request_without_its_cache_whichever_pod_comes_before_it(tmp_path, clock):
    critical = best_effort("critical", priority=CRITICAL).pod
    # Of the same class and priority, and critical by its name only: it does not stand for the others of its class.
    named = burstable("named", None, 10, priority_class_name="system-node-critical").pod
    cached, above = (burstable(name, None, 100).pod for name in ("cached", "above"))
    sampler = MemorySampler(Profile.DOCUMENTS, GROWTH_MIB * MIB)
    write_v2_memory(tmp_path / "root", 2000)
    use(tmp_path, critical=500, named=400, above=120)
    write_v2_memory(tmp_path / "cached", 300, inactive_file=250)
    sampler.follow(targets_of(tmp_path, critical, named, cached, above))
    for now in (1.0, 2.0):
        assert first(sampler, now) == "above"
        clock.now += SOON_SECONDS
    sampler.close()


usage = st.integers(4, 20)  # around the request, and close to each other


@given(
    before=st.lists(usage, min_size=6, max_size=6),
    grown=st.lists(st.integers(-40, GROWN_MIB), min_size=6, max_size=6),
    caches=st.lists(st.sampled_from((0, 0, 0, 5)), min_size=6, max_size=6),
)
@pytest.mark.req("E1", "E2")
def test_the_same_pod_is_the_first_whether_all_were_read_or_only_those_that_may_be(before, grown, caches):
    pods = [(best_effort if number % 2 else burstable)(f"p{number}", None, *([] if number % 2 else [8])).pod
            for number in range(6)]  # fmt: skip
    clock = Clock()
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr("evenkeel.pressure.memory.pod_usages.time", clock)
        directory = Path(name)
        write_v2_memory(directory / "root", 500)
        for number, mib in enumerate(before):
            write_v2_memory(directory / f"p{number}", mib)
        targets = targets_of(directory, *pods)
        looking, reading = (
            MemorySampler(Profile.DOCUMENTS, GROWTH_MIB * MIB),
            MemorySampler(Profile.DOCUMENTS),
        )
        for sampler in (looking, reading):
            sampler.follow(targets)
        first(looking, 1.0)
        clock.now += SOON_SECONDS
        for number, (mib, more, cache) in enumerate(zip(before, grown, caches, strict=True)):
            now = max(mib + more, 0)
            write_v2_memory(directory / f"p{number}", now, inactive_file=min(cache, now))
        assert first(looking, 2.0) == first(reading, 2.0)
        for sampler in (looking, reading):
            sampler.close()


@pytest.mark.req("A15")
def test_a_pod_with_long_queues_of_sockets_is_the_first_whatever_its_cgroup_says(tmp_path, clock):
    pods = [best_effort(name).pod for name in ("large", "close", "queues")]
    sampler = MemorySampler(Profile.DOCUMENTS, GROWTH_MIB * MIB)
    write_v2_memory(tmp_path / "root", 500)
    use(tmp_path, large=200, close=195, queues=1)
    sampler.follow(targets_of(tmp_path, *pods))
    assert first(sampler, 1.0) == "large"
    sampler.count_queues({"queues": 250 * MIB})
    for now in (2.0, 3.0):
        assert first(sampler, now) == "queues"
        clock.now += SOON_SECONDS
    # It counts against a request as well.
    sampler.follow(targets_of(tmp_path, *(burstable(name, None, 220).pod for name in ("large", "queues"))))
    assert first(sampler, 4.0) == "queues"
    sampler.close()
