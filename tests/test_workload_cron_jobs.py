"""CronJobs: the schedule, the time zone, what happens to missed times, and old Jobs."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.api.cron_schedule import parse_schedule
from evenkeel.errors import EvenkeelError
from evenkeel.policy.workloads.decision import JobProgress
from tests.models.workload_world import START, World, workload

NEW_YORK = ZoneInfo("America/New_York")


def at(text, zone=UTC):
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()


def next_of(schedule, text, zone=UTC):
    found = parse_schedule(schedule).next_after(at(text, zone), zone)
    return None if found is None else datetime.fromtimestamp(found, zone).isoformat()


@pytest.mark.parametrize(
    "schedule, after, expected",
    [
        ("* * * * *", "2026-01-01T00:00", "2026-01-01T00:01"),
        ("*/15 * * * *", "2026-01-01T00:50", "2026-01-01T01:00"),
        ("5/20 * * * *", "2026-01-01T00:26", "2026-01-01T00:45"),
        ("0 4,16 * * *", "2026-01-01T05:00", "2026-01-01T16:00"),
        ("30 8-18/5 * * *", "2026-01-01T13:30", "2026-01-01T18:30"),
        ("0 0 29 2 *", "2026-01-01T00:00", "2028-02-29T00:00"),
        ("0 0 31 4 *", "2026-01-01T00:00", None),
        ("0 0 * JAN-MAR mon", "2026-03-30T00:00", "2027-01-04T00:00"),
        ("0 9 * * Mon-Fri", "2026-01-02T09:00", "2026-01-05T09:00"),
        ("0 0 13 * 5", "2026-01-01T00:00", "2026-01-02T00:00"),  # the 13th, or a Friday
        ("0 0 */2 * 5", "2026-01-02T00:00", "2026-01-03T00:00"),  # a step restricts, too
        ("0 0 13 * *", "2026-01-01T00:00", "2026-01-13T00:00"),
        ("0 0 * * 5", "2026-01-03T00:00", "2026-01-09T00:00"),
        ("0 0 ? * 5", "2026-01-03T00:00", "2026-01-09T00:00"),
        ("@hourly", "2026-01-01T00:30", "2026-01-01T01:00"),
        ("@daily", "2026-01-01T00:30", "2026-01-02T00:00"),
        ("@weekly", "2026-01-01T00:30", "2026-01-04T00:00"),
        ("@monthly", "2026-01-01T00:30", "2026-02-01T00:00"),
        ("@yearly", "2026-01-01T00:30", "2027-01-01T00:00"),
    ],
)
def test_the_next_time_of_a_schedule(schedule, after, expected):
    assert next_of(schedule, after) == (None if expected is None else f"{expected}:00+00:00")


@pytest.mark.parametrize(
    "schedule, after, expected",
    [
        # The clock jumps from 02:00 to 03:00 on 11 March 2012: what lies between is left out.
        ("30 2 * * *", "2012-03-11T00:00-05:00", "2012-03-12T02:30:00-04:00"),
        ("0 * * * *", "2012-03-11T01:00-05:00", "2012-03-11T03:00:00-04:00"),
        ("0 1 * * *", "2012-03-11T01:00-05:00", "2012-03-12T01:00:00-04:00"),
        # The clock is put back from 02:00 to 01:00 on 4 November 2012: 01:30 comes twice.
        ("30 1 * * *", "2012-11-04T00:00-04:00", "2012-11-04T01:30:00-04:00"),
        ("30 1 * * *", "2012-11-04T01:30-04:00", "2012-11-04T01:30:00-05:00"),
        ("30 1 * * *", "2012-11-04T01:30-05:00", "2012-11-05T01:30:00-05:00"),
        ("0 * * * *", "2012-11-04T01:00-04:00", "2012-11-04T01:00:00-05:00"),
        ("0 2 * * *", "2012-11-04T00:00-04:00", "2012-11-04T02:00:00-05:00"),
    ],
)
def test_summer_time_is_as_in_kubernetes(schedule, after, expected):
    assert next_of(schedule, after, NEW_YORK) == expected


@pytest.mark.parametrize(
    "schedule, words",
    [
        ("* * * *", "has 4 fields: write five (minute, hour, day of the month, month, day of the week)"),
        ("60 * * * *", 'the minute "60" is not a number from 0 to 59'),
        ("* 24 * * *", 'the hour "24" is not a number from 0 to 23'),
        ("* * 0 * *", 'the day of the month "0" is not a number from 1 to 31'),
        ("* * * foo *", 'the month "foo" is not a number from 1 to 12 or jan to dec'),
        ("* * * * 7", 'the day of the week "7" is not a number from 0 to 6 or sun to sat'),
        ("*/0 * * * *", 'the step of the minute "0" is not a number from 1'),
        ("30-10 * * * *", "begins after its end: write 10-30"),
        ("@often", "is not one of @yearly"),
        ("@every 5m", "is not one of @yearly"),
        ("TZ=UTC * * * * *", "write it in spec.timeZone"),
        (", * * * *", 'the minute "" is not a number'),
    ],
)
def test_a_wrong_schedule_is_reported_with_its_field(schedule, words):
    with pytest.raises(EvenkeelError) as caught:
        parse_schedule(schedule)
    assert words in str(caught.value)


fields = st.tuples(
    st.sampled_from(["*", "*/7", "0", "5,35", "10-20/3"]),
    st.sampled_from(["*", "2", "1,3", "*/5"]),
    st.sampled_from(["*", "1", "13", "*/2", "28-31"]),
    st.sampled_from(["*", "3", "11", "jan"]),
    st.sampled_from(["*", "0", "1-5"]),
)


@settings(max_examples=60)
@given(
    fields, st.integers(0, 86_400 * 700), st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe"])
)
def test_no_minute_is_skipped_and_none_comes_twice(fields, offset, zone_name):
    """A walk over every minute of two days finds the same times."""
    zone, schedule = ZoneInfo(zone_name), parse_schedule(" ".join(fields))
    start = at("2026-03-07T00:00") + offset - offset % 60
    walked = []
    for minute in range(1, 2 * 1440 + 1):
        wall = datetime.fromtimestamp(start + 60 * minute, zone)
        is_day = wall.day in schedule.days, wall.isoweekday() % 7 in schedule.weekdays
        if (
            wall.minute in schedule.minutes
            and wall.hour in schedule.hours
            and wall.month in schedule.months
            and (any(is_day) if schedule.is_either else all(is_day))
        ):
            walked.append(start + 60 * minute)
    found, time, end = [], schedule.next_after(start, zone), start + 2 * 86_400
    while time is not None and time <= end:
        found.append(time)
        time = schedule.next_after(time, zone)
    assert found == walked
    assert schedule.last_between(start, end, zone) == (walked[-1] if walked else None)


def cron(schedule="0 * * * *", **spec):
    return workload("CronJob", {"schedule": schedule, **spec}, "c")


def finish(world, name, outcome="Complete"):
    progress = JobProgress(outcome=outcome, finished_at=world.now)
    world.jobs[name] = world.jobs[name]._replace(progress=progress)


def hour(world, hours=1.0):
    world.now += 3600 * hours
    return world.step(UTC)


def test_each_time_has_one_job_with_the_minute_in_its_name():
    world = World(cron())
    decision = world.step(UTC)
    assert not world.jobs
    assert decision.wake_at is not None
    world.now = decision.wake_at
    world.step(UTC)
    world.step(UTC)
    assert list(world.jobs) == [f"c-{int(world.now) // 60}"]
    (job,) = world.jobs.values()
    assert job.job.metadata.owner_references[0].kind == "CronJob"
    assert [one.name for one in world.workload.status.active] == list(world.jobs)
    assert world.workload.status.last_schedule_time is not None


def test_only_the_last_of_missed_times_is_made_up_for():
    world = World(cron())
    hour(world, 5)
    assert len(world.jobs) == 1
    assert world.progress.cron.last_schedule_at == world.now - world.now % 3600


def test_a_time_that_is_older_than_the_deadline_is_missed():
    world = World(cron(startingDeadlineSeconds=60))
    world.now = START - START % 3600 + 3600 + 120
    world.step(UTC)
    assert not world.jobs
    world.now += 3600 - 90
    world.step(UTC)
    assert len(world.jobs) == 1


def test_very_many_missed_times_are_reported():
    world = World(cron("* * * * *"))
    hour(world, 24)
    assert len(world.jobs) == 1
    assert "TooManyMissedTimes" in world.reasons


def test_forbid_waits_until_the_last_job_is_over_and_then_makes_up_for_it():
    world = World(cron(concurrencyPolicy="Forbid"))
    hour(world)
    (first,) = world.jobs
    hour(world)
    hour(world, 0.1)
    assert list(world.jobs) == [first]
    assert world.reasons.count("JobAlreadyActive") == 1
    finish(world, first)
    world.step(UTC)
    assert len(world.jobs) == 2


def test_allow_runs_beside_the_last_job_and_replace_ends_it():
    for policy, count in (("Allow", 2), ("Replace", 1), ("", 2)):
        world = World(cron(concurrencyPolicy=policy) if policy else cron())
        hour(world)
        hour(world)
        assert len(world.jobs) == count


def test_a_suspended_cron_job_makes_no_jobs():
    world = World(cron(suspend=True))
    assert hour(world, 3).wake_at is None
    assert not world.jobs
    world.set(suspend=False)
    world.step(UTC)
    assert len(world.jobs) == 1


def test_old_jobs_go_and_the_latest_of_each_outcome_stay():
    world = World(cron(successfulJobsHistoryLimit=2, failedJobsHistoryLimit=0))
    for number in range(5):
        hour(world)
        finish(world, list(world.jobs)[-1], "Failed" if number == 1 else "Complete")
        world.step(UTC)
    assert len(world.jobs) == 2
    assert world.workload.status.last_successful_time is not None


@settings(max_examples=80)
@given(
    st.lists(st.integers(0, 200), max_size=40), st.sampled_from(["*/10 * * * *", "0 * * * *", "7,8 * * * *"])
)
def test_a_schedule_is_never_skipped_and_never_doubled_however_seldom_it_is_looked_at(minutes, schedule):
    world = World(cron(schedule))
    parsed, made = parse_schedule(schedule), []
    for number in minutes:
        before = world.now
        world.now += 60 * number
        known = set(world.jobs)
        world.step(UTC)
        new = sorted(set(world.jobs) - known)
        due = parsed.last_between(before, world.now, UTC)
        assert len(new) == (0 if due is None else 1)
        if due is not None:
            assert new == [f"c-{int(due) // 60}"]
        made += new
        for name in new:
            finish(world, name)
    assert len(set(made)) == len(made)
