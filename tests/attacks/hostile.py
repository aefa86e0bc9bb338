"""Hostile pods: programs of tests/attacks/programs as containers, in an image or on the host's files, and their
output."""

from pathlib import Path
from typing import Any

from tests.kernel.agents import READY_SECONDS, Up, pod
from tests.kernel.conftest import MACHINE
from tests.kernel.live_tree import raw_content
from tests.kernel.waiting import eventually
from tests.machines.container_images import ARCHIVES, TEST, container_images
from tests.machines.programs import programs

# How long a wait may take until it fails. A wait that succeeds ends earlier.
PATIENCE_SECONDS = 30.0 if MACHINE == "host" else READY_SECONDS
IMAGES = ("image", "host")  # a container with files of its own, and one that sees the host's


def program(name: str) -> str:
    return str(programs() / name)


def image_of(agent: Up) -> str:
    """The image of the tests, as the agent's runtime finds it."""
    return TEST if agent.containerd is not None else str(container_images() / ARCHIVES[TEST])


def hostile(agent: Up, name: str, *command: str, image: str = "image", **spec: Any) -> dict[str, Any]:
    """A pod whose one container runs a command of ours; its first word is the name of a program, or a path."""
    words = [program(command[0]) if (programs() / command[0]).exists() else command[0], *command[1:]]
    container = {"image": image_of(agent) if image == "image" else image, **spec.pop("container", {})}
    return pod(name, words, container=container, **spec)


def said(agent: Up, name: str) -> list[str]:
    """The output of the pod's containers so far, of all attempts."""
    found = agent.pod(name)
    uid = found["metadata"]["uid"] if found else "*"
    lines: list[str] = []
    for path in sorted((agent.state / "logs").glob(f"default_{name}_{uid}/*/*.log")):
        *entries, _ = (raw_content(path) or b"").decode().split("\n")  # the last one may be written just now
        lines += [entry.split(" ", 3)[3] for entry in entries if entry.count(" ") >= 3]
    return lines


def await_said(agent: Up, name: str, last: str = "done") -> list[str]:
    """All output of the pod, once the line `last` has come."""

    def all_of_it() -> list[str]:
        lines = said(agent, name)
        assert lines or not is_refused(agent.status(name)), details_of(agent, name)
        return lines if last in lines else []

    return eventually(all_of_it, within_seconds=PATIENCE_SECONDS, details=lambda: details_of(agent, name))


def details_of(agent: Up, name: str) -> str:
    """Details of a pod for the message of a failed test."""
    return f"{name} said {said(agent, name)}\n{agent.details_of(name)}"


def is_refused(status: dict[str, Any]) -> bool:
    """Whether the status is of a pod that was not admitted, or of one whose container could not be started. A pod may
    have failed with a container that was never tried."""
    ends = [one.get("lastState", {}) | one.get("state", {}) for one in status.get("containerStatuses", ())]
    is_unstartable = any(
        end.get("terminated", {}).get("reason") == "StartError"
        or end.get("waiting", {}).get("reason") == "CreateContainerError"
        or (end.get("waiting", {}).get("reason") == "ContainerCreating" and end["waiting"].get("message"))
        for end in ends
    )
    has_run = any("terminated" in end or "running" in end for end in ends)
    return is_unstartable or (status.get("phase") == "Failed" and not has_run)


def await_refused(agent: Up, name: str, *, within_seconds: float = PATIENCE_SECONDS) -> None:
    agent.await_that(name, is_refused, within_seconds=within_seconds)


def await_refused_or_running(agent: Up, name: str, *, within_seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether the pod was refused; otherwise it runs. A refused pod is tried again, so its refusal is not always
    visible."""
    status = agent.await_that(
        name,
        lambda status: status.get("phase") == "Running" or is_refused(status),
        within_seconds=within_seconds,
    )
    return is_refused(status)


def await_refused_or_done(agent: Up, name: str) -> bool:
    """Whether the pod was refused; otherwise its output is complete."""

    def outcome() -> str:
        if is_refused(agent.status(name)):
            return "refused"
        return "done" if "done" in said(agent, name) else ""

    found = eventually(outcome, within_seconds=PATIENCE_SECONDS, details=lambda: details_of(agent, name))
    return found == "refused"


def run_to_the_end(agent: Up, name: str, *command: str, **options: Any) -> list[str]:
    """Runs a hostile pod to its end and returns its output. The pod is not deleted."""
    agent.apply(hostile(agent, name, *command, **options))
    return await_said(agent, name)


def not_ready(agent: Up) -> str:
    """The reason why the agent is not ready; empty if it is ready."""
    return agent.not_ready(PATIENCE_SECONDS)


def await_ready(agent: Up) -> None:
    """Waits until the agent is ready. If the machine stalls for seconds, the agent is not ready for a moment."""
    eventually(
        lambda: not not_ready(agent),
        within_seconds=PATIENCE_SECONDS,
        details=lambda: f"{not_ready(agent)}\n{agent.log_tail()}",
    )


def outside(path: Path) -> Path:
    """A file of the host that no container may reach."""
    path.mkdir(parents=True)
    marker = path / "marker"
    marker.write_text("the host's\n")
    return marker
