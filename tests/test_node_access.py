"""The server of a cluster's node: which clients get in, what they may do, and clients that keep to nothing."""

import contextlib
import http.client
import socket
import ssl

import pytest

from evenkeel.errors import EvenkeelError
from evenkeel.kube.kubeconfig import read_kubeconfig
from evenkeel.server.http import Request
from evenkeel.server.kubelet.access import User, asked_for, user_of_subject
from evenkeel.server.kubelet.node_server import ClientAuthority, NodeTls, cluster_authority
from tests.certificates import private
from tests.cluster.authority import Authority
from tests.kernel.waiting import eventually
from tests.models.api_server import kubeconfig
from tests.models.node_servers import ALLOWED, expired, node
from tests.models.spdy_client import connected, head_of

__all__ = ["node"]

EXEC = "/exec/default/web/app?output=1&error=1"


def test_a_user_that_the_cluster_allows_is_answered(node):
    assert node.ask("/healthz") == (200, "ok")
    assert node.ask("/healthz", token="", client=node.authority.client("c", ALLOWED)) == (200, "ok")


@pytest.mark.parametrize("target", ["/healthz", "/pods", "/metrics", "/nothing", EXEC])
def test_other_clients_learn_nothing(node, target):
    for token in ("", "made-up", "a" * 20_000, "\xe9" * 20):
        assert node.ask(target, token=token) == (401, "Unauthorized")
    assert node.ask(target, token="", headers={"Authorization": "Basic YWxsb3dlZDphbGxvd2Vk"})[0] == 401
    assert node.ask(target, token="", headers={"X-Remote-User": ALLOWED})[0] == 401


def test_a_known_user_without_rights_is_refused_by_name(node):
    status, said = node.ask("/metrics", token="poor")
    assert status == 403
    assert 'user "poor" may not get nodes/metrics' in said
    assert node.ask("/nothing", token="poor")[0] == 403  # the client does not learn what is there


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


def test_without_the_api_server_only_known_users_get_in(node):
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


def test_a_user_that_may_only_read_through_the_node_runs_no_command(node):
    node.cluster.rights.add(("poor", "get", "proxy"))
    assert node.ask("/containerLogs/default/none/app", token="poor")[0] == 404
    for method in ("GET", "POST"):
        assert node.ask(EXEC, token="poor", method=method)[0] == 403
    assert node.front.asked == []


def test_idle_and_unknown_clients_keep_no_other_client_out(node):
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
    """It may be one that signs servers, even one of the web: then any client could take any name."""
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
