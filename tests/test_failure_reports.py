"""Waiting in tests with an agent, and the reports of tests that fail."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evenkeel.cli.client import AgentRefused, Client
from tests.kernel.agents import Up, open_agents
from tests.kernel.cgroups import Cgroup
from tests.kernel.failure_reports import agent_report, pytest_runtest_makereport
from tests.kernel.waiting import eventually


@pytest.fixture
def agent(tmp_path: Path) -> Up:
    """One that was never started."""
    made = Up(Cgroup({"memory": tmp_path / "root"}), tmp_path)
    made.log.write_text("its last words\n")
    return made


class Changing(Up):
    """One pod, whose status is another at each look."""

    def __init__(self, directory: Path, *statuses: dict[str, Any]) -> None:
        super().__init__(Cgroup({"memory": directory / "root"}), directory)
        self._statuses: Iterator[dict[str, Any]] = iter(statuses)

    def status(self, name: str) -> dict[str, Any]:
        return next(self._statuses)


class Leaving(Client):
    """Lists a pod that is gone before it can be deleted."""

    def __init__(self, state_dir: str) -> None:
        super().__init__(state_dir)
        self._lists = iter([[{"metadata": {"name": "leaves"}}], []])

    def pods(self, namespace: str = "") -> list[dict[str, Any]]:
        return next(self._lists)

    def delete(self, namespace: str, name: str, grace_seconds: float | None = None) -> None:
        raise AgentRefused(404, f"no pod {namespace}/{name}")


def test_waiting_in_vain_tells_what_else_there_is_to_know():
    with pytest.raises(AssertionError, match="the last answer was False; the pod is lost"):
        eventually(lambda: False, within_seconds=0, details=lambda: "the pod is lost")


def test_the_status_of_a_wait_is_the_one_that_was_waited_for(tmp_path: Path):
    statuses = [{"phase": "Pending"}, {"phase": "Running"}, {"phase": "Failed"}]
    assert Changing(tmp_path, *statuses).await_phase("one", "Running") == {"phase": "Running"}


def test_a_pod_that_ended_by_itself_is_not_taken_for_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    agent = Changing(tmp_path, {"phase": "Failed"})
    monkeypatch.setattr(agent, "details_of", lambda name: f"{name} ended by itself")
    with pytest.raises(AssertionError, match="one ended by itself"):
        agent.await_evicted("one")


def test_a_pod_that_is_gone_before_its_turn_is_deleted(agent: Up):
    agent.client = Leaving(str(agent.state))
    agent.delete_all()


def test_restarts_are_waited_for_though_a_pod_has_no_containers_yet_and_are_not_zero_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    started = {"containerStatuses": [{"restartCount": 2}]}
    assert Changing(tmp_path, {}, {"containerStatuses": []}, started).await_restarts("one", 2) == started
    assert Changing(tmp_path, started).restarts("one") == 2
    none = Changing(tmp_path, {})
    monkeypatch.setattr(none, "details_of", lambda name: f"{name} has none")
    with pytest.raises(AssertionError, match="one has none"):
        none.restarts("one")


def test_of_an_agent_that_is_gone_its_log_and_those_of_its_containers_are_reported(agent: Up):
    logs = agent.state / "logs/default_web_uid/main"
    logs.mkdir(parents=True)
    (logs / "1.log").write_text("2026-01-02T03:04:05.678901234Z stdout F hello\n")
    text = agent_report(agent)
    assert "the agent does not run" in text
    assert "default_web_uid/main/1.log ends:\n2026-01-02T03:04:05.678901234Z stdout F hello" in text
    assert text.endswith("its last words\n")
    assert "no agent listens" in agent.details_of("web")
    assert agent.details_of("web").endswith("its last words\n")


@pytest.mark.parametrize(("outcome", "sections"), [("failed", 1), ("passed", 0)])
def test_the_report_of_a_failure_tells_of_agents_that_are_not_closed(
    agent: Up, monkeypatch: pytest.MonkeyPatch, outcome: Any, sections: int
):
    monkeypatch.setattr("tests.kernel.failure_reports.open_agents", [*open_agents, agent])
    report = pytest.TestReport("test", ("file", 1, "test"), {}, outcome, None, "call")
    wrapper = pytest_runtest_makereport()
    next(wrapper)
    with pytest.raises(StopIteration) as ended:
        wrapper.send(report)
    assert ended.value.value is report
    assert len(report.sections) == sections
    assert all("its last words" in text for _, text in report.sections)
