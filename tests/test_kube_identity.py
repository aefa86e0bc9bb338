"""Certificates of a node: their renewal, and which servers `evenkeel join` trusts. The rest is in tests/cluster."""

import asyncio
import base64
import hmac
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.errors import EvenkeelError
from evenkeel.kube import node_certificate
from evenkeel.kube.certificates import (
    Certificate,
    certificates_of,
    new_key,
    public_key_of,
    read_certificate,
    self_signed,
)
from evenkeel.kube.cluster import ClusterFlags, cluster_from
from evenkeel.kube.cluster_checks import Asked, ClusterFacts, clock_skew, cluster_checks
from evenkeel.kube.join import BootstrapToken, checked_hash, server_from, verified
from evenkeel.kube.node_certificate import CLIENT, SERVING, NodeCertificate, Renewal
from evenkeel.kube.node_object import KUBELET_VERSION
from tests.certificates import make_certificate
from tests.models.api_server import kubeconfig

TOKEN = BootstrapToken.parse("abcdef.0123456789abcdef")


def certificate(public_key: bytes, since: float = 0.0, until: float = 1000.0) -> Certificate:
    return Certificate(since, until, "system:node:a", ("system:nodes",), (), False, public_key)


@given(st.binary(min_size=1, max_size=91), st.floats(0, 1e9), st.floats(600, 1e9))
def test_a_certificate_is_renewed_at_70_to_90_percent_of_its_life(key: bytes, since: float, life: float):
    share = (certificate(key, since, since + life).renew_at - since) / life
    assert 0.7 - 1e-6 <= share <= 0.9 + 1e-6


def test_nodes_do_not_renew_all_at_the_same_moment_and_a_restart_changes_nothing():
    moments = [certificate(bytes([number])).renew_at for number in range(200)]
    assert max(moments) - min(moments) > 150
    assert moments == [certificate(bytes([number])).renew_at for number in range(200)]


def test_only_a_certificate_of_the_nodes_group_makes_a_node():
    assert certificate(b"").node_name == "a"
    assert certificate(b"")._replace(organizations=()).node_name == ""
    assert certificate(b"")._replace(common_name="admin").node_name == ""


def test_openssl_makes_and_reads_certificates(tmp_path):
    make_certificate(tmp_path)  # where openssl is missing, this says so
    key = new_key()
    found = read_certificate(self_signed(key, "a", ("DNS:a", "IP:fd00::1")))
    assert found.is_self_signed
    assert (found.node_name, found.names) == ("a", ("DNS:a", "IP:fd00::1"))
    assert found.public_key == public_key_of(key)
    assert found.not_before < found.not_after
    with pytest.raises(EvenkeelError, match="no certificate in PEM"):
        read_certificate(key)
    assert certificates_of(f"{key}\n-----BEGIN CERTIFICATE-----") == []


def test_a_server_keeps_its_certificate_until_its_address_changes(tmp_path):
    make_certificate(tmp_path)
    path = str(tmp_path / "cluster" / "serving.pem")
    certificate = NodeCertificate(path, "a", SERVING, ("DNS:a", "IP:10.0.0.1"))
    certificate.ensure()
    first = certificate.read()
    certificate.ensure()
    assert certificate.read() == first
    assert certificate.due_at(first) == 0.0  # the cluster is to sign another one
    moved = NodeCertificate(path, "a", SERVING, ("DNS:a", "IP:10.0.0.2"))
    moved.ensure()
    assert moved.read().names == ("DNS:a", "IP:10.0.0.2")


def test_a_node_has_the_name_of_its_certificate(tmp_path):
    make_certificate(tmp_path)
    key = new_key()
    (tmp_path / "client.pem").write_text(self_signed(key, "from-the-cluster", ()) + key)
    ca = base64.b64encode((tmp_path / "cert.pem").read_bytes()).decode()
    config = tmp_path / "node.kubeconfig"
    content = {
        "current-context": "n",
        "contexts": [{"name": "n", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://h:1", "certificate-authority-data": ca}}],
        "users": [{"name": "u", "user": {"client-certificate": "client.pem", "client-key": "client.pem"}}],
    }
    config.write_text(json.dumps(content))
    flags = ClusterFlags(str(config), node_ip="10.0.0.1", state_dir=str(tmp_path))
    found = cluster_from(flags)
    assert found.node_name == "from-the-cluster"
    assert found.client_certificate is not None
    with pytest.raises(
        EvenkeelError, match=r'"other" is not in .*client.pem, which is of "from-the-cluster"'
    ):
        cluster_from(flags._replace(hostname_override="other"))
    content["users"] = [{"name": "u", "user": {"token": "x"}}]
    config.write_text(json.dumps(content))
    other = cluster_from(flags._replace(hostname_override="other"))
    assert (other.node_name, other.client_certificate) == ("other", None)


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def cluster_info(content: str, token: BootstrapToken = TOKEN, **head: str) -> dict:
    first = encoded(json.dumps({"alg": "HS256", "kid": token.id, **head}).encode())
    mac = hmac.digest(token.secret.encode(), f"{first}.{encoded(content.encode())}".encode(), "sha256")
    return {"data": {"kubeconfig": content, f"jws-kubeconfig-{token.id}": f"{first}..{encoded(mac)}"}}


def test_cluster_info_is_believed_only_if_the_token_has_signed_it():
    info = cluster_info("a kubeconfig")
    assert verified(info, TOKEN) == "a kubeconfig"
    info["data"]["kubeconfig"] = "another kubeconfig"
    with pytest.raises(EvenkeelError, match="not signed with the token abcdef"):
        verified(info, TOKEN)


@pytest.mark.parametrize(
    "info",
    [
        cluster_info("a kubeconfig", BootstrapToken("abcdef", "f" * 16)),
        cluster_info("a kubeconfig", alg="none"),
        cluster_info("a kubeconfig", kid="ghijkl"),
        {"data": {"kubeconfig": "a kubeconfig", "jws-kubeconfig-abcdef": ".."}},
        {"data": {"kubeconfig": "a kubeconfig", "jws-kubeconfig-abcdef": "no signature"}},
        {"data": {"kubeconfig": "a kubeconfig"}},
        {"data": "nothing"},
        {},
    ],
)
def test_a_signature_of_another_token_or_form_is_refused(info: dict):
    with pytest.raises(EvenkeelError, match="not signed"):
        verified(info, TOKEN)


@pytest.mark.parametrize(
    "text", ["", "abcdef", "abcdef.0123", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcdef.x"]
)
def test_what_is_no_token_is_refused_without_being_printed(text: str):
    with pytest.raises(EvenkeelError, match="is no bootstrap token") as caught:
        BootstrapToken.parse(text)
    assert not text or text not in str(caught.value)
    assert "0123456789abcdef" not in repr(TOKEN)


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("https://h", "https://h:6443"),
        ("h:443", "https://h:443"),
        ("https://[fd00::1]:6443", "https://[fd00::1]:6443"),
        ("https://h:1/k8s/", "https://h:1/k8s"),
    ],
)
def test_an_api_server_is_named_as_kubeadm_names_it(text: str, server: str):
    assert server_from(text).server == server


@pytest.mark.parametrize(
    "text", ["", "http://h", "https://", "https://u:p@h", "h:port", "h:99999", "https://h?x"]
)
def test_what_is_no_address_of_an_api_server_is_refused(text: str):
    with pytest.raises(EvenkeelError, match="is no address of an API server"):
        server_from(text)


def test_a_hash_has_its_form():
    assert checked_hash(f"sha256:{'A' * 64}") == f"sha256:{'a' * 64}"
    with pytest.raises(EvenkeelError, match="--ca-cert-hash"):
        checked_hash("md5:00")


# Doctor


def facts(asked: Asked, *, at: float = 500.0, **changed: object) -> ClusterFacts:
    return ClusterFacts("https://h:6443", certificate(b"key")._replace(**changed), at, asked)  # type: ignore[arg-type]


def states(facts: ClusterFacts) -> dict[str, str]:
    return {one.name: one.state for one in cluster_checks(facts)}


WELL = Asked("", 0.4, f"v1.{KUBELET_VERSION.split('.')[1]}.9", 200)


def test_doctor_finds_nothing_wrong_with_a_node_that_is_well():
    assert set(states(facts(WELL)).values()) == {"ok"}
    assert states(facts(WELL)._replace(certificate=None)).keys() == {"API server", "clock", "versions"}


@pytest.mark.parametrize(
    ("asked_at", "answered_at", "skew"),
    [
        (100.0, 100.2, 0.0),
        (100.9, 101.4, 0.0),  # the server has said whole seconds
        (80.0, 101.0, 0.0),  # somebody was stopped meanwhile, before the server answered
        (100.5, 140.0, 0.0),  # or after that
        (105.0, 105.2, 4.0),
        (105.0, 145.0, 4.0),
        (70.0, 79.0, -21.0),
    ],
)
def test_a_slow_answer_is_no_skew_of_a_clock(asked_at: float, answered_at: float, skew: float):
    assert clock_skew("Thu, 01 Jan 1970 00:01:40 GMT", asked_at, answered_at) == skew


@pytest.mark.parametrize("date", ["", "now"])
def test_without_a_date_nothing_is_known_of_a_clock(date: str):
    assert clock_skew(date, 100.0, 100.2) is None


@pytest.mark.parametrize(
    ("name", "state", "seen"),
    [
        ("API server", "broken", facts(Asked("https://h:6443 cannot be reached: connection refused"))),
        ("API server", "broken", facts(WELL._replace(node_status=403))),
        ("clock", "broken", facts(WELL._replace(skew_seconds=-21.0))),
        ("clock", "note", facts(WELL._replace(skew_seconds=5.0))),
        ("versions", "broken", facts(WELL._replace(version="v1.30.0"))),
        ("versions", "broken", facts(WELL._replace(version="v1.99.0"))),
        ("versions", "unknown", facts(WELL._replace(version="master"))),
        ("node certificate", "broken", facts(WELL, at=1000.0)),
        ("node certificate", "broken", facts(WELL, at=-1.0)),
        ("node certificate", "broken", facts(WELL, common_name="admin")),
        ("node certificate", "note", facts(WELL, at=950.0)),
    ],
)
def test_doctor_says_what_is_wrong_with_a_node_and_how_to_mend_it(name: str, state: str, seen: ClusterFacts):
    (found,) = [one for one in cluster_checks(seen) if one.name == name]
    assert found.state == state
    assert found.mends or state == "unknown"


class Unsigned(NodeCertificate):
    """A certificate that is due, and expires while the node waits for its successor. Only the token can get the
    successor."""

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory / "client.pem"), "web1", CLIENT)
        self.now = 1000.0
        self.not_after = self.now + 0.01
        self.asked_by: list[str] = []
        self.is_new = asyncio.Event()

    def read(self) -> Any:
        return SimpleNamespace(not_after=self.not_after)

    def due_at(self, present: Certificate) -> float:
        return present.not_after if self.is_new.is_set() else 0.0

    async def renew(self, client: Any, on_asked: Any) -> Any:
        self.asked_by.append("node" if client is None else "token")
        if client is None:
            try:
                await asyncio.Event().wait()
            finally:
                self.now = self.not_after + 1
        self.not_after = self.now + 3600
        self.is_new.set()
        return self.read()


def test_a_certificate_that_expires_while_the_node_waits_for_the_next_is_replaced_with_the_token(
    tmp_path, monkeypatch, caplog
):
    certificate, _ = make_certificate(tmp_path)
    bootstrap = kubeconfig(tmp_path, 1, certificate, {"token": "of-the-bootstrap"})
    monkeypatch.setattr(node_certificate, "_BACKOFF_SECONDS", (0.001, 0.001))

    async def story() -> list[str]:
        unsigned = Unsigned(tmp_path)
        monkeypatch.setattr(node_certificate, "time", SimpleNamespace(time=lambda: unsigned.now))
        renewal = Renewal(unsigned, None, str(bootstrap))  # type: ignore[arg-type]
        running = asyncio.create_task(renewal.run())
        async with asyncio.timeout(60):
            await unsigned.is_new.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return unsigned.asked_by

    assert asyncio.run(story()) == ["node", "token"]
    (warned,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert "it has expired before the cluster has signed another one" in warned
