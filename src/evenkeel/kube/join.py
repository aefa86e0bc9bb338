"""Joining a cluster: from a bootstrap token to a kubeconfig with a certificate that makes this machine a node.

Everything is in one directory that only root can read. Each file is written as a whole, and the kubeconfig of the node
is the last one. So a join that was killed at any moment is done again, and finds its request for a certificate.
"""

import base64
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.files import read_text, replace_own
from evenkeel.kube.certificates import Certificate, certificates_of
from evenkeel.kube.client import ApiError, Client
from evenkeel.kube.credentials import Credentials
from evenkeel.kube.discovery import BootstrapToken, discovered_authority
from evenkeel.kube.kubeconfig import Kubeconfig, read_kubeconfig
from evenkeel.kube.node_certificate import CLIENT, NodeCertificate
from evenkeel.named_tuples import NamedTuple

DIRECTORY = "cluster"  # in the state directory
KUBECONFIG, BOOTSTRAP, CLIENT_FILE, SERVING_FILE = (
    "node.kubeconfig", "bootstrap.kubeconfig", "client.pem", "serving.pem",
)  # fmt: skip
_DEFAULT_PORT = 6443
_UNAUTHORIZED, _FORBIDDEN = 401, 403


class JoinFlags(NamedTuple):
    """What is asked for, checked. One of `ca_pem` and `ca_hash` is empty."""

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
    """Joins, or finds that this machine has joined. `on_asked` hears the name of the request for a certificate. Raises
    EvenkeelError."""
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
    """While no other join runs. Raises EvenkeelError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EvenkeelError(f"another join runs in {directory}: wait until it ends, or end it") from None
        yield
    finally:
        os.close(descriptor)
