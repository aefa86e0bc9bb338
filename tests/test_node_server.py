"""The server of a cluster's node: who gets in, what he may do, and what is there."""

import contextlib
import http.client
import json
import os
import socket
import ssl
import threading
from pathlib import Path

import pytest

from evenkeel.api.manifests import read_manifests
from evenkeel.errors import EvenkeelError
from evenkeel.kube.kubeconfig import read_kubeconfig
from evenkeel.runtime.paths import state_paths
from evenkeel.server.http import Request
from evenkeel.server.kubelet.access import User, asked_for, user_of_subject
from evenkeel.server.kubelet.spdy_frames import Ping
from evenkeel.server.kubelet.tls import ClientAuthority, NodeTls, cluster_authority
from tests.certificates import private
from tests.cluster.authority import Authority
from tests.fake_front import running
from tests.fake_sessions import SessionFront, refused
from tests.kernel.waiting import eventually
from tests.models.api_server import kubeconfig
from tests.models.node_servers import ALLOWED, expired, node_server
from tests.models.spdy_client import PORTS, SpdyClient, connected, head_of

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web, uid: 0f1e2d3c-0000-4000-8000-000000000001}
spec: {containers: [{name: app, image: host, command: [sleep, "60"]}]}
"""
EXEC = "/exec/default/web/app?output=1&error=1"


def a_pod(name="web"):
    return running(read_manifests(POD.replace("name: web", f"name: {name}"), "test").or_raise().pods[0])


class NodeFront(SessionFront):
    """Its ports are those of this machine."""

    async def open_port(self, key, port):
        self.asked.append((key, port))
        if self.refusal is not None:
            raise self.refusal
        one = socket.create_connection(("127.0.0.1", port), timeout=30)
        one.setblocking(False)
        return one


@pytest.fixture
def node(tmp_path):
    front = NodeFront()
    with node_server(tmp_path, front) as node:
        node.call(front.put, a_pod())
        yield node


# Who


def test_a_user_whom_the_cluster_allows_it_is_answered(node):
    assert node.ask("/healthz") == (200, "ok")
    assert node.ask("/healthz", token="", client=node.authority.client("c", ALLOWED)) == (200, "ok")


@pytest.mark.parametrize("target", ["/healthz", "/pods", "/metrics", "/nothing", EXEC])
def test_nobody_else_learns_anything(node, target):
    for token in ("", "made-up", "a" * 20_000, "\xe9" * 20):
        assert node.ask(target, token=token) == (401, "Unauthorized")
    assert node.ask(target, token="", headers={"Authorization": "Basic YWxsb3dlZDphbGxvd2Vk"})[0] == 401
    assert node.ask(target, token="", headers={"X-Remote-User": ALLOWED})[0] == 401


def test_a_known_user_without_rights_is_refused_by_name(node):
    status, said = node.ask("/metrics", token="poor")
    assert status == 403
    assert 'user "poor" may not get nodes/metrics' in said
    assert node.ask("/nothing", token="poor")[0] == 403  # he does not learn what is there


def test_a_certificate_must_be_one_of_the_authority_for_clients_and_valid_now(node, tmp_path):
    other = Authority(tmp_path / "other").client("c", ALLOWED)
    server = node.authority.server(ALLOWED, "DNS:allowed")
    for pair in (other, server, expired(node.authority, ALLOWED)):
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            node.ask("/healthz", token="", client=pair)
    nameless = node.authority.client("nameless", "")
    assert node.ask("/healthz", token="", client=nameless)[0] == 401


def test_the_groups_of_a_certificate_are_its_organizations(node):
    assert node.ask("/pods", token="", client=node.authority.client("c", "jane", "ops", "dev"))[0] == 403
    (first, *_) = [one["spec"] for one in node.cluster.reviews if one["kind"] == "SubjectAccessReview"]
    assert (first["user"], first["groups"]) == ("jane", ["ops", "dev", "system:authenticated"])


def test_the_last_common_name_is_the_user():
    subject = ((("organizationName", "a"),), (("commonName", "first"),), (("commonName", "last"),))
    assert user_of_subject(subject) == User("last", groups=("a", "system:authenticated"))
    assert user_of_subject(((("organizationName", "system:masters"),),)) is None


def test_answers_are_kept_for_their_time(node):
    def reviews(kind):
        return sum(one["kind"] == kind for one in node.cluster.reviews)

    for _ in range(3):
        assert node.ask("/metrics")[0] == 200
        assert node.ask("/metrics", token="poor")[0] == 403
        assert node.ask("/metrics", token="wrong")[0] == 401
    assert (reviews("TokenReview"), reviews("SubjectAccessReview")) == (3, 2)
    node.now += 31  # what was refused is asked again
    node.cluster.rights.add(("poor", "get", "metrics"))
    node.cluster.tokens["wrong"] = ALLOWED
    assert node.ask("/metrics", token="poor")[0] == 200
    assert node.ask("/metrics", token="wrong")[0] == 200
    assert (reviews("TokenReview"), reviews("SubjectAccessReview")) == (4, 3)
    del node.cluster.tokens[ALLOWED]
    assert node.ask("/metrics")[0] == 200
    node.now += 90
    assert node.ask("/metrics")[0] == 401


def test_without_the_api_server_nobody_gets_in_who_was_not_known(node):
    assert node.ask("/healthz") == (200, "ok")
    node.cluster.is_away = True
    assert node.ask("/healthz") == (200, "ok")
    status, said = node.ask("/healthz", token="poor")
    assert status == 503
    assert "poor" not in said


def test_no_token_is_in_a_log(node, caplog):
    secret = "secret-token-of-nobody"
    node.ask("/healthz", token=secret)
    node.cluster.is_away = True
    node.ask("/healthz", token=f"{secret}2")
    assert secret not in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "verb", "subresources"),
    [
        ("GET", "/stats/summary", "get", ("stats",)),
        ("GET", "/metrics/resource", "get", ("metrics",)),
        ("GET", "/pods", "get", ("pods", "proxy")),
        ("GET", "/runningpods/", "get", ("pods", "proxy")),
        ("GET", "/healthz", "get", ("healthz", "proxy")),
        ("GET", "/configz", "get", ("configz", "proxy")),
        ("GET", "/logs/x", "get", ("log",)),
        ("POST", "/checkpoint/a/b/c", "create", ("checkpoint",)),
        ("GET", "/containerLogs/a/b/c", "get", ("proxy",)),
        ("POST", "/exec/a/b/c", "create", ("proxy",)),
        ("GET", "/exec/a/b/c", "create", ("proxy",)),  # stricter than kubelet
        ("GET", "/portForward/a/b", "create", ("proxy",)),
        ("DELETE", "/pods/..", "delete", ("pods", "proxy")),
        ("GET", "/metrics%2f..%2fexec", "get", ("proxy",)),
        ("BREW", "/", "", ("proxy",)),
    ],
)
def test_what_a_request_is_to_the_cluster(method, path, verb, subresources):
    words = tuple(path.split("/")[1:])
    assert asked_for(Request(method, words, {})) == (verb, subresources)


def test_one_of_the_fine_rights_is_enough(node):
    for target, right in (("/pods", "pods"), ("/configz", "configz"), ("/healthz", "healthz")):
        assert node.ask(target, token="poor")[0] == 403
        node.now += 31
        node.cluster.rights.add(("poor", "get", right))
        assert node.ask(target, token="poor")[0] == 200
    assert node.ask("/stats/summary", token="poor")[0] == 403


def test_who_may_read_through_the_node_runs_no_command(node):
    node.cluster.rights.add(("poor", "get", "proxy"))
    assert node.ask("/containerLogs/default/none/app", token="poor")[0] == 404
    for method in ("GET", "POST"):
        assert node.ask(EXEC, token="poor", method=method)[0] == 403
    assert node.front.asked == []


# What is there


def test_the_answers_are_those_of_kubelet(node):
    assert json.loads(node.ask("/pods")[1])["items"][0]["metadata"]["name"] == "web"
    assert json.loads(node.ask("/runningpods/")[1])["items"][0]["metadata"]["name"] == "web"
    assert json.loads(node.ask("/configz")[1])["kubeletconfig"]["port"] == 10250
    assert json.loads(node.ask("/stats/summary")[1])["node"]["nodeName"]
    assert "node_cpu_usage_seconds_total" in node.ask("/metrics/resource")[1]
    for target in ("/metrics", "/metrics/cadvisor", "/metrics/probes"):
        assert node.ask(target)[0] == 200


@pytest.mark.parametrize(
    "target",
    ["/", "/nothing", "/logs/", "/debug/pprof/", "/run/default/web/app", "/stats/x", "/metrics/x", "/pods/x/y",
     "//pods", "/../pods", "/secrets", "/api/v1/secrets", "/view", "/snapshot", "/agent.sock"],
)  # fmt: skip
def test_everything_else_is_not_there(node, target):
    assert node.ask(target)[0] == 404


def test_nothing_can_be_changed(node):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for target in ("/pods", "/configz", "/pods/default/web"):
            assert node.ask(target, method=method)[0] in (404, 405)
    assert node.front.deleted == []


def test_healthz_is_on_loopback_without_tls(node):
    connection = http.client.HTTPConnection("127.0.0.1", node.healthz_port, timeout=30)
    for target, status in (("/healthz", 200), ("/pods", 404), ("/metrics", 404)):
        connection.request("GET", target)
        answer = connection.getresponse()
        assert (answer.status, len(answer.read()) > 0) == (status, True)
    connection.close()


# Logs


def write_log(node, *lines, number=1, pod="web"):
    meta = a_pod(pod).metadata
    path = Path(state_paths(str(node.state)).log("default", pod, meta.uid, "app", number))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(
            f"2026-01-01T12:00:{second:02}.000000000Z {line}\n" for second, line in enumerate(lines)
        )
    return path


LOGS = "/containerLogs/default/web/app"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "one\ntwo\nthree\n"),
        ("?tailLines=1", "three\n"),
        ("?tailLines=0", ""),
        ("?limitBytes=5", "one\nt"),
        ("?timestamps=true&tailLines=1", "2026-01-01T12:00:02.000000000Z three\n"),
        ("?sinceTime=2026-01-01T12:00:01Z", "two\nthree\n"),
        ("?sinceTime=2026-01-01T13:00:01%2B01:00", "two\nthree\n"),
        ("?sinceSeconds=1", ""),
        ("?stream=Stderr", "two\n"),
    ],
)
def test_a_log_is_cut_as_asked(node, query, expected):
    write_log(node, "stdout F one", "stderr F two", "stdout F three")
    assert node.ask(LOGS + query) == (200, expected)


@pytest.mark.parametrize(
    "query", ["tailLines=-1", "tailLines=x", "limitBytes=0", "sinceSeconds=0", "sinceTime=now", "stream=x",
              "sinceSeconds=1&sinceTime=2026-01-01T12:00:01Z", "tailLines=" + "9" * 30]
)  # fmt: skip
def test_a_wrong_option_is_refused(node, query):
    write_log(node, "stdout F one")
    assert node.ask(f"{LOGS}?{query}")[0] == 400


def test_the_log_of_the_run_before_is_the_previous_one(node):
    write_log(node, "stdout F before", number=1)
    assert node.ask(f"{LOGS}?previous=true")[0] == 400
    write_log(node, "stdout F now", number=2)
    assert node.ask(f"{LOGS}?previous=true") == (200, "before\n")
    assert node.ask(LOGS) == (200, "now\n")


def test_a_followed_log_goes_on_until_the_container_ends(node):
    path = write_log(node, "stdout F one")
    connection = http.client.HTTPSConnection("127.0.0.1", node.port, context=node.trusting(), timeout=30)
    connection.request("GET", f"{LOGS}?follow=true", headers={"Authorization": f"Bearer {ALLOWED}"})
    answer = connection.getresponse()
    assert answer.readline() == b"one\n"
    for word in ("two", "three"):
        with path.open("a") as file:
            file.write(f"2026-01-01T12:01:00.000000000Z stdout F {word}\n")
        assert answer.readline() == f"{word}\n".encode()
    node.call(node.front.remove, "default/web")
    assert answer.read() == b""
    connection.close()


@pytest.mark.parametrize(
    "target",
    ["/containerLogs/default/none/app", "/containerLogs/default/web/none", "/containerLogs/default/..%2f../app",
     "/containerLogs/default/web/..", "/containerLogs/default/web/%2e%2e%2f%2e%2e", "/containerLogs/../../etc/passwd",
     "/containerLogs/default/web%00/app"],
)  # fmt: skip
def test_no_name_leads_elsewhere(node, target):
    write_log(node, "stdout F one")
    assert node.ask(target)[0] == 404


def test_a_container_without_a_log_says_so(node):
    assert node.ask(LOGS) == (400, 'container "app" in pod "web" is waiting to start: ContainerCreating')


def test_a_pod_of_this_machine_is_found_by_the_name_of_its_mirror_only(node):
    """By its own name it could be asked for by the owner of another pod that waits for this name."""
    write_log(node, "stdout F mine")
    node.local.add(a_pod().metadata.uid)
    assert node.ask("/containerLogs/default/web-node1/app") == (200, "mine\n")
    assert node.ask(LOGS)[0] == 404
    node.local.clear()
    assert node.ask("/containerLogs/default/web-node1/app")[0] == 404


# Sessions


def session(node, command, *, stdin=None, more=""):
    """What a command printed on both streams, and its status."""
    words = "".join(f"&command={word}" for word in command)
    target = f"/exec/default/web/app?output=1&error=1{'&input=1' if stdin is not None else ''}{words}{more}"
    with SpdyClient(
        node.port, node.trusting(), target, headers={"Authorization": f"Bearer {ALLOWED}"}
    ) as client:
        assert client.status == 101
        error = client.open(streamType="error")
        source = client.open(streamType="stdin") if stdin is not None else 0
        out, err = client.open(streamType="stdout"), client.open(streamType="stderr")
        if stdin is not None:
            client.send(source, stdin, is_last=True)
        printed, complained, status = client.until_ended(out, err, error)
        return printed, complained, json.loads(status)


def test_a_command_has_its_streams_and_its_exit_code(node):
    printed, complained, status = session(node, ["sh", "-c", "echo%20a;echo%20b%3E%262;exit%203"])
    assert (printed, complained) == (b"a\n", b"b\n")
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    assert session(node, ["cat"], stdin=b"said")[0] == b"said"
    assert all(one.closed.wait(30) for one in node.front.sessions)


def test_a_pod_is_found_by_its_uid_too(node):
    uid = a_pod().metadata.uid
    headers = {"Authorization": f"Bearer {ALLOWED}"}
    for segment, status in ((uid, 101), ("another", 404)):
        target = f"/exec/default/web/{segment}/app?output=1&command=true"
        with SpdyClient(node.port, node.trusting(), target, headers=headers) as client:
            assert client.status == status


def test_a_ping_is_answered_and_a_strange_stream_refused(node):
    headers = {"Authorization": f"Bearer {ALLOWED}"}
    with SpdyClient(node.port, node.trusting(), f"{EXEC}&command=cat&input=1", headers=headers) as client:
        for kind in ("error", "stdin", "stdout", "stderr"):
            client.open(streamType=kind)
        client.ping(5)
        assert client.next_frame() == Ping(5)
        with pytest.raises(AssertionError, match="refused"):
            client.open(streamType="another")


def test_a_client_that_leaves_ends_its_command(node):
    headers = {"Authorization": f"Bearer {ALLOWED}"}
    with SpdyClient(
        node.port, node.trusting(), f"{EXEC}&command=sleep&command=60", headers=headers
    ) as client:
        for kind in ("error", "stdout", "stderr"):
            client.open(streamType=kind)
    (one,) = node.front.sessions
    assert one.closed.wait(30)


def test_a_client_that_opens_no_streams_or_sends_no_spdy_ends_its_command(node):
    headers = {"Authorization": f"Bearer {ALLOWED}"}
    for sent in (b"", b"\x80\x03\x00\x01\x00\xff\xff\xff", b"\x00" * 64, b"GET / HTTP/1.1\r\n\r\n"):
        with SpdyClient(
            node.port, node.trusting(), f"{EXEC}&command=sleep&command=60", headers=headers
        ) as client:
            assert client.status == 101
            client.connection.sendall(sent) if sent else None
    assert all(one.closed.wait(30) for one in node.front.sessions)
    assert len(node.front.sessions) == 4


def test_a_refused_session_is_an_answer_in_words(node):
    node.front.refusal = refused("container app does not run")
    assert node.ask(f"{EXEC}&command=true", method="POST", headers={
        "Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v4.channel.k8s.io",
    }) == (409, "container app does not run; try another")  # fmt: skip


def test_another_protocol_is_refused(node):
    assert node.ask(f"{EXEC}&command=true", method="POST")[0] == 400
    for protocol in ("v1.channel.k8s.io", ""):
        headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": protocol}
        assert node.ask(f"{EXEC}&command=true", method="POST", headers=headers)[0] == 403
    assert node.front.sessions == []


@contextlib.contextmanager
def echo():
    """The port of a server that says back what it hears, of each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve(one):
            with one:
                while part := one.recv(1 << 16):
                    one.sendall(part)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]


def pair(client, port, number):
    headers = {"port": str(port), "requestID": str(number)}
    return client.open(streamType="error", **headers), client.open(streamType="data", **headers)


def test_a_connection_for_ports_has_many_beside_each_other(node):
    headers = {"Authorization": f"Bearer {ALLOWED}"}
    target = "/portForward/default/web"
    with echo() as port, SpdyClient(
        node.port, node.trusting(), target, protocol=PORTS, headers=headers
    ) as client:  # fmt: skip
        pairs = [pair(client, port, number) for number in range(10)]
        said = [os.urandom(50_000) for _ in pairs]
        for (_, data), text in zip(pairs, said, strict=True):
            client.send(data, text, is_last=True)
        assert client.until_ended(*(data for _, data in pairs)) == said
        assert client.until_ended(*(error for error, _ in pairs)) == [b""] * 10
        assert node.front.asked == [("default/web", port)] * 10


def test_a_port_that_nobody_has_is_told_on_the_error_stream(node):
    node.front.refusal = refused("port 1 of the pod cannot be reached")
    headers = {"Authorization": f"Bearer {ALLOWED}"}
    with SpdyClient(
        node.port, node.trusting(), "/portForward/default/web", protocol=PORTS, headers=headers
    ) as client:
        error, data = pair(client, 1, 0)
        assert client.until_ended(error, data) == [b"port 1 of the pod cannot be reached", b""]
        with pytest.raises(AssertionError, match="refused"):
            client.open(streamType="data", port="70000", requestID="1")


def test_a_connection_that_the_client_resets_is_closed_at_the_pod(node):
    headers = {"Authorization": f"Bearer {ALLOWED}"}
    with socket.create_server(("127.0.0.1", 0)) as listening, SpdyClient(
        node.port, node.trusting(), "/portForward/default/web", protocol=PORTS, headers=headers
    ) as client:  # fmt: skip
        _, data = pair(client, listening.getsockname()[1], 0)
        pod, _ = listening.accept()
        with pod:
            pod.settimeout(30)
            client.reset(data)
            assert pod.recv(1) == b""


# Hostile clients


def test_idle_and_unknown_clients_keep_nobody_out(node):
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", node.port), timeout=30))
        for _ in range(100):
            stack.enter_context(connected(node.port, node.trusting()))
        for _ in range(20):
            assert node.ask("/healthz") == (200, "ok")
        assert node.call(lambda: node.server.listener.connections) <= 128


def test_valid_tokens_without_rights_keep_no_place(node):
    """Every pod of a cluster has a token."""
    head = b"GET /pods HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer poor\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            one = stack.enter_context(connected(node.port, node.trusting()))
            one.sendall(head)
            assert head_of(one)[0] == 403
        assert node.ask("/healthz") == (200, "ok")
        assert node.call(lambda: node.server.listener.connections) <= 66


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 300_000 + b"\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (b"\x00\x01\x02\x03\r\n\r\n", 400),
    ],
)
def test_what_is_no_http_is_refused_before_anything_else(node, sent, status):
    with connected(node.port, node.trusting()) as client:
        with contextlib.suppress(OSError):  # it may be refused before all of it was sent
            client.sendall(sent)
        assert head_of(client)[0] == status
    assert node.cluster.reviews == []


def test_a_body_hides_no_second_request(node):
    """What comes behind the head of a request without a handler for bodies is never taken for a request."""
    hidden = b"GET /pods HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer allowed\r\n\r\n"
    for framing in (
        b"Content-Length: %d\r\n" % len(hidden),
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    ):
        with connected(node.port, node.trusting()) as client:
            client.sendall(
                b"POST /healthz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer poor\r\n"
                + framing
                + b"\r\n"
                + hidden
            )
            received = b"".join(iter(lambda: client.recv(1 << 16), b""))
        assert received.count(b"HTTP/1.1 ") == 1
        assert b"items" not in received


# Certificates


def test_new_certificates_are_used_by_the_next_connection(node, tmp_path):
    def served() -> bytes:
        with connected(node.port, ssl._create_unverified_context()) as one:  # noqa: SLF001 it is looked at
            return one.getpeercert(binary_form=True) or b""

    before = served()
    certificate, key = node.authority.server("next", "IP:127.0.0.1")
    for source, target in ((key, node.key), (certificate, node.certificate)):
        private(tmp_path / "new", source.read_text())
        (tmp_path / "new").rename(target)
    eventually(lambda: served() != before)
    private(tmp_path / "new", "nonsense")
    (tmp_path / "new").rename(node.certificate)
    assert served() != before  # the former one is used on


def test_the_authority_of_the_cluster_counts_only_if_it_signs_clients(tmp_path):
    """It may be one that signs servers, even one of the web: then anybody could be anybody."""
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "two")
    certificate, key = authority.server("node", "IP:127.0.0.1")
    own = (certificate.read_text(), key.read_text())
    config = read_kubeconfig(str(kubeconfig(tmp_path, 1, str(authority.certificate), {"token": "x"})))

    def found(pair):
        return cluster_authority(config, tuple(path.read_text() for path in pair), own)

    assert found(authority.client("node1", "system:node:node1", "system:nodes")).pem == config.ca_pem
    assert not found(other.client("node1", "system:node:node1", "system:nodes"))
    assert not found(authority.server("web", "DNS:web"))
    assert not cluster_authority(config, ("", ""), own)


def test_an_authority_that_cannot_be_read_is_an_error_with_its_flag(tmp_path, node):
    with pytest.raises(EvenkeelError, match="--client-ca-file"):
        NodeTls(node.certificate, node.key, ClientAuthority(private(tmp_path / "ca", "nonsense")))
