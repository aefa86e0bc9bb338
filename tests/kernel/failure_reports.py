"""Reports of failed tests: the pods, logs and output of their agents, read while the agents are still there."""

import json
from collections.abc import Generator, Iterator

import pytest

from evenkeel.errors import EvenkeelError
from tests.kernel.agents import Up, open_agents
from tests.kernel.live_tree import files_below, raw_content

ANSWER_SECONDS = 10.0  # an agent that hangs says nothing of its pods
MOST_OF_PODS, MOST_OF_CONTAINER = 20_000, 500  # characters


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """For a conftest: adds a section to the report of a failure for each agent that is not closed yet. Agents of a
    single test are closed after its report."""
    report = yield
    if report.failed:
        report.sections += [(f"the agent of {one.state}", agent_report(one)) for one in open_agents]
    return report


def agent_report(agent: Up) -> str:
    """The agent's pods, the ends of their containers' logs, and the end of its own log."""
    return "\n".join([*_pods(agent), *_containers(agent), "the agent said:", agent.log_tail()])


def _pods(agent: Up) -> Iterator[str]:
    if not agent.is_running:
        yield "the agent does not run"
        return
    try:
        with agent.asked("/pods", ANSWER_SECONDS) as answer:
            pods = json.load(answer)["items"]
    except (EvenkeelError, OSError, ValueError) as error:
        yield f"the agent does not tell its pods: {error}"
        return
    lines = [f"pod {one['metadata']['name']} is {json.dumps(one.get('status'))}" for one in pods]
    yield "\n".join(lines)[-MOST_OF_PODS:] or "there are no pods"


def _containers(agent: Up) -> Iterator[str]:
    logs = agent.state / "logs"
    for path in sorted(files_below(logs)):
        try:
            end = (raw_content(path) or b"").decode(errors="replace")[-MOST_OF_CONTAINER:]
        except OSError as error:  # a disk that a test has broken
            end = str(error)
        if end:
            yield f"{path.relative_to(logs)} ends:\n{end}"
