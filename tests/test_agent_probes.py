"""Probes against real servers on this machine, friendly and not."""

import asyncio
import contextlib
import socket
import ssl
from contextlib import closing
from typing import Any

import pytest

from evenkeel.agent.probe_requests import Answer, ask_http, ask_tcp, port_number
from evenkeel.agent.prober import Probes
from evenkeel.api.container import (
    Container,
    ContainerPort,
    ExecAction,
    HTTPGetAction,
    HTTPHeader,
    Probe,
    TCPSocketAction,
)
from evenkeel.policy.lifecycle.probe_results import ProbeKind, ProbeOutcome
from evenkeel.runtime.interface import Attempt, ExecResult
from evenkeel.runtime.start_errors import StartFailed
from tests.models.agents import drive, pods_of, until
from tests.reserved_port import ReservedPort

PATIENT_SECONDS = 30.0
ATTEMPT = Attempt("uid", "c", 1)
SUPPORTED_GROUPS, SECP256R1 = 10, 0x17  # of TLS
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

# The certificate of a server that is not trusted. It is probed all the same.
TLS_PEM = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgXUPJcZwxKhESfA2M
cPco+6cG1Ri+hyPlfJk29hKwHL6hRANCAAQpwTGw4aTZJHNi3o4Ff7+V1ERRWnT5
k2p6Glai3GiQaoK+Tdhbk8+ZRLV+cUAcbBOvZrTPDFThZ/7AFIjIYRst
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBbDCCAROgAwIBAgIULuLw0PhpII0lfdPCRJ0pv/gioygwCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBeDAeFw0yNjExMTYwMTMwMTVaFw0yNjExMTcwMTMwMTVaMAwx
CjAIBgNVBAMMAXgwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQpwTGw4aTZJHNi
3o4Ff7+V1ERRWnT5k2p6Glai3GiQaoK+Tdhbk8+ZRLV+cUAcbBOvZrTPDFThZ/7A
FIjIYRsto1MwUTAdBgNVHQ4EFgQUS25L33OHF1CfTP0+KlkTjyZ5fMIwHwYDVR0j
BBgwFoAUS25L33OHF1CfTP0+KlkTjyZ5fMIwDwYDVR0TAQH/BAUwAwEB/zAKBggq
hkjOPQQDAgNHADBEAiBERrEr9w+G8H6w3OsTLRRlyR1rdTm+vilPEKywcgqgzQIg
Oh+0Yy8e5qtRIro/yQy9bZqWRr5okClEZvCaqH5M0bI=
-----END CERTIFICATE-----
"""


@contextlib.asynccontextmanager
async def server(handle, host="127.0.0.1", **options):
    """`handle(request, writer)` answers each connection; the request is its head, or empty if none came."""
    tasks = set()

    async def serve(reader, writer):
        tasks.add(asyncio.current_task())
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                await handle(head.decode(), writer)
        finally:
            writer.close()

    running = await asyncio.start_server(serve, host, 0, **options)
    try:
        yield running.sockets[0].getsockname()[1]
    finally:
        running.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)


def answering(text):
    async def handle(_, writer):
        writer.write(text)
        await writer.drain()

    return handle


def status(line):
    return answering(f"HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n".encode())


def asked(handle, timeout_seconds=PATIENT_SECONDS, **action):
    async def ask():
        async with server(handle) as port:
            get = HTTPGetAction(**{"port": port, "path": "/", "scheme": "HTTP", **action})
            return await ask_http(get, Container(), timeout_seconds)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "line, is_success",
    [
        ("200 OK", True),
        ("204 No Content", True),
        ("399 Odd", True),
        ("302 Found", True),
        ("400 Bad", False),
        ("404 Not Found", False),
        ("500 Broken", False),
        ("503", False),
    ],
)
def test_a_status_from_200_to_399_is_a_success(line, is_success):
    answer = asked(status(line))
    assert answer.is_success is is_success
    assert is_success or line[:3] in answer.message


def test_a_request_is_what_the_probe_says_and_cannot_end_its_own_lines():
    heads = []

    async def handle(head, writer):
        heads.append(head.split("\r\n"))
        writer.write(OK)

    headers = (HTTPHeader("X-Who", "me"), HTTPHeader("Host", "example.org"), HTTPHeader("User-Agent", ""))
    assert asked(handle, path="/a b?c=d\r\nX-Evil: 1", http_headers=headers).is_success
    first, *rest = heads[0]
    assert first == "GET /a%20b?c=d%0D%0AX-Evil:%201 HTTP/1.1"
    assert {"X-Who: me", "Host: example.org", "Accept: */*", "Connection: close"} <= {*rest}
    assert not any(line.startswith(("User-Agent", "X-Evil")) for line in rest)


def test_a_header_with_a_line_in_it_is_refused():
    answer = asked(answering(OK), http_headers=(HTTPHeader("X-Who", "me\r\nX-Evil: 1"),))
    assert (answer.is_success, "control character" in answer.message) == (False, True)


def test_the_host_is_this_machine_unless_the_probe_names_another():
    heads = []

    async def handle(head, writer):
        heads.append(head)
        writer.write(OK)

    asked(handle)
    assert "Host: 127.0.0.1:" in heads[0]
    assert asked(handle, host="localhost").is_success
    assert "Host: localhost:" in heads[1]


def test_a_redirect_is_followed_on_the_same_host_only():
    seen = []

    async def handle(head, writer):
        path = head.split()[1]
        seen.append(path)
        to = {"/": "/next", "/next": "http://127.0.0.1.nowhere.invalid/away", "/bad": "/broken"}.get(path)
        line = f"302 Found\r\nLocation: {to}" if to else "500 Broken"
        writer.write(f"HTTP/1.1 {line}\r\nContent-Length: 7\r\n\r\nMoved.\n".encode())

    assert asked(handle) == Answer(True, "Probe terminated redirects, Response body: Moved.")
    assert seen == ["/", "/next"]
    assert asked(handle, path="/bad").is_success is False


@pytest.mark.parametrize(
    "length, body, reported",
    [
        ("Content-Length: 3", b"abcdef", " abc"),
        ("Content-Length: 99", b"abc", " abc"),
        ("Content-Length: -1", b"abc", ""),
        (f"Content-Length: {9**30}", b"abc", ""),
        ("Transfer-Encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n", ""),
        ("Content-Length: 5000", b"a" * 5000, f" {'a' * 1024}"),
        ("Content-Length: 4", b"a\x1b\xff\n", " a \N{REPLACEMENT CHARACTER}"),
    ],
)
def test_of_the_body_of_a_redirect_that_is_not_followed_the_beginning_is_reported(length, body, reported):
    head = f"HTTP/1.1 302 Found\r\nLocation: http://nowhere.invalid/\r\n{length}\r\n\r\n".encode()
    answer = asked(answering(head + body))
    assert answer == Answer(True, f"Probe terminated redirects, Response body:{reported}")


def test_a_success_with_a_warning_is_reported_in_an_event_and_is_no_failure(place):
    async def run(agent):
        async with server(answering(b"HTTP/1.1 302 F\r\nLocation: http://nowhere.invalid/\r\n\r\n")) as port:
            probe = f"{{httpGet: {{port: {port}}}, periodSeconds: 1}}"
            container = f"{{name: c, image: host, command: [x], livenessProbe: {probe}}}"
            pod = f"{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{containers: [{container}]}}}}"
            await agent.apply(pods_of(pod))
            await until(lambda: any(one.reason == "ProbeWarning" for one in agent.events()))
        (reported,) = {one.message for one in agent.events() if one.reason == "ProbeWarning"}
        assert reported == "liveness probe of container c: Probe terminated redirects, Response body:"
        assert not [one for one in agent.events() if one.reason in ("Unhealthy", "Killing")]

    drive(place, run)


def test_a_stop_for_a_failed_probe_is_an_event_that_says_why(place):
    async def run(agent):
        async with server(answering(b"HTTP/1.1 404 N\r\n\r\n")) as port:
            probe = f"{{httpGet: {{port: {port}}}, periodSeconds: 1, failureThreshold: 1}}"
            container = f"{{name: c, image: host, command: [x], livenessProbe: {probe}}}"
            pod = f"{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{containers: [{container}]}}}}"
            await agent.apply(pods_of(pod))
            await until(lambda: bool(place.runtime.stopped))
        messages = [one.message for one in agent.events() if one.reason == "Killing"]
        assert messages == ["stopping container c: liveness probe failed: HTTP status 404"]

    drive(place, run)


def test_a_redirect_without_end_fails():
    answer = asked(answering(b"HTTP/1.1 307 T\r\nLocation: /\r\n\r\n"))
    assert (answer.is_success, answer.message) == (False, "stopped after 10 redirects")


def test_an_interim_answer_is_not_the_answer():
    assert asked(answering(b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK)).is_success
    assert asked(answering(b"HTTP/1.1 100 C\r\n\r\n" * 50 + OK)).is_success is False


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 \r\n",
        b"HTTP/1.1 2x0 OK\r\n",
        b"HTTP/1.1 099 Low\r\n",
        b"\x00\xff" * 100,
        b"HTTP/1.1 302 F\r\nLocation: http://[::1\r\n\r\n",
    ],
)
def test_what_is_not_http_is_a_failure_in_words(text):
    answer = asked(answering(text))
    assert answer.is_success is False
    assert answer.message.isprintable()


def endless(chunk, begin=b""):
    async def handle(_, writer):
        writer.write(begin)
        while True:
            writer.write(chunk)
            await writer.drain()

    return handle


@pytest.mark.parametrize(
    "handle",
    [
        endless(b"x" * 65536),
        endless(b"X-More: y\r\n" * 1000, b"HTTP/1.1 301 M\r\n"),
        endless(b"x" * 65536, b"HTTP/1.1 301 M\r\nX-Long: "),
    ],
    ids=["status line", "headers", "header"],
)
def test_an_answer_without_end_is_cut_off(handle):
    assert asked(handle).is_success is False


def test_a_body_without_end_is_not_read():
    assert asked(endless(b"x" * 65536, b"HTTP/1.1 200 OK\r\n\r\n")).is_success


def test_a_server_that_says_nothing_costs_no_more_than_the_timeout():
    async def silent(_, writer):
        await asyncio.Event().wait()

    answer = asked(silent, timeout_seconds=0.05)
    assert (answer.is_success, "within 0.05s" in answer.message) == (False, True)


def test_a_server_that_speaks_one_letter_at_a_time_costs_no_more_than_the_timeout():
    async def slow(_, writer):
        for letter in OK:
            writer.write(bytes([letter]))
            await asyncio.sleep(0.02)

    assert asked(slow, timeout_seconds=0.1).is_success is False


def test_https_accepts_any_certificate(tmp_path):
    pem = tmp_path / "server.pem"
    pem.write_text(TLS_PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    async def ask():
        async with server(answering(OK), ssl=context) as port:
            secure = HTTPGetAction(port=port, path="/", scheme="HTTPS")
            plain = secure._replace(scheme="HTTP")
            return [await ask_http(each, Container(), PATIENT_SECONDS) for each in (secure, plain)]

    assert [answer.is_success for answer in asyncio.run(ask())] == [True, False]


def test_no_server_makes_the_agent_calculate_with_numbers_of_its_choice():
    """With Diffie-Hellman in a prime field a server chooses numbers that take a second for one handshake."""
    hello = bytearray()

    async def ask():
        async def take(reader, writer):
            hello.extend(await reader.read(16384))
            writer.close()

        listening = await asyncio.start_server(take, "127.0.0.1", 0)
        async with listening:
            port = listening.sockets[0].getsockname()[1]
            return await ask_http(HTTPGetAction(port=port, scheme="HTTPS"), Container(), PATIENT_SECONDS)

    assert asyncio.run(ask()).is_success is False
    suites, groups = offered(bytes(hello))
    named = {
        cipher["id"] & 0xFFFF: cipher["name"]
        for cipher in ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).get_ciphers()
    }
    names = [named[suite] for suite in suites if suite in named]
    assert names
    assert [name for name in names if not name.startswith(("TLS_", "ECDHE-"))] == []
    assert groups == [SECP256R1]


def offered(hello: bytes) -> tuple[list[int], list[int]]:
    """The cipher suites and the groups of a ClientHello (RFC 8446, 4.1.2)."""

    def numbers(text: bytes) -> list[int]:
        return [int.from_bytes(text[at : at + 2]) for at in range(0, len(text), 2)]

    at = 5 + 4 + 2 + 32  # the heads of record and message, version and random
    at += 1 + hello[at]  # the session's name
    length = int.from_bytes(hello[at : at + 2])
    suites = numbers(hello[at + 2 : at + 2 + length])
    at += 2 + length
    at += 1 + hello[at] + 2  # compression, and the length of all extensions
    while at < len(hello):
        kind, length = numbers(hello[at : at + 4])
        if kind == SUPPORTED_GROUPS:
            return suites, numbers(hello[at + 6 : at + 4 + length])
        at += 4 + length
    return suites, []


def test_a_port_can_be_named():
    ports = (ContainerPort(8080, "web"), ContainerPort(9090, "metrics"))
    assert [port_number(port, ports) for port in (80, "metrics", "81")] == [80, 9090, 81]
    assert [port_number(port, ports) for port in ("other", "0", "99999", "²")] == [None] * 4
    answer = asyncio.run(ask_tcp(TCPSocketAction("other"), Container(ports=ports), 1.0))
    assert (answer.is_success, answer.message) == (None, 'the container has no port called "other"')


def test_a_tcp_probe_passes_where_somebody_listens():
    def ask(port):
        return asyncio.run(ask_tcp(TCPSocketAction(port), Container(), PATIENT_SECONDS))

    with closing(ReservedPort()) as port:
        with socket.create_server(("127.0.0.1", port.number)):
            assert ask(port.number) == Answer(True)
        gone = ask(port.number)
        assert gone == Answer(False, f"connecting to 127.0.0.1:{port.number}: Connection refused")


class Asked:
    """Answers commands as a test says, and keeps the commands and the reports of the probes."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.commands = []
        self.recorded = []
        self.waiting = asyncio.Event()
        self.probes = Probes(self.execute, self.tell, jitter=lambda: 0.0)
        self.news: asyncio.Queue[Any] = asyncio.Queue()

    async def execute(self, attempt, command, timeout_seconds):
        self.commands.append((attempt, command, timeout_seconds))
        if not self.answers:
            self.waiting.set()
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def tell(self, probed):
        self.recorded.append(probed)
        self.news.put_nowait(probed)

    async def next_news(self):
        return await asyncio.wait_for(self.news.get(), PATIENT_SECONDS)


COMMAND = Probe(ExecAction(("check", "it")), timeout_seconds=2, failure_threshold=1)
PASSED, FAILED = ExecResult(0, ""), ExecResult(1, "no\x1b[31m disk\n")


def at_once(probe):
    """Removes the wait between two probes, which is at least a second."""
    return probe._replace(period_seconds=1e-6)


def test_a_readiness_probe_tells_when_it_first_knows_and_when_that_changes():
    async def run():
        asking = Asked(PASSED, PASSED, FAILED, FAILED, PASSED)
        container = Container("c", readiness_probe=at_once(COMMAND))
        asking.probes.watch(ATTEMPT, container, 0.0, is_started=True)
        asking.probes.watch(ATTEMPT, container, 0.0, is_started=True)
        await asyncio.wait_for(asking.waiting.wait(), PATIENT_SECONDS)
        await asking.probes.close()
        return asking

    asking = asyncio.run(run())
    assert [(each.outcome, each.has_changed) for each in asking.recorded] == [
        (ProbeOutcome.PASSED, True),
        (ProbeOutcome.FAILED, True),
        (ProbeOutcome.FAILED, False),
        (ProbeOutcome.PASSED, True),
    ]
    assert asking.commands[0] == (ATTEMPT, ("check", "it"), 2.0)
    assert asking.recorded[1].answer == Answer(False, "the command ended with 1: no [31m disk")


def test_the_others_begin_when_the_startup_probe_has_passed():
    async def run():
        asking = Asked(FAILED, PASSED, FAILED)
        container = Container(
            "c", startup_probe=at_once(COMMAND._replace(failure_threshold=9)), liveness_probe=at_once(COMMAND)
        )
        asking.probes.watch(ATTEMPT, container, 0.0, is_started=False)
        news = [await asking.next_news() for _ in range(3)]
        await asking.probes.close()
        return news

    news = asyncio.run(run())
    assert [(each.kind, each.outcome, each.has_changed) for each in news] == [
        (ProbeKind.STARTUP, ProbeOutcome.UNKNOWN, False),
        (ProbeKind.STARTUP, ProbeOutcome.PASSED, True),
        (ProbeKind.LIVENESS, ProbeOutcome.FAILED, True),
    ]


def test_a_liveness_probe_that_failed_asks_no_more_of_the_same_attempt():
    async def run():
        asking = Asked(FAILED, PASSED)
        container = Container("c", liveness_probe=at_once(COMMAND))
        asking.probes.watch(ATTEMPT, container, 0.0, is_started=True)
        await asking.next_news()
        asking.probes.watch(ATTEMPT, container, 0.0, is_started=True)
        await asyncio.sleep(0)
        next_attempt = ATTEMPT._replace(number=2)
        asking.probes.unwatch(ATTEMPT)
        asking.probes.watch(next_attempt, container, 0.0, is_started=True)
        await asyncio.wait_for(asking.waiting.wait(), PATIENT_SECONDS)
        await asking.probes.close()
        return [attempt.number for attempt, *_ in asking.commands]

    assert asyncio.run(run()) == [1, 2, 2]


def test_a_command_that_cannot_be_run_says_nothing_of_the_container():
    async def run():
        asking = Asked(StartFailed("no such program"), ExecResult(None, ""))
        asking.probes.watch(ATTEMPT, Container("c", liveness_probe=at_once(COMMAND)), 0.0, is_started=True)
        news = [await asking.next_news() for _ in range(2)]
        await asking.probes.close()
        return news

    first, second = asyncio.run(run())
    assert (first.answer, first.has_changed) == (Answer(None, "no such program"), False)
    assert (second.outcome, second.answer.message) == (
        ProbeOutcome.FAILED,
        "the command did not end within 2s",
    )


def test_nothing_is_told_of_a_container_that_is_watched_no_more():
    async def run():
        asking = Asked()
        asking.probes.watch(ATTEMPT, Container("c", readiness_probe=COMMAND), 0.0, is_started=True)
        await asyncio.wait_for(asking.waiting.wait(), PATIENT_SECONDS)
        asking.probes.unwatch(ATTEMPT)
        asking.probes.unwatch(ATTEMPT)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(others, timeout=PATIENT_SECONDS)
        assert all(task.cancelled() for task in others)
        return asking.recorded

    assert asyncio.run(run()) == []


def test_a_container_without_probes_costs_nothing():
    async def run():
        asking = Asked()
        asking.probes.watch(ATTEMPT, Container("c"), 0.0, is_started=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_an_agent_that_has_just_started_spreads_its_questions():
    async def run():
        probed = Container("c", readiness_probe=COMMAND._replace(period_seconds=3600))
        asking = Asked(PASSED)
        asking.probes = Probes(asking.execute, asking.tell, jitter=lambda: 0.5)
        asking.probes.watch(ATTEMPT, probed, 0.0, is_started=True)
        later = Asked(PASSED)
        times = iter([0.0])
        later.probes = Probes(
            later.execute, later.tell, clock=lambda: next(times, 4000.0), jitter=lambda: 0.5
        )
        later.probes.watch(ATTEMPT, probed, 0.0, is_started=True)
        await later.next_news()
        await asking.probes.close()
        await later.probes.close()
        return asking.commands

    assert asyncio.run(run()) == []
