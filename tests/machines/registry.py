"""A registry of one's own on loopback: Debian's docker-registry, with TLS and a password where a test asks for it.

`with Registry(directory) as registry:` starts it. Its certificate is self-signed: programs that have
`registry.certificate` in SSL_CERT_FILE trust it."""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kernel.waiting import eventually
from tests.machines import packages
from tests.reserved_port import ReservedPort

USER, PASSWORD = "reader", "open sesame"
# bcrypt, the only kind that docker-registry knows, of that password.
_PASSWORD_FILE = f"{USER}:$2b$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n"
_CONFIG = """version: 0.1
log: {{level: info}}
storage:
  filesystem: {{rootdirectory: {directory}/data}}
  delete: {{enabled: true}}
http:
  addr: 127.0.0.1:{port}
  tls: {{certificate: {directory}/certificate, key: {directory}/key}}
"""
_AUTH = "auth:\n  htpasswd: {{realm: tests, path: {directory}/htpasswd}}\n"
_CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=registry"
    " -addext subjectAltName=IP:127.0.0.1"
)
READY_SECONDS = 60.0


class Registry:
    def __init__(self, directory: Path, *, has_password: bool = False) -> None:
        self.directory = directory
        self.has_password = has_password
        self.certificate = directory / "certificate"
        self._reserved = ReservedPort()
        self.port = self._reserved.number
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        packages.require(["openssl", "skopeo"])
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [
            *_CERTIFICATE.split(),
            "-keyout",
            str(self.directory / "key"),
            "-out",
            str(self.certificate),
        ]
        subprocess.run(command, check=True, capture_output=True)
        (self.directory / "htpasswd").write_text(_PASSWORD_FILE)
        text = _CONFIG + (_AUTH if self.has_password else "")
        (self.directory / "config.yml").write_text(text.format(directory=self.directory, port=self.port))
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()
        self._reserved.close()

    def start(self) -> None:
        program = packages.unpacked("docker-registry") / "usr/bin/docker-registry"
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", program, "serve", self.directory / "config.yml"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        eventually(self._answers, within_seconds=READY_SECONDS)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """It hangs: connections are taken, nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def push(self, source: str, name: str, *, is_whole: bool = False) -> str:
        """Copies an image there (`docker-archive:FILE`, `oci:DIRECTORY`), with all its platforms if it `is_whole`."""
        command = ["skopeo", "--insecure-policy", "copy", "--quiet", *(["--all"] if is_whole else [])]
        if self.has_password:
            command += ["--dest-creds", f"{USER}:{PASSWORD}"]
        done = subprocess.run(
            [*command, source, f"docker://{self.host}/{name}"],
            env={**os.environ, "SSL_CERT_FILE": str(self.certificate)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return f"{self.host}/{name}"

    def _answers(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.certificate))
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 5) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1"),
        ):
            return True
        return False
