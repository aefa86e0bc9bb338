"""The view of the node: its content, its changes, and that it is encoded once for all readers."""

import asyncio
import json
import subprocess
from typing import Any

import pytest

from evenkeel.agent.event_recorder import Broadcast
from evenkeel.agent.observe.sweep import Sweeper
from evenkeel.api.pod import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
)
from evenkeel.journal.records import WARNING, Event
from evenkeel.runtime.procfs import process_at
from evenkeel.server.http import close_source
from evenkeel.server.view_stream import ViewEncoder, ViewStream
from tests.fake_front import FakeFront, running, served
from tests.models.agents import Place, pods_of, until
from tests.models.http_client import Http, ask
from tests.models.kernel import CountingKernel
from tests.models.manifests import PODS
from tests.models.node_snapshots import MIB, SnapshotMaker, sample


@pytest.fixture
def pods():
    return tuple(running(pod) for pod in pods_of(PODS))


def made(views, node_snapshot):
    return asyncio.run(views.view(node_snapshot))


def whole(node_snapshot):
    return json.loads(made(ViewEncoder(), node_snapshot).whole)


def test_a_resource_has_every_amount_from_capacity_to_use(pods):
    memory = whole(SnapshotMaker().node_snapshot(pods))["resources"]["memory"]
    assert memory["capacity"] == 32 * 2**30
    assert memory["allocatable"] == memory["capacity"] - memory["evictionHard"]
    assert memory["requested"] == 64 * MIB
    assert memory["used"] == memory["capacity"] - memory["available"] == 12 * 2**30
    assert memory["usedByPods"] == 100 * MIB


@pytest.mark.parametrize(
    "state, word",
    [
        (ContainerState(running=ContainerStateRunning("2026-11-16T00:00:00Z")), "Running"),
        (ContainerState(waiting=ContainerStateWaiting("CrashLoopBackOff", "…")), "CrashLoopBackOff"),
        (ContainerState(terminated=ContainerStateTerminated(reason="OOMKilled")), "OOMKilled"),
        (None, ""),
    ],
)
def test_containers_have_the_word_for_their_state(pods, state, word):
    statuses = (ContainerStatus("app", state=state, ready=word == "Running", restart_count=3),)
    web = pods[0]._replace(status=pods[0].status._replace(container_statuses=statuses))
    reported = next(
        one for one in whole(SnapshotMaker().node_snapshot((web,)))["pods"] if one["pod"] == "default/web"
    )
    assert reported["states"] == {"app": {"state": word, "ready": word == "Running", "restarts": 3}}


def test_the_tree_has_use_beside_request_and_limit(pods):
    cgroups = whole(SnapshotMaker().node_snapshot(pods))["cgroups"]
    container = next(one for one in cgroups if one.get("container") == "app")
    assert container["requests"] == {"memory": 64 * MIB, "cpu": 100}
    assert container["limits"] == {"memory": 128 * MIB, "cpu": 200}
    assert container["figures"]["workingSetBytes"] == 100 * MIB
    assert container["figures"]["stalls"]["memory"] == [12.5, 2.5]
    by_path = {one["path"]: one for one in cgroups}
    pod = by_path[container["parent"]]
    assert (pod["kind"], pod["pod"], pod["qosClass"]) == ("pod", "default/web", "Burstable")
    branch = by_path[pod["parent"]]
    assert (branch["kind"], branch["requests"]["memory"]) == ("branch", 64 * MIB)


@pytest.mark.req("E17")
def test_every_setting_has_the_value_asked_for_and_the_applied_one(pods):
    maker = SnapshotMaker()
    node_snapshot = maker.node_snapshot(pods)
    path = next(one.path for one in node_snapshot.sweep.tree.cgroups if one.container == "app")
    changed = {
        **node_snapshot.sweep.applied,
        path: {**node_snapshot.sweep.applied[path], "memory.max": "4096"},
    }
    node_snapshot = node_snapshot._replace(sweep=node_snapshot.sweep._replace(applied=changed))
    container = next(one for one in whole(node_snapshot)["cgroups"] if one["path"] == path)
    settings = {one["file"]: one for one in container["settings"]}
    assert settings["memory.max"]["asked"] == str(128 * MIB)
    assert (settings["memory.max"]["applied"], settings["memory.max"]["isApplied"]) == ("4096", False)
    assert settings["cpu.max"]["isApplied"]
    assert settings["memory.max"]["rule"]
    assert settings["memory.max"]["reason"]


def test_a_threshold_has_the_available_amount():
    pressure = whole(SnapshotMaker().node_snapshot())["pressure"]
    memory = next(one for one in pressure["thresholds"] if one["signal"] == "memory.available")
    assert memory["available"] == 20 * 2**30
    assert memory["thresholdAmount"] == 100 * MIB
    assert not memory["isCrossed"]
    assert pressure["stalls"]["memory"]["some"]["avg10"] == 12.5
    assert {one["type"] for one in pressure["conditions"]} >= {"MemoryPressure", "DiskPressure", "Ready"}


def test_only_figures_that_moved_are_sent_again(pods):
    maker, views = SnapshotMaker(), ViewEncoder()

    def one_moves(cgroup, number):
        return sample(cgroup, number if cgroup.container == "app" else 2)

    made(views, maker.node_snapshot(pods, sampled=one_moves))
    second = made(views, maker.node_snapshot(pods, sampled=one_moves))
    changes = json.loads(second.changes)
    moved = list(changes["figures"])
    assert len(moved) == 1
    assert changes["figures"][moved[0]]["cpuUsageUs"] == 2_000_000
    assert second.since == 1


def test_a_pod_that_comes_or_changes_is_sent_with_the_whole(pods):
    maker, views = SnapshotMaker(), ViewEncoder()
    made(views, maker.node_snapshot(pods[:1]))
    assert made(views, maker.node_snapshot(pods)).changes == b""
    failed = pods[0]._replace(status=pods[0].status._replace(phase="Failed", reason="Evicted"))
    view = made(views, maker.node_snapshot((failed, pods[1])))
    assert view.changes == b""
    assert json.loads(view.whole)["pods"][0]["reason"] == "Evicted"
    assert json.loads(view.whole)["resources"]["memory"]["requested"] == 0


def test_an_eviction_is_among_the_happenings_of_the_next_view(tmp_path):
    front = FakeFront()
    with served(front, tmp_path) as agent:
        agent.call(front.tell, "Started", pod="default/web")
        agent.call(front.tell, "Evicted", "it used too much", pod="default/web", type=WARNING)
        status, view = ask(agent, "GET", "/view")
        assert status == 200
        assert [one["reason"] for one in view["happenings"]] == ["Evicted"]


class Slow(FakeFront):
    """A front that counts the snapshots it was asked for."""

    def __init__(self):
        super().__init__()
        self.maker = SnapshotMaker()
        self.taken = 0
        self.feed: Broadcast[Any] = Broadcast()

    def follow(self):
        return self.feed.subscribe()

    async def node_snapshot(self):
        self.taken += 1
        await asyncio.sleep(0.01)
        return self.maker.node_snapshot()


async def first_events(feed, count):
    events = feed.events()
    found = [await anext(events) for _ in range(count)]
    await events.aclose()
    return found


def test_all_watchers_share_one_snapshot_and_the_same_bytes():
    async def watch():
        front = Slow()
        feed = ViewStream(front)
        readers = await asyncio.gather(*(first_events(feed, 3) for _ in range(50)))
        await feed.close()
        return front.taken, readers

    taken, readers = asyncio.run(watch())
    # Those of a fake front are never young enough to serve twice: the readers' first ones are their own.
    assert taken <= 50 + 4
    assert len({id(events[2]) for events in readers}) == 1
    assert all(events[0].startswith(b"event: view\ndata: {") for events in readers)
    assert readers[0][2].startswith(b"event: figures\n")
    assert readers[0][2].endswith(b"}\n\n")


def test_an_event_is_sent_at_once_to_all_and_encoded_once():
    async def watch():
        front = Slow()
        feed = ViewStream(front)
        readers = [feed.events() for _ in range(3)]
        for events in readers:
            await anext(events)
        front.feed.publish(Event(1.0, "Normal", "Started", "of no note", "default/web", number=1))
        front.feed.publish(Event(2.0, WARNING, "Evicted", "it used\ntoo much", "default/web", number=2))
        reported = await asyncio.gather(*(anext(events) for events in readers))
        for events in readers:
            await close_source(events)
        listeners = front.feed.subscribers + feed.watchers
        await feed.close()
        return reported, listeners

    reported, listeners = asyncio.run(watch())
    assert len({id(text) for text in reported}) == 1
    assert reported[0].startswith(b"event: happening\ndata: {")
    assert reported[0].count(b"\n") == 3
    assert json.loads(reported[0].split(b"data: ", 1)[1])["message"] == "it used\ntoo much"
    assert listeners == 0


def test_no_snapshot_is_taken_without_watchers():
    async def watch():
        front = Slow()
        feed = ViewStream(front)
        await first_events(feed, 2)
        taken = front.taken
        await until(lambda: not feed.is_taking)
        after = front.taken
        await feed.close()
        return taken, after, feed.is_taking

    taken, after, is_taking = asyncio.run(watch())
    assert after <= taken + 1
    assert not is_taking


def test_a_stream_is_of_server_sent_events(tmp_path):
    with served(FakeFront(), tmp_path) as agent, Http(agent) as http:
        http.send("GET /view/watch HTTP/1.1\r\nHost: x\r\n\r\n")
        status, headers = http.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        text = http.chunk()
        assert text.startswith(b"event: view\ndata: ")
        assert json.loads(text.split(b"data: ", 1)[1])["node"]


def test_one_sweep_serves_all_clients_that_ask_at_once(tmp_path):
    async def ask_together():
        place = Place(str(tmp_path))
        async with place.agent() as agent:
            await agent.apply(pods_of(PODS))
            await until(lambda: place.runtime.running() == {"app", "job"})
            return await asyncio.gather(*(agent.node_snapshot() for _ in range(100)))

    pictures = asyncio.run(ask_together())
    assert len({id(one.sweep) for one in pictures}) == 1
    assert {pod.key for pod in pictures[0].pods} == {"default/web", "default/batch"}


def test_the_runtime_has_figures_apart_from_the_agent(tmp_path):
    async def look(runtime):
        place = Place(str(tmp_path))
        sweeper = Sweeper(
            place.node, lambda: place.kernel, lambda: None, place.runtime, daemon=lambda: runtime
        )
        try:
            return await sweeper.sweep()
        finally:
            await sweeper.close()

    with subprocess.Popen(["sleep", "1000"]) as daemon:
        try:
            daemons = asyncio.run(look(process_at(daemon.pid))).daemons
        finally:
            daemon.kill()
    assert {"kubelet", "runtime"} <= daemons.keys()


class ClosingKernel(CountingKernel):
    """Counts how often it is let go."""

    closed = 0

    def close(self):
        self.closed += 1


def test_a_sweep_without_readers_keeps_nothing_open_and_serves_no_reader(tmp_path):
    async def look():
        place = Place(str(tmp_path))
        kernel = ClosingKernel()
        tree = SnapshotMaker().node_snapshot().sweep.tree
        for cgroup in tree.cgroups:
            kernel.create(cgroup.path)
        sweeper = Sweeper(place.node, lambda: kernel, lambda: tree, place.runtime)
        unseen = await sweeper.sweep(is_shown=False)
        closed = kernel.closed
        shown = await sweeper.sweep()
        again = await sweeper.sweep(is_shown=False)
        kept = kernel.closed
        await sweeper.close()
        return unseen, closed, shown, again, kept

    unseen, closed, shown, again, kept = asyncio.run(look())
    assert (unseen.applied, closed) == ({}, 1)
    assert shown.applied
    assert again is shown
    assert kept == 1


def test_a_reader_that_leaves_does_not_end_the_sweep_of_others(tmp_path):
    async def leave():
        place = Place(str(tmp_path))
        sweeper = Sweeper(place.node, lambda: place.kernel, lambda: None, place.runtime)
        leaving = asyncio.create_task(sweeper.sweep())
        staying = asyncio.create_task(sweeper.sweep())
        await asyncio.sleep(0)
        leaving.cancel()
        sweep = await staying
        await sweeper.close()
        return leaving.cancelled(), sweep

    was_cancelled, sweep = asyncio.run(leave())
    assert was_cancelled
    assert sweep.machine.memory_total_bytes > 0
