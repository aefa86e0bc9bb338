"""A journal that is missing, empty or damaged is noticed, and never a reason to end a pod."""

import json
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from evenkeel.cli.client import AgentRefused, NoAgent
from tests.attacks.hostile import PATIENCE_SECONDS
from tests.kernel.agents import READY_SECONDS, MakeUp, Up, first_of, is_alive, pod
from tests.kernel.live_tree import content
from tests.kernel.waiting import eventually

pytestmark = pytest.mark.cgroup("v1", "v2")

NAMES = ("one", "other")
SEED = 14


def running(agent: Up) -> dict[str, int]:
    """Pods of the API, and one of a file."""
    agent.write("file.json", json.dumps(pod("of-file", ["sleep", "100000"])))
    agent.start(stop_pods=False)
    volume = {"volumeMounts": [{"name": "own", "mountPath": "/mnt"}]}
    for name in NAMES:
        agent.apply(
            pod(name, ["sleep", "100000"], container=volume, volumes=[{"name": "own", "emptyDir": {}}])
        )
    names = (*NAMES, "of-file")
    for name in names:
        agent.await_phase(name, "Running")
    # Copies are written a moment after the journal. An agent that is killed before has none.
    eventually(lambda: len(list((agent.state / "copies").glob("*.json"))) == len(names))
    return {name: first_of(agent.container(name)) for name in names}


def journal_files(agent: Up) -> list[Path]:
    return sorted(agent.state.glob("journal.db*"))


def starts(agent: Up) -> bool:
    """Whether an agent starts; one that refuses says why, in a sentence and not in a traceback."""
    command = [sys.executable, "-m", "evenkeel", "up", str(agent.manifests), "--state-dir", str(agent.state)]
    with agent.log.open("ab") as log:
        process = subprocess.Popen([*command, *agent.flags], stdout=log, stderr=subprocess.PIPE, text=True)
    try:
        eventually(lambda: process.poll() is not None or _answers(agent), within_seconds=READY_SECONDS)
        if process.poll() is None:
            return True
        said = process.stderr.read() if process.stderr else ""
        assert "journal" in said, said
        assert "Traceback" not in said, said
        return False
    finally:
        process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()


def _answers(agent: Up) -> bool:
    try:
        agent.client.get("/healthz")
    except NoAgent:
        return False
    return True


@pytest.mark.long
def test_pods_run_on_without_their_journal_and_are_known_again(up: MakeUp):
    """It is missing, and then it is empty. Of what was accepted, one pod waits for room, one for its back-off, and one
    is being deleted."""
    agent = up()
    pids = running(agent)
    large = {"resources": {"requests": {"memory": "100Gi"}}}
    deaf = ["sh", "-c", "trap '' TERM; while :; do sleep 0.2; done"]
    agent.apply(pod("large", ["sleep", "100000"], container=large), pod("fails", ["false"]))
    agent.apply(pod("ends", deaf, terminationGracePeriodSeconds=1))
    agent.await_phase("large", "Failed")
    agent.await_phase("ends", "Running")
    agent.await_restarts("fails", 1)
    ending = agent.pod("ends")["metadata"]["uid"]
    agent.client.delete("default", "ends")
    eventually(lambda: is_said_deleted(agent, ending))
    for is_empty in (False, True):
        agent.kill()
        for path in journal_files(agent):
            path.unlink()
        if is_empty:
            (agent.state / "journal.db").touch()
        agent.start(stop_pods=False)
        for name, pid in pids.items():
            agent.await_phase(name, "Running")
            assert agent.restarts(name) == 0
            assert first_of(agent.container(name)) == pid
        agent.await_gone("ends")
        assert agent.await_phase("large", "Failed").get("reason") == "OutOfmemory", agent.details_of("large")
        agent.await_that("fails", lambda status: status.get("containerStatuses"))
    assert agent.pod("one")["spec"]["volumes"][0]["emptyDir"] == {}
    agent.client.delete("default", "one")
    agent.await_gone("one")
    assert not is_alive(pids["one"])
    agent.kill()
    agent.start()
    assert agent.phase("other") == "Running"


def is_said_deleted(agent: Up, uid: str) -> bool:
    """Whether the pod's copy says so; or the pod is gone already, and its copy with it, which goes a moment later."""
    text = content(agent.state / "copies" / f"{uid}.json")
    return not agent.pod("ends") if text is None else '"deletedAt"' in text


@pytest.mark.long
@pytest.mark.processes_only("about files, not about what runs")
def test_without_journal_and_copies_the_agent_refuses_to_start_and_pods_run_on(up: MakeUp):
    agent = up()
    pids = running(agent)
    agent.kill()
    kept = agent.state.parent / "kept"
    kept.mkdir()
    for path in journal_files(agent):
        shutil.move(path, kept / path.name)
    hidden = list((agent.state / "copies").glob("*.json"))
    for path in hidden:
        path.rename(path.with_suffix(".hidden"))
    assert not starts(agent)
    assert all(map(is_alive, pids.values()))
    for path in [*journal_files(agent), *hidden]:
        path.unlink(missing_ok=True)
    for path in kept.iterdir():
        shutil.move(path, agent.state / path.name)
    agent.start()
    assert {name: first_of(agent.container(name)) for name in pids} == pids


@pytest.mark.long
@pytest.mark.processes_only("about files, not about what runs")
def test_flipped_bits_in_the_journal_are_noticed_and_end_no_pod(up: MakeUp):
    agent = up()
    pids = running(agent)
    agent.kill()
    fold(agent.state / "journal.db")
    whole = (agent.state / "journal.db").read_bytes()
    places = [match.start() + 3 for match in re.finditer(rb"100000", whole)]
    chosen = random.Random(SEED)
    places = [*chosen.sample(places, min(len(places), 2)), *(chosen.randrange(len(whole)) for _ in range(2))]
    for number, place in enumerate(places):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << chosen.randrange(7)
        for path in journal_files(agent):
            path.unlink()
        (agent.state / "journal.db").write_bytes(bytes(damaged))
        starts(agent)
        assert all(map(is_alive, pids.values())), f"byte {place}, try {number}"
    for path in journal_files(agent):
        path.unlink()
    (agent.state / "journal.db").write_bytes(whole)
    agent.start()
    for name, pid in pids.items():
        agent.await_phase(name, "Running")
        assert first_of(agent.container(name)) == pid


@pytest.mark.long
@pytest.mark.processes_only("about files, not about what runs")
def test_a_flipped_bit_in_a_pod_is_not_taken_for_the_pod(up: MakeUp):
    agent = up()
    pids = running(agent)
    agent.kill()
    database = agent.state / "journal.db"
    fold(database)
    with sqlite3.connect(database) as journal:
        (text,) = journal.execute("SELECT pod FROM pods WHERE pod LIKE '%\"one\"%'").fetchone()
        journal.execute("UPDATE pods SET pod = ? WHERE pod = ?", (text.replace("100000", "100001"), text))
    journal.close()
    agent.start()
    agent.await_phase("one", "Running")
    assert agent.pod("one")["spec"]["containers"][0]["command"] == ["sleep", "100000"]
    assert first_of(agent.container("one")) == pids["one"]
    assert "checksum" in agent.log.read_text()


def fold(database: Path) -> None:
    """Everything into the main file."""
    with sqlite3.connect(database) as journal:
        journal.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    journal.close()


@pytest.mark.long
@pytest.mark.processes_only("about files, not about what runs")
def test_a_journal_that_is_removed_under_the_agent_is_reported_at_once_and_takes_nothing_more(up: MakeUp):
    agent = up()
    pids = running(agent)
    kept = [(path, path.read_bytes()) for path in journal_files(agent)]
    for path, _ in kept:
        path.unlink()
    eventually(lambda: "was removed or replaced" in agent.log.read_text(), within_seconds=PATIENCE_SECONDS)
    with pytest.raises(AgentRefused, match="was removed or replaced"):
        agent.apply(pod("late", ["sleep", "100000"]))
    assert all(map(is_alive, pids.values()))
    agent.kill()
    agent.start()
    for name, pid in pids.items():
        agent.await_phase(name, "Running")
        assert first_of(agent.container(name)) == pid
