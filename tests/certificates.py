"""A certificate for this machine's own address, for tests that speak TLS."""

import subprocess
from pathlib import Path

from tests.machines import packages
from tests.needing import needing


def make_certificate(directory: Path) -> tuple[str, str]:
    """The files of the certificate and its key."""
    with needing():
        packages.require(["openssl"])
    cert, key = directory / "cert.pem", directory / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=node"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    key.chmod(0o600)
    return str(cert), str(key)


def private(path: Path, text: str) -> str:
    """A file that only its owner can read."""
    path.write_text(text)
    path.chmod(0o600)
    return str(path)
