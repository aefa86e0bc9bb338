"""Joining a cluster: from a bootstrap token to a kubeconfig with a certificate that makes this machine a node.

Everything is in one directory that only root can read. Each file is written as a whole, and the kubeconfig of the node
is the last one. So a join that was killed at any moment is done again, and finds its request for a certificate.

The cluster's certificate authority is found with the token, as kubeadm does it. The API server shows `cluster-info` to
every client, so it proves nothing by itself. So it is signed with the secret of the token, and the key of the authority
in it must have the given hash. Then it is asked for again, by a connection that is verified with this authority, and
must be the same."""

import base64
import binascii
import fcntl
import hashlib
import hmac
import json
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self
from urllib.parse import urlsplit

from evenkeel.errors import EvenkeelError, InvalidInput, reason
from evenkeel.host.files import read_text, replace_own
from evenkeel.kube.api_client import ApiError, Client, Json, path_of
from evenkeel.kube.api_connection import Connection
from evenkeel.kube.api_credentials import Credentials, Identity
from evenkeel.kube.certificates import Certificate, certificates_of, read_certificate
from evenkeel.kube.kubeconfig import Kubeconfig, parsed, read_kubeconfig
from evenkeel.kube.node_certificate import CLIENT, NodeCertificate
from evenkeel.named_tuples import NamedTuple

DIRECTORY = "cluster"  # in the state directory
KUBECONFIG, BOOTSTRAP, CLIENT_FILE, SERVING_FILE = (
    "node.kubeconfig", "bootstrap.kubeconfig", "client.pem", "serving.pem",
)  # fmt: skip
_DEFAULT_PORT = 6443
_CLUSTER_INFO = path_of("api", "v1", "namespaces", "kube-public", "configmaps", "cluster-info")
_SECONDS = 30.0
_OK, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 200, 401, 403, 404
_OTHER_WAY = "give the cluster's certificate authority instead: --certificate-authority FILE"
_TOKEN = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


class BootstrapToken(NamedTuple):
    id: str
    secret: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises EvenkeelError, without the text: it is a secret."""
        found = _TOKEN.fullmatch(text.strip())
        if found is None:
            raise EvenkeelError(
                "the token is no bootstrap token: six letters or digits, a dot, and sixteen more",
                hint="kubeadm token create",
            )
        return cls(found[1], found[2])

    @property
    def text(self) -> str:
        return f"{self.id}.{self.secret}"

    def __repr__(self) -> str:
        return f"<token {self.id}>"


def checked_hash(text: str) -> str:
    """Raises EvenkeelError."""
    if _HASH.fullmatch(text.lower()) is None:
        raise EvenkeelError(
            f'--ca-cert-hash: "{text[:80]}" is no hash; write sha256: and 64 hexadecimal digits'
        )
    return text.lower()


async def discovered_authority(server: Kubeconfig, token: BootstrapToken, hash_: str) -> str:
    """The certificate authority of the cluster, in PEM. `hash_` is that of its public key. Raises EvenkeelError."""
    first = await _cluster_info(server)
    kubeconfig = verified(first, token)
    ca_pem = _authority(kubeconfig)
    for one in certificates_of(ca_pem):
        seen = f"sha256:{hashlib.sha256(read_certificate(one).public_key).hexdigest()}"
        if not hmac.compare_digest(seen, hash_):
            raise EvenkeelError(
                f"the certificate authority of {server.server} has the hash {seen}, not {hash_}: this is another"
                " cluster, or the connection is intercepted"
            )
    # A machine in the middle could have passed on the real `cluster-info`. So it is fetched again over a verified
    # connection.
    client = Client(Credentials(server._replace(ca_pem=ca_pem)))
    try:
        second = await client.get(_CLUSTER_INFO)
    finally:
        await client.close()
    if verified(second, token) != kubeconfig:
        raise EvenkeelError("cluster-info has changed meanwhile, or the connection is intercepted: try again")
    return ca_pem


def verified(config_map: Json, token: BootstrapToken) -> str:
    """The kubeconfig of cluster-info, if the token has signed it. Raises EvenkeelError."""
    data = config_map.get("data")
    data = data if isinstance(data, dict) else {}
    content = str(data.get("kubeconfig") or "")
    signature = str(data.get(f"jws-kubeconfig-{token.id}") or "")
    if not signature:
        raise EvenkeelError(
            f"cluster-info is not signed for the token {token.id}: it has expired, or is not for signing",
            hint="kubeadm token create --print-join-command",
        )
    head, _, rest = signature.partition(".")
    payload, _, mac = rest.partition(".")  # the payload is left out: it is the kubeconfig itself
    signed = f"{head}.{_base64url(content.encode())}".encode()
    right = _base64url(hmac.digest(token.secret.encode(), signed, "sha256"))
    if payload or not _is_hs256(head, token.id) or not hmac.compare_digest(mac.encode(), right.encode()):
        raise EvenkeelError(
            f"cluster-info is not signed with the token {token.id}: the token is wrong, or the connection is"
            " intercepted"
        )
    return content


async def _cluster_info(server: Kubeconfig) -> Json:
    """The unverified answer of the server at that address. Nothing is sent but the request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = await Connection.open(server, Identity(context))
    try:
        target = f"{server.prefix}{_CLUSTER_INFO}"
        head = await connection.request("GET", target, {"Accept": "application/json"}, b"", _SECONDS)
        body = await connection.body(_SECONDS)
    finally:
        await connection.close()
    if head.status in (_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND):
        raise EvenkeelError(
            f"{server.server} has no cluster-info for everybody, which kubeadm makes", hint=_OTHER_WAY
        )
    try:
        value = json.loads(body) if head.status == _OK else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise EvenkeelError(f"{server.server} is no API server: it answered {head.status}")
    return value


def _authority(kubeconfig: str) -> str:
    try:
        (found,) = parsed(kubeconfig, "cluster-info")
        data = found["clusters"][0]["cluster"]["certificate-authority-data"]  # type: ignore[index]
        ca_pem = binascii.a2b_base64(str(data), strict_mode=True).decode()
    except (ValueError, LookupError, TypeError, binascii.Error, InvalidInput):
        ca_pem = ""
    if not certificates_of(ca_pem):
        raise EvenkeelError("the kubeconfig of cluster-info has no certificate authority", hint=_OTHER_WAY)
    return ca_pem


def _is_hs256(head: str, token_id: str) -> bool:
    try:
        value = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("alg") == "HS256" and value.get("kid") == token_id


def _base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class JoinFlags(NamedTuple):
    """The flags after their check. One of `ca_pem` and `ca_hash` is empty."""

    server: Kubeconfig  # without a user and an authority
    token: BootstrapToken
    ca_pem: str
    ca_hash: str
    node_name: str


class Joined(NamedTuple):
    kubeconfig: str
    certificate: Certificate
    is_new: bool


def server_from(text: str) -> Kubeconfig:
    """The address of an API server: https://HOST:PORT, or HOST:PORT as in kubeadm. Raises EvenkeelError."""
    address = urlsplit(text if "//" in text else f"https://{text}")
    try:
        host, port = address.hostname, address.port or _DEFAULT_PORT
    except ValueError:
        host, port = None, 0
    if address.scheme != "https" or not host or address.username or address.query or address.fragment:
        raise EvenkeelError(
            f'"{text[:80]}" is no address of an API server; write https://HOST:{_DEFAULT_PORT}'
        )
    return Kubeconfig("", host, port, address.path.rstrip("/"), host, "")


def authority_from(path: str) -> str:
    """Raises EvenkeelError."""
    ca_pem = "".join(certificates_of(read_text(path)))
    if not ca_pem:
        raise EvenkeelError(f"--certificate-authority: {path} has no certificate in PEM")
    return ca_pem


async def join(flags: JoinFlags, state_directory: str, on_asked: Callable[[str], None]) -> Joined:
    """Joins, or finds that this machine has joined. `on_asked` is called with the name of the request for a
    certificate. Raises EvenkeelError."""
    directory = os.path.join(os.path.abspath(state_directory), DIRECTORY)
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        with _alone(directory):
            return await _join(flags, directory, on_asked)
    except OSError as error:
        raise EvenkeelError(f"cannot write to {directory}: {reason(error)}") from None


async def _join(flags: JoinFlags, directory: str, on_asked: Callable[[str], None]) -> Joined:
    path = os.path.join(directory, KUBECONFIG)
    certificate = NodeCertificate(os.path.join(directory, CLIENT_FILE), flags.node_name, CLIENT)
    if os.path.exists(path):
        present = _present(path, certificate, flags)
        if present is not None and time.time() < present.not_after:
            return Joined(path, present, is_new=False)
    ca_pem = flags.ca_pem or await discovered_authority(flags.server, flags.token, flags.ca_hash)
    bootstrap = os.path.join(directory, BOOTSTRAP)
    _write_kubeconfig(bootstrap, flags.server, ca_pem, {"token": flags.token.text})
    client = Client(Credentials(read_kubeconfig(bootstrap)))
    try:
        found = await certificate.renew(client, on_asked)
    except ApiError as error:
        if error.code not in (_UNAUTHORIZED, _FORBIDDEN):
            raise
        raise EvenkeelError(
            f"the API server does not take the token {flags.token.id}: {error.message}",
            hint="kubeadm token create --print-join-command",
        ) from None
    finally:
        await client.close()
    user = {"client-certificate": CLIENT_FILE, "client-key": CLIENT_FILE}
    _write_kubeconfig(path, flags.server, ca_pem, user)
    return Joined(path, found, is_new=True)


def _present(path: str, certificate: NodeCertificate, flags: JoinFlags) -> Certificate | None:
    """The certificate of the cluster that this machine has joined; None if it is lost. Raises EvenkeelError if it is
    another cluster or node."""
    config = read_kubeconfig(path)
    another = f"to join another one, stop the agent and remove {os.path.dirname(path)}"
    if (config.host, config.port, config.prefix) != (
        flags.server.host,
        flags.server.port,
        flags.server.prefix,
    ):
        raise EvenkeelError(f"this machine has joined {config.server} already", hint=another)
    if flags.ca_pem and flags.ca_pem != config.ca_pem:
        raise EvenkeelError(
            "this machine has joined a cluster with another certificate authority", hint=another
        )
    try:
        present = certificate.read()
    except EvenkeelError:
        return None
    if present.node_name != flags.node_name:
        raise EvenkeelError(f'this machine has joined as "{present.node_name}" already', hint=another)
    return present


def _write_kubeconfig(path: str, server: Kubeconfig, ca_pem: str, user: dict[str, str]) -> None:
    authority = base64.b64encode(ca_pem.encode()).decode()
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "node",
        "contexts": [{"name": "node", "context": {"cluster": "cluster", "user": "node"}}],
        "clusters": [
            {"name": "cluster", "cluster": {"server": server.server, "certificate-authority-data": authority}}
        ],
        "users": [{"name": "node", "user": user}],
    }
    replace_own(path, f"{json.dumps(content, indent=1)}\n".encode())  # JSON is YAML


@contextmanager
def _alone(directory: str) -> Iterator[None]:
    """A lock: no other join runs in this context. Raises EvenkeelError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EvenkeelError(f"another join runs in {directory}: wait until it ends, or end it") from None
        yield
    finally:
        os.close(descriptor)
