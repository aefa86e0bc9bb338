"""Endpoints: which socket of this machine is a container runtime's, and whether the libraries to use it are there."""

import os
import socket
import stat

from evenkeel.errors import EvenkeelError

AUTO = "auto"
SOCKETS = ("/run/containerd/containerd.sock", "/run/crio/crio.sock")
_UNIX = "unix://"
_LONGEST_PATH = 107
_LISTEN_SECONDS = 1.0


def socket_path(endpoint: str) -> str:
    """Returns the path of `unix:///run/containerd/containerd.sock`, or of a plain path. Raises EvenkeelError."""
    path = endpoint.removeprefix(_UNIX)
    if "://" in path or not path.startswith("/") or "\0" in path:
        raise EvenkeelError(
            f"containerRuntimeEndpoint {endpoint!r} is no Unix socket",
            hint=f"write {_UNIX}{SOCKETS[0]}, or {AUTO}",
        )
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise EvenkeelError(
            f"containerRuntimeEndpoint {endpoint!r} is longer than the {_LONGEST_PATH} bytes that a socket's path "
            "can have"
        )
    return path


def chosen(endpoint: str, sockets: tuple[str, ...] = SOCKETS) -> str:
    """Returns the endpoint to use.

    `auto` is the first container runtime that listens. If none listens, the result is empty, and pods are processes.
    """
    if endpoint != AUTO:
        return endpoint
    return next((f"{_UNIX}{path}" for path in sockets if _listens(path)), "")


def unused(sockets: tuple[str, ...] = SOCKETS) -> str:
    """Returns the endpoint of a container runtime on this machine, as a suggestion; empty if there is none."""
    return next((f"{_UNIX}{path}" for path in sockets if _is_socket(path)), "")


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(_LISTEN_SECONDS)
        try:
            one.connect(path)
        except OSError:
            return False
    return True


def require_libraries() -> None:
    """Raises EvenkeelError if protobuf is not installed, or is too old."""
    try:
        from evenkeel.runtime.cri import cri_pb2
    except Exception as error:  # noqa: BLE001 an old protobuf raises errors whose class only a newer one has
        raise EvenkeelError(
            f"protobuf, by which container runtimes are spoken to, cannot be used: {error}",
            hint="pip install 'evenkeel[cri]'",
        ) from None
    del cri_pb2
