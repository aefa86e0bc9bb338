"""`evenkeel-watch` as a real process, with files in a directory in place of cgroups. On real kernels:
tests/kernel/test_watch.py."""

import asyncio
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest

import evenkeel
from evenkeel.api.pod import Pod
from evenkeel.cgroup.drivers.processes import is_dead
from evenkeel.errors import EvenkeelError
from evenkeel.journal.codec import to_text
from evenkeel.policy.eviction.decide import Settings
from evenkeel.policy.eviction.thresholds import Signal, parse_thresholds
from evenkeel.pressure.intents import OthersIntents
from evenkeel.pressure.memory.memory_watch import WatchSettings
from evenkeel.pressure.targets import WatchTargets
from evenkeel.pressure.watch.messages import (
    INTENTS_NAME,
    LOCK_NAME,
    SOCKET_NAME,
    Message,
    settings_message,
    step_from,
    targets_plain,
)
from evenkeel.pressure.watch.watch_connection import WatchConnection, existing, started
from evenkeel.pressure.watch.watch_link import WatchLink
from tests.arenas import arenas_of_threads
from tests.models.agents import pods_of, until
from tests.models.memory_files import PODS, targets_in, write_v2_memory

GIVEN = WatchSettings(
    tuple(
        one
        for one in parse_thresholds(hard={"memory.available": "100Mi"}, enforce_node_allocatable=("pods",))
        if one.signal is Signal.ALLOCATABLE_MEMORY_AVAILABLE
    ),
    Settings(local_storage_capacity_isolation=False, pressure_transition_period_seconds=0.05),
    2,
)


class Node:
    """Pods `batch` and `web` as files, the process of `batch`, and the messages that an agent gets from the watch."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.state.mkdir()
        self.heard: list[Message] = []
        self.news: list[str] = []
        self.losses = 0
        self.process = subprocess.Popen(["sleep", "1000"])
        self.batch, self.web = pods_of(PODS)
        self.use(batch_mib=10, root_mib=100)
        write_v2_memory(directory / "u-web", 60)
        main = write_v2_memory(directory / "u-batch" / "main", 10)
        (main / "cgroup.procs").write_text(f"{self.process.pid}\n")
        for name in ("u-batch", "u-web"):
            (directory / name / "cgroup.freeze").write_text("0")
            (directory / name / "memory.high").write_text("max")

    def use(self, *, batch_mib: int, root_mib: int) -> None:
        write_v2_memory(self.directory / "u-batch", batch_mib)
        write_v2_memory(self.directory / "root", root_mib)

    def targets(self) -> WatchTargets:
        targets = targets_in(self.directory, 1000, (self.batch, 0), (self.web, 0))
        batch, web = targets.pods
        containers = (("main", str(self.directory / "u-batch" / "main")),)
        batch = batch._replace(containers=containers, group=("BestEffort", 0), high="max")
        web = web._replace(request_bytes=64 << 20, group=("Burstable", 0), high="max")
        return targets._replace(pods=(batch, web))

    @property
    def pods(self) -> dict[str, Pod]:
        return {"1.1": self.batch, "1.2": self.web}

    def link(self) -> WatchLink:
        return WatchLink(str(self.state), self.introduce, self.heard.append, self.news.append, self.lost)

    def lost(self) -> None:
        self.losses += 1

    def introduce(self, connection: WatchConnection) -> None:
        connection.send({"do": "settings", **settings_message(GIVEN), "state": None})
        targets = targets_plain(self.targets(), {"u-batch": "1.1", "u-web": "1.2"})
        texts = {key: to_text(pod) for key, pod in self.pods.items()}
        connection.send({"do": "targets", "targets": targets, "texts": texts})

    def evicted(self) -> list[Message]:
        return [one for one in self.heard if one.get("kind") == "stepped" and one["evicted"]]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def run(story: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 60))


async def there(link: WatchLink, other_than: int = 0) -> int:
    await until(lambda: link.connection is not None and link.connection.pid != other_than)
    assert link.connection is not None
    return link.connection.pid


async def found_again(node: Node) -> tuple[WatchLink, int]:
    """The link of a second agent, which has found the watch of the first one; and that one's process number."""
    link = node.link()
    link.open()
    pid = await there(link)
    await link.close(end=False)
    link = node.link()
    assert await link.find() is not None
    return link, pid


def ends(process: "subprocess.Popen[bytes]") -> Callable[[], bool]:
    return lambda: process.poll() is not None


@pytest.mark.req("A15", "E1", "E14")
def test_it_evicts_and_reports_and_the_report_leads_to_the_same_decision(node):
    async def story() -> None:
        link = node.link()
        link.open()
        await there(link)
        node.use(batch_mib=850, root_mib=950)
        await until(ends(node.process))
        await until(lambda: bool(node.evicted()))
        (report,) = node.evicted()
        step = step_from(report["step"], node.pods)
        assert step.decision.victim is not None
        assert step.decision.victim.pod == node.batch
        assert [one.name for one in step.snapshot.pods[0].stats.containers] == ["main"]
        intent = OthersIntents(str(node.state), INTENTS_NAME).find("u-batch")
        assert intent is not None
        assert intent.message == step.decision.victim.message
        link.send({"do": "taken", "uid": "u-batch"})
        intents = OthersIntents(str(node.state), INTENTS_NAME)
        await until(lambda: intents.find("u-batch") is None)
        await link.close(end=True)

    run(story())
    assert node.process.returncode == -signal.SIGKILL


@pytest.mark.req("E1", "E14")
def test_it_evicts_without_an_agent_and_the_next_one_hears_of_it_until_it_has_noted_it(node):
    async def story() -> None:
        link = node.link()
        link.open()
        pid = await there(link)
        await link.close(end=False)
        node.use(batch_mib=850, root_mib=950)
        await until(ends(node.process))
        for _ in range(2):  # the first agent is killed before it has noted it
            node.heard.clear()
            link = node.link()
            hello = await link.find()
            assert hello is not None
            assert hello["pid"] == pid
            (report,) = node.evicted()
            (texts,) = [one["texts"] for one in node.heard if one["event"] == "texts"]
            assert set(texts) == {"1.1", "1.2"}
            await link.close(end=False)
        link = node.link()
        await link.find()
        link.send({"do": "heard", "number": report["number"]})
        await link.close(end=False)
        node.heard.clear()
        link = node.link()
        await link.find()
        assert not node.evicted()
        await link.close(end=True)
        assert is_dead(pid)

    run(story())


@pytest.mark.req("A15", "E1")
def test_a_pod_that_appeared_while_no_agent_was_there_is_not_touched(node):
    """It uses the most. But no agent has said that it is a pod, nor what it requests."""

    async def story(stranger: "subprocess.Popen[bytes]") -> None:
        link = node.link()
        link.open()
        await there(link)
        await link.close(end=False)
        appeared = write_v2_memory(node.directory / "u-new", 800)
        (appeared / "cgroup.freeze").write_text("0")
        (appeared / "cgroup.procs").write_text(f"{stranger.pid}\n")
        node.use(batch_mib=50, root_mib=950)
        await until(ends(node.process))
        link = node.link()
        await link.find()
        (report,) = node.evicted()
        chosen = step_from(report["step"], node.pods).decision.victim
        assert chosen is not None
        assert chosen.pod == node.batch
        await link.close(end=True)
        assert stranger.poll() is None
        assert (appeared / "cgroup.freeze").read_text() == "0"

    with subprocess.Popen(["sleep", "1000"]) as stranger:
        try:
            run(story(stranger))
        finally:
            stranger.kill()


@pytest.mark.req("E14")
def test_an_agent_that_has_just_connected_is_told_the_pods_of_a_report_that_it_does_not_know(node):
    async def story() -> None:
        link = node.link()
        link.open()
        await there(link)
        await link.close(end=False)
        link = node.link()
        assert await link.find() is not None
        assert not [one for one in node.heard if one["event"] == "texts"]
        node.use(batch_mib=850, root_mib=950)  # before the new agent has given it targets
        await until(ends(node.process))
        await until(lambda: bool(node.evicted()))
        events = [one["event"] for one in node.heard if one["event"] == "texts" or one in node.evicted()]
        assert events[:2] == ["texts", "report"]
        await link.close(end=True)

    run(story())


@pytest.mark.req("E1", "E2")
def test_a_watch_that_is_killed_is_followed_by_one_that_knows_the_killed_pods(node):
    async def story() -> None:
        link = node.link()
        link.open()
        first = await there(link)
        node.use(batch_mib=850, root_mib=950)
        await until(ends(node.process))
        os.kill(first, signal.SIGKILL)
        second = await there(link, other_than=first)
        assert [one["uid"] for one in node.heard if one["event"] == "found"] == ["u-batch"]
        assert node.news == ["the watch over memory ended: another one is started"]
        assert node.losses == 1
        # Its memory is not back yet, and it is no candidate a second time.
        assert link.connection is not None
        await link.connection.ping(30)
        assert len(node.evicted()) <= 1
        await link.close(end=True)
        assert is_dead(second)

    run(story())


@pytest.mark.req("E1")
def test_a_failure_while_it_takes_its_targets_does_not_end_it(node):
    async def story() -> None:
        (node.directory / "root" / "memory.current").write_text("no number\n")
        link = node.link()
        link.open()
        pid = await there(link)
        assert link.connection is not None
        await link.connection.ping(30)  # by then it has taken them
        await until(lambda: any("no number" in one.get("text", "") for one in node.heard))
        node.use(batch_mib=850, root_mib=950)
        await until(lambda: bool(node.evicted()))
        assert await there(link) == pid
        assert node.news == []
        await link.close(end=True)

    run(story())


def test_a_watch_that_hangs_is_replaced(node, monkeypatch):
    monkeypatch.setattr("evenkeel.pressure.watch.watch_link._PING_SECONDS", 0.05)
    monkeypatch.setattr("evenkeel.pressure.watch.watch_link._HUNG_SECONDS", 5.0)

    async def story() -> None:
        link = node.link()
        link.open()
        first = await there(link)
        os.kill(first, signal.SIGSTOP)
        await there(link, other_than=first)
        assert is_dead(first)
        assert "hangs and is replaced" in node.news[0]
        await link.close(end=True)

    run(story())


# A watch that holds the lock, speaks with an agent until it has settings, and hangs in its end.
ENDLESS = """
import fcntl, os, signal, socket, sys
import evenkeel
from evenkeel.pressure.watch.messages import LOCK_NAME, PROTOCOL, SOCKET_NAME, frame

os.chdir(sys.argv[1])
lock = os.open(LOCK_NAME, os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(SOCKET_NAME)
    listening.listen()
    print("listens", flush=True)
    with listening.accept()[0] as agent:
        hello = {"event": "hello", "protocol": PROTOCOL, "version": evenkeel.__version__, "pid": os.getpid()}
        agent.sendall(frame(hello) + frame({"event": "ready"}))
        agent.recv(1)
os.unlink(SOCKET_NAME)
signal.pause()
"""


def test_a_watch_that_closes_its_socket_and_hangs_is_killed_and_replaced(node):
    """It has the lock: another one could not watch."""

    async def story(first: "subprocess.Popen[bytes]") -> None:
        link = node.link()
        assert await link.find() is not None
        link.open()
        await there(link, other_than=first.pid)
        assert first.wait() == -signal.SIGKILL
        assert node.news == ["the watch over memory ended: another one is started"]
        assert node.losses == 1
        await link.close(end=True)

    command = [sys.executable, "-c", ENDLESS, str(node.state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as first:
        try:
            assert first.stdout is not None
            assert first.stdout.readline() == b"listens\n"
            run(story(first))
        finally:
            first.kill()


# A watch that holds the lock and hangs, and that nobody finds by its socket.
HIDDEN = """
import fcntl, os, signal, sys
from evenkeel.pressure.watch.messages import LOCK_NAME

lock = os.open(os.path.join(sys.argv[1], LOCK_NAME), os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
print("holds", flush=True)
signal.pause()
"""


def test_a_new_agent_kills_a_watch_that_holds_the_lock_and_does_not_listen(node, monkeypatch):
    """An agent before it lost it in its end, or its socket was removed. Else nothing would watch memory any more."""
    monkeypatch.setattr("evenkeel.pressure.watch.watch_link._PAUSES_SECONDS", (0.0, 0.01, 0.02))

    async def story(hidden: "subprocess.Popen[bytes]") -> None:
        link = node.link()
        assert await link.find() is None
        link.open()
        await there(link)
        assert hidden.wait() == -signal.SIGKILL
        assert node.news == [f"the watch over memory, process {hidden.pid}, does not listen and is replaced"]
        await link.close(end=True)

    command = [sys.executable, "-c", HIDDEN, str(node.state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as hidden:
        try:
            assert hidden.stdout is not None
            assert hidden.stdout.readline() == b"holds\n"
            run(story(hidden))
        finally:
            hidden.kill()


def test_one_of_another_version_is_replaced_by_one_that_has_its_targets_before(node, monkeypatch):
    async def story() -> None:
        link = node.link()
        link.open()
        first = await there(link)
        await link.close(end=False)
        monkeypatch.setattr(evenkeel, "__version__", "another")
        was_there: list[bool] = []

        def introduce(connection: WatchConnection) -> None:
            was_there.append(not is_dead(first))
            node.introduce(connection)

        link = WatchLink(str(node.state), introduce, node.heard.append, node.news.append)
        assert await link.find() is not None
        link.open()
        second = await there(link, other_than=first)
        assert was_there == [True]
        assert is_dead(first)
        node.use(batch_mib=850, root_mib=950)
        await until(ends(node.process))
        await link.close(end=True)
        assert is_dead(second)

    run(story())


@pytest.mark.req("A15", "E1")
def test_of_two_that_wait_for_the_former_one_the_second_ends_and_the_agent_finds_the_first(node, monkeypatch):
    """An agent is killed while it replaces a watch, and the new watch goes on waiting. The next agent starts another
    one. Then the former one ends, and the first that waits takes over."""
    monkeypatch.setattr("evenkeel.pressure.watch.watch_link._PAUSES_SECONDS", (0.0, 0.01, 0.02))
    introduced: list[int] = []

    def introduce(connection: WatchConnection) -> None:
        introduced.append(connection.pid)
        node.introduce(connection)

    async def first_takes_over(former: WatchConnection) -> None:
        os.kill(introduced[0], signal.SIGSTOP)
        await end(former)
        await until((node.state / SOCKET_NAME).exists)  # the first listens
        os.kill(introduced[0], signal.SIGCONT)

    async def story() -> None:
        link = node.link()
        link.open()
        former = await there(link)
        await link.close(end=False)
        waiting = WatchConnection(*started(str(node.state), former), node.heard.append, lambda: None)
        await waiting.hello(60)
        node.introduce(waiting)
        await waiting.ping(60)
        waiting.close()  # as the kernel does for an agent that is killed

        link = WatchLink(str(node.state), introduce, node.heard.append, node.news.append)
        assert await link.find() is not None
        with monkeypatch.context() as patched:
            patched.setattr(evenkeel, "__version__", "another")
            link.open()
        with monkeypatch.context() as patched:
            patched.setattr(WatchConnection, "end", first_takes_over)
            assert await there(link, other_than=former) == waiting.pid
        await until(lambda: is_dead(introduced[0]))
        node.use(batch_mib=850, root_mib=950)
        await until(lambda: bool(node.evicted()))
        await link.close(end=True)

    end = WatchConnection.end
    run(story())


def test_there_is_one_for_a_state_directory_and_it_goes_with_it(node):
    async def story() -> None:
        link, first = await found_again(node)
        assert await there(link) == first
        await link.close(end=False)
        (node.state / LOCK_NAME).unlink()
        await until(lambda: is_dead(first))

    run(story())


@pytest.mark.req("A15", "E1")
def test_an_agent_that_the_watch_has_disconnected_finds_it_again(node):
    """As after a long stop of the agent, when more reports were waiting than the watch keeps for it."""

    async def story() -> None:
        link = node.link()
        link.open()
        pid = await there(link)
        before = link.connection
        other, _ = existing(str(node.state)) or (None, 0)
        assert other is not None  # the newest client takes the place of the agent
        await until(lambda: link.connection not in (None, before))
        assert await there(link) == pid
        assert node.news == []  # it did not end: no pod is let go
        assert node.losses == 0
        other.close()
        node.use(batch_mib=850, root_mib=950)
        await until(lambda: bool(node.evicted()))
        await link.close(end=True)
        assert is_dead(pid)

    run(story())


def test_it_is_absent_until_the_first_one_watches_and_when_one_is_not_replaced_soon(node, monkeypatch):
    started, absent_seconds = (
        f"evenkeel.pressure.watch.watch_link.{name}" for name in ("started", "_ABSENT_SECONDS")
    )

    async def story() -> None:
        link = node.link()
        link.open()
        assert link.absence == "the watch over memory is being started"
        pid = await there(link)
        assert link.absence == ""
        with monkeypatch.context() as patched:
            patched.setattr(started, fails)
            patched.setattr(absent_seconds, math.inf)
            os.kill(pid, signal.SIGKILL)
            await until(lambda: "no more processes" in node.news)
            assert link.absence == ""  # it may be there within a moment
            patched.setattr(absent_seconds, 0.0)
            assert link.absence == "the watch over memory ended, and no other one is there yet"
        await there(link)
        assert link.absence == ""
        await link.close(end=True)

    def fails(*_: object) -> None:
        raise EvenkeelError("no more processes")

    run(story())


def test_one_that_ends_between_its_discovery_and_the_introduction_counts_as_lost(node):
    async def story() -> None:
        link, first = await found_again(node)
        before = link.connection
        assert before is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: not before.is_open)
        link.open()
        assert link.absence == "the watch over memory is being started"
        await there(link, other_than=first)
        assert node.losses == 1
        assert link.absence == ""
        await link.close(end=True)

    run(story())


# What it loads


def test_its_threads_have_no_memory_of_the_c_library_of_their_own(node):
    async def story() -> None:
        link = node.link()
        link.open()
        process = Path(f"/proc/{await there(link)}")
        await until(
            lambda: len(list((process / "task").iterdir())) == 3
        )  # the loop, the reaper, the reclaimer
        assert arenas_of_threads((process / "maps").read_text()) == 0
        await link.close(end=True)

    run(story())


def test_the_watch_loads_nothing_that_it_does_not_need():
    unwanted = {"asyncio", "selectors", "sqlite3", "ssl", "subprocess", "yaml", "zlib"}
    script = f"import sys, evenkeel.pressure.watch.process; print(*{unwanted}.intersection(sys.modules))"
    package = str(Path(evenkeel.__file__).parent.parent)
    ran = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={"PYTHONPATH": package},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == []
