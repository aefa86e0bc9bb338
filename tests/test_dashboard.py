"""The page's files, a pod's history as JSON, and the dashboard: a browser with the key reads, and nothing else does."""

import asyncio
import base64
import http.client
import io
import itertools
import json
import re
import secrets
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from evenkeel.agent.observe.pod_history import HistoryEntry, Other, PodHistory
from evenkeel.cli.client import AgentRefused, Client
from evenkeel.errors import EvenkeelError
from evenkeel.policy.eviction.message import Considered
from evenkeel.server.dashboard_proxy import Seal, message_name, serve_dashboard
from tests.fake_front import FakeFront, served
from tests.models.http_client import wait_until

PAGE = Path(__file__).parents[1] / "src" / "evenkeel" / "server" / "page"


class Browser:
    """A dashboard in a thread of its own, and requests as the page makes them."""

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
        (key,) = re.fullmatch(
            rf"http://127\.0\.0\.1:{self.port}/#key=([\w-]{{43}})", self.dashboard.address
        ).groups()
        self.key = base64.urlsafe_b64decode(key + "=")
        self.session = secrets.token_bytes(16)
        self.seen = b""  # what went over the port, for a sniffer

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def close(self):
        self.run(self.dashboard.close())
        self.end()

    def end(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(30)
        self.loop.close()

    def plain(self, target, method="GET", body=None, host=""):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, target, body, {"Host": host or f"127.0.0.1:{self.port}"})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        self.seen += target.encode() + (body or b"") + content
        return answer.status, answer.headers, content

    def sealed(self, path, key=None, session=None):
        """The body of a request, and the number that its answer is sealed with."""
        session = session or self.session
        asked = secrets.token_bytes(16)
        seal = Seal(key or self.key, session)
        return session + asked + seal.seal(message_name(b"q", asked), path.encode()), asked, seal

    def ask(self, path, **options):
        """Status and content, as the page opens them."""
        body, asked, seal = self.sealed(path, **options)
        status, _, content = self.plain("/ask", "POST", body)
        if status != 200:
            return status, content
        parts = list(opened(seal, asked, io.BytesIO(content)))
        assert parts[-1] == b""  # the answer is whole
        return json.loads(parts[0])["status"], b"".join(parts[1:])


def opened(seal, asked, stream):
    answered = stream.read(16)
    for number in itertools.count():
        if not (length := stream.read(4)):
            return
        sealed = stream.read(32 + int.from_bytes(length))
        part = seal.open(message_name(b"a", asked, answered, number), sealed)
        assert part is not None
        yield part


@pytest.fixture
def browser(agent):
    browser = Browser(agent.state_dir)
    yield browser
    browser.close()


def test_the_page_is_answered_with_a_policy_that_lets_nothing_in_from_elsewhere(browser):
    status, headers, body = browser.plain("/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert body == (PAGE / "index.html").read_bytes()
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_every_file_that_the_page_names_is_there(browser):
    named = set(re.findall(r'(?:src|href)="page/([^"]+)"', (PAGE / "index.html").read_text()))
    for script in PAGE.glob("*.js"):
        named |= set(re.findall(r'from "\./([^"]+)"', script.read_text()))
    assert named | {"index.html"} == {path.name for path in PAGE.iterdir()}
    for name in named:
        assert browser.plain(f"/page/{name}")[0] == 200


def test_the_page_names_no_outside_address_and_makes_no_markup_of_text():
    for path in PAGE.iterdir():
        content = path.read_text()
        addresses = set(re.findall(r"https?://[^\s\"')]+", content))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path.name  # the name of a language, not a place
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style="):
            assert way not in content, f"{path.name}: {way}"


@pytest.mark.parametrize("name", ["nothing.js", "..", "%2e%2e%2froutes.py", "..%2f__init__.py", "%00", ""])
def test_only_the_pages_own_files_are_answered(browser, name):
    assert browser.plain(f"/page/{name}")[0] == 404


@pytest.mark.req("E14")
def test_the_history_of_a_pod_has_sentences_and_figures(agent, front):
    search = Considered("default/search", "Burstable", 0, 200 << 20, 100 << 20, above_request=True)
    evicted = HistoryEntry(
        5.0,
        "Evicted",
        "the node was low on memory",
        "Warning",
        figures={"availableBytes": 5},
        decision=3,
        resource="memory",
        stayed=(Other(search, "was number 2 in rank"),),
    )
    front.histories["default/web"] = PodHistory("default/web", (evicted,), True, "Failed", "Evicted")
    client = Client(agent.state_dir)
    reported = client.get("/why/default/web")
    assert reported["end"] == "It is Failed now: Evicted."
    (chapter,) = reported["chapters"]
    assert chapter["sentence"] == "The node was low on memory."
    assert chapter["figures"] == {"availableBytes": 5}
    (other,) = chapter["stayed"]
    assert "default/search (Burstable, priority 0)" in other["sentence"]
    assert "was number 2 in rank" in other["sentence"]
    with pytest.raises(AgentRefused, match='no pod "nobody"'):
        client.get("/why/default/nobody")


def test_a_page_with_the_key_is_answered_and_a_request_without_it_is_not(browser):
    assert browser.ask("node")[0] == 200
    assert browser.ask("node", key=bytes(32))[0] == 403
    for target in ("/node", "/pods", "/view", "/view/watch", "/events?follow=1", "/pods/default/web"):
        assert browser.plain(target)[0] == 403
    for body in (b"", b"x" * 15, b"x" * 64, secrets.token_bytes(200)):
        assert browser.plain("/ask", "POST", body)[0] == 403


def test_the_key_serves_the_browser_that_comes_first(browser):
    other = secrets.token_bytes(16)
    assert browser.ask("node", key=bytes(32), session=other)[0] == 403  # it has not the key: it takes nothing
    assert browser.ask("node")[0] == 200
    assert browser.ask("node", session=other)[0] == 403
    assert browser.ask("node")[0] == 200


def test_a_sniffer_reads_nothing_and_can_use_nothing(browser, front):
    """It sees every byte on the port, and sends again what it saw."""
    front.tell("Started", "a secret", "shop/web")
    body, asked, seal = browser.sealed("events?pod=shop%2Fweb")
    _, headers, content = browser.plain("/ask", "POST", body)
    assert b"a secret" in b"".join(opened(seal, asked, io.BytesIO(content)))
    for word in (b"secret", b"shop", b"web", b"events", b"Started", browser.key):
        assert word not in browser.seen
    assert "Set-Cookie" not in headers
    assert browser.plain("/ask", "POST", body)[0] == 403  # the same request again
    assert browser.plain("/ask", "POST", body[:16] + secrets.token_bytes(16) + body[32:])[0] == 403


def test_an_answer_that_was_changed_cut_or_exchanged_is_not_opened(browser):
    body, asked, seal = browser.sealed("node")
    _, _, content = browser.plain("/ask", "POST", body)
    first = int.from_bytes(content[16:20])
    sealed = content[20 : 20 + 32 + first]
    name = message_name(b"a", asked, content[:16], 0)
    assert seal.open(name, sealed) is not None
    assert seal.open(name, sealed[:-1] + bytes([sealed[-1] ^ 1])) is None
    assert seal.open(name, sealed[:-1]) is None
    assert seal.open(message_name(b"a", asked, content[:16], 1), sealed) is None
    assert seal.open(message_name(b"a", secrets.token_bytes(16), content[:16], 0), sealed) is None
    assert seal.open(message_name(b"q", asked, content[:16], 0), sealed) is None


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 70_000])
def test_a_text_of_any_length_is_sealed_and_opened(length):
    text, name = secrets.token_bytes(length), message_name(b"q", bytes(16))
    seal = Seal(bytes(32), bytes(16))
    sealed = seal.seal(name, text)
    assert seal.open(name, sealed) == text
    assert len(sealed) == 32 + length
    if length > 16:
        assert text[:16] not in sealed


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "x@127.0.0.1"])
def test_a_name_that_was_made_to_point_here_is_refused(browser, host):
    assert browser.plain("/", host=host)[0] == 421
    assert browser.plain("/", host=f"localhost:{browser.port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed_through_the_dashboard(browser, front, method):
    assert browser.plain("/pods/default/web", method)[0] == 405
    assert browser.plain("/pods", method)[0] == 405
    assert browser.ask("pods/default/web")[0] == 404  # a sealed request is a GET
    assert front.deleted == []
    assert front.sources == []


@pytest.mark.parametrize("path", ["node HTTP/1.1\r\nX: y", "a b", "n\u00f6de", "\n"])
def test_a_path_is_never_more_than_a_path(browser, path):
    assert browser.ask(path)[0] == 400


def test_answers_and_refusals_of_the_agent_are_passed_on(browser, front):
    front.tell("Started", "it has <b>started</b>", "default/web")
    status, body = browser.ask("events?most=1&pod=default%2Fweb")
    assert status == 200
    assert b"<b>started</b>" in body
    assert browser.ask("pods/default/a%2Fb")[0] == 404
    assert browser.ask("pods?colour=red")[0] == 400


@pytest.mark.parametrize("path", ["secrets", "secrets/default/db", "%73ecrets/default/db"])
def test_no_secret_is_shown_on_the_page(browser, path):
    status, body = browser.ask(path)
    assert (status, b"Unix socket only" in body) == (403, True)


def test_streams_are_passed_on_as_they_come_and_end_with_the_reader(agent, browser, front):
    body, asked, seal = browser.sealed("events?follow=1")
    connection = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=30)
    connection.request("POST", "/ask", body)
    answer = connection.getresponse()
    parts = opened(seal, asked, answer)
    assert json.loads(next(parts))["status"] == 200
    agent.call(front.tell, "Started", "first")
    assert b"first" in next(parts)
    agent.call(front.tell, "Started", "second")
    assert b"second" in next(parts)
    answer.close()
    connection.close()
    wait_until(agent, lambda: front.listeners == 0)


def test_idle_connections_keep_no_browser_out(browser):
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", browser.port), timeout=30))
        for _ in range(10):
            assert browser.ask("node")[0] == 200


def test_an_agent_that_is_away_is_reported_and_found_again(tmp_path):
    with served(FakeFront(), tmp_path) as agent:
        browser = Browser(agent.state_dir)
        assert browser.ask("node")[0] == 200
    try:
        status, body = browser.ask("node")
        assert status == 502
        assert b"evenkeel up" in body
        with served(FakeFront(), tmp_path):
            assert browser.ask("node")[0] == 200
    finally:
        browser.close()


def test_a_port_that_is_taken_is_reported(agent, browser):
    with pytest.raises(EvenkeelError, match=f"cannot listen at 127.0.0.1:{browser.port}"):
        Browser(agent.state_dir, browser.port)


def test_the_command_prints_an_address_that_works_and_ends_with_ctrl_c(agent):
    command = [sys.executable, "-m", "evenkeel", "dashboard", "--state-dir", agent.state_dir]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().strip()
            (port,) = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#key=.+", address).groups()
            connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
            connection.request("GET", "/")
            assert connection.getresponse().status == 200
            connection.close()
        finally:
            process.terminate()
        assert process.wait(30) == 0


def test_the_command_says_that_there_is_no_agent(tmp_path):
    command = [sys.executable, "-m", "evenkeel", "dashboard", "--state-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no agent listens" in done.stderr
