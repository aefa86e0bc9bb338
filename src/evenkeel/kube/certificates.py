"""Keys, signing requests and certificates: made and read by openssl(1), in a process that ends after milliseconds.

A library would cost the agent some MiB for good, for work that it does once in months. A key goes to openssl through a
pipe, and is in no argument and no file of openssl's.
"""

import binascii
import hashlib
import ipaddress
import re
import ssl
import subprocess
from collections.abc import Sequence

from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple

NODES_GROUP, NODE_USER_PREFIX = "system:nodes", "system:node:"
_OPENSSL_SECONDS = 30.0
_SELF_SIGNED_DAYS = 365
# The part of a certificate's life after which it is renewed, as in kubelet. It differs, so that not all nodes renew at
# the same moment.
_RENEW_EARLIEST, _RENEW_LATEST = 0.7, 0.9
_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----[^-]+-----END \1-----\n?")
_NAMES = "X509v3 Subject Alternative Name:"
_CERTIFICATE, _PUBLIC_KEY = "CERTIFICATE", "PUBLIC KEY"


class Certificate(NamedTuple):
    """The fields of a certificate. Times are seconds since the epoch."""

    not_before: float
    not_after: float
    common_name: str
    organizations: tuple[str, ...]
    names: tuple[str, ...]  # of a server, such as IP:10.0.0.1 and DNS:node1
    is_self_signed: bool
    public_key: bytes  # SubjectPublicKeyInfo, in DER

    @property
    def renew_at(self) -> float:
        """When to ask for the next one: at 70 to 90 % of its life. The exact point is computed from its key, so a
        restart of the agent does not change it."""
        draw = int.from_bytes(hashlib.sha256(self.public_key).digest()[:4], "big") / 2**32
        life = self.not_after - self.not_before
        return self.not_before + life * (_RENEW_EARLIEST + (_RENEW_LATEST - _RENEW_EARLIEST) * draw)

    @property
    def node_name(self) -> str:
        """The name of the node that the certificate identifies; empty if it identifies none."""
        is_node = NODES_GROUP in self.organizations and self.common_name.startswith(NODE_USER_PREFIX)
        return self.common_name.removeprefix(NODE_USER_PREFIX) if is_node else ""


def new_key() -> str:
    """A new private key, in PEM. Raises EvenkeelError, as all functions here do."""
    return _openssl("", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")


def public_key_of(key_pem: str) -> bytes:
    return _der(_openssl(key_pem, "pkey", "-pubout"), _PUBLIC_KEY)


def signing_request(key_pem: str, node_name: str, names: Sequence[str] = ()) -> str:
    """A request for a certificate of this node, in PEM. `names` are those of a server: IP:10.0.0.1, DNS:node1."""
    return _openssl(key_pem, "req", "-new", *_about(node_name, names))


def self_signed(key_pem: str, node_name: str, names: Sequence[str]) -> str:
    """A certificate of a server that nobody else has signed, in PEM."""
    usage = ("-addext", "extendedKeyUsage=serverAuth")
    return _openssl(
        key_pem, "req", "-new", "-x509", "-days", str(_SELF_SIGNED_DAYS), *_about(node_name, names), *usage
    )


def read_certificate(pem: str) -> Certificate:
    """The first certificate of the text."""
    block = next(iter(certificates_of(pem)), "")
    if not block:
        raise EvenkeelError("there is no certificate in PEM")
    told = _openssl(
        block, "x509", "-noout", "-startdate", "-enddate", "-subject", "-issuer", "-ext", "subjectAltName", "-pubkey",
        "-nameopt", "sep_multiline,sname,utf8",
    )  # fmt: skip
    sections = _sections(told)
    subject = [line.partition("=")[::2] for line in sections["subject"]]
    names = [name.strip() for line in sections.get(_NAMES, ()) for name in line.split(",")]
    return Certificate(
        ssl.cert_time_to_seconds(sections["notBefore"][0]),
        ssl.cert_time_to_seconds(sections["notAfter"][0]),
        next((value for kind, value in subject if kind == "CN"), ""),
        tuple(value for kind, value in subject if kind == "O"),
        tuple(map(_name, names)),
        sections["subject"] == sections["issuer"],
        _der(told, _PUBLIC_KEY),
    )


def _name(told: str) -> str:
    kind, _, value = told.partition(":")
    return f"IP:{ipaddress.ip_address(value)}" if kind == "IP Address" else told


def _sections(told: str) -> dict[str, list[str]]:
    """Parses the output of openssl x509: `name=value`, or a name with its values below, each with spaces in front."""
    sections: dict[str, list[str]] = {}
    values: list[str] = []
    for line in _BLOCK.sub("", told).splitlines():
        if line.startswith(" "):
            values.append(line.strip())
            continue
        name, _, value = line.partition("=")
        values = sections.setdefault(name.strip(), [])
        if value:
            values.append(value)
    return sections


def certificates_of(pem: str) -> list[str]:
    """The certificates of a bundle, one text each."""
    return [found[0] for found in _BLOCK.finditer(pem) if found[1] == _CERTIFICATE]


def _about(node_name: str, names: Sequence[str]) -> tuple[str, ...]:
    subject = f"/O={NODES_GROUP}/CN={NODE_USER_PREFIX}{node_name}"
    extension = ("-addext", f"subjectAltName={','.join(names)}") if names else ()
    return ("-config", "/dev/null", "-key", "/dev/stdin", "-subj", subject, *extension)


def _der(pem: str, kind: str) -> bytes:
    for found in _BLOCK.finditer(pem):
        if found[1] == kind:
            return binascii.a2b_base64("".join(found[0].strip().splitlines()[1:-1]))
    raise EvenkeelError(f"openssl printed no {kind.lower()}")


def _openssl(given: str, *arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 no shell, and no text of others in an argument
            ["openssl", *arguments],  # noqa: S607 as the machine has it
            input=given,
            capture_output=True,
            text=True,
            timeout=_OPENSSL_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise EvenkeelError("openssl is not installed", hint="apt install openssl") from None
    except OSError as error:
        raise EvenkeelError(f"openssl cannot be executed: {reason(error)}") from None
    except subprocess.TimeoutExpired:
        raise EvenkeelError(f"openssl has not ended within {_OPENSSL_SECONDS:.0f} s") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise EvenkeelError(f"openssl {arguments[0]} ended with code {done.returncode}: {said}")
    return done.stdout
