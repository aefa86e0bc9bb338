"""Memory of killed pods that is still to be freed."""

import errno
from pathlib import Path

import pytest

from evenkeel.api.config import Profile
from evenkeel.cgroup.tree import Version
from evenkeel.host.memory_figures import CgroupMemory
from evenkeel.pressure.memory.pending_memory import PendingMemory
from tests.models.agents import pods_of
from tests.models.memory_files import MIB, PODS, targets_in, with_memory_volume, write_v2_memory


@pytest.mark.req("E2")
def test_pending_memory_counts_as_available_until_nothing_is_freed_any_more(tmp_path):
    batch, _ = pods_of(PODS)
    reported = []
    pending = PendingMemory(Profile.DOCUMENTS, lambda *what: reported.append(what))
    target = targets_in(tmp_path, 400, (batch, 0)).pods[0]
    write_v2_memory(tmp_path / "u-batch", 100)
    pending.killed(target, Version.V2, 10.0)
    assert pending.pending_bytes(10.1) == 100 * MIB
    write_v2_memory(tmp_path / "u-batch", 40)
    assert pending.pending_bytes(10.2) == 40 * MIB
    assert pending.killed_uids() == {"u-batch"}
    assert pending.pending_bytes(11.1) == 40 * MIB
    assert pending.pending_bytes(11.3) == 0  # nothing came for more than a second
    assert pending.killed_uids() == {"u-batch"}
    assert reported == []


def killed_with_volume(tmp_path: Path) -> PendingMemory:
    """A pod was killed at 10.0 that used 100 MiB, 60 of them in a volume."""
    batch, _ = pods_of(PODS)
    pending = PendingMemory(Profile.DOCUMENTS, lambda *_: None)
    write_v2_memory(tmp_path / "u-batch", 100, shmem=60)
    target = targets_in(tmp_path, 400, (with_memory_volume(batch), 0)).pods[0]
    pending.killed(target, Version.V2, 10.0)
    return pending


@pytest.mark.req("E2")
def test_memory_in_volumes_counts_as_available_while_they_may_be_emptied(tmp_path):
    batch, web = pods_of(PODS)
    batch = with_memory_volume(batch)
    reported = []
    pending = PendingMemory(Profile.DOCUMENTS, lambda *what: reported.append(what))
    for target in targets_in(tmp_path, 400, (batch, 0), (web, 0)).pods:
        write_v2_memory(tmp_path / target.uid, 100, shmem=60)
        pending.killed(target, Version.V2, 10.0)
    assert pending.pending_bytes(10.9) == 200 * MIB
    # By now the processes should have ended. Without a volume what they share would be back with them.
    assert pending.pending_bytes(12.9) == 60 * MIB
    assert pending.in_volumes_bytes == 60 * MIB
    write_v2_memory(tmp_path / "u-batch", 2)
    assert pending.pending_bytes(13.0) == 2 * MIB
    assert [target.uid for target, *_ in reported] == ["u-batch"]
    assert pending.pending_bytes(14.1) == 0
    assert not pending.is_any_killed


@pytest.mark.req("E2")
def test_volumes_that_are_not_emptied_stop_counting_after_a_while(tmp_path):
    pending = killed_with_volume(tmp_path)
    assert pending.pending_bytes(13.1) == 0
    assert not pending.is_any_killed
    assert pending.in_volumes_bytes == 0


@pytest.mark.req("E2")
@pytest.mark.parametrize("is_emptied_first", [True, False])
def test_emptied_volumes_are_not_counted_twice_when_the_pods_cgroup_is_gone(
    tmp_path, monkeypatch, is_emptied_first
):
    def gone(_: CgroupMemory) -> None:
        raise OSError(errno.ENODEV, "no such device")

    pending = killed_with_volume(tmp_path)
    if is_emptied_first:
        pending.emptied("u-batch")
    monkeypatch.setattr(CgroupMemory, "read", gone)
    assert pending.pending_bytes(10.1) == (0 if is_emptied_first else 60 * MIB)
    pending.emptied("u-batch")
    assert pending.pending_bytes(10.2) == 0
    assert not pending.is_any_killed


@pytest.mark.req("A20", "E16")
def test_a_pod_may_come_back_and_be_evicted_again(tmp_path):
    """Also where something of it stays in its cgroup after it has left, as a container runtime's sandbox does."""
    batch, _ = pods_of(PODS)
    pending = PendingMemory(Profile.DOCUMENTS, lambda *_: None)
    target = targets_in(tmp_path, 400, (batch, 0)).pods[0]
    write_v2_memory(tmp_path / "u-batch", 100)
    pending.follow({"u-batch"})
    pending.killed(target, Version.V2, 10.0)
    pending.follow(set())
    write_v2_memory(tmp_path / "u-batch", 1)
    pending.pending_bytes(10.1)
    pending.pending_bytes(12.0)
    pending.follow({"u-batch"})
    assert pending.killed_uids() == set()


@pytest.mark.req("E2")
def test_freed_memory_is_reported_with_the_time_it_took(tmp_path):
    batch, _ = pods_of(PODS)
    reported = []
    pending = PendingMemory(Profile.DOCUMENTS, lambda *what: reported.append(what))
    write_v2_memory(tmp_path / "u-batch", 100)
    target = targets_in(tmp_path, 400, (batch, 0)).pods[0]
    pending.killed(target, Version.V2, 10.0)
    write_v2_memory(tmp_path / "u-batch", 2)
    pending.pending_bytes(10.5)
    assert reported == [(target, 100 * MIB, 0.5)]


@pytest.mark.req("E2")
def test_queues_of_a_killed_pod_count_as_available_until_a_moment_after_its_last_process(tmp_path):
    batch, _ = pods_of(PODS)
    pending = PendingMemory(Profile.DOCUMENTS, lambda *_: None)
    target = targets_in(tmp_path, 400, (batch, 0)).pods[0]
    write_v2_memory(tmp_path / "u-batch", 10)
    (tmp_path / "u-batch" / "cgroup.procs").write_text("10\n")
    pending.killed(target, Version.V2, 10.0, 200 * MIB)
    assert pending.pending_bytes(10.3) == 210 * MIB
    (tmp_path / "u-batch" / "cgroup.procs").write_text("")
    write_v2_memory(tmp_path / "u-batch", 1)
    assert pending.pending_bytes(10.4) == 201 * MIB
    queues = {"u-batch": 200 * MIB, "u-web": MIB}
    assert pending.not_freed(queues) == queues
    assert pending.pending_bytes(10.6) == MIB
    assert pending.not_freed(queues) == {"u-web": MIB}
