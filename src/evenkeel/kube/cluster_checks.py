"""Doctor's checks of a node of a cluster: whether the API server can be reached, knows the node, and has a version that
fits.

`inspect_cluster` reads all facts at once. The checks are functions of these facts, so they can be tested for clusters
that we do not have."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from email.utils import parsedate_to_datetime

from evenkeel.errors import EvenkeelError
from evenkeel.host.checks import Check, State
from evenkeel.host.files import read_text
from evenkeel.kube.api_client import path_of
from evenkeel.kube.api_connection import Connection, Head
from evenkeel.kube.api_credentials import Credentials
from evenkeel.kube.certificates import NODE_USER_PREFIX, NODES_GROUP, Certificate, read_certificate
from evenkeel.kube.kubeconfig import read_kubeconfig
from evenkeel.kube.node_object import KUBELET_VERSION
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.lifecycle.pod_status import timestamp

_SECONDS = 10.0
_OK, _UNAUTHORIZED, _FORBIDDEN = 200, 401, 403
# A lease is valid for 40 s, and tokens of pods are not taken before they were made.
_SKEW_NOTED_SECONDS, _MOST_SKEW_SECONDS = 3.0, 20.0
_OLDER_MINORS = 3  # minor versions by which a node may be older than its API server; it must never be newer
_JOIN = "evenkeel join https://HOST:6443 --token-file FILE --ca-cert-hash sha256:HASH"


class Asked(NamedTuple):
    """The API server's answers to the node. `failure` says why there are none."""

    failure: str = ""
    skew_seconds: float | None = None  # how far this machine's clock is ahead of the server's
    version: str = ""
    node_status: int = 0  # of the request for the node's own object


class ClusterFacts(NamedTuple):
    server: str
    certificate: Certificate | None  # None if the node authenticates by other means
    at: float
    asked: Asked


async def inspect_cluster(kubeconfig: str) -> ClusterFacts:
    """Raises EvenkeelError if the file cannot be used."""
    credentials = Credentials(read_kubeconfig(kubeconfig))
    config = credentials.config
    pem = config.certificate_pem or (
        read_text(config.certificate_files[0]) if config.certificate_files[0] else ""
    )
    certificate = read_certificate(pem) if pem else None
    try:
        asked = await _ask(credentials, certificate.node_name if certificate is not None else "")
    except EvenkeelError as error:
        asked = Asked(error.message)
    return ClusterFacts(config.server, certificate, time.time(), asked)


async def _ask(credentials: Credentials, node_name: str) -> Asked:
    identity = await credentials.identity()
    connection = await Connection.open(credentials.config, identity)
    headers = {"Accept": "application/json"}
    if identity.token:
        headers["Authorization"] = f"Bearer {identity.token}"

    async def get(path: str) -> tuple[Head, bytes]:
        head = await connection.request("GET", f"{credentials.config.prefix}{path}", headers, b"", _SECONDS)
        return head, await connection.body(_SECONDS)

    try:
        before = time.time()
        head, body = await get("/version")
        skew = clock_skew(head.headers.get("date", ""), before, time.time())
        status = (await get(path_of("api", "v1", "nodes", node_name)))[0].status if node_name else 0
    finally:
        await connection.close()
    return Asked("", skew, _version(body) if head.status == _OK else "", status or head.status)


def cluster_checks(facts: ClusterFacts) -> Iterator[Check]:
    """API server, clock, versions and certificate."""
    yield _reached(facts)
    if facts.asked.skew_seconds is not None:
        yield _clock(facts.asked.skew_seconds)
    if facts.asked.version:
        yield _versions(facts.asked.version)
    if facts.certificate is not None:
        yield _certificate(facts.certificate, facts.at)


def _reached(facts: ClusterFacts) -> Check:
    asked, name = facts.asked, "API server"
    if asked.failure:
        alone = "the node gets no pods and reports none; what runs goes on"
        mend = f"curl -k {facts.server}/livez, from this machine: address, network and firewall"
        return Check(name, State.BROKEN, asked.failure, alone, mends=(mend,))
    if asked.node_status in (_UNAUTHORIZED, _FORBIDDEN):
        seen = f"{facts.server} answers {asked.node_status}: it does not know this node"
        return Check(name, State.BROKEN, seen, "the node cannot be registered", mends=(_JOIN,))
    return Check(name, State.OK, f"{facts.server} answers")


def _clock(skew_seconds: float) -> Check:
    side = "ahead of" if skew_seconds > 0 else "behind"
    seen = f"{abs(skew_seconds):.0f} s {side} the API server"
    mends = ("timedatectl set-ntp true", "chronyc makestep")
    if abs(skew_seconds) > _MOST_SKEW_SECONDS:
        lost = "the node's lease, certificates and tokens count as expired too soon or too late"
        return Check("clock", State.BROKEN, seen, lost, mends=mends)
    if abs(skew_seconds) > _SKEW_NOTED_SECONDS:
        return Check("clock", State.NOTE, seen, "times of events and pods are wrong by that", mends=mends)
    return Check("clock", State.OK, "as that of the API server")


def _versions(server: str) -> Check:
    ours, theirs = _minor(KUBELET_VERSION), _minor(server)
    seen = f"the API server is {server}, this node does as kubelet {KUBELET_VERSION}"
    if theirs is None or ours is None:
        return Check("versions", State.UNKNOWN, seen)
    if theirs < ours:
        broken = "Kubernetes supports no node that is newer than its API server"
        return Check("versions", State.BROKEN, seen, broken, mends=("upgrade the control plane",))
    if theirs > ours + _OLDER_MINORS:
        broken = f"Kubernetes supports nodes that are up to {_OLDER_MINORS} minor versions older"
        return Check("versions", State.BROKEN, seen, broken, mends=("pip install --upgrade evenkeel",))
    return Check("versions", State.OK, seen)


def _certificate(certificate: Certificate, now: float) -> Check:
    name = "node certificate"
    if not certificate.node_name:
        seen = (
            f"it is of {certificate.common_name[:80]} of {', '.join(certificate.organizations) or 'no group'}"
        )
        needed = f"a node is {NODE_USER_PREFIX}NAME of the group {NODES_GROUP}"
        return Check(name, State.BROKEN, seen, needed, mends=(_JOIN,))
    until = timestamp(certificate.not_after)
    if now >= certificate.not_after:
        return Check(
            name, State.BROKEN, f"expired since {until}", "the API server refuses the node", mends=(_JOIN,)
        )
    if now < certificate.not_before:
        seen = f"not valid before {timestamp(certificate.not_before)}"
        return Check(
            name, State.BROKEN, seen, "the API server refuses the node", mends=("timedatectl set-ntp true",)
        )
    seen = f"of {certificate.common_name}, valid until {until}"
    if now >= certificate.renew_at:
        late = "a running agent should have renewed it"
        return Check(name, State.NOTE, seen, late, mends=("kubectl get csr", _JOIN))
    return Check(name, State.OK, seen)


def clock_skew(date: str, asked_at: float, answered_at: float) -> float | None:
    """How far this machine's clock is ahead of the server's, at least. `date` is the server's, in whole seconds, of
    some moment between the question and the answer: a slow machine or network is no skew. None if it is no date."""
    with suppress(ValueError, TypeError):
        since = parsedate_to_datetime(date).timestamp()
        if asked_at > since + 1:
            return asked_at - since - 1
        return min(answered_at - since, 0.0)
    return None


def _version(body: bytes) -> str:
    with suppress(ValueError, RecursionError):
        value = json.loads(body)
        if isinstance(value, dict):
            return str(value.get("gitVersion") or "")[:60]
    return ""


def _minor(version: str) -> int | None:
    parts = version.removeprefix("v").split(".")
    return int(parts[1]) if len(parts) > 1 and parts[0] == "1" and parts[1].isdecimal() else None
