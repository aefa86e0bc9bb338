"""The agent over TCP: no answer without TLS and the token, and no client that can keep others out."""

import asyncio
import http.client
import json
import resource
import socket
import ssl
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack, closing

import pytest

from evenkeel.errors import EvenkeelError
from evenkeel.server import tls_listener
from evenkeel.server.tcp import TcpFlags, endpoint_from
from tests.certificates import make_certificate, private
from tests.fake_front import FakeFront, running, served
from tests.kernel.waiting import eventually
from tests.models.agents import pods_of
from tests.models.http_client import Http, ask
from tests.models.manifests import POD, PODS
from tests.reserved_port import ReservedPort

TOKEN, ADMIN = "t" * 32, "a" * 32


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def asked(certificate, tmp_path):
    cert, key = certificate
    return TcpFlags(
        "127.0.0.1:0",
        cert,
        key,
        private(tmp_path / "token", f"{TOKEN}\n"),
        private(tmp_path / "admin", f"{ADMIN}\n"),
    )


@pytest.fixture
def agent(asked, tmp_path):
    front = FakeFront()
    with served(front, tmp_path, endpoint=endpoint_from(asked)) as agent:
        for pod in pods_of(PODS):
            agent.call(front.put, running(pod))
        yield agent


def port_of(agent):
    return agent.server.listener.port


def trusting(certificate):
    return ssl.create_default_context(cafile=certificate[0])


def over_tcp(agent, certificate, method, target, token=TOKEN, body=None):
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port_of(agent), context=trusting(certificate), timeout=60
    )
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request(method, target, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def test_a_client_with_the_token_is_answered(agent, certificate):
    status, body, _ = over_tcp(agent, certificate, "GET", "/stats/summary")
    assert status == 200
    assert json.loads(body)["node"]["nodeName"]


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], f"{TOKEN}x", "\xe9" * 32])
def test_a_client_without_it_is_refused(agent, certificate, token):
    status, body, headers = over_tcp(agent, certificate, "GET", "/healthz", token)
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "token" in json.loads(body)["message"]


def test_pods_are_changed_with_the_other_token_only(agent, certificate):
    status, body, _ = over_tcp(agent, certificate, "POST", "/pods", TOKEN, POD)
    assert status == 403
    assert "--admin-token-file" in json.loads(body)["hint"]
    assert over_tcp(agent, certificate, "DELETE", "/pods/default/web", TOKEN)[0] == 403
    assert over_tcp(agent, certificate, "POST", "/pods", ADMIN, POD)[0] == 200
    assert over_tcp(agent, certificate, "DELETE", "/pods/default/batch", ADMIN)[0] == 202
    assert over_tcp(agent, certificate, "GET", "/pods", ADMIN)[0] == 200


def test_a_long_answer_arrives_whole(agent, certificate):
    text = "---\n".join(POD.replace("web", f"web-{number}") for number in range(400))
    assert ask(agent, "POST", "/pods", text)[0] == 200
    status, body, _ = over_tcp(agent, certificate, "GET", "/pods")
    assert status == 200
    assert len(json.loads(body)["items"]) == 402


@pytest.mark.parametrize("target", ["/healthz", "/events"])
def test_the_last_answer_ends_with_the_connection_as_tls_has_it(agent, certificate, target):
    plain = socket.create_connection(("127.0.0.1", port_of(agent)), timeout=60)
    with trusting(certificate).wrap_socket(
        plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False
    ) as client:
        head = (
            f"GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
        )
        client.sendall(head.encode())
        parts = list(iter(lambda: client.recv(1 << 16), b""))  # raises where TCP ends before TLS
    assert b"".join(parts).startswith(b"HTTP/1.1 200")


def test_without_tls_there_is_no_answer(agent):
    with socket.create_connection(("127.0.0.1", port_of(agent)), timeout=30) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = plain.recv(100)
        assert not answer.startswith(b"HTTP")
    assert ask(agent, "GET", "/healthz") == (200, b"ok")


def test_an_old_tls_is_refused(asked):
    assert endpoint_from(asked).context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_two_hundred_idle_connections_keep_no_client_with_the_token_out(agent, certificate):
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", port_of(agent)), timeout=30))
        answers = [over_tcp(agent, certificate, "GET", "/healthz")[0] for _ in range(40)]
        assert answers == [200] * 40
        assert ask(agent, "GET", "/healthz") == (200, b"ok")
        assert agent.call(lambda: agent.server.listener.connections) <= 128


def test_connections_with_a_handshake_but_no_token_make_room_too(agent, certificate):
    with ExitStack() as stack:
        for _ in range(150):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", port_of(agent)), timeout=30))
            stack.enter_context(trusting(certificate).wrap_socket(plain, server_hostname="127.0.0.1"))
        answers = [over_tcp(agent, certificate, "GET", "/healthz")[0] for _ in range(40)]
        assert answers == [200] * 40


def test_a_crowd_that_comes_again_and_again_leaves_a_client_time_to_show_its_token(
    agent, certificate, monkeypatch
):
    monkeypatch.setattr(tls_listener, "_LEAST_SECONDS", 60.0)
    client = http.client.HTTPSConnection(
        "127.0.0.1", port_of(agent), context=trusting(certificate), timeout=60
    )
    with ExitStack() as stack:
        stack.callback(client.close)
        client.connect()  # it is the oldest of all, and has shown no token yet
        for _ in range(100):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port_of(agent)), timeout=30))
            one.sendall(b"\x16\x03\x01\x02\x00")  # a handshake begins so
        eventually(lambda: agent.call(lambda: agent.server.listener.connections) >= 64)
        client.request("GET", "/healthz", headers={"Authorization": f"Bearer {TOKEN}"})
        assert client.getresponse().read() == b"ok"


def test_a_connection_with_the_token_keeps_its_place(agent, certificate):
    keeping = http.client.HTTPSConnection(
        "127.0.0.1", port_of(agent), context=trusting(certificate), timeout=60
    )
    headers = {"Authorization": f"Bearer {TOKEN}"}
    keeping.request("GET", "/healthz", headers=headers)
    assert keeping.getresponse().read() == b"ok"
    first = keeping.sock
    with ExitStack() as stack:
        stack.callback(keeping.close)
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", port_of(agent)), timeout=30))
        keeping.request("GET", "/healthz", headers=headers)
        assert keeping.getresponse().read() == b"ok"
        assert keeping.sock is first


def test_the_address_with_the_most_idle_connections_loses_one(agent, certificate):
    """A second machine is not kept out by the first, here as another loopback address."""

    def connected(address):
        return socket.create_connection(
            ("127.0.0.1", port_of(agent)), timeout=30, source_address=(address, 0)
        )

    with ExitStack() as stack:
        quiet = stack.enter_context(connected("127.0.0.2"))
        for _ in range(200):
            stack.enter_context(connected("127.0.0.3"))
        with trusting(certificate).wrap_socket(quiet, server_hostname="127.0.0.1") as client:
            client.sendall(
                f"GET /healthz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
            )
            assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_a_wrong_token_ends_the_connection(agent, certificate):
    _, _, headers = over_tcp(agent, certificate, "GET", "/healthz", "wrong")
    assert headers["Connection"] == "close"


def test_a_thousand_readers_share_what_is_read_and_others_are_answered(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    front = FakeFront()
    with served(front, tmp_path) as agent, ExitStack() as stack:
        for pod in pods_of(PODS):
            agent.call(front.put, running(pod))
        agent.call(lambda: setattr(front, "keeps_snapshot", True))
        readers = [stack.enter_context(Http(agent)) for _ in range(1000)]
        for reader in readers:
            reader.send("GET /view/watch HTTP/1.1\r\nHost: x\r\n\r\n")
        for reader in readers[::50]:
            assert reader.head()[0] == 200
            assert reader.chunk().startswith(b"event: view")
        assert agent.call(lambda: front.snapshot_maker.number) == 1
        agent.call(lambda: setattr(front, "keeps_snapshot", False))
        for reader in readers[::50]:
            assert reader.chunk().startswith(b"event: ")
        # Only these twenty clients hold places, and the agent answers others all the same.
        assert ask(agent, "GET", "/healthz") == (200, b"ok")
        assert ask(agent, "GET", "/pods")[0] == 200


# What must be there


def test_the_address_is_of_this_machine_unless_more_is_meant(asked):
    with pytest.raises(EvenkeelError, match="reached from other machines") as refused:
        endpoint_from(asked._replace(listen="0.0.0.0:10250"))
    assert "--listen-beyond-loopback" in refused.value.hint
    assert endpoint_from(asked._replace(listen="0.0.0.0:10250", is_beyond_loopback=True)).host == "0.0.0.0"
    assert endpoint_from(asked._replace(listen="[::1]:10250")).host == "::1"
    assert endpoint_from(asked._replace(listen="localhost:10250")).host == "127.0.0.1"


@pytest.mark.parametrize(
    "listen", ["10250", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:65536", "node.example:1"]
)
def test_a_malformed_address_is_reported(asked, listen):
    with pytest.raises(EvenkeelError, match=r"127\.0\.0\.1:"):
        endpoint_from(asked._replace(listen=listen))


def test_without_tls_or_token_it_does_not_start(asked):
    for missing, flag in (
        ("tls_cert_file", "--tls-cert-file"),
        ("tls_key_file", "--tls-private-key-file"),
        ("token_file", "--token-file"),
    ):
        with pytest.raises(EvenkeelError, match=flag) as refused:
            endpoint_from(asked._replace(**{missing: ""}))
        assert "openssl" in refused.value.hint


def test_a_token_that_others_can_read_is_none(asked, tmp_path):
    (tmp_path / "token").chmod(0o640)
    with pytest.raises(EvenkeelError, match="by others") as refused:
        endpoint_from(asked)
    assert "chmod 600" in refused.value.hint


@pytest.mark.parametrize("content", ["", "short", "with blanks " * 4, "x" * 32 + "\n" + "y" * 32])
def test_a_malformed_token_is_reported(asked, tmp_path, content):
    with pytest.raises(EvenkeelError, match="must hold a token"):
        endpoint_from(asked._replace(token_file=private(tmp_path / "odd", content)))


def test_one_token_is_not_for_both(asked):
    with pytest.raises(EvenkeelError, match="the same token"):
        endpoint_from(asked._replace(admin_token_file=asked.token_file))


def test_a_malformed_certificate_is_reported(asked, tmp_path):
    with pytest.raises(EvenkeelError, match="cannot be used"):
        endpoint_from(asked._replace(tls_cert_file=private(tmp_path / "bad.pem", "no certificate")))
    with pytest.raises(EvenkeelError, match="no such file"):
        endpoint_from(asked._replace(tls_key_file=str(tmp_path / "nowhere.pem")))


def test_a_port_that_is_taken_is_reported_and_nothing_is_left(asked, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        endpoint = endpoint_from(asked._replace(listen=f"127.0.0.1:{port}"))

        async def start():
            from evenkeel.server.app import serve

            await serve(FakeFront(), str(tmp_path), endpoint=endpoint)

        with pytest.raises(EvenkeelError, match="cannot listen at"):
            asyncio.run(start())
        assert not (tmp_path / "agent.sock").exists()


def test_an_agent_with_pods_starts_though_its_port_is_taken_and_listens_when_it_is_free(asked, tmp_path):
    """A pod with the host's network may take the port while there is no agent."""
    (tmp_path / "pods" / "some-uid").mkdir(parents=True)

    async def start(taken: socket.socket, port: int) -> None:
        from evenkeel.server.app import serve

        endpoint = endpoint_from(asked._replace(listen=f"127.0.0.1:{port}"))
        server = await serve(FakeFront(), str(tmp_path), endpoint=endpoint)
        try:
            assert (tmp_path / "agent.sock").exists()
            assert server.listener is None
            assert f"cannot listen at 127.0.0.1 port {port}" in server.handlers.failure
            taken.close()
            while server.listener is None or server.handlers.failure:
                await asyncio.sleep(0.05)
            assert server.listener.port == port
        finally:
            await server.close()

    with closing(ReservedPort()) as port, socket.create_server(("127.0.0.1", port.number)) as taken:
        asyncio.run(asyncio.wait_for(start(taken, port.number), 30))


# A real Prometheus


def test_prometheus_scrapes_every_page_of_metrics(agent, asked, certificate, prometheus, tmp_path):
    port = port_of(agent)
    jobs = [
        {
            "job_name": path.strip("/").replace("/", "-"),
            "metrics_path": path,
            "scheme": "https",
            "authorization": {"credentials_file": asked.token_file},
            "tls_config": {"ca_file": certificate[0]},
            "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
        }
        for path in ("/metrics", "/metrics/resource", "/metrics/cadvisor")
    ]
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    checked = subprocess.run(
        [prometheus / "usr/bin/promtool", "check", "config", tmp_path / "prometheus.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    port_of_its_own = ReservedPort()
    own = port_of_its_own.number
    log = (tmp_path / "prometheus.log").open("w")
    server = subprocess.Popen(
        [
            prometheus / "usr/bin/prometheus",
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{own}",
        ],
        stdout=log,
        stderr=log,
    )
    try:
        until_scraped(own, server, "up == 1", 3)
        assert until_scraped(own, server, 'container_memory_working_set_bytes{container="app",pod="web"}', 1)
        found = until_scraped(own, server, 'evenkeel_node_capacity{resource="memory"}', 1)
        assert float(found[0]["value"][1]) == 32 * 2**30
    finally:
        server.terminate()
        server.wait(30)
        log.close()
        port_of_its_own.close()


def until_scraped(port, server, query, count):
    deadline = time.monotonic() + 60
    address = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    found = []
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:
            found = []
        if len(found) >= count:
            return found
        time.sleep(0.2)
    raise AssertionError(f"Prometheus has {found} for {query}")


def test_secrets_are_taken_over_tcp_and_never_shown(agent, certificate):
    secret = '{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "stringData": {"password": "hunter2"}}'
    assert over_tcp(agent, certificate, "POST", "/pods", ADMIN, secret)[0] == 200
    for target in (
        "/secrets",
        "/secrets/default/db",
        "/%73ecrets/default/db",
        "/api/v1/secrets",
        "/api/v1/namespaces/default/secrets",
        "/api/v1/namespaces/default/%73ecrets/db",
    ):
        status, body, _ = over_tcp(agent, certificate, "GET", target, ADMIN)
        assert (status, b"Unix socket only" in body) == (403, True)
        assert over_tcp(agent, certificate, "HEAD", target, ADMIN)[0] == 403
    assert over_tcp(agent, certificate, "DELETE", "/secrets/default/db", ADMIN)[0] == 200
    for target in ("/pods/default/secrets", "/apis/apps/v1/namespaces/secrets/deployments/web"):
        assert over_tcp(agent, certificate, "GET", target, ADMIN)[0] == 404, "a name is no Secret"
