"""Which container runtime to speak to. Speaks to none itself, and needs nothing that is not always there."""

import os
import socket
import stat

from evenkeel.errors import EvenkeelError

AUTO = "auto"
SOCKETS = ("/run/containerd/containerd.sock", "/run/crio/crio.sock")
_UNIX = "unix://"
_LONGEST_PATH = 107
_SECONDS = 1.0


def require_libraries() -> None:
    """Raises EvenkeelError where an installation is without what speaks to container runtimes."""
    try:
        import grpc.aio

        from evenkeel.runtime.cri import cri_pb2
    except Exception as error:  # noqa: BLE001 a protobuf that is too old raises what only a newer one could import
        raise EvenkeelError(
            f"grpcio and protobuf, by which container runtimes are spoken to, cannot be used: {error}",
            hint="pip install 'evenkeel[cri]'",
        ) from None
    del grpc, cri_pb2


def socket_path(endpoint: str) -> str:
    """Of `unix:///run/containerd/containerd.sock`, or a path alone. Raises EvenkeelError."""
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
    """What `auto` means on this machine: the first container runtime that listens, or none, which is plain processes.
    Everything else means itself."""
    if endpoint != AUTO:
        return endpoint
    return next((f"{_UNIX}{path}" for path in sockets if _listens(path)), "")


def unused(sockets: tuple[str, ...] = SOCKETS) -> str:
    """The endpoint of a container runtime that is there, for whoever might not know; empty if there is none."""
    return next((f"{_UNIX}{path}" for path in sockets if _is_socket(path)), "")


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(_SECONDS)
        try:
            one.connect(path)
        except OSError:
            return False
    return True
