"""The node's certificates: each in one file with its key, signed by the cluster's own signers, and renewed before it
expires.

A file is replaced as a whole, so that certificate and key always fit. The key of a request that is under way is beside
it. Only root can read either. The name of a request is derived from its key. So an agent that was killed meanwhile
finds its request again.
"""

import asyncio
import base64
import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress

from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.files import read_text, replace_own
from evenkeel.kube.api_client import CONFLICT, ApiError, Backoff, Client, Json, metadata_of, path_of
from evenkeel.kube.api_credentials import Credentials
from evenkeel.kube.certificates import (
    NODE_USER_PREFIX,
    Certificate,
    new_key,
    public_key_of,
    read_certificate,
    self_signed,
    signing_request,
)
from evenkeel.kube.kubeconfig import read_kubeconfig
from evenkeel.kube.watch import DELETED
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.lifecycle.pod_status import timestamp

log = logging.getLogger(__name__)

_LONGEST_SLEEP_SECONDS = 600.0  # the clock may be set meanwhile
_BACKOFF_SECONDS = (5.0, 300.0)
_REQUESTS = ("apis", "certificates.k8s.io", "v1", "certificatesigningrequests")
_WATCH_SECONDS = 300
_SLACK_SECONDS = 60.0
_SIGNING_BACKOFF_SECONDS = (0.5, 30.0)


class Signer(NamedTuple):
    """A signer of the cluster, and the use of the certificates that it signs."""

    name: str
    usages: tuple[str, ...]


CLIENT = Signer("kubernetes.io/kube-apiserver-client-kubelet", ("digital signature", "client auth"))
SERVING = Signer("kubernetes.io/kubelet-serving", ("digital signature", "server auth"))


class Refused(EvenkeelError):
    """The request was denied, or could not be signed. The same request will never be signed."""


async def signed_certificate(
    client: Client,
    signer: Signer,
    request_pem: str,
    public_key: bytes,
    on_asked: Callable[[str], None],
) -> str:
    """Returns the certificate in PEM when the request has been approved. `on_asked` is called with the name of the
    request. While the API server is away it is asked again. Raises Refused, and ApiError if the API server does not
    take the request."""
    name = f"node-csr-{hashlib.sha256(public_key).hexdigest()[:40]}"
    wanted = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "request": base64.b64encode(request_pem.encode()).decode(),
            "signerName": signer.name,
            "usages": list(signer.usages),
        },
    }
    one = await _asked(client, wanted)
    on_asked(name)
    backoff = Backoff(*_SIGNING_BACKOFF_SECONDS)
    while True:
        try:
            if found := _certificate(one) or await _awaited(client, one):
                return found
            one = await _asked(client, wanted)
            backoff.reset()
        except Refused:
            raise
        except EvenkeelError:
            await backoff.wait()


async def _asked(client: Client, wanted: Json) -> Json:
    """The request as the API server has it; it is made if it is not there: old ones are removed."""
    try:
        return await client.post(path_of(*_REQUESTS), wanted)
    except ApiError as error:
        if error.code != CONFLICT:
            raise
    return await client.get(path_of(*_REQUESTS, wanted["metadata"]["name"]))


async def _awaited(client: Client, one: Json) -> str:
    """The certificate; empty if the watch ended without one."""
    metadata = metadata_of(one)
    parameters = {
        "watch": "true",
        "fieldSelector": f"metadata.name={metadata['name']}",
        "resourceVersion": str(metadata.get("resourceVersion") or ""),
        "timeoutSeconds": str(_WATCH_SECONDS),
    }
    watch = client.watch(path_of(*_REQUESTS), parameters, _WATCH_SECONDS + _SLACK_SECONDS)
    async with aclosing(watch) as events:
        async for event in events:
            if event.get("type") == DELETED:
                return ""
            if found := _certificate(event.get("object")):
                return found
    return ""


def _certificate(one: object) -> str:
    status = one.get("status") if isinstance(one, dict) else None
    if not isinstance(status, dict):
        return ""
    for condition in status.get("conditions") or ():
        if condition.get("type") in ("Denied", "Failed"):
            said = str(condition.get("message") or condition.get("reason") or "no reason was given")
            what = "denied" if condition["type"] == "Denied" else "not signed"
            raise Refused(f"the request for a certificate was {what}: {said}")
    try:
        return base64.b64decode(str(status.get("certificate") or "")).decode()
    except ValueError:
        raise Refused("the cluster's certificate is no text in base64") from None


class NodeCertificate:
    """One certificate of the node, in the file `path`. `names` are those of a server, in openssl's form."""

    def __init__(self, path: str, node_name: str, signer: Signer, names: Sequence[str] = ()) -> None:
        self.path = path
        self._node_name = node_name
        self._signer = signer
        self._names = tuple(names)
        self._key_path = f"{path}.key"  # of the request that is under way

    @property
    def is_serving(self) -> bool:
        return self._signer == SERVING

    @property
    def what(self) -> str:
        return "the certificate of the node's server" if self.is_serving else "the node's certificate"

    def due_at(self, present: Certificate) -> float:
        """When the next one is to be asked for."""
        fits = set(present.names) == set(self._names) and not present.is_self_signed
        return present.renew_at if fits or not self.is_serving else 0.0

    def read(self) -> Certificate:
        """Raises EvenkeelError."""
        return read_certificate(read_text(self.path))

    async def renew(self, client: Client, on_asked: Callable[[str], None]) -> Certificate:
        """Asks the cluster for a new one and waits for it. `on_asked` is called with the name of the request. Raises
        EvenkeelError."""
        key, public_key = await asyncio.to_thread(self._pending_key)
        request = await asyncio.to_thread(signing_request, key, self._node_name, self._names)
        try:
            pem = await signed_certificate(client, self._signer, request, public_key, on_asked)
            found = await asyncio.to_thread(read_certificate, pem)
            self._check(found, public_key)
        except Refused:
            self._forget_key()  # another key makes another request
            raise
        await asyncio.to_thread(self._write, pem, key)
        return found

    def ensure(self) -> None:
        """Makes one that the node signs itself, unless a certificate with these names is there. Raises
        EvenkeelError."""
        with suppress(EvenkeelError):
            present = self.read()
            if set(present.names) == set(self._names) and time.time() < present.renew_at:
                return
        key = new_key()
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        except OSError as error:
            raise EvenkeelError(f"cannot write {self.path}: {reason(error)}") from None
        self._write(self_signed(key, self._node_name, self._names), key)

    def _check(self, found: Certificate, public_key: bytes) -> None:
        if found.public_key != public_key:
            raise Refused("the cluster's certificate is for another key than that of the request")
        if found.common_name != f"{NODE_USER_PREFIX}{self._node_name}":
            raise Refused(f'the cluster\'s certificate is for "{found.common_name[:80]}", not for this node')
        if found.not_after <= time.time():
            raise Refused("the cluster's certificate has expired already")

    def _pending_key(self) -> tuple[str, bytes]:
        """The key of a request that is under way, else a new one; and its public part."""
        with suppress(EvenkeelError):
            key = read_text(self._key_path)
            public_key = public_key_of(key)
            if not self._is_used(public_key):
                return key, public_key
        key = new_key()
        try:
            replace_own(self._key_path, key.encode())
        except OSError as error:
            raise EvenkeelError(f"cannot write {self._key_path}: {reason(error)}") from None
        return key, public_key_of(key)

    def _is_used(self, public_key: bytes) -> bool:
        """Whether the present certificate has this key: its request is answered."""
        try:
            return self.read().public_key == public_key
        except EvenkeelError:
            return False

    def _write(self, certificate_pem: str, key_pem: str) -> None:
        try:
            replace_own(self.path, f"{certificate_pem.strip()}\n{key_pem.strip()}\n".encode())
        except OSError as error:
            raise EvenkeelError(f"cannot write {self.path}: {reason(error)}") from None
        self._forget_key()

    def _forget_key(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._key_path)


class Renewal:
    """Renews a certificate of the node while the agent runs. If that of the client has expired, the bootstrap token
    proves who the node is, as long as that is valid."""

    def __init__(self, certificate: NodeCertificate, client: Client, bootstrap_path: str = "") -> None:
        self._certificate = certificate
        self._client = client
        self._bootstrap_path = bootstrap_path

    async def run(self) -> None:
        """Renews the certificate when it is due, until it is cancelled."""
        backoff = Backoff(*_BACKOFF_SECONDS)
        failure = ""
        while True:
            try:
                present = await asyncio.to_thread(self._certificate.read)
                left = self._certificate.due_at(present) - time.time()
                if left > 0:
                    await asyncio.sleep(min(left, _LONGEST_SLEEP_SECONDS))
                    continue
                after = await self._renew(present)
            except EvenkeelError as error:
                if error.message != failure:
                    failure = error.message
                    log.warning("cluster: %s cannot be renewed: %s", self._certificate.what, error)
                await backoff.wait()
            else:
                failure = ""
                backoff.reset()
                until = timestamp(after.not_after)
                log.info("cluster: %s is new, and valid until %s", self._certificate.what, until)

    async def _renew(self, present: Certificate) -> Certificate:
        left = present.not_after - time.time()
        if not self._bootstrap_path:
            return await self._certificate.renew(self._client, self._log_request)
        if left > 0:
            try:
                async with asyncio.timeout(left):
                    return await self._certificate.renew(self._client, self._log_request)
            except TimeoutError:
                raise EvenkeelError("it has expired before the cluster has signed another one") from None
        if not os.path.exists(self._bootstrap_path):
            raise EvenkeelError("it has expired", hint="evenkeel join, with a new token")
        client = Client(Credentials(read_kubeconfig(self._bootstrap_path)))
        try:
            return await self._certificate.renew(client, self._log_request)
        finally:
            await client.close()

    def _log_request(self, name: str) -> None:
        if self._certificate.is_serving:
            log.warning(
                "cluster: %s is signed by the node itself, until an administrator approves another one:"
                " kubectl certificate approve %s",
                self._certificate.what,
                name,
            )
        else:
            log.info("cluster: %s is to be renewed: the request is %s", self._certificate.what, name)
