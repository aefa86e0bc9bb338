"""HTTP at the agent's socket: what each address answers, and that no client can hold it up."""

import asyncio
import gc
import json
import os
import socket
import subprocess
import sys
import tracemalloc
from contextlib import ExitStack, suppress
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evenkeel.api.decode import Findings, decode
from evenkeel.api.manifests import read_manifests
from evenkeel.api.pod import Pod
from evenkeel.errors import EvenkeelError
from evenkeel.server.agent_socket import SOCKET_NAME, connect, listen
from evenkeel.server.app import serve
from evenkeel.server.connection import Limits, in_parts
from evenkeel.server.large_answers import LargeAnswers
from tests.fake_front import FakeFront, served
from tests.models.http_client import Http, ask, wait_until
from tests.models.manifests import POD

# What is answered


def test_one_connection_answers_many_requests_also_when_they_come_at_once(agent):
    with Http(agent) as http:
        assert http.ask("GET", "/healthz") == (200, b"ok")
        assert http.ask("GET", "/pods")[0] == 200
        http.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        assert [http.answer() for _ in range(3)] == [(200, b"ok")] * 3


def test_pods_are_applied_listed_and_answered_one_by_one(agent):
    assert ask(agent, "POST", "/pods", POD) == (
        200,
        {"pods": [{"pod": "default/web", "outcome": "created"}], "objects": [], "warnings": []},
    )
    status, listed = ask(agent, "GET", "/pods")
    assert (status, listed["kind"], listed["apiVersion"]) == (200, "PodList", "v1")
    (pod,) = listed["items"]
    assert (pod["kind"], pod["metadata"]["name"], pod["status"]["phase"]) == ("Pod", "web", "Running")
    assert pod["spec"]["volumes"] == [{"name": "scratch", "emptyDir": {}}]
    assert ask(agent, "GET", "/pods/default/web") == (200, pod)
    assert ask(agent, "GET", "/pods?namespace=other")[1]["items"] == []


def test_a_pod_is_answered_so_that_it_can_be_applied_again(agent):
    ask(agent, "POST", "/pods", POD)
    _, pod = ask(agent, "GET", "/pods/default/web")
    findings = Findings()
    decode(Pod, {name: pod[name] for name in ("metadata", "spec", "status")}, findings)
    assert not findings.problems
    assert ask(agent, "POST", "/pods", json.dumps(pod))[1]["pods"][0]["outcome"] == "unchanged"


def test_the_outcome_of_each_pod_is_answered(agent):
    ask(agent, "POST", "/pods", POD)
    changed = POD.replace("64Mi", "128Mi") + "---\n" + POD.replace("web", "second")
    answer = ask(agent, "POST", "/pods", changed)[1]
    assert [(pod["pod"], pod["outcome"]) for pod in answer["pods"]] == [
        ("default/web", "configured"),
        ("default/second", "created"),
    ]


def test_every_mistake_is_reported_with_its_field_and_line_and_nothing_is_taken(agent, front):
    text = POD.replace("64Mi", "64Mx").replace("image:", "imgae:") + "---\n" + POD
    status, answer = ask(agent, "POST", "/pods", text)
    assert status == 422
    reported = {(problem["field"], problem["line"]) for problem in answer["problems"]}
    assert ("spec.containers[0].imgae", 7) in reported
    assert ("spec.containers[0].resources.requests[memory]", 10) in reported
    assert all(problem["message"] for problem in answer["problems"])
    assert front.held == {}


@pytest.mark.parametrize(
    "body, words",
    [
        (b"", "holds no pod"),
        (b"\xff\xfe", "not text in UTF-8"),
        (b"kind: Node\napiVersion: v1\nmetadata: {name: n}\n", "holds no pod"),
        (b"a\0b", "not YAML"),
        (POD.encode() + b"---\n" + POD.encode(), "stands twice"),
    ],
)
def test_a_body_that_holds_no_pods_is_reported(agent, body, words):
    status, answer = ask(agent, "POST", "/pods", body)
    assert status == 422
    assert words in answer["problems"][0]["message"]


def test_a_large_text_is_read_too(agent, front):
    text = "---\n".join(POD.replace("web", f"web-{number}") for number in range(200))
    assert len(text) > 32 * 1024
    status, answer = ask(agent, "POST", "/pods", text)
    assert (status, len(answer["pods"])) == (200, 200)
    assert len(ask(agent, "GET", "/pods")[1]["items"]) == 200


def test_a_pod_of_a_file_is_not_to_be_changed_here(agent, front):
    front.from_files["default/web"] = "/etc/pods/web.yaml"
    status, answer = ask(agent, "POST", "/pods", POD)
    assert (status, answer["message"]) == (409, "default/web is of /etc/pods/web.yaml")
    assert answer["hint"] == "change it there"


def test_a_pod_of_a_file_is_not_to_be_deleted_here(agent, front):
    ask(agent, "POST", "/pods", POD)
    front.from_files["default/web"] = "/etc/pods/web.yaml"
    status, answer = ask(agent, "DELETE", "/pods/default/web")
    assert (status, answer["message"]) == (409, "default/web is of /etc/pods/web.yaml")


def test_the_source_of_a_pod_is_one_of_two(agent, front):
    ask(agent, "POST", "/pods?source=run", POD)
    assert front.sources == ["run"]
    assert ask(agent, "POST", "/pods?source=file", POD)[0] == 400


def test_a_pod_is_deleted_with_a_grace_period_or_its_own(agent, front):
    ask(agent, "POST", "/pods", POD)
    assert ask(agent, "DELETE", "/pods/default/web?gracePeriodSeconds=2.5")[0] == 202
    status, answer = ask(agent, "DELETE", "/pods/default/web")
    assert (status, answer["message"]) == (404, 'there is no pod "web" in namespace default')
    assert front.deleted == [("default/web", 2.5), ("default/web", None)]


@pytest.mark.parametrize(
    "method, target, status, words",
    [
        ("GET", "/nothing", 404, "there is nothing at /nothing"),
        ("GET", "/pods/", 404, "nothing"),
        ("GET", "/../../etc/passwd", 404, "nothing"),
        ("GET", "/pods/default/nope", 404, 'no pod "nope"'),
        ("GET", "/pods/default/..%2f..%2fx", 404, 'no pod "../../x"'),
        ("PUT", "/pods", 405, "PUT is not allowed here"),
        ("GET", "/pods?colour=red", 400, 'no parameter "colour"'),
        ("GET", "/pods?" + "&".join(f"p{n}=1" for n in range(100)), 400, "parameters"),
        ("DELETE", "/pods/default/web?gracePeriodSeconds=-1", 400, "0 or more"),
        ("DELETE", "/pods/default/web?gracePeriodSeconds=nan", 400, "0 or more"),
        ("GET", "/events?most=0", 400, "most"),
        ("GET", "/events?follow=maybe", 400, "follow"),
    ],
)
def test_what_cannot_be_answered_is_reported_in_a_sentence(agent, method, target, status, words):
    got, answer = ask(agent, method, target)
    assert got == status
    assert words in answer["message"]
    assert "hint" in answer


def test_the_methods_that_an_address_has_are_named(agent):
    with Http(agent) as http:
        http.send("PUT /pods HTTP/1.1\r\nHost: x\r\n\r\n")
        assert http.head()[1]["allow"] == "GET, POST"


def test_a_head_request_is_refused_without_a_body_and_the_connection_stays(agent):
    with Http(agent) as http:
        http.send("HEAD /pods HTTP/1.1\r\nHost: x\r\n\r\n")
        assert http.head()[0] == 405
        assert http.ask("GET", "/healthz") == (200, b"ok")


def test_node_configuration_and_usage(agent, front):
    assert ask(agent, "GET", "/node")[1]["status"]["allocatable"]["memory"] == "30Gi"
    assert ask(agent, "GET", "/configz")[1]["kubeletconfig"]["maxPods"] == 110
    ask(agent, "POST", "/pods", POD)
    usage = ask(agent, "GET", "/usage")[1]
    assert usage["capacityMillicpu"] == 8000
    assert usage["containers"][1]["statistics"]["memoryWorkingSetBytes"] == 100 << 20


def test_readers_at_the_same_moment_share_one_look_at_the_figures(agent, front):
    with Http(agent) as http:
        answers = [http.ask("GET", "/usage")[1] for _ in range(20)]
    assert front.usages < len(answers)


def test_a_handler_that_fails_fails_one_request(agent, front, caplog):
    front.usage = lambda: 1 / 0
    with Http(agent) as http:
        status, answer = http.ask("GET", "/usage")
        assert (status, answer["message"]) == (500, "the agent failed to answer")
        assert http.ask("GET", "/healthz") == (200, b"ok")
    assert "ZeroDivisionError" in caplog.text


def test_an_error_in_words_is_passed_on(agent, front):
    def refuse():
        raise EvenkeelError("the cgroup is gone", hint="look there")

    front.usage = refuse
    assert ask(agent, "GET", "/usage") == (500, {"message": "the cgroup is gone", "hint": "look there"})


# Streams


def test_a_watch_tells_what_is_there_and_every_change(agent, front):
    ask(agent, "POST", "/pods", POD)
    with Http(agent) as watch:
        watch.send("GET /watch HTTP/1.1\r\nHost: x\r\n\r\n")
        assert watch.head()[0] == 200
        first = watch.line()
        assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "web")
        ask(agent, "POST", "/pods", POD.replace("64Mi", "1Gi"))
        second = watch.line()
        assert second["type"] == "MODIFIED"
        assert second["object"]["spec"]["containers"][0]["resources"]["requests"]["memory"] == "1Gi"
        ask(agent, "DELETE", "/pods/default/web")
        assert watch.line()["type"] == "DELETED"


def test_pods_that_are_gone_are_forgotten(agent, front):
    with Http(agent) as watch:
        watch.send("GET /watch HTTP/1.1\r\nHost: x\r\n\r\n")
        watch.head()
        (pod,) = read_manifests(POD, "").pods
        for number in range(600):
            named = pod._replace(metadata=pod.metadata._replace(name=f"web-{number}"))
            agent.call(front.put, named)
            agent.call(front.remove, named.key)
            assert [watch.line()["type"] for _ in range(2)] == ["ADDED", "DELETED"]
    held = [text for text in gc.get_objects() if isinstance(text, dict) and "default/web-599" in text]
    assert all(len(texts) < 300 for texts in held)
    assert held


def test_a_watch_can_be_of_one_pod_or_one_namespace(agent):
    ask(agent, "POST", "/pods", POD)
    ask(agent, "POST", "/pods", POD.replace("web", "other"))
    with Http(agent) as one, Http(agent) as none:
        one.send("GET /watch?pod=default/other HTTP/1.1\r\nHost: x\r\n\r\n")
        one.head()
        assert one.line()["object"]["metadata"]["name"] == "other"
        none.send("GET /watch?namespace=elsewhere HTTP/1.1\r\nHost: x\r\n\r\n")
        none.head()
        ask(agent, "POST", "/pods", POD.replace("name: web", "name: third, namespace: elsewhere"))
        assert none.line()["object"]["metadata"]["name"] == "third"


def test_a_client_that_leaves_is_unsubscribed(agent, front):
    with Http(agent) as watch, Http(agent) as events:
        watch.send("GET /watch HTTP/1.1\r\nHost: x\r\n\r\n")
        events.send("GET /events?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(agent, lambda: front.listeners == 2)
    wait_until(agent, lambda: front.listeners == 0)


def test_events_are_listed_and_followed_none_twice(agent, front):
    agent.call(front.tell, "Started", "it runs", "default/web")
    agent.call(front.tell, "Pressure", "memory runs short")
    past = ask(agent, "GET", "/events")[1]
    assert [json.loads(line)["reason"] for line in past.splitlines()] == ["Started", "Pressure"]
    assert json.loads(ask(agent, "GET", "/events?most=1")[1])["reason"] == "Pressure"
    with Http(agent) as http:
        http.send("GET /events?follow=1&pod=default/web HTTP/1.1\r\nHost: x\r\n\r\n")
        http.head()
        assert http.line()["reason"] == "Started"
        wait_until(agent, lambda: front.listeners == 1)
        agent.call(front.tell, "Elsewhere", "", "default/other")
        agent.call(front.tell, "Evicted", "it had to go", "default/web", figures={"bytes": 7})
        reported = http.line()
        assert (reported["reason"], reported["figures"], reported["number"]) == ("Evicted", {"bytes": 7}, 4)


def test_a_reader_that_takes_nothing_is_dropped_and_others_get_everything(tmp_path):
    front = FakeFront(most_waiting=50)
    large = POD.replace("name: web", "name: web, annotations: {a: " + "x" * 20_000 + "}")
    with served(front, tmp_path) as agent, Http(agent) as sleeper, Http(agent) as reader:
        for watch in (sleeper, reader):
            watch.send("GET /watch HTTP/1.1\r\nHost: x\r\n\r\n")
            watch.head()
        wait_until(agent, lambda: front.listeners == 2)
        seen = []
        for number in range(200):
            ask(agent, "POST", "/pods", large.replace("web", f"web-{number}"))
            seen.append(reader.line()["object"]["metadata"]["name"])
        assert seen == [f"web-{number}" for number in range(200)]
        assert front.dropped == 1
        while sleeper.chunk():  # what it was sent before, and then the end
            pass


def test_a_reader_of_a_long_answer_that_takes_nothing_is_dropped_after_a_while(tmp_path):
    limits = Limits(write_seconds=0.5)
    with served(FakeFront(), tmp_path, limits=limits) as agent:
        text = "---\n".join(POD.replace("web", f"web-{number}") for number in range(800))
        assert ask(agent, "POST", "/pods", text)[0] == 200
        with Http(agent) as http:
            http.send("GET /pods HTTP/1.1\r\nHost: x\r\n\r\n")
            length = int(http.head()[1]["content-length"])
            wait_until(agent, lambda: len(asyncio.all_tasks()) == 2)  # this one, and the check of the socket
            try:
                taken = len(http.file.read())
            except ConnectionResetError:
                taken = 0
            assert taken < length


# Hostile and slow clients


@pytest.fixture
def limited(front, tmp_path):
    """An agent with limits that a test can wait for."""
    with ExitStack() as stack:
        yield lambda **limits: stack.enter_context(served(front, tmp_path, limits=Limits(**limits)))


def test_a_silent_client_is_dropped(limited):
    with Http(limited(head_seconds=0.1)) as http:
        assert http.is_closed()


def test_a_client_that_never_ends_its_head_is_refused_and_dropped(limited):
    agent = limited(head_seconds=0.1)

    def begun() -> Http:
        http = Http(agent)
        http.send("GET /pods HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        return http

    with agent.call(begun) as http:  # in the server's own thread: it accepts it when all of that is there
        status, answer = http.answer()
        assert (status, answer["message"]) == (408, "the request did not come within 0.1 seconds")
        assert http.is_closed()


def test_a_client_that_keeps_an_announced_body_is_refused_and_dropped(limited):
    with Http(limited(body_seconds=0.1)) as http:
        http.send("POST /pods HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc")
        assert http.answer()[0] == 408
        assert http.is_closed()


def test_an_idle_connection_is_closed(limited):
    with Http(limited(idle_seconds=0.1)) as http:
        assert http.ask("GET", "/healthz")[0] == 200
        assert http.is_closed()


def test_a_head_that_is_too_large_is_refused(limited):
    with Http(limited(head_bytes=2000)) as http:
        http.send("GET /pods HTTP/1.1\r\nHost: x\r\nX-Large: " + "x" * 3000)
        status, answer = http.answer()
        assert (status, answer["message"]) == (431, "the request's head is larger than 2000 bytes")
        assert http.is_closed()


def test_a_body_that_announces_too_much_is_refused_unread(limited):
    with Http(limited(body_bytes=1000)) as http:
        http.send("POST /pods HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        status, answer = http.answer()
        assert status == 413
        assert "larger than" in answer["message"]
        assert http.is_closed()


def test_a_body_that_does_not_say_how_large_it_is_is_counted(limited):
    with Http(limited(body_bytes=1000)) as http:
        http.send("POST /pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        http.send("3e8\r\n" + "x" * 1000 + "\r\n" + "1\r\nx\r\n")
        assert http.answer()[0] == 413


def test_a_chunked_body_and_one_that_waits_to_be_asked_for_are_read(agent):
    with Http(agent) as http:
        chunk = f"{len(POD):x}\r\n{POD}\r\n0\r\n\r\n"
        http.send("POST /pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk)
        assert http.answer()[0] == 200
        http.send(
            f"POST /pods HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(POD)}\r\n\r\n"
        )
        assert http.head()[0] == 100
        http.send(POD)
        assert http.answer()[0] == 200


def test_only_a_few_large_bodies_are_held_at_a_time(front, tmp_path):
    limits = Limits(large_bodies=1, small_body_bytes=100, body_seconds=1.0)
    with served(front, tmp_path, limits=limits) as agent, Http(agent) as first:
        first.send("POST /pods HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n" + "x" * 1000)
        with Http(agent) as second:
            second.send(f"POST /pods HTTP/1.1\r\nHost: x\r\nContent-Length: {len(POD)}\r\n\r\n{POD}")
            assert first.answer()[0] == 408  # its time ran out, and the second had its turn, or no time left
            assert second.answer()[0] in (200, 408)
        assert ask(agent, "POST", "/pods", POD)[0] == 200


def test_a_body_that_no_handler_takes_ends_the_connection(agent):
    with Http(agent) as http:
        assert http.ask("GET", "/healthz", "a body")[0] == 200
        assert http.is_closed()


GARBAGE = [
    b"\r\n\r\n",
    b"\0" * 100 + b"\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /nothing HTTP/9.9\r\n\r\n",
    b"GET /pods HTTP/1.1\r\n\r\n",  # no Host
    b"POST /pods HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /pods HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"POST /pods HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /pods HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 10_000 + b"\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # a TLS greeting
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_refused_in_words_and_the_connection_closed(agent, garbage):
    with Http(agent) as http:
        try:
            http.send(garbage)
        except OSError:
            pass
        http.socket.shutdown(socket.SHUT_WR)
        try:
            status, answer = http.answer()
        except ConnectionResetError:
            status, answer = None, {}
        assert status is None or (400 <= status < 500 and answer["message"])
    assert ask(agent, "GET", "/healthz")[0] == 200


@pytest.fixture(scope="module")
def lasting_agent(tmp_path_factory):
    with served(FakeFront(), tmp_path_factory.mktemp("state")) as agent:
        yield agent


METHODS = st.sampled_from([b"GET", b"POST", b"DELETE", b"PUT"])
TARGETS = st.one_of(
    st.sampled_from([b"/pods", b"/watch", b"/events", b"/node", b"/usage", b"/pods/a/b"]),
    st.binary(max_size=30).map(lambda junk: b"/" + junk),
)
REQUESTS = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda method, target, junk, body: (
            method + b" " + target + b"?" + junk + b" HTTP/1.1\r\nHost: x\r\nContent-Length: "
            + str(len(body)).encode() + b"\r\n\r\n" + body
        ),
        METHODS,
        TARGETS,
        st.binary(max_size=30),
        st.binary(max_size=200),
    ),
)  # fmt: skip


@settings(max_examples=150)
@example(b"GET /pods/%ff/%00 HTTP/1.1\r\nHost: x\r\n\r\n")
@given(REQUESTS)
def test_no_bytes_whatever_make_the_agent_fail(lasting_agent, content):
    with Http(lasting_agent) as http:
        try:
            http.send(content)
            http.socket.shutdown(socket.SHUT_WR)
            status, _ = http.head()
        except OSError:
            status = None
        assert status is None or status < 500


async def _healthy(state_dir, count):
    async def one():
        reader, writer = await asyncio.open_unix_connection(sock=connect_async(state_dir))
        writer.write(b"GET /pods HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        line = await reader.readline()
        await reader.read()
        writer.close()
        return line

    return await asyncio.gather(*(one() for _ in range(count)))


def connect_async(state_dir):
    connected = connect(state_dir)
    connected.setblocking(False)
    return connected


def test_two_hundred_at_once_are_all_answered(agent):
    ask(agent, "POST", "/pods", POD)
    lines = asyncio.run(_healthy(agent.state_dir, 200))
    assert set(lines) == {b"HTTP/1.1 200 OK\r\n"}


def test_many_slow_clients_keep_no_other_out(front, tmp_path):
    with served(front, tmp_path, limits=Limits(connections=20)) as agent:
        slow = [Http(agent) for _ in range(60)]
        for http in slow[-20:]:
            http.send("GET /pods HT")
        assert [ask(agent, "GET", "/healthz")[0] for _ in range(30)] == [200] * 30
        assert slow[0].is_closed()  # those that waited longest made room
        for http in slow:
            http.close()


def test_clients_that_keep_their_announced_bodies_keep_no_other_out(front, tmp_path):
    with served(front, tmp_path, limits=Limits(connections=20)) as agent, ExitStack() as stack:
        slow = [stack.enter_context(Http(agent)) for _ in range(20)]
        for number, http in enumerate(slow):
            http.send(f"POST /pods HTTP/1.1\r\nHost: x\r\nContent-Length: {10 + number * 10_000}\r\n\r\nabc")
        assert [ask(agent, "GET", "/healthz")[0] for _ in range(30)] == [200] * 30
        assert slow[0].is_closed()
        assert ask(agent, "POST", "/pods", POD)[0] == 200


def test_what_a_client_sends_and_nobody_reads_is_bounded(front, tmp_path):
    """Only a few large bodies are read at a time. The others wait, mostly in the kernel."""
    with served(front, tmp_path, limits=Limits(large_bodies=1)) as agent, ExitStack() as stack:
        first, *others = (stack.enter_context(Http(agent)) for _ in range(50))
        tracemalloc.start()
        try:
            for http in (first, *others):
                http.socket.setblocking(False)
                http.socket.send(b"POST /pods HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
                with suppress(BlockingIOError):
                    while True:
                        http.socket.send(bytes(100_000))
            assert ask(agent, "GET", "/healthz")[0] == 200  # all that came before was read by then
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 50 * 100_000 + 1_000_000


def test_clients_that_do_not_read_the_list_of_pods_share_it(front, tmp_path):
    with served(front, tmp_path) as agent, ExitStack() as stack:
        large = POD.replace("name: web", f"name: web, annotations: {{large: {'x' * 200_000}}}")
        for number in range(10):
            assert ask(agent, "POST", "/pods", large.replace("web", f"web{number}"))[0] == 200
        assert len(ask(agent, "GET", "/pods")[1]["items"]) == 10
        tracemalloc.start()
        try:
            for _ in range(50):
                http = stack.enter_context(Http(agent))
                http.send("GET /pods HTTP/1.1\r\nHost: x\r\n\r\n")
                assert http.head()[0] == 200
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 50 * 200_000  # each of them was to get ten times as much


def test_of_large_answers_that_nobody_reads_the_oldest_are_given_up():
    large_answers = LargeAnswers(most_bytes=1_000_000)
    given_up: list[object] = []
    with ExitStack() as stack:
        for number in range(5):
            stack.enter_context(large_answers.held(300_000, partial(given_up.append, number)))
            stack.enter_context(large_answers.held(10, partial(given_up.append, f"small {number}")))
        assert given_up == [0, 1]
        assert large_answers.held_bytes == 900_000
        with large_answers.held(2_000_000, partial(given_up.append, "larger than all")):
            assert given_up == [0, 1, 2, 3, 4]
    assert large_answers.held_bytes == 0


def test_clients_that_do_not_read_large_answers_lose_them_to_others(front, tmp_path):
    with (
        served(front, tmp_path, limits=Limits(large_answer_bytes=600_000)) as agent,
        ExitStack() as stack,
    ):
        large = POD.replace("name: web", f"name: web, annotations: {{large: {'x' * 250_000}}}")
        assert ask(agent, "POST", "/pods", large)[0] == 200
        clients = [stack.enter_context(Http(agent)) for _ in range(5)]
        for http in clients:  # the first answers are in the kernel
            http.send("GET /pods/default/web HTTP/1.1\r\nHost: x\r\n\r\n" * 6)
            assert http.head()[0] == 200
        assert ask(agent, "GET", "/pods/default/web")[0] == 200
        first, *_, last = clients
        with suppress(ConnectionResetError):
            assert len(first.file.read()) < 6 * 250_000
        last.file.read(250_000)
        last.file.readline()
        assert [last.answer()[0] for _ in range(5)] == [200] * 5


@given(st.lists(st.binary(max_size=40)), st.integers(1, 20))
def test_an_answer_in_parts_is_the_same_answer(texts, size):
    parts = list(in_parts(texts, size))
    assert b"".join(parts) == b"".join(texts)
    assert all(len(part) <= size for part in parts)


def test_when_all_are_being_served_the_next_is_asked_to_come_again(front, tmp_path):
    with served(front, tmp_path, limits=Limits(connections=2)) as agent:
        watching = [Http(agent) for _ in range(2)]
        for http in watching:
            http.send("GET /watch HTTP/1.1\r\nHost: x\r\n\r\n")
            assert http.head()[0] == 200
        status, answer = ask(agent, "GET", "/healthz")
        assert (status, answer["hint"]) == (503, "try again")
        for http in watching:
            http.close()
        wait_until(agent, lambda: front.listeners == 0)
        assert ask(agent, "GET", "/healthz")[0] == 200


# The socket


def test_the_socket_is_its_owners_alone(agent, tmp_path):
    assert (tmp_path / SOCKET_NAME).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [SOCKET_NAME]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_is_refused_even_if_the_socket_were_open_to_all(agent, tmp_path):
    (tmp_path / SOCKET_NAME).chmod(0o666)
    program = (
        "import os, socket; s = socket.socket(socket.AF_UNIX); s.settimeout(20); os.setgroups([]); os.setuid(65534);"
        "s.connect('agent.sock'); print(s.makefile().read())"
    )
    tmp_path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith("HTTP/1.1 403 ")
    assert "user 65534 may not ask this agent" in done.stdout


def test_a_state_directory_may_lie_deep(front, tmp_path):
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with served(front, deep) as agent:
        assert ask(agent, "GET", "/healthz") == (200, b"ok")


def test_a_socket_that_was_left_behind_is_replaced(front, tmp_path):
    left = listen(str(tmp_path))
    left.close()
    with served(front, tmp_path) as agent:
        assert ask(agent, "GET", "/healthz") == (200, b"ok")


def test_a_second_agent_is_refused(agent, tmp_path):
    with pytest.raises(EvenkeelError, match="another agent listens at"):
        listen(str(tmp_path))
    assert ask(agent, "GET", "/healthz") == (200, b"ok")


def test_something_else_in_the_sockets_place_is_left_alone(tmp_path):
    (tmp_path / SOCKET_NAME).write_text("mine")
    with pytest.raises(EvenkeelError, match="is not a socket"):
        listen(str(tmp_path))
    assert (tmp_path / SOCKET_NAME).read_text() == "mine"


def test_the_end_of_the_server_ends_streams_and_removes_the_socket(front, tmp_path):
    with served(front, tmp_path) as agent:
        watch = Http(agent)
        watch.send("GET /watch HTTP/1.1\r\nHost: x\r\n\r\n")
        watch.head()
    assert watch.is_closed()
    watch.close()
    assert list(tmp_path.iterdir()) == []
    assert front.listeners == 0


def test_an_answer_under_way_is_given_before_the_end(tmp_path):
    class SlowFront(FakeFront):
        async def delete(self, key, grace_seconds=None):
            self.deleted.append((key, grace_seconds))
            await asyncio.sleep(0.2)
            return True

    front = SlowFront()
    with served(front, tmp_path) as agent:
        http = Http(agent)
        http.send("DELETE /pods/default/web HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(agent, lambda: bool(front.deleted))
    assert http.answer()[0] == 202
    http.close()


def test_a_socket_that_is_deleted_under_the_agent_comes_back(agent, tmp_path, caplog):
    with Http(agent) as before:
        (tmp_path / SOCKET_NAME).unlink()
        wait_until(agent, (tmp_path / SOCKET_NAME).exists)
        assert ask(agent, "GET", "/healthz") == (200, b"ok")
        assert before.ask("GET", "/readyz") == (200, b"ok")
    assert (tmp_path / SOCKET_NAME).stat().st_mode & 0o777 == 0o600
    assert "agent.sock was deleted; the agent listens at a new one" in caplog.text


def test_a_state_directory_that_is_deleted_under_the_agent_is_reported_at_once(front, tmp_path, caplog):
    state = tmp_path / "state"
    state.mkdir()
    with served(front, state) as agent, Http(agent) as http:
        assert http.ask("GET", "/readyz") == (200, b"ok")
        (state / SOCKET_NAME).unlink()
        state.rmdir()
        wait_until(agent, lambda: "state directory" in caplog.text)
        status, body = http.ask("GET", "/readyz")
        assert (status, str(state) in body["message"]) == (500, True)
        state.mkdir()  # another directory of that name holds nothing of this agent
        wait_until(agent, lambda: "was replaced" in caplog.text)
        assert http.ask("GET", "/readyz")[0] == 500


def test_the_socket_of_a_successor_is_left_alone(front, tmp_path):
    async def scenario():
        first = await serve(front, str(tmp_path))
        (tmp_path / SOCKET_NAME).unlink()
        second = await serve(front, str(tmp_path))
        await first.close()
        await first.close()  # again is fine
        assert (tmp_path / SOCKET_NAME).is_socket()
        await second.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", range(8))
def test_a_client_that_is_accepted_in_the_moment_of_the_end_is_not_left_behind(front, tmp_path, turns):
    """Whatever the loop has done of it by then."""

    async def story() -> set[asyncio.Task]:
        server = await serve(front, str(tmp_path))
        with connect(str(tmp_path)) as client:
            client.sendall(b"GET /view/watch HTTP/1.1\r\nHost: x\r\n\r\n")
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.close()
            for _ in range(20):  # more than it takes to accept a client, and to turn it away
                await asyncio.sleep(0)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(story()) == set()
