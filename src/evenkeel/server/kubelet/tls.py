"""TLS of the node's server: its certificate, and the authority of those who show one. Files are read again when they
have changed."""

import logging
import ssl
from collections.abc import Callable, Iterable

from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.files import file_stamps, read_text
from evenkeel.kube.kubeconfig import Kubeconfig, load_key_pair, read_pair
from evenkeel.named_tuples import NamedTuple

log = logging.getLogger(__name__)
_MOST_STEPS = 8  # of a handshake


class ClientAuthority(NamedTuple):
    """The authority of client certificates: from a file or a text. If both are empty, no certificate is accepted."""

    path: str = ""
    pem: str = ""

    def __bool__(self) -> bool:
        return bool(self.path or self.pem)

    def read(self) -> str:
        return read_text(self.path) if self.path else self.pem


class NodeTls:
    """`context` for each connection. While new files cannot be used, the former ones are."""

    def __init__(self, certificate: str, key: str, clients: ClientAuthority) -> None:
        """The paths of the certificate and its key, which may be one file. Raises EvenkeelError."""
        self._files = (certificate, key)
        self._clients = clients
        self._watched = tuple(dict.fromkeys(filter(None, (certificate, key, clients.path))))
        self._stamps = file_stamps(self._watched)
        self._context = self._made()

    def context(self) -> ssl.SSLContext:
        stamps = file_stamps(self._watched)
        if stamps is not None and stamps != self._stamps:
            self._stamps = stamps
            try:
                self._context = self._made()
            except EvenkeelError as error:
                log.warning("cluster: the former certificates are used on: %s", error)
        return self._context

    def _made(self) -> ssl.SSLContext:
        return server_context(*read_pair(*self._files), self._clients)


def server_context(certificate_pem: str, key_pem: str, clients: ClientAuthority) -> ssl.SSLContext:
    """Raises EvenkeelError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Each connection shows its certificate anew: it may have expired, or its authority may be another one.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    load_key_pair(context, certificate_pem, key_pem, "the certificate of the node's server")
    if clients:
        context.verify_mode = ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(cadata=clients.read())
        except (OSError, ValueError) as error:
            why = reason(error) if isinstance(error, OSError) else str(error)
            raise EvenkeelError(f"--client-ca-file {clients.path}: it is no PEM certificate: {why}") from None
    return context


def cluster_authority(config: Kubeconfig, pair: tuple[str, str], own: tuple[str, str]) -> ClientAuthority:
    """The authority in the kubeconfig, if it has signed the node's own certificate of a client (`pair`, with its key):
    then the API server believes certificates of clients that it signs, and so may the node. Else nobody. It may be one
    that signs servers only, such as one of the web. `own` is the certificate of the node's server, with its key."""
    if not pair[0]:
        return ClientAuthority()
    authority = ClientAuthority(pem=config.ca_pem)
    server = server_context(*own, authority)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE  # it is ourselves
    load_key_pair(client, *pair, f"--kubeconfig {config.path}: client-certificate")
    return authority if _shake_hands(server, client) else ClientAuthority()


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> bool:
    """Whether the server accepts the client's certificate. Both are here, in memory."""
    server.verify_mode = ssl.CERT_REQUIRED
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server),
    )
    try:
        for _ in range(_MOST_STEPS):
            if all(_steps(end.do_handshake for end in ends)):
                return ends[0].getpeercert() is not None
    except ssl.SSLError:
        pass
    return False


def _steps(handshakes: Iterable[Callable[[], None]]) -> list[bool]:
    """Whether each is done."""
    done = []
    for handshake in handshakes:
        try:
            handshake()
        except ssl.SSLWantReadError:
            done.append(False)
        else:
            done.append(True)
    return done
