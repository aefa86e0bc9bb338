"""Turns of the memory watch, taken by the test. On real kernels: tests/kernel/test_evictions.py and test_storms.py."""

import os

import pytest

from evenkeel.cgroup.tree import Version
from evenkeel.policy.eviction.decide import Settings, State
from evenkeel.policy.eviction.headroom import LEAST_SECONDS, MOST_SECONDS
from evenkeel.policy.eviction.thresholds import Signal, parse_thresholds
from evenkeel.pressure.intents import Intents
from evenkeel.pressure.memory.kernel_triggers import KernelTriggers
from evenkeel.pressure.memory.memory_watch import MemoryWatch, WatchSettings
from tests.models.memory_files import IgnoredReports, targets_in, write_v1_memory


@pytest.mark.req("E1")
def test_after_an_early_notification_samples_follow_without_pause(tmp_path, monkeypatch):
    thresholds = parse_thresholds(hard={"memory.available": "100Mi"}, enforce_node_allocatable=("pods",))
    own = tuple(one for one in thresholds if one.signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE)
    triggers = KernelTriggers()
    ignored = IgnoredReports()
    watch = MemoryWatch(
        WatchSettings(own, Settings(), 2), State(), triggers, Intents(str(tmp_path), print), ignored, ignored
    )
    root = write_v1_memory(tmp_path / "root", 200)
    (root / "cgroup.event_control").touch()
    (root / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    watch.follow(targets_in(tmp_path, 400)._replace(version=Version.V1))
    try:
        assert watch.turn() == MOST_SECONDS  # the kernel will tell
        write_v1_memory(root, 300, total_inactive_file=1)
        assert LEAST_SECONDS < watch.turn() < 0.01

        def told() -> None:
            for descriptor in triggers._usage:
                os.eventfd_write(descriptor, 1)
            triggers.wait(0)

        told()
        assert watch.turn() == 0
        monkeypatch.setattr("evenkeel.pressure.memory.memory_watch._AT_ONCE_SECONDS", 0)  # it has passed
        told()
        assert watch.turn() == LEAST_SECONDS
        assert not triggers.wait(0)  # it does not wake again
    finally:
        watch.close()
        triggers.close()
