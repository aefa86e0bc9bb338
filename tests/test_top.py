"""The node in a terminal: bars, the tree, and a screen that is given back as it was."""

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading

import pytest

from evenkeel.api.manifests import read_manifests
from evenkeel.cli.bars import BLOCKS, LETTERS, Bounds, Shares, capacity_bar, signs_for, use_bar
from evenkeel.cli.output import Paint
from evenkeel.cli.top_view import Layout, view_lines
from evenkeel.journal.records import WARNING, Event
from evenkeel.server.view_stream import ViewEncoder
from tests.fake_front import FakeFront, running, served
from tests.models.node_snapshots import SnapshotMaker

PLAIN = Paint(enabled=False)
COLOURS = Paint(enabled=True)
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: NS}
spec:
  containers:
  - name: app
    image: host
    command: [sleep, "60"]
    resources: RESOURCES
"""
GUARANTEED = "{limits: {cpu: 1, memory: 200Mi}}"
BURSTABLE = "{requests: {memory: 64Mi}, limits: {memory: 200Mi}}"


def pods(*wanted):
    text = "---\n".join(
        POD.replace("NAME", name).replace("NS", namespace).replace("RESOURCES", resources)
        for namespace, name, resources in wanted
    )
    return [
        one._replace(status=one.status._replace(qos_class=qos))
        for one, qos in zip(
            (running(one) for one in read_manifests(text, "here").pods),
            ("Guaranteed" if resources == GUARANTEED else "Burstable" for _, _, resources in wanted),
            strict=True,
        )
    ]


def view_of(held, notable=()):
    maker, views = SnapshotMaker(), ViewEncoder()

    async def second():
        await views.view(maker.node_snapshot(held, notable))
        return await views.view(maker.node_snapshot(held, notable))

    return json.loads(asyncio.run(second()).whole)


def look(**changes):
    return Layout(**{"columns": 160, "rows": 40, "paint": PLAIN, "signs": BLOCKS, **changes})


SHARES = Shares(100, [("green", 10), ("red", 10)], requested=40, reserved=30, rest=10)


def test_a_bar_shows_use_requests_reservation_and_the_rest_of_the_machine():
    assert capacity_bar(SHARES, 10, PLAIN, BLOCKS) == "██▒▒░░░╱╱▓"
    assert capacity_bar(SHARES, 10, PLAIN, LETTERS) == "##--...//+"


def test_use_is_coloured_by_class():
    assert capacity_bar(SHARES, 10, COLOURS, BLOCKS).startswith("\x1b[32m█\x1b[0m\x1b[31m█\x1b[0m")


@pytest.mark.parametrize(
    "bounds, drawn",
    [
        (Bounds(40, 50, 100, 1000), "####.|...]"),
        (Bounds(80, 50, 100, 1000), "#####|++.]"),
        (Bounds(50, 0, 0, 100), "+++++....."),  # a share of the node
        (Bounds(0, 0, 0, 0), ".........."),
        (Bounds(None, 50, 100, 1000), "          "),  # it does not run
        (Bounds(500, 0, 100, 1000), "+++++++++]"),
    ],
)
def test_use_against_request_and_limit(bounds, drawn):
    assert use_bar(bounds, 10, "green", PLAIN, LETTERS) == drawn


def test_a_terminal_that_has_no_blocks_gets_letters():
    assert signs_for("utf-8") is BLOCKS
    assert signs_for("ascii") is signs_for("no-such-thing") is LETTERS


def test_the_tree_shows_every_pod_below_its_class():
    held = pods(("shop", "web", GUARANTEED), ("default", "queue", BURSTABLE))
    lines = view_lines(view_of(held), look())
    assert lines[1].startswith("memory  ")
    assert "12Gi of 32Gi" in lines[1]
    assert "requested 264Mi" in lines[1]
    (web,) = [line for line in lines if "shop/web" in line]
    assert web.startswith("├─ shop/web")
    assert web.split()[2:5] == ["Guaranteed", "Running", "100Mi"]
    assert web.split()[6:8] == ["200Mi", "200Mi"]
    burstable = next(index for index, line in enumerate(lines) if "─ burstable" in line)
    assert lines[burstable + 1].split()[1:4] == ["queue", "Burstable", "Running"]
    assert "250m" in lines[burstable + 1]
    assert not any(" app " in line for line in lines)
    assert any("app" in line for line in view_lines(view_of(held), look(has_containers=True)))


def test_a_pod_that_does_not_run_is_listed_without_figures():
    (one,) = pods(("default", "gone", BURSTABLE))
    status = one.status._replace(phase="Failed", reason="Evicted")
    view = view_of([one])
    view["cgroups"] = [cgroup for cgroup in view["cgroups"] if not cgroup.get("pod")]
    view["pods"][0] |= {"path": "", "phase": status.phase, "reason": status.reason}
    (line,) = [line for line in view_lines(view, look()) if "gone" in line]
    assert line.split()[1:] == ["gone", "Burstable", "Evicted", "-", "64Mi", "200Mi", "-", "-", "-"]


def test_pods_can_be_chosen():
    held = pods(("shop", "web", GUARANTEED), ("default", "web", BURSTABLE), ("default", "queue", BURSTABLE))
    names = lambda **which: [  # noqa: E731
        line.split()[1] for line in view_lines(view_of(held), look(**which)) if "Running" in line
    ]
    assert names() == ["shop/web", "queue", "web"]
    assert names(namespace="default") == ["queue", "web"]
    assert names(names=["web"]) == ["shop/web", "web"]
    assert names(has_pods=False) == []


def test_pressure_and_the_last_events_are_shown_without_control_characters():
    evicted = Event(1.0, WARNING, "Evicted", "it was\x1b[31m large\n", "default/web", number=1)
    lines = view_lines(view_of([], [evicted]), look())
    assert any(line.startswith("pressure") and "waiting for memory 12.5%" in line for line in lines)
    assert "Evicted default/web it was\\x1b[31m large\\n" in lines[-1]
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize("columns, rows", [(40, 10), (80, 24), (100, 12), (300, 60)])
def test_it_is_no_larger_than_the_terminal(columns, rows):
    held = pods(*(("default", f"p{number}", BURSTABLE) for number in range(50)))
    lines = view_lines(view_of(held), look(columns=columns, rows=rows, paint=COLOURS))
    assert len(lines) <= rows
    assert max(len(re.sub(r"\x1b\[\d+m", "", line)) for line in lines) < columns
    if rows < 50:
        assert any("more" in line for line in lines)


@pytest.mark.parametrize("ends_by, code", [("q", 0), ("SIGTERM", 128 + signal.SIGTERM)])
def test_a_live_screen_shows_what_comes_and_is_given_back_however_it_ends(tmp_path, ends_by, code):
    front = FakeFront()
    for one in pods(("default", "web", BURSTABLE)):
        front.held[one.key] = one
    with served(front, tmp_path) as agent:
        master, slave = pty.openpty()
        command = [
            sys.executable,
            "-m",
            "evenkeel",
            "top",
            "--interval",
            "0.5",
            "--state-dir",
            agent.state_dir,
        ]
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40", "PYTHONUTF8": "1"}
        with subprocess.Popen(command, stdin=slave, stdout=slave, env=environment) as process:
            os.close(slave)
            seen = _Seen(master)
            try:
                seen.until(b"web")
                (later,) = pods(("default", "later", BURSTABLE))
                agent.call(front.put, later)
                seen.until(b"later")
                if ends_by == "q":
                    os.write(master, b"q")
                else:
                    process.terminate()
                assert process.wait(60) == code
                seen.until(b"\x1b[?1049l")
                assert seen.text.startswith(b"\x1b[?1049h")
            finally:
                process.kill()
                process.wait()
                seen.end()
                os.close(master)


class _Seen:
    """The output that a terminal has got so far."""

    def __init__(self, master):
        self.text = b""
        self._master = master
        self._new = threading.Condition()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def end(self):
        """After the last program at the terminal: the number of its descriptor may be another's then."""
        self._reading.join()

    def _read(self):
        while True:
            try:
                part = os.read(self._master, 65536)
            except OSError:
                return
            with self._new:
                self.text += part
                self._new.notify_all()

    def until(self, words):
        with self._new:
            assert self._new.wait_for(lambda: words in self.text, 60), self.text
