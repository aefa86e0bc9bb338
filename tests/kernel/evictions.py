"""Pods that use memory, and the records of an agent under pressure about them."""

import os
from pathlib import Path
from typing import Any

from evenkeel.journal.store import Journal
from evenkeel.pressure.decision_records import EVICTION_KIND
from tests.kernel.agents import MIB, READY_SECONDS, Up, pod, with_host_path
from tests.kernel.planned import memory_bytes
from tests.kernel.waiting import eventually
from tests.machines.programs import programs

FLAGS = ("--eviction-hard=memory.available<48Mi", "--eviction-pressure-transition-period=1s")
# 0 is as fast as can be; in an emulated machine the agent is the slow one, and the kernel would kill before it looks.
RUNAWAY_MIB_A_SECOND = 0 if os.environ.get("EVENKEEL_MACHINE") == "host" else 32


def grow(name: str, kind: str, mib: int, rate_mib: int = 0, *, request_mib: int = 0, **spec: Any) -> dict:
    """A pod that uses memory in one way."""
    resources = {"resources": {"requests": {"memory": f"{request_mib}Mi"}}} if request_mib else {}
    command = [str(programs() / "grow"), kind, str(mib * MIB), str(rate_mib * MIB)]
    return pod(name, command, container=resources, **spec)


def when_told(plain: dict, directory: Path) -> dict:
    """The same pod; its first container begins when the file `go` is there."""
    first = plain["spec"]["containers"][0]
    wait = f"until [ -e {directory}/go ]; do sleep 0.05; done"
    first["command"] = ["sh", "-c", f"{wait}; exec {' '.join(first['command'])}"]
    return with_host_path(plain, directory)


def await_grown(agent: Up, name: str, mib: int) -> None:
    """Waits until the pod has all its memory. A pod that uses nothing is not considered for eviction."""
    agent.await_phase(name, "Running")
    container = agent.container(name)
    eventually(lambda: memory_bytes(container) >= mib * MIB, within_seconds=READY_SECONDS)


def decisions(agent: Up) -> list[Any]:
    with Journal.read(str(agent.state / "journal.db")) as journal:
        return [record.decision for record in journal.decisions(EVICTION_KIND)]


def events(agent: Up, name: str = "") -> list[dict]:
    parameters = {"pod": f"default/{name}"} if name else {}
    return list(agent.client.lines("/events", most="1000", **parameters))


def reasons(agent: Up, name: str = "") -> list[str]:
    return [one["reason"] for one in events(agent, name)]


def condition(agent: Up, name: str) -> str:
    node = agent.client.get("/node")
    return next(one["status"] for one in node["status"]["conditions"] if one["type"] == name)
