"""Jobs: how many pods run, what counts as a failure, and when a Job is over."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.journal.codec import from_text, to_text
from evenkeel.policy.workloads.decision import Progress
from evenkeel.policy.workloads.job_progress import index_of, numbers, ranges
from tests.models.workload_world import World, workload


def job(name="j", restart_policy="Never", **spec):
    return workload("Job", spec, name, restartPolicy=restart_policy)


def status(world):
    return world.workload.status


def outcome(world):
    return next((one.type for one in status(world).conditions if one.type in ("Complete", "Failed")), "")


def fail(world, code=1):
    """The running pod fails, and the back-off passes."""
    (name,) = world.alive
    world.ends(name, code)
    decision = world.step()
    if decision.wake_at is not None:
        world.now = decision.wake_at
        world.step()
    return decision


def test_a_job_runs_one_pod_to_its_end_and_is_complete():
    world = World(job())
    world.step()
    (name,) = world.alive
    assert status(world).active == 1
    labels = world.pods[name].pod.metadata.labels
    assert labels["job-name"] == labels["batch.kubernetes.io/job-name"] == "j"
    assert labels["controller-uid"] == "uid-j"
    world.ends(name)
    world.step()
    assert (outcome(world), status(world).succeeded, status(world).active) == ("Complete", 1, 0)
    assert status(world).completion_time is not None
    assert world.reasons == ["Completed"]
    world.step()
    assert len(world.made) == 1


def test_completions_are_done_with_so_many_at_a_time():
    world = World(job(completions=3, parallelism=2))
    world.step()
    assert len(world.alive) == 2
    world.ends(world.alive[0])
    world.step()
    assert len(world.alive) == 2
    world.ends(world.alive[0])
    world.step()
    assert len(world.alive) == 1
    world.ends(world.alive[0])
    world.step()
    assert (outcome(world), status(world).succeeded, len(world.made)) == ("Complete", 3, 3)


def test_without_completions_the_first_success_lets_the_others_end():
    world = World(job(parallelism=3))
    world.step()
    world.ends(world.alive[0])
    world.step()
    assert len(world.alive) == 2
    assert outcome(world) == ""
    world.ends(world.alive[0], 1)
    world.step()
    assert len(world.alive) == 1
    world.ends(world.alive[0])
    world.step()
    assert (outcome(world), status(world).succeeded, status(world).failed) == ("Complete", 2, 1)


def test_a_failed_pod_is_made_anew_after_a_back_off_that_doubles_up_to_six_minutes():
    world = World(job(backoffLimit=8))
    world.step()
    waits = []
    for _ in range(8):
        failed_at = world.now
        decision = fail(world)
        waits.append(decision.wake_at - failed_at)
    assert waits == [10, 20, 40, 80, 160, 320, 360, 360]
    fail(world)
    assert (outcome(world), status(world).failed) == ("Failed", 9)
    assert world.reasons == ["BackoffLimitExceeded"]
    assert len(set(world.made)) == 9


def test_a_success_resets_the_back_off():
    world = World(job(completions=3))
    world.step()
    fail(world)
    world.ends(world.alive[0])
    world.step()
    at = world.now
    assert fail(world).wake_at == at + 10


def test_on_failure_the_restarts_of_containers_count():
    world = World(job(restart_policy="OnFailure", backoffLimit=2))
    world.step()
    (name,) = world.alive
    world.pods[name] = world.pods[name]._replace(phase="Running", restarts=1)
    world.step()
    assert outcome(world) == ""
    world.pods[name] = world.pods[name]._replace(restarts=2)
    world.step()
    assert world.pods[name].is_deleting
    world.goes(name)
    world.step()
    assert outcome(world) == "Failed"


def test_an_eviction_does_not_count_and_has_a_back_off_of_its_own():
    world = World(job(backoffLimit=0))
    world.step()
    for seconds in (10, 20, 40):
        world.ends(world.alive[0], 137, is_disruption=True)
        decision = world.step()
        assert decision.wake_at == world.now + seconds
        world.now = decision.wake_at
        world.step()
    assert (outcome(world), status(world).failed) == ("", 0)
    world.ends(world.alive[0])
    world.step()
    assert outcome(world) == "Complete"


def test_a_refused_pod_waits_and_is_no_failure():
    world = World(job(backoffLimit=0))
    world.step()
    (name,) = world.alive
    world.pods[name] = world.pods[name]._replace(is_refused=True)
    world.step()
    assert (len(world.made), outcome(world)) == (1, "")


def test_a_deadline_ends_the_job_and_its_pods():
    world = World(job(activeDeadlineSeconds=60, parallelism=2, completions=2))
    decision = world.step()
    assert decision.wake_at == world.now + 60
    world.now += 60
    world.step()
    assert not world.alive
    assert outcome(world) == ""  # its pods are still ending
    for name in list(world.pods):
        world.goes(name)
    world.step()
    assert (outcome(world), world.reasons) == ("Failed", ["DeadlineExceeded"])


def test_a_finished_job_goes_after_its_time():
    world = World(job(ttlSecondsAfterFinished=100))
    world.step()
    world.ends(world.alive[0])
    decision = world.step()
    assert decision.wake_at == world.now + 100
    world.now += 100
    world.step()
    assert world.is_over


def test_a_suspended_job_has_no_pods_and_its_deadline_begins_when_it_goes_on():
    world = World(job(activeDeadlineSeconds=60))
    world.step()
    world.set(suspend=True)
    world.step()
    assert not world.alive
    assert status(world).start_time is None
    assert [(one.type, one.status) for one in status(world).conditions] == [("Suspended", "True")]
    world.goes(next(iter(world.pods)))
    world.now += 1000
    world.set(suspend=False)
    decision = world.step()
    assert len(world.alive) == 1
    assert decision.wake_at == world.now + 60
    assert [(one.type, one.status) for one in status(world).conditions] == [("Suspended", "False")]


def test_each_index_has_its_number_and_its_back_off():
    world = World(job(completions=3, parallelism=3, completionMode="Indexed", backoffLimitPerIndex=1))
    world.step()
    spec = world.workload.spec
    pods = {index_of(pod, spec): pod.pod for pod in world.pods.values()}
    assert set(pods) == {0, 1, 2}
    assert pods[1].spec.containers[0].env[-1][:2] == ("JOB_COMPLETION_INDEX", "1")
    assert pods[1].spec.hostname == "j-1"
    assert pods[1].metadata.name.startswith("j-1-")
    names = {index_of(pod, spec): name for name, pod in world.pods.items()}
    world.ends(names[1], 1)
    decision = world.step()
    assert decision.wake_at == world.now + 10
    world.ends(names[0])
    world.step()
    assert len(world.alive) == 1
    world.now += 10
    world.step()
    (again,) = set(world.alive) - {names[2]}
    world.ends(again, 1)
    world.step()
    assert status(world).failed_indexes == "1"
    world.ends(names[2])
    world.step()
    assert (outcome(world), status(world).completed_indexes, world.reasons) == (
        "Failed",
        "0,2",
        ["FailedIndexes"],
    )


@pytest.mark.parametrize(
    "rules, code, is_disruption, expected",
    [
        (
            [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}],
            42,
            False,
            ("Failed", 1),
        ),
        ([{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}], 1, False, ("", 1)),
        (
            [{"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [42]}}],
            1,
            False,
            ("Failed", 1),
        ),
        ([{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}}], 42, False, ("", 0)),
        ([{"action": "Count", "onPodConditions": [{"type": "DisruptionTarget"}]}], 137, True, ("", 1)),
        (
            [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}],
            137,
            True,
            ("Failed", 1),
        ),
    ],
)
def test_the_policy_for_failures_decides(rules, code, is_disruption, expected):
    world = World(job(podFailurePolicy={"rules": rules}))
    world.step()
    world.ends(world.alive[0], code, is_disruption=is_disruption)
    world.step()
    assert (outcome(world), status(world).failed) == expected


@pytest.mark.parametrize(
    "rules, ends, rule",
    [
        ([{"succeededIndexes": "0,2-3", "succeededCount": 1}], [(1, 0), (2, 0)], 0),
        ([{"succeededIndexes": "0,2"}], [(0, 0), (1, 0), (2, 0)], 0),
        ([{"succeededCount": 2}], [(4, 0), (1, 1), (3, 0)], 0),
        ([{"succeededIndexes": "4"}, {"succeededCount": 2}], [(0, 0), (1, 0)], 1),
    ],
)
def test_a_job_is_complete_once_a_rule_for_success_is_met(rules, ends, rule):
    world = World(job(completions=5, parallelism=5, completionMode="Indexed", successPolicy={"rules": rules}))
    world.step()
    by_index = {index_of(world.pods[name], world.workload.spec): name for name in world.alive}
    for index, code in ends:
        assert [one.type for one in status(world).conditions] == []
        world.ends(by_index[index], code)
        world.step()
    assert outcome(world) == "", "its other pods have to end first"
    (met,) = status(world).conditions
    assert (met.type, met.status, met.reason) == ("SuccessCriteriaMet", "True", "SuccessPolicy")
    assert met.message == f"Matched rules at index {rule}"
    assert not world.alive
    for name, one in list(world.pods.items()):
        if one.is_deleting:
            world.goes(name)
    world.step()
    assert (outcome(world), status(world).succeeded) == ("Complete", sum(not code for _, code in ends))
    assert status(world).completion_time is not None
    assert "Completed" in world.reasons


def test_a_job_that_has_failed_does_not_succeed_by_its_rules():
    rules = {"rules": [{"succeededCount": 1}]}
    world = World(
        job(completions=2, parallelism=2, completionMode="Indexed", successPolicy=rules, backoffLimit=0)
    )
    world.step()
    first, second = world.alive
    world.ends(first, 1)
    world.ends(second)
    world.step()
    assert outcome(world) == "Failed"


def test_only_the_latest_ended_pods_are_kept():
    world = World(job(completions=150, parallelism=50))
    for _ in range(4):
        world.step()
        for name in world.alive:
            world.ends(name)
        world.now += 1
        for name in [name for name, pod in world.pods.items() if pod.is_deleting]:
            world.goes(name)
    world.step()
    assert outcome(world) == "Complete"
    assert sum(not pod.is_deleting for pod in world.pods.values()) == 100
    assert status(world).succeeded == 150


def test_ranges_of_indexes_are_short():
    assert ranges(()) == ""
    assert ranges((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"
    assert numbers("0-2,5,7-8") == {0, 1, 2, 5, 7, 8}
    assert numbers("") == set()


@settings(max_examples=150)
@given(
    st.integers(1, 6),
    st.integers(0, 4),
    st.booleans(),
    st.lists(
        st.tuples(
            st.sampled_from(["success", "failure", "eviction", "wait", "restart", "removed"]),
            st.integers(0, 9),
        ),
        max_size=80,
    ),
)
def test_no_completed_index_runs_again_and_no_end_counts_twice(completions, parallelism, is_indexed, moves):
    """The agent may be killed between any two decisions: the progress is read back from its text."""
    more = {"completionMode": "Indexed"} if is_indexed else {}
    world = World(job(completions=completions, parallelism=parallelism, backoffLimit=5, **more))
    spec = world.workload.spec
    successes, failures, done = 0, 0, set()
    for move, number in moves:
        names = world.alive
        name = names[number % len(names)] if names else ""
        if move == "restart":
            world.progress = from_text(Progress, to_text(world.progress))
        elif move == "wait":
            world.now += 60 * number
        elif move == "removed":
            for gone in [one for one, pod in world.pods.items() if pod.is_deleting]:
                world.goes(gone)
        elif name:
            index = index_of(world.pods[name], spec)
            world.ends(name, 0 if move == "success" else 1, is_disruption=move == "eviction")
            successes += move == "success"
            failures += move == "failure"
            if move == "success" and index is not None:
                done.add(index)
        made = len(world.made)
        world.step()
        assert status(world).succeeded == (len(done) if is_indexed else successes)
        assert status(world).failed == failures
        for new in world.made[made:]:
            assert index_of(world.pods[new], spec) not in done
        assert len(world.alive) <= parallelism
        assert len(world.alive) + (len(done) if is_indexed else successes) <= max(completions, successes)
        if outcome(world) == "Complete":
            assert (len(done) if is_indexed else successes) >= completions
        if failures > 5:
            assert not world.alive
    assert len(set(world.made)) == len(world.made)
