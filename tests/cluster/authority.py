"""The cluster's certificate authority, what it signs, and kubeconfigs made of that."""

import base64
import json
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_DAYS = "7"
_CA_SETTINGS = """[ca]
default_ca = only
[only]
database = {directory}/index
new_certs_dir = {directory}
rand_serial = yes
unique_subject = no
default_md = sha256
policy = any
x509_extensions = client
[any]
organizationName = optional
commonName = supplied
[client]
extendedKeyUsage = clientAuth
"""


class Authority:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory = directory
        self.certificate = directory / "ca.crt"
        self.key = directory / "ca.key"
        usages = ("-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature")
        self._openssl(
            "req", "-x509", *_NEW_KEY, "-days", _DAYS, "-subj", "/CN=evenkeel-test-ca", *usages,
            "-keyout", self.key, "-out", self.certificate,
        )  # fmt: skip

    def client(self, name: str, user: str, *groups: str) -> tuple[Path, Path]:
        """A certificate with which `user` of `groups` is known to the API server, and its key."""
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        return self._signed(name, subject, "extendedKeyUsage=clientAuth")

    def aged_client(self, name: str, user: str, group: str, ages: tuple[float, float]) -> tuple[Path, Path]:
        """Like `client`, valid since some seconds and for some seconds more, which may have passed."""
        certificate, key = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        request, settings = self.directory / f"{name}.csr", self.directory / "ca.cnf"
        settings.write_text(_CA_SETTINGS.format(directory=self.directory))
        (self.directory / "index").touch()
        subject = f"/O={group}/CN={user}"
        self._openssl("req", "-new", *_NEW_KEY, "-subj", subject, "-keyout", key, "-out", request)
        key.chmod(0o600)
        now = datetime.now(UTC)
        since, until = (f"{now + timedelta(seconds=one):%Y%m%d%H%M%SZ}" for one in (-ages[0], ages[1]))
        self._openssl(
            "ca", "-batch", "-config", settings, "-in", request, "-out", certificate, "-cert", self.certificate,
            "-keyfile", self.key, "-startdate", since, "-enddate", until, "-notext",
        )  # fmt: skip
        return certificate, key

    def server(self, name: str, *addresses: str) -> tuple[Path, Path]:
        """A certificate for a server under `addresses` (`IP:…`, `DNS:…`), and its key."""
        names = f"subjectAltName={','.join(addresses)}"
        return self._signed(name, f"/CN={name}", f"extendedKeyUsage=serverAuth\n{names}")

    def key_pair(self, name: str) -> tuple[Path, Path]:
        """A public and a private key: those that service account tokens are checked and signed with."""
        public, private = self.directory / f"{name}.pub", self.directory / f"{name}.key"
        self._openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", private)
        private.chmod(0o600)
        self._openssl("pkey", "-in", private, "-pubout", "-out", public)
        return public, private

    def kubeconfig(
        self, path: Path, server: str, *, client: tuple[Path, Path] | None = None, token: str = ""
    ) -> Path:
        """A kubeconfig with everything inside, for a client certificate or a token."""
        user = {"token": token}
        if client is not None:
            certificate, key = client
            user = {"client-certificate-data": _encoded(certificate), "client-key-data": _encoded(key)}
        cluster = {"server": server, "certificate-authority-data": _encoded(self.certificate)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "evenkeel", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "evenkeel", "context": {"cluster": "evenkeel", "user": "user"}}],
            "current-context": "evenkeel",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(content, indent=1))  # JSON is YAML
        return path

    def cluster_kubeconfig(self, server: str) -> str:
        """A kubeconfig with the cluster alone, without credentials."""
        cluster = {"server": server, "certificate-authority-data": _encoded(self.certificate)}
        return json.dumps(
            {"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": cluster}]}
        )

    def _signed(self, name: str, subject: str, extensions: str) -> tuple[Path, Path]:
        certificate, key = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        request, wanted = self.directory / f"{name}.csr", self.directory / f"{name}.ext"
        self._openssl("req", "-new", *_NEW_KEY, "-subj", subject, "-keyout", key, "-out", request)
        key.chmod(0o600)
        wanted.write_text(f"{extensions}\n")
        self._openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial",
            "-days", _DAYS, "-extfile", wanted, "-out", certificate,
        )  # fmt: skip
        return certificate, key

    def _openssl(self, *arguments: str | Path) -> None:
        _checked(["openssl", *map(str, arguments)])


def _checked(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
