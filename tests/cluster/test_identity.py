"""How a node gets its certificates from a real cluster, and new ones before they expire."""

import hashlib
import json
import re
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from evenkeel.kube.certificates import Certificate, public_key_of, read_certificate
from tests.cluster.control_plane import ControlPlane, Place
from tests.cluster.flags import URL
from tests.cluster.nodes import MakeNode, Node
from tests.kernel.agents import started
from tests.kernel.waiting import eventually

HOUR = 3600.0
JOIN_SECONDS = 120.0


@pytest.fixture(scope="module")
def authority_hash(plane: ControlPlane) -> str:
    """The hash of the authority's key, as kubeadm prints it."""
    key = read_certificate(plane.authority.certificate.read_text()).public_key
    return f"sha256:{hashlib.sha256(key).hexdigest()}"


@pytest.fixture(scope="module")
def place(plane: ControlPlane) -> Place:
    return plane.place("newcomer")


def command(state: Path, name: str, *more: str) -> list[str]:
    return ["join", URL, "--state-dir", str(state), "--hostname-override", name, *more]


def run_join(
    place: Place, state: Path, *more: str, token: str, name: str = ""
) -> subprocess.CompletedProcess[str]:
    """`evenkeel join` at that place, with the token on its standard input."""
    arguments = command(state, name or place.name, "--token-file", "-", *more)
    return subprocess.run(
        [*place.network.within, sys.executable, "-m", "evenkeel", *arguments],
        input=token,
        capture_output=True,
        text=True,
        timeout=JOIN_SECONDS,
        check=False,
    )


OF_CLUSTER = ("API server", "clock", "versions", "node certificate")


def doctor(place: Place, state: Path) -> dict[str, dict]:
    """What `evenkeel doctor` finds there, by the names of its checks."""
    command = ["doctor", "--state-dir", str(state), "-o", "json"]
    said = subprocess.run(
        [*place.network.within, sys.executable, "-m", "evenkeel", *command],
        capture_output=True,
        text=True,
        timeout=JOIN_SECONDS,
        check=False,
    )
    return {one["name"]: one for one in json.loads(said.stdout)["checks"]}


def certificate_of(path: Path) -> Certificate:
    return read_certificate(path.read_text())


def requests_of(plane: ControlPlane, name: str) -> list[dict]:
    """The requests for certificates of that node."""
    every = plane.get("csr")["items"]
    return [one for one in every if name in _subject(one["spec"]["request"])]


def _subject(request: str) -> str:
    pem = subprocess.run(["base64", "-d"], input=request, capture_output=True, text=True, check=True).stdout
    said = subprocess.run(
        ["openssl", "req", "-noout", "-subject"], input=pem, capture_output=True, text=True, check=True
    )
    return said.stdout


def test_a_machine_joins_with_a_token_and_is_a_node(
    plane: ControlPlane, make_node: MakeNode, authority_hash: str
):
    def joined(place: Place, state: Path) -> Path:
        done = run_join(place, state, "--ca-cert-hash", authority_hash, token=plane.bootstrap_token)
        assert done.returncode == 0, done.stderr
        kubeconfig = state / "cluster" / "node.kubeconfig"
        assert f"evenkeel up --kubeconfig {kubeconfig}" in done.stdout
        assert plane.bootstrap_token not in kubeconfig.read_text()
        for file in (state / "cluster").iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        assert stat.S_IMODE((state / "cluster").stat().st_mode) == 0o700
        again = run_join(place, state, "--ca-cert-hash", authority_hash, token=plane.bootstrap_token)
        assert again.returncode == 0, again.stderr
        assert "has joined" in again.stdout
        other = run_join(
            place, state, "--ca-cert-hash", authority_hash, token=plane.bootstrap_token, name="another"
        )
        assert other.returncode == 1
        assert 'has joined as "joiner" already' in other.stderr
        (state / "cluster" / "client.pem").write_text("")
        lost = run_join(place, state, "--ca-cert-hash", authority_hash, token=plane.bootstrap_token)
        assert lost.returncode == 0, lost.stderr
        assert lost.stdout.startswith("joined ")
        return kubeconfig

    with make_node("joiner", kubeconfig=joined) as node:
        node.start()
        assert plane.bootstrap_token not in node.agent.log.read_text()
        checks = doctor(node.place, node.agent.state)
        assert {name: checks[name]["state"] for name in OF_CLUSTER} == dict.fromkeys(OF_CLUSTER, "ok"), checks
        assert "of system:node:joiner" in checks["node certificate"]["seen"]
        node.place.network.run("ip", "link", "set", "eth0", "down")
        away = doctor(node.place, node.agent.state)["API server"]
        assert (away["state"], away["mends"]) == (
            "broken",
            [f"curl -k {URL}/livez, from this machine: address, network and firewall"],
        )


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        (
            ("--ca-cert-hash", f"sha256:{'0' * 64}"),
            "this is another cluster, or the connection is intercepted",
        ),
        (("--ca-cert-hash", "sha256:0"), "is no hash; write sha256: and 64 hexadecimal digits"),
    ],
)
def test_a_machine_does_not_join_what_is_not_its_cluster(
    plane: ControlPlane, place: Place, tmp_path: Path, flags: tuple[str, ...], reported: str
):
    done = run_join(place, tmp_path, *flags, token=plane.bootstrap_token)
    assert done.returncode == 1
    assert reported in done.stderr
    assert not (tmp_path / "cluster" / "bootstrap.kubeconfig").exists()


def test_a_machine_does_not_join_with_the_authority_of_another_cluster(
    plane: ControlPlane, place: Place, tmp_path: Path
):
    another = plane.directory / "proxy-keys" / "ca.crt"
    done = run_join(place, tmp_path, "--certificate-authority", str(another), token=plane.bootstrap_token)
    assert done.returncode == 1
    assert "certificate verify failed" in done.stderr


def test_a_wrong_token_is_refused_and_never_printed(
    plane: ControlPlane, place: Place, tmp_path: Path, authority_hash: str
):
    id_ = plane.bootstrap_token.partition(".")[0]
    for token, flags, reported in (
        (f"{id_}.0123456789abcdef", ("--ca-cert-hash", authority_hash), "is not signed with the token"),
        ("abcdef.0123456789abcdef", ("--ca-cert-hash", authority_hash), "is not signed for the token"),
        (
            f"{id_}.0123456789abcdef",
            ("--certificate-authority", str(plane.authority.certificate)),
            f"the API server does not take the token {id_}",
        ),
        ("0123456789abcdef", ("--ca-cert-hash", authority_hash), "is no bootstrap token"),
    ):
        done = run_join(place, tmp_path, *flags, token=token)
        assert done.returncode == 1
        assert reported in done.stderr
        assert "0123456789abcdef" not in done.stderr + done.stdout


def test_a_join_that_was_killed_finds_its_request_again(plane: ControlPlane, place: Place, tmp_path: Path):
    """No request is approved while the controllers are stopped."""
    token = tmp_path / "token"
    token.write_text(plane.bootstrap_token)
    trust = ("--certificate-authority", str(plane.authority.certificate))
    arguments = command(tmp_path / "state", "killed", "--token-file", str(token), *trust)
    plane.controller_manager.pause()
    try:
        joining = started(arguments, tmp_path / "log", within=place.network.within)
        (first,) = eventually(lambda: requests_of(plane, "system:node:killed"), within_seconds=JOIN_SECONDS)
        joining.kill()
        joining.wait()
        assert not (tmp_path / "state" / "cluster" / "node.kubeconfig").exists()
        # In another log: the first may have been killed before it could say how its request is called.
        again = started(arguments, tmp_path / "again", within=place.network.within)
        eventually(lambda: first["metadata"]["name"] in (tmp_path / "again").read_text())
    finally:
        plane.controller_manager.resume()
    assert again.wait(JOIN_SECONDS) == 0
    assert len(requests_of(plane, "system:node:killed")) == 1
    client = tmp_path / "state" / "cluster" / "client.pem"
    assert certificate_of(client).public_key == public_key_of(client.read_text())
    names = sorted(file.name for file in client.parent.iterdir())
    assert names == ["bootstrap.kubeconfig", "client.pem", "node.kubeconfig"]


def aged_pair(plane: ControlPlane, name: str, ages: tuple[float, float]) -> str:
    """A node's certificate of that age and with so much left of its life, and its key."""
    user = f"system:node:{name}"
    pair = plane.authority.aged_client(f"aged-{name}", user, "system:nodes", ages)
    return "".join(one.read_text() for one in pair)


def aged(
    plane: ControlPlane, ages: tuple[float, float], *, with_token: bool = False
) -> Callable[[Place, Path], Path]:
    """Makes the files of a node that has joined, with a certificate of that age and with so much left of its life."""

    def make(place: Place, state: Path) -> Path:
        directory = state / "cluster"
        directory.mkdir(parents=True, mode=0o700)
        (directory / "client.pem").write_text(aged_pair(plane, place.name, ages))
        content = json.loads(plane.authority.kubeconfig(directory / "node.kubeconfig", URL).read_text())
        content["users"][0]["user"] = {"client-certificate": "client.pem", "client-key": "client.pem"}
        (directory / "node.kubeconfig").write_text(json.dumps(content))
        if with_token:
            plane.authority.kubeconfig(directory / "bootstrap.kubeconfig", URL, token=plane.bootstrap_token)
        return directory / "node.kubeconfig"

    return make


def client_file(node: Node) -> Path:
    return node.agent.state / "cluster" / "client.pem"


def test_a_certificate_at_the_end_of_its_life_is_renewed_when_the_api_server_is_back(
    plane: ControlPlane, make_node: MakeNode
):
    with make_node("aged", kubeconfig=aged(plane, (95 * HOUR, 5 * HOUR))) as node:
        before = certificate_of(client_file(node))
        plane.stop_api_server()
        try:
            node.agent.start()
            eventually(lambda: "cannot be renewed" in node.agent.log.read_text())
        finally:
            plane.start_api_server()
        eventually(
            lambda: certificate_of(client_file(node)).not_after > before.not_after,
            within_seconds=JOIN_SECONDS,
        )
        after = certificate_of(client_file(node))
        assert after.public_key != before.public_key
        assert (after.node_name, after.organizations) == ("aged", ("system:nodes",))
        node.await_ready()
        node.agent.kill()
        node.start()
        assert certificate_of(client_file(node)) == after  # it is not renewed once more


def test_an_expired_certificate_is_replaced_with_the_bootstrap_token(
    plane: ControlPlane, make_node: MakeNode
):
    with make_node("expired", kubeconfig=aged(plane, (48 * HOUR, -HOUR), with_token=True)) as node:
        node.start()
        assert certificate_of(client_file(node)).node_name == "expired"


def test_a_certificate_that_expires_while_its_successor_is_not_signed_is_replaced_with_the_token(
    plane: ControlPlane, make_node: MakeNode
):
    """An agent that does not end meanwhile: tests/test_kube_identity.py."""
    plane.controller_manager.pause()
    try:
        with make_node("unsigned", kubeconfig=aged(plane, (95 * HOUR, 5 * HOUR), with_token=True)) as node:
            node.agent.start()
            (asked,) = eventually(
                lambda: requests_of(plane, "system:node:unsigned"), within_seconds=JOIN_SECONDS
            )
            node.agent.kill()
            client_file(node).write_text(aged_pair(plane, "unsigned", (48 * HOUR, -HOUR)))
            node.agent.start()
            plane.controller_manager.resume()
            after = asked_at(asked)
            eventually(
                lambda: certificate_of(client_file(node)).not_after > after, within_seconds=JOIN_SECONDS
            )
    finally:
        plane.controller_manager.resume()


def asked_at(request: dict) -> float:
    return datetime.fromisoformat(request["metadata"]["creationTimestamp"]).timestamp() + HOUR


def test_without_a_token_an_expired_certificate_leaves_the_agent_to_itself(
    plane: ControlPlane, make_node: MakeNode
):
    with make_node("lonely", kubeconfig=aged(plane, (48 * HOUR, -HOUR))) as node:
        node.agent.start()
        eventually(lambda: "it has expired (evenkeel join, with a new token)" in node.agent.log.read_text())
        done = run_join(
            node.place,
            node.agent.state,
            "--certificate-authority",
            str(plane.authority.certificate),
            token=plane.bootstrap_token,
        )
        assert done.returncode == 0, done.stderr
        node.await_ready()  # the agent that runs takes the new one


def test_the_servers_certificate_is_the_clusters_when_somebody_has_approved_it(
    plane: ControlPlane, make_node: MakeNode
):
    with make_node("serving", "--server-tls-bootstrap") as node:
        node.start()
        path = node.agent.state / "cluster" / "serving.pem"
        own = certificate_of(path)
        assert own.is_self_signed
        said = r"signed by the node itself, .*: kubectl certificate approve (\S+)"
        asked = eventually(lambda: re.search(said, node.agent.log.read_text()))
        plane.kubectl("certificate", "approve", asked[1])
        eventually(lambda: not certificate_of(path).is_self_signed)
        after = certificate_of(path)
        assert set(after.names) == {"DNS:serving", f"IP:{node.place.address}"}
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
        checked = subprocess.run(
            ["openssl", "verify", "-CAfile", plane.authority.certificate, path],
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, checked.stderr
