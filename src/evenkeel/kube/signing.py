"""A certificate of the cluster's own signers: a request is made, and its certificate awaited.

The name of a request is derived from its key. So an agent that was killed meanwhile finds its request again.
"""

import base64
import hashlib
from collections.abc import Callable
from contextlib import aclosing

from evenkeel.errors import EvenkeelError
from evenkeel.kube.client import CONFLICT, ApiError, Backoff, Client, Json, metadata_of, path_of
from evenkeel.kube.watch import DELETED
from evenkeel.named_tuples import NamedTuple

_REQUESTS = ("apis", "certificates.k8s.io", "v1", "certificatesigningrequests")
_WATCH_SECONDS = 300
_SLACK_SECONDS = 60.0
_BACKOFF_SECONDS = (0.5, 30.0)


class Signer(NamedTuple):
    """Who signs, and what for."""

    name: str
    usages: tuple[str, ...]


CLIENT = Signer("kubernetes.io/kube-apiserver-client-kubelet", ("digital signature", "client auth"))
SERVING = Signer("kubernetes.io/kubelet-serving", ("digital signature", "server auth"))


class Refused(EvenkeelError):
    """The request was denied, or could not be signed. The same one will never be."""


async def signed_certificate(
    client: Client,
    signer: Signer,
    request_pem: str,
    public_key: bytes,
    on_asked: Callable[[str], None],
) -> str:
    """The certificate in PEM, when somebody has approved the request. `on_asked` hears the name of the request. While
    the API server is away it is asked again. Raises Refused, and ApiError if the API server does not take the
    request."""
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
    backoff = Backoff(*_BACKOFF_SECONDS)
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
