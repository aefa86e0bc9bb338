"""The page's files, a pod's story as JSON, and the door for a browser: who is let in, and to what."""

import asyncio
import http.client
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from evenkeel.agent.observe.story import Chapter, Other, Story
from evenkeel.cli.client import AgentRefused, Client
from evenkeel.errors import EvenkeelError
from evenkeel.policy.eviction.message import Considered
from evenkeel.server.dashboard_proxy import serve_dashboard
from tests.fake_front import FakeFront, served

PAGE = Path(__file__).parents[1] / "src" / "evenkeel" / "server" / "page"


@pytest.fixture
def front():
    return FakeFront()


@pytest.fixture
def agent(front, tmp_path):
    with served(front, tmp_path) as agent:
        yield agent


class Door:
    """A dashboard in a thread of its own."""

    def __init__(self, state_dir, port=0):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        try:
            self.dashboard = self.run(serve_dashboard(state_dir, port))
        except BaseException:
            self.end()
            raise
        self.port = self.dashboard.port
        self.path, self.token = re.fullmatch(
            rf"http://127\.0\.0\.1:{self.port}(/.+/)\?token=(.+)", self.dashboard.address
        ).groups()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def close(self):
        self.run(self.dashboard.close())
        self.end()

    def end(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(30)
        self.loop.close()

    def ask(self, target, cookie="", method="GET", host=""):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Host": host or f"127.0.0.1:{self.port}", **({"Cookie": cookie} if cookie else {})}
        connection.request(method, target, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, answer.headers, body

    def enter(self):
        """The cookie that the address gives."""
        status, headers, _ = self.ask(f"{self.path}?token={self.token}")
        assert (status, headers["Location"]) == (303, self.path)
        return headers["Set-Cookie"].partition(";")[0]


@pytest.fixture
def door(agent):
    door = Door(agent.state_dir)
    yield door
    door.close()


def test_the_page_is_answered_with_a_policy_that_lets_nothing_in_from_elsewhere(door):
    cookie = door.enter()
    status, headers, body = door.ask(door.path, cookie)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert body == (PAGE / "index.html").read_bytes()
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_every_file_that_the_page_names_is_there(door):
    cookie = door.enter()
    named = set(re.findall(r'(?:src|href)="page/([^"]+)"', (PAGE / "index.html").read_text()))
    for script in PAGE.glob("*.js"):
        named |= set(re.findall(r'from "\./([^"]+)"', script.read_text()))
    assert named | {"index.html"} == {path.name for path in PAGE.iterdir()}
    for name in named:
        assert door.ask(f"{door.path}page/{name}", cookie)[0] == 200


def test_the_page_names_no_outside_address_and_makes_no_markup_of_text():
    for path in PAGE.iterdir():
        content = path.read_text()
        addresses = set(re.findall(r"https?://[^\s\"')]+", content))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path.name  # the name of a language, not a place
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style="):
            assert way not in content, f"{path.name}: {way}"


@pytest.mark.parametrize("name", ["nothing.js", "..", "%2e%2e%2froutes.py", "..%2f__init__.py", "%00", ""])
def test_only_the_pages_own_files_are_answered(door, name):
    cookie = door.enter()
    assert door.ask(f"{door.path}page/{name}", cookie)[0] == 404


@pytest.mark.req("E14")
def test_a_pods_story_is_told_in_sentences_with_its_figures(agent, front):
    search = Considered("default/search", "Burstable", 0, 200 << 20, 100 << 20, above_request=True)
    evicted = Chapter(
        5.0,
        "Evicted",
        "the node was low on memory",
        "Warning",
        figures={"availableBytes": 5},
        decision=3,
        resource="memory",
        stayed=(Other(search, "was number 2 in rank"),),
    )
    front.stories["default/web"] = Story("default/web", (evicted,), True, "Failed", "Evicted")
    client = Client(agent.state_dir)
    told = client.get("/why/default/web")
    assert told["end"] == "It is Failed now: Evicted."
    (chapter,) = told["chapters"]
    assert chapter["sentence"] == "The node was low on memory."
    assert chapter["figures"] == {"availableBytes": 5}
    (other,) = chapter["stayed"]
    assert "default/search (Burstable, priority 0)" in other["sentence"]
    assert "was number 2 in rank" in other["sentence"]
    with pytest.raises(AgentRefused, match='no pod "nobody"'):
        client.get("/why/default/nobody")


def test_the_token_opens_the_door_once_and_the_cookie_keeps_it_open(door):
    assert door.ask(door.path)[0] == 403
    assert door.ask(f"{door.path}?token=guess")[0] == 403
    cookie = door.enter()
    assert door.ask(f"{door.path}?token={door.token}")[0] == 403  # it was used
    assert door.ask(door.path, cookie)[0] == 200
    assert door.ask(f"{door.path}?token={door.token}", cookie)[0] == 303  # the same browser, again
    assert door.ask(door.path, f"other=1; {cookie}")[0] == 200
    assert door.ask(door.path, cookie[:-1])[0] == 403


def test_the_cookie_is_for_this_path_only_and_for_no_script(door):
    _, headers, _ = door.ask(f"{door.path}?token={door.token}")
    attributes = headers["Set-Cookie"].split("; ")[1:]
    assert attributes == [f"Path={door.path}", "HttpOnly", "SameSite=Strict"]
    assert door.ask("/", headers["Set-Cookie"].partition(";")[0])[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "x@127.0.0.1"])
def test_a_name_that_was_made_to_point_here_is_refused(door, host):
    cookie = door.enter()
    assert door.ask(door.path, cookie, host=host)[0] == 421
    assert door.ask(door.path, cookie, host=f"localhost:{door.port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed_through_the_door(door, front, method):
    cookie = door.enter()
    assert door.ask(f"{door.path}pods/default/web", cookie, method)[0] == 405
    assert door.ask(f"{door.path}pods", cookie, method)[0] == 405
    assert front.deleted == []
    assert front.sources == []


def test_answers_and_refusals_of_the_agent_are_passed_on(door, front):
    cookie = door.enter()
    front.tell("Started", "it has <b>started</b>", "default/web")
    status, headers, body = door.ask(f"{door.path}events?most=1&pod=default%2Fweb", cookie)
    assert (status, headers["Content-Type"]) == (200, "application/x-ndjson")
    assert b"<b>started</b>" in body
    status, _, body = door.ask(f"{door.path}pods/default/a%2Fb", cookie)
    assert status == 404
    assert door.ask(f"{door.path}pods?colour=red", cookie)[0] == 400


def test_streams_are_passed_on_as_they_come_and_end_with_the_reader(agent, door, front):
    cookie = door.enter()
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=30)
    connection.request("GET", f"{door.path}events?follow=1", headers={"Cookie": cookie})
    answer = connection.getresponse()
    agent.call(front.tell, "Started", "first")
    assert b"first" in answer.readline()
    agent.call(front.tell, "Started", "second")
    assert b"second" in answer.readline()
    answer.close()
    connection.close()
    deadline = threading.Event()
    for _ in range(3000):
        if agent.call(lambda: front.listeners) == 0:
            return
        deadline.wait(0.01)
    raise AssertionError("the agent still has a listener")


def test_an_agent_that_is_away_is_told_and_found_again(tmp_path):
    with served(FakeFront(), tmp_path) as agent:
        door = Door(agent.state_dir)
        cookie = door.enter()
    try:
        status, _, body = door.ask(f"{door.path}node", cookie)
        assert status == 502
        assert b"evenkeel up" in body
        with served(FakeFront(), tmp_path):
            assert door.ask(f"{door.path}node", cookie)[0] == 200
    finally:
        door.close()


def test_a_port_that_is_taken_is_told(agent, door):
    with pytest.raises(EvenkeelError, match=f"cannot listen at 127.0.0.1:{door.port}"):
        Door(agent.state_dir, door.port)


def test_the_command_prints_an_address_that_works_and_ends_with_ctrl_c(agent):
    command = [sys.executable, "-m", "evenkeel", "dashboard", "--state-dir", agent.state_dir]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().strip()
            port, path = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/.+)", address).groups()
            connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
            connection.request("GET", path)
            assert connection.getresponse().status == 303
            connection.close()
        finally:
            process.terminate()
        assert process.wait(30) == 0


def test_the_command_says_that_there_is_no_agent(tmp_path):
    command = [sys.executable, "-m", "evenkeel", "dashboard", "--state-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no agent listens" in done.stderr
