"""The shutdown of a node: which pods end first, and how long each may take."""

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.config_validation import validate_config
from evenkeel.api.pod import ObjectMeta, Pod, PodSpec
from evenkeel.api.scalars import Duration
from evenkeel.policy.lifecycle.stops import shutdown_phases

SECOND = 10**9


def pod(grace: int | None = None, priority: int = 0) -> Pod:
    return Pod(ObjectMeta(name="a"), PodSpec(termination_grace_period_seconds=grace, priority=priority))


CRITICAL = 2_000_000_000


def config(whole: int, critical: int) -> KubeletConfiguration:
    return KubeletConfiguration(
        shutdown_grace_period=Duration(whole * SECOND),
        shutdown_grace_period_critical_pods=Duration(critical * SECOND),
    )


def test_without_a_period_all_pods_end_together_each_in_its_own_time():
    (phase,) = shutdown_phases(KubeletConfiguration())
    assert [phase.grace(pod(7)), phase.grace(pod()), phase.grace(pod(9, CRITICAL))] == [7.0, 30.0, 9.0]


def test_critical_pods_end_last_in_the_time_kept_for_them():
    ordinary, critical = shutdown_phases(config(30, 10))
    assert [ordinary.grace(pod(5)), ordinary.grace(pod(60)), ordinary.grace(pod(5, CRITICAL))] == [
        5.0,
        20.0,
        None,
    ]
    assert [critical.grace(pod(5)), critical.grace(pod(60, CRITICAL))] == [None, 10.0]


def test_the_part_for_critical_pods_is_within_the_whole():
    assert not list(validate_config(config(30, 30), None))
    (wrong,) = validate_config(config(10, 30), None)
    assert "must not be longer than --shutdown-grace-period 10s" in wrong.message
    short = KubeletConfiguration(shutdown_grace_period=Duration(SECOND // 2))
    assert "must be 0 or at least 1s, not 500ms" in next(iter(validate_config(short, None))).message
