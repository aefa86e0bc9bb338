"""The samples of the memory watch, on files with a kernel's own text."""

import pytest

from evenkeel.api.config import Profile
from evenkeel.api.scalars import Amount
from evenkeel.cgroup.tree import Version
from evenkeel.host.memory_figures import CgroupMemory, NodeMemory
from evenkeel.policy.eviction.snapshot import MemoryFigures, PodFigures
from evenkeel.policy.eviction.thresholds import Signal, parse_thresholds
from evenkeel.pressure.memory.sampling import MemorySampler, byte_thresholds, levels_crossed
from tests.models.agents import pods_of
from tests.models.memory_files import MIB, PODS, targets_in, write_v1_memory, write_v2_memory


@pytest.mark.req("E3")
def test_cache_that_can_be_dropped_is_not_used_memory_and_cache_to_be_written_is(tmp_path):
    stat = {"inactive_file": 30, "active_file": 10, "file_dirty": 5, "slab_reclaimable": 2, "shmem": 7}
    reading = CgroupMemory(str(write_v2_memory(tmp_path, 100, **stat)), Version.V2).read()
    assert reading.working_set_bytes(Profile.DOCUMENTS) == (100 - 35) * MIB
    assert reading.working_set_bytes(Profile.KUBERNETES) == (100 - 30) * MIB
    assert (reading.reclaimable_bytes, reading.shmem_bytes) == (7 * MIB, 7 * MIB)


def test_on_cgroup_v1_the_figures_count_all_cgroups_below(tmp_path):
    stat = {"total_inactive_file": 40, "total_dirty": 8, "dirty": 1}
    reading = CgroupMemory(str(write_v1_memory(tmp_path, 100, **stat)), Version.V1).read()
    assert reading.working_set_bytes(Profile.DOCUMENTS) == (100 - 32) * MIB


def test_the_machines_available_memory_is_what_the_kernel_says(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\nInactive(file): 50 kB\n")
    assert NodeMemory(Profile.DOCUMENTS, str(meminfo)).read() == MemoryFigures(Amount(614400), Amount(409600))
    assert NodeMemory(Profile.KUBERNETES, str(meminfo)).read().available_bytes == 150 * 1024


@pytest.mark.req("B8", "E3")
def test_cache_that_memory_min_protects_counts_as_used(tmp_path):
    _, web = pods_of(PODS)
    write_v2_memory(tmp_path / "root", 200, inactive_file=80)
    write_v2_memory(tmp_path / "u-web", 60, inactive_file=50)
    sampler = MemorySampler(Profile.DOCUMENTS)
    sampler.follow(targets_in(tmp_path, 400, (web, 64)))
    sample, snapshot = sampler.snapshot(1.0)
    # 80 could be dropped, but 50 of them are of a pod that uses no more than is kept for it.
    assert sample.pods == MemoryFigures(Amount(230 * MIB), Amount(170 * MIB))
    assert snapshot.pods[0].stats == PodFigures(memory_working_set_bytes=Amount(10 * MIB))
    assert sampler.sample(2.0).pods == sample.pods
    # More cache since then may be of the same pod, for all that is known without looking at it.
    write_v2_memory(tmp_path / "root", 220, inactive_file=100)
    assert sampler.sample(3.0).pods == MemoryFigures(Amount(210 * MIB), Amount(190 * MIB))
    sampler.close()


@pytest.mark.req("B16")
def test_a_crossed_threshold_is_over_when_its_minimum_reclaim_is_free_too(tmp_path):
    thresholds = parse_thresholds(
        hard={"memory.available": "10%"},
        minimum_reclaim={"memory.available": "50Mi"},
        enforce_node_allocatable=("pods",),
    )
    own = tuple(one for one in thresholds if one.signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE)
    write_v2_memory(tmp_path / "root", 350)
    sampler = MemorySampler(Profile.DOCUMENTS)
    sampler.follow(targets_in(tmp_path, 400))
    sample = sampler.sample(1.0)
    levels = byte_thresholds(own, sample)
    assert [(level.due_bytes, level.over_bytes) for level in levels] == [(40 * MIB, 90 * MIB)]
    assert levels_crossed(levels, sample, ()) == ()
    assert levels_crossed(levels, sample, own) == own
    sampler.close()


def test_queues_of_sockets_count_as_memory_of_their_pod_and_of_all_pods(tmp_path):
    batch, web = pods_of(PODS)
    write_v2_memory(tmp_path / "root", 60)
    write_v2_memory(tmp_path / "u-batch", 10)
    write_v2_memory(tmp_path / "u-web", 50)
    sampler = MemorySampler(Profile.DOCUMENTS)
    sampler.follow(targets_in(tmp_path, 400, (batch, 0), (web, 0)))
    sampler.snapshot(1.0)
    sampler.count_queues({"u-batch": 200 * MIB, "u-gone": 5 * MIB})
    sample, snapshot = sampler.snapshot(2.0)
    assert sample.pods == MemoryFigures(Amount(140 * MIB), Amount(260 * MIB))
    queued = PodFigures(Amount(10 * MIB), socket_queue_bytes=Amount(200 * MIB))
    assert [one.stats for one in snapshot.pods] == [queued, PodFigures(Amount(50 * MIB))]
    assert [target.uid for target, _ in sampler.above_request(64 * MIB, ())] == ["u-batch", "u-web"]
    sampler.follow(targets_in(tmp_path, 400, (web, 0), (batch, 0)))
    assert sampler.snapshot(3.0)[1].pods[1].stats == queued
    sampler.count_queues({})
    sample, snapshot = sampler.snapshot(4.0)
    assert sample.pods == MemoryFigures(Amount(340 * MIB), Amount(60 * MIB))
    assert snapshot.pods[1].stats == PodFigures(Amount(10 * MIB))
    sampler.close()
