"""kubeconfig files: where a cluster's API server is, and how the node authenticates.

Keys are never written to a file: OpenSSL reads them from a file in memory. No value of a credential is in a message.
"""

import binascii
import json
import os
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from evenkeel.errors import EvenkeelError, InvalidInput, Problem, reason
from evenkeel.host.files import read_text
from evenkeel.named_tuples import NamedTuple

_HTTPS_PORT = 443
_INSECURE = "write certificate-authority: without it anybody between could be the API server"


class ExecPlugin(NamedTuple):
    """A program that prints credentials (client.authentication.k8s.io)."""

    command: str
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    api_version: str
    gives_cluster: bool


class Kubeconfig(NamedTuple):
    """The current context of a kubeconfig file. Of the ways to authenticate, one or none is given."""

    path: str
    host: str
    port: int
    prefix: str  # of every path, such as /k8s/clusters/c-1; mostly empty
    server_name: str  # in the server's certificate
    ca_pem: str
    certificate_pem: str = ""
    key_pem: str = ""
    certificate_files: tuple[str, str] = (
        "",
        "",
    )  # instead of the two texts: read again when they are rotated
    token: str = ""
    token_file: str = ""
    plugin: ExecPlugin | None = None

    @property
    def server(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}{self.prefix}"

    def __repr__(self) -> str:
        return f"<kubeconfig of {self.server}>"  # the other fields may be secrets


def read_kubeconfig(path: str) -> Kubeconfig:
    """Raises EvenkeelError, with the field and what would be right."""
    found = parsed(read_text(path), path)
    if len(found) != 1 or not isinstance(found[0], Mapping):
        raise EvenkeelError(
            f"{path} is no kubeconfig: it must be one object with clusters, users and contexts"
        )
    return _Reader(path, found[0]).read()


def parsed(text: str, source: str) -> list[object]:
    """The documents of a kubeconfig. Most of those on nodes are JSON, `evenkeel join`'s too, and need no YAML library.
    Raises InvalidInput."""
    try:
        return [json.loads(text, object_pairs_hook=_without_twins)]
    except (ValueError, RecursionError):
        pass  # what is wrong with it, the other reader says
    from evenkeel.api.yaml_text import documents

    problems: list[Problem] = []
    found = [one.value for one in documents(text, problems)]
    if problems:
        raise InvalidInput([problem._replace(source=source) for problem in problems])
    return found


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


class _Reader:
    def __init__(self, path: str, value: Mapping[str, object]) -> None:
        self._path = path
        self._value = value

    def read(self) -> Kubeconfig:
        name = self._text(self._value, "current-context")
        if not name:
            raise self._wrong("current-context", "is missing: name one of the contexts")
        context = self._named("contexts", name, "context")
        cluster = self._named("clusters", self._text(context, "cluster"), "cluster")
        user = self._named("users", self._text(context, "user"), "user")
        if cluster.get("insecure-skip-tls-verify"):
            raise self._wrong("insecure-skip-tls-verify", f"is not honoured: {_INSECURE}")
        if cluster.get("proxy-url"):
            raise self._wrong("proxy-url", "is not honoured: the node needs a direct way to the API server")
        address = urlsplit(self._text(cluster, "server"))
        if address.scheme != "https" or not address.hostname:
            raise self._wrong("server", f'"{self._text(cluster, "server")[:80]}" must be https://HOST:PORT')
        ca_pem = self._pem(cluster, "certificate-authority")
        if not ca_pem:
            raise self._wrong("certificate-authority", f"is missing: {_INSECURE}")
        return self._with_user(
            Kubeconfig(
                self._path,
                address.hostname,
                address.port or _HTTPS_PORT,
                address.path.rstrip("/"),
                self._text(cluster, "tls-server-name") or address.hostname,
                ca_pem,
            ),
            user,
        )

    def _with_user(self, found: Kubeconfig, user: Mapping[str, object]) -> Kubeconfig:
        for field in ("username", "auth-provider", "as"):
            if user.get(field):
                raise self._wrong(field, "is not honoured: use a client certificate, a token or exec")
        found = found._replace(
            token=self._text(user, "token").strip(),
            token_file=self._place(self._text(user, "tokenFile")),
            plugin=self._plugin(user.get("exec")),
        )
        files = tuple(self._place(self._text(user, f"client-{what}")) for what in ("certificate", "key"))
        data = tuple(self._decoded(user, f"client-{what}-data") for what in ("certificate", "key"))
        if any(data):
            found = found._replace(certificate_pem=data[0], key_pem=data[1])
        elif any(files):
            found = found._replace(certificate_files=(files[0], files[1]))
        if any(data) != all(data) or (not any(data) and any(files) != all(files)):
            raise self._wrong(
                "client-certificate", "needs client-key, and client-key needs client-certificate"
            )
        return found

    def _plugin(self, value: object) -> ExecPlugin | None:
        if not isinstance(value, Mapping):
            return None
        command = self._text(value, "command")
        if not command:
            raise self._wrong("exec.command", "is missing: name the program that prints credentials")
        if "/" in command:
            command = self._place(command)
        args = value.get("args") or []
        env = value.get("env") or []
        if not isinstance(args, list) or not isinstance(env, list):
            raise self._wrong("exec", "args and env must be lists")
        pairs = tuple(
            (self._text(one, "name"), self._text(one, "value")) for one in env if isinstance(one, Mapping)
        )
        version = self._text(value, "apiVersion")
        gives_cluster = bool(value.get("provideClusterInfo"))
        return ExecPlugin(command, tuple(str(one) for one in args), pairs, version, gives_cluster)

    def _named(self, field: str, name: str, inner: str) -> Mapping[str, object]:
        listed = self._value.get(field)
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, Mapping) and one.get("name") == name:
                value = one.get(inner)
                return value if isinstance(value, Mapping) else {}
        raise self._wrong(field, f'there is none with the name "{name[:80]}"')

    def _text(self, value: Mapping[str, object], field: str) -> str:
        found = value.get(field)
        if found is None:
            return ""
        if not isinstance(found, str):
            raise self._wrong(field, "must be a text")
        return found

    def _place(self, path: str) -> str:
        """The path of a file: it is relative to the kubeconfig."""
        return os.path.join(os.path.dirname(os.path.abspath(self._path)), path) if path else ""

    def _pem(self, value: Mapping[str, object], field: str) -> str:
        data = self._decoded(value, f"{field}-data")
        file = self._place(self._text(value, field))
        return data or (read_text(file) if file else "")

    def _decoded(self, value: Mapping[str, object], field: str) -> str:
        text = self._text(value, field)
        try:
            return binascii.a2b_base64("".join(text.split()), strict_mode=True).decode() if text else ""
        except (binascii.Error, ValueError):
            raise self._wrong(field, "is not base64, such as `base64 -w0 FILE` prints") from None

    def _wrong(self, field: str, message: str) -> EvenkeelError:
        return EvenkeelError(f"--kubeconfig {self._path}: {field} {message}")


def tls_context(config: Kubeconfig, certificate_pem: str, key_pem: str) -> ssl.SSLContext:
    """The context of connections to the API server. Raises EvenkeelError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=config.ca_pem)
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise EvenkeelError(
            f"--kubeconfig {config.path}: certificate-authority is no PEM certificate: {why}"
        ) from None
    if certificate_pem:
        load_key_pair(context, certificate_pem, key_pem, f"--kubeconfig {config.path}: client-certificate")
    return context


def read_pair(certificate: str, key: str) -> tuple[str, str]:
    """The texts of the two files. If one file has both, the second is empty: two reads might find two pairs."""
    return read_text(certificate), "" if key == certificate else read_text(key)


def load_key_pair(context: ssl.SSLContext, certificate_pem: str, key_pem: str, what: str) -> None:
    """Loads a certificate and its key. Python's ssl module reads them from files only, so they are in memory files for
    that moment. Raises EvenkeelError, with `what` in front."""
    descriptor = os.memfd_create("evenkeel-key", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(f"{certificate_pem}\n{key_pem}\n".encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=_no_password)
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise EvenkeelError(f"{what} and its key cannot be used: {why}") from None
    finally:
        os.close(descriptor)


def _no_password() -> str:
    """Without this OpenSSL would ask at the terminal."""
    raise ValueError("the key has a password")
