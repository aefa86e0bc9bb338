"""Far too many requests at once: the agent stays small, and well-behaved pods do not notice."""

import json
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evenkeel.server.agent_socket import connect
from tests.kernel.agents import MakeUp, Up, first_of, is_alive, pod, processes_of, up
from tests.kernel.conftest import MACHINE
from tests.kernel.live_tree import status
from tests.kernel.waiting import eventually

__all__ = ["up"]

pytestmark = pytest.mark.long

MIB = 1 << 20
SLEEP = ["sleep", "100000"]
# An emulated machine is slow: less of everything, of the same kinds.
PODS, LARGE_BYTES, ROUNDS, CLIENTS = (200, 2 * MIB, 2, 1200) if MACHINE == "host" else (60, MIB // 4, 1, 300)
PATIENCE_SECONDS = 300.0  # a wait that succeeds costs nothing of it
# What an agent may have grown by when a barrage is over, however long it was: the most values that it reads of one file
# take almost as much, and leave holes in its heap that the next such file fills.
GROWTH_BYTES = 40 * MIB
MOST_BYTES = 96 * MIB
POD_PIDS = 40
LOG_FILE_BYTES = 1 * MIB
LOG_FILES = 3
# The supervisor's own bounds for one container (`runtime.log_relay.LogLimits`).
BURST_BYTES, BYTES_PER_SECOND = 8 * MIB, 2 * MIB


@pytest.mark.processes_only("a hundred sandboxes take minutes")
@pytest.mark.req("A6", "B2")
@pytest.mark.cgroup("v1", "v2")
def test_of_two_hundred_pods_at_once_those_that_fit_run_and_the_others_say_why(up: MakeUp):
    agent = up("--max-pods", str(2 * PODS))
    agent.start()
    agent.apply(pod("before", SLEEP))
    before = _main_process(agent, "before")
    good = [f"good-{number}" for number in range(PODS // 2)]
    unfit = [f"unfit-{number}" for number in range(PODS // 2)]
    pairs = [
        (_fitting(one), _unfit(other, number))
        for number, (one, other) in enumerate(zip(good, unfit, strict=True))
    ]
    half = len(pairs) // 2
    for number, pair in enumerate(pairs[:half]):
        agent.write(f"{number}.json", _list(*pair))
    agent.write("all.json", _list(*(one for pair in pairs[half:] for one in pair)))

    phases = {**dict.fromkeys(good, "Running"), **dict.fromkeys(unfit, "Failed")}

    def settled() -> bool:
        time.sleep(0.2)  # the agent has better things to do than to answer all the time
        return {
            name: one["status"]["phase"] for name, one in _pods(agent).items() if name in phases
        } == phases

    eventually(settled, within_seconds=PATIENCE_SECONDS)
    pods = _pods(agent)
    for number, name in enumerate(unfit):
        status = pods[name]["status"]
        resource, wanted = ("memory", "10Gi") if number % 2 else ("cpu", "64")
        assert status["reason"] == f"OutOf{resource}"
        assert status["message"].startswith(f"requests {wanted} of {resource}, "), status["message"]
        assert " is free: " in status["message"]
    for name in good:
        (main,) = pods[name]["status"]["containerStatuses"]
        assert main.get("restartCount", 0) == 0
        assert len(processes_of(agent.container(name))) == 1
    assert _main_process(agent, "before") == before
    assert _resident_bytes(agent.pid) < MOST_BYTES


@pytest.mark.processes_only("the bounds on output are those of the supervisor")
@pytest.mark.cgroup("v1", "v2")
def test_pods_that_fork_log_and_stay_without_end_are_bounded_and_end_when_told(up: MakeUp):
    agent = up(
        "--pod-max-pids",
        str(POD_PIDS),
        "--container-log-max-size",
        str(LOG_FILE_BYTES),
        "--container-log-max-files",
        str(LOG_FILES),
    )
    agent.start()
    agent.apply(pod("good", SLEEP, container={"resources": {"requests": {"cpu": "500m"}}}))
    good = _main_process(agent, "good")
    supervisor = agent.supervisor_pid()
    assert supervisor is not None
    relayed_before, resident_before = _written_bytes(supervisor), _resident_bytes(agent.pid)
    since = time.monotonic()
    forking = (
        "import os, time\nwhile True:\n try: os.fork()\n except OSError: time.sleep(0.05)\n time.sleep(0.001)"
    )
    agent.apply(
        pod("forks", [sys.executable, "-c", forking]),
        pod("logs", ["yes", "all work and no play"]),
        pod("deaf", ["sh", "-c", "trap '' TERM HUP INT; while :; do sleep 1; done"]),
    )
    forks = agent.of_pod("forks")
    logs = agent.state / "logs" / f"default_logs_{_uid(agent, 'logs')}" / "main"

    eventually(
        lambda: forks.has("pids.current") and int(forks.read("pids.current")) == POD_PIDS,
        within_seconds=PATIENCE_SECONDS,
    )
    eventually(
        lambda: _written_bytes(supervisor) - relayed_before > BURST_BYTES + MIB,
        within_seconds=PATIENCE_SECONDS,
    )
    for _ in range(20):  # while both go on
        # Those that are there: the kernel counts one that it is about to refuse in pids.current for a moment.
        assert len(forks.processes()) <= POD_PIDS
        assert len(_sizes(logs)) <= LOG_FILES
        assert all(size <= LOG_FILE_BYTES for size in _sizes(logs))
        time.sleep(0.05)
    relayed = _written_bytes(supervisor) - relayed_before
    lasted = time.monotonic() - since
    # What else the supervisor writes (files of each start) is small; a pump may exceed its budget by one chunk.
    assert relayed <= BURST_BYTES + lasted * BYTES_PER_SECOND + 2 * MIB
    assert _resident_bytes(agent.pid) <= resident_before + GROWTH_BYTES
    assert _resident_bytes(supervisor) < MOST_BYTES
    assert _main_process(agent, "good") == good

    deaf = _main_process(agent, "deaf")
    victims = forks.processes() | {deaf}
    for name in ("forks", "logs", "deaf"):
        agent.client.delete("default", name)
    for name in ("forks", "logs", "deaf"):
        agent.await_gone(name)
    assert not [pid for pid in victims if is_alive(pid)]
    assert not forks.paths()[0].exists()
    assert not logs.exists()
    assert _main_process(agent, "good") == good


@pytest.mark.processes_only("about files, not about what runs")
@pytest.mark.cgroup("v1", "v2")
def test_whatever_lies_among_the_manifests_is_reported_and_the_good_pods_run_on(up: MakeUp):
    agent = up()
    agent.write("good.json", _list(pod("good", SLEEP)))
    agent.start()
    good = _main_process(agent, "good")
    resident_before = _resident_bytes(agent.pid)
    strange = _strew(agent.manifests)
    eventually(lambda: not _untold(agent, strange), within_seconds=PATIENCE_SECONDS)
    (agent.manifests / "half.yaml").write_text(json.dumps(pod("half", SLEEP)))
    agent.await_phase("half", "Running")
    assert set(_pods(agent)) == {"good", "half"}
    assert _main_process(agent, "good") == good
    eventually(lambda: _resident_bytes(agent.pid) <= resident_before + GROWTH_BYTES)
    for round_ in range(ROUNDS):
        again = [f"{round_}-{name}" for name in ("garbage.yaml", "binary.yaml", "large.yaml", "nested.yaml")]
        for name in again:
            (agent.manifests / name.partition("-")[2]).rename(agent.manifests / name)
        eventually(lambda: not _untold(agent, again), within_seconds=PATIENCE_SECONDS)  # noqa: B023 called here
        for name in again:
            (agent.manifests / name).rename(agent.manifests / name.partition("-")[2])
    assert _main_process(agent, "good") == good
    eventually(lambda: _resident_bytes(agent.pid) <= resident_before + GROWTH_BYTES)
    for name in strange:
        (agent.manifests / name).unlink()
    assert agent.phase("good") == "Running"


@pytest.mark.processes_only("about clients, not about what runs")
@pytest.mark.cgroup("v1", "v2")
def test_hostile_clients_delay_no_other_client_and_change_nothing(up: MakeUp):
    agent = up()
    agent.start()
    agent.apply(pod("good", SLEEP))
    good = _main_process(agent, "good")
    resident_before = _resident_bytes(agent.pid)
    clients = []
    try:
        for request in _HOSTILE_REQUESTS * (CLIENTS // len(_HOSTILE_REQUESTS)):
            clients.append(_sent(agent, request))  # noqa: PERF401 those that were opened are closed, whatever fails
        agent.apply(pod("more", SLEEP))
        agent.await_phase("more", "Running")
        assert set(_pods(agent)) == {"good", "more"}
    finally:
        for client in clients:
            client.close()
    eventually(lambda: _resident_bytes(agent.pid) <= resident_before + GROWTH_BYTES)
    assert _main_process(agent, "good") == good


_HOSTILE_REQUESTS = (
    b"",  # connects, and says nothing
    b"GET /pods HTTP/1.1\r\nHost: x\r\nX: ",  # never ends its head
    b"POST /pods HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n" + b"x" * 8192,  # keeps the rest
    b"POST /pods HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
    b"\x00\xff\x16\x03\x01" * 1000,
    b"DELETE /pods/../../good HTTP/1.1\r\nHost: x\r\n\r\n",
)


def _sent(agent: Up, request: bytes) -> socket.socket:
    client = connect(str(agent.state))
    client.setblocking(False)
    with suppress(OSError):
        client.send(request)
    return client


def _strew(directory: Path) -> list[str]:
    """What a directory should not hold; the names of those that are no manifests at all."""
    plain = {
        "garbage.yaml": b"}{ this: is: not [a manifest\n" * 100,
        "huge.yaml": b"# nothing\n" * (12 * MIB // 10),
        "large.yaml": b"- {a: [1, 2, 3], b: {c: d}}\n" * (LARGE_BYTES // 28),
        "binary.yaml": bytes(range(256)) * 4096,
        "half.yaml": json.dumps(pod("half", SLEEP)).encode()[:-40],
        "empty.yaml": b"",
        "nested.yaml": b"[" * 200_000,
        "nested.json": b'{"a":' * 100_000,
        "aliases.yaml": _alias_bomb(),
        "numbers.json": b'{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %s}}' % (b"9" * 100_000),
        "escape.json": json.dumps(pod("../../escape", SLEEP)).encode(),
        "twice.json": json.dumps(pod("good", ["sleep", "7"])).encode(),
    }
    for name, content in plain.items():
        (directory / name).write_bytes(content)
    (directory / "loop.yaml").symlink_to("pool.yaml")
    (directory / "pool.yaml").symlink_to("loop.yaml")
    (directory / "zero.yaml").symlink_to("/dev/zero")
    (directory / "nowhere.yaml").symlink_to("/no/such/file")
    os.mkfifo(directory / "fifo.yaml")
    return [*plain, "loop.yaml", "pool.yaml", "zero.yaml", "nowhere.yaml", "fifo.yaml"]


def _alias_bomb() -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    return "\n".join(lines).encode()


def _untold(agent: Up, names: list[str]) -> list[str]:
    time.sleep(0.2)  # the agent has better things to do than to answer all the time
    reported = [one["message"] for one in agent.client.lines("/events") if one["reason"] == "ManifestProblem"]
    return [name for name in names if not any(f"{agent.manifests}/{name}" in message for message in reported)]


def _fitting(name: str) -> dict[str, Any]:
    return pod(name, SLEEP, container={"resources": {"requests": {"memory": "1Mi", "cpu": "1m"}}})


def _unfit(name: str, number: int) -> dict[str, Any]:
    wanted = {"memory": "10Gi"} if number % 2 else {"cpu": "64"}
    return pod(name, SLEEP, container={"resources": {"requests": wanted}})


def _list(*pods: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(pods)})


def _pods(agent: Up) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in agent.client.pods()}


def _uid(agent: Up, name: str) -> str:
    return eventually(lambda: agent.pod(name).get("metadata", {}).get("uid"))


def _main_process(agent: Up, name: str) -> int:
    """The one process of the pod's container, which was never restarted."""
    status = agent.await_phase(name, "Running")
    assert status["containerStatuses"][0].get("restartCount", 0) == 0
    return first_of(agent.container(name))


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _written_bytes(pid: int) -> int:
    counters = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counters["wchar"])


def _sizes(directory: Path) -> list[int]:
    files = map(status, directory.iterdir())
    return [file.st_size for file in files if file]
