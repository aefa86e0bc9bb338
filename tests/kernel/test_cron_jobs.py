"""CronJobs and Jobs on a real kernel: a missed time is made up for once, a running Job may delay the next one, and an
eviction is no failure."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from evenkeel.journal.store import Journal
from tests.kernel.agents import READY_SECONDS, MakeUp, Up, up, with_host_path
from tests.kernel.evictions import FLAGS, RUNAWAY_MIB_A_SECOND, grow
from tests.kernel.waiting import eventually

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("v1", "v2")

ZONE = "Asia/Kathmandu"  # 5:45 before UTC: neither the machine's zone nor a whole hour from it
POLICIES = ("Allow", "Forbid", "Replace")


def daily(at: datetime) -> str:
    """The schedule that has this minute every day, in `ZONE`."""
    local = at.astimezone(ZoneInfo(ZONE))
    return f"{local.minute} {local.hour} * * *"


def cron_job(policy: str, at: datetime, directory: Path) -> dict[str, Any]:
    """Its Jobs end when there is a file with the policy's name."""
    command = (
        f"echo begun >> {directory}/{policy}.log; until test -e {directory}/{policy}; do sleep 0.1; done"
    )
    container = {"name": "main", "image": "host", "command": ["sh", "-c", command]}
    pod = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    template = with_host_path({"spec": pod}, directory)
    spec = {
        "schedule": daily(at),
        "timeZone": ZONE,
        "concurrencyPolicy": policy,
        "jobTemplate": {"spec": {"template": template}},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": policy.lower()},
        "spec": spec,
    }


def job_at(policy: str, at: datetime) -> str:
    """The name of the Job of that minute, as in Kubernetes."""
    return f"{policy.lower()}-{int(at.timestamp()) // 60}"


def active(agent: Up, policy: str) -> set[str]:
    found = agent.client.workload("cronjobs", "default", policy.lower())["status"].get("active", ())
    return {one["name"] for one in found}


def became_older(agent: Up, by: timedelta) -> None:
    """The workloads as if they had been made so much earlier. The agent does not run."""
    journal = Journal.open(str(agent.state / "journal.db"))
    try:
        with journal.transaction():
            for record in journal.workloads():
                made = record.progress.created_at - by.total_seconds()
                journal.save_workload(record._replace(progress=record.progress._replace(created_at=made)))
    finally:
        journal.close()


def test_missed_times_are_made_up_for_once_and_the_policy_decides_about_jobs_that_still_run(
    up: MakeUp, tmp_path: Path
):
    directory = tmp_path / "seen"
    directory.mkdir()
    agent = up(node="512Mi,4cpu")
    agent.start(stop_pods=False)
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    first, second = now - timedelta(minutes=20), now - timedelta(minutes=10)
    agent.apply(*(cron_job(policy, first, directory) for policy in POLICIES))
    assert agent.client.workloads("jobs") == [], "the next time is tomorrow"
    agent.kill()
    became_older(agent, timedelta(minutes=30))
    agent.start(stop_pods=False)
    for policy in POLICIES:
        eventually(lambda policy=policy: active(agent, policy) == {job_at(policy, first)})
        eventually((directory / f"{policy}.log").exists, within_seconds=READY_SECONDS)
    # A container runtime ends a container whose start the killed agent was still waiting for.
    eventually(lambda: {pod["status"]["phase"] for pod in agent.client.pods()} == {"Running"})
    agent.kill()
    agent.start()
    for policy in POLICIES:
        assert active(agent, policy) == {job_at(policy, first)}, "the same time has one Job"

    agent.apply(*(cron_job(policy, second, directory) for policy in POLICIES))
    eventually(lambda: active(agent, "Allow") == {job_at("Allow", first), job_at("Allow", second)})
    eventually(lambda: active(agent, "Replace") == {job_at("Replace", second)})
    eventually(lambda: "JobAlreadyActive" in agent.cli("events"))
    assert active(agent, "Forbid") == {job_at("Forbid", first)}
    old = job_at("Replace", first)
    eventually(lambda: not [pod for pod in agent.client.pods() if pod["metadata"]["name"].startswith(old)])
    begun = "begun\n" * 2
    eventually(lambda: (directory / "Replace.log").read_text() == begun, within_seconds=READY_SECONDS)
    assert (directory / "Forbid.log").read_text() == "begun\n"

    (directory / "Forbid").touch()  # its first Job ends, and the start that waits is made up for
    eventually(lambda: (directory / "Forbid.log").read_text() == begun, within_seconds=READY_SECONDS)
    succeeded = {job_at("Forbid", at) for at in (first, second)}

    def completed() -> bool:
        jobs = [job for job in agent.client.workloads("jobs") if job["metadata"]["name"] in succeeded]
        return [job["status"].get("succeeded") for job in jobs] == [1, 1]

    eventually(completed, within_seconds=READY_SECONDS)


@pytest.mark.whole_kernel("a race for memory")
def test_an_eviction_does_not_count_against_the_backoff_limit(up: MakeUp, tmp_path: Path):
    directory = tmp_path / "seen"
    directory.mkdir()
    # Alone on the node it would wait at its memory.high before the threshold is reached, for most of a minute (v2).
    agent = up(*FLAGS, "--memory-throttling-factor=1")
    agent.start()
    runaway = grow("w", "anon", 1024, RUNAWAY_MIB_A_SECOND, restartPolicy="Never")
    (container,) = runaway["spec"]["containers"]
    first = f"echo run >> {directory}/runs; test $(wc -l < {directory}/runs) = 1 || exit 0"
    container["command"] = ["sh", "-c", f"{first}; exec {' '.join(container['command'])}"]
    template = with_host_path({"spec": runaway["spec"]}, directory)
    spec = {"backoffLimit": 0, "template": template}
    agent.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "w"}, "spec": spec})

    def succeeded() -> bool:
        return agent.client.workload("jobs", "default", "w")["status"].get("succeeded") == 1

    eventually(succeeded, within_seconds=READY_SECONDS)
    status = agent.client.workload("jobs", "default", "w")["status"]
    assert not status.get("failed")
    assert (directory / "runs").read_text() == "run\n" * 2
    ends = sorted((one["status"]["phase"], one["status"].get("reason", "")) for one in agent.client.pods())
    assert ends == [("Failed", "Evicted"), ("Succeeded", "")]
