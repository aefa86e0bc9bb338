"""`evenkeel port-forward`: ports of this machine's loopback that lead to ports of a pod."""

import argparse
import ipaddress
import socket
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple

from evenkeel.cli.arguments import add_namespace_flag, add_state_flag
from evenkeel.cli.client import Client, client_from
from evenkeel.cli.interactive import pod_name
from evenkeel.cli.output import printable
from evenkeel.errors import EvenkeelError, reason

USAGE = "POD [LOCAL:]REMOTE… [--address 127.0.0.1] [-n NS]"
EXAMPLES = """examples:
  evenkeel port-forward web 8080           http://127.0.0.1:8080 is port 8080 of the pod
  evenkeel port-forward web 9000:80 :443   9000 is its port 80, and a free port is its 443

It listens at 127.0.0.1 and ::1. --address takes another address of this machine; everyone who reaches it reaches the
pod. Ctrl-C ends it.
"""
_LOOPBACK = ("127.0.0.1", "::1")
_BACKLOG = 64
_LARGEST = 65535
_PORT_BYTES = 2


class Ports(NamedTuple):
    local: int  # 0 is a free one
    remote: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pods", metavar="POD", help="the pod; also pod/NAME")
    parser.add_argument("ports", nargs="+", metavar="[LOCAL:]REMOTE", help="a port of the pod, or two ports")
    parser.add_argument(
        "--address", metavar="IP", action="append", default=[], help="listen here (default: loopback)"
    )
    add_namespace_flag(parser)
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    client, name = client_from(args), pod_name(args.pods)
    wanted = [ports_of(word) for word in args.ports]
    client.pod(args.namespace, name)  # a missing pod is said at once
    listening: list[tuple[socket.socket, int]] = []
    try:
        for ports in wanted:
            for one in _listen(ports, args.address):
                listening.append((one, ports.remote))
                host, port = one.getsockname()[:2]
                print(f"Forwarding from {f'[{host}]' if ':' in host else host}:{port} -> {ports.remote}")
        sys.stdout.flush()
        for one, remote in listening:
            threading.Thread(
                target=_accept, args=(client, args.namespace, name, one, remote), daemon=True
            ).start()
        threading.Event().wait()
    finally:
        for one, _ in listening:
            one.close()
    return 0


def ports_of(word: str) -> Ports:
    """Reads `REMOTE`, `LOCAL:REMOTE` or `:REMOTE`. Raises EvenkeelError."""
    local, colon, remote = word.rpartition(":")
    given = [text for text in (local, remote) if text]
    is_number = all(text.isascii() and text.isdigit() and len(text) <= 5 for text in given)
    if not remote or not is_number or not 1 <= int(remote) <= _LARGEST or int(local or 0) > _LARGEST:
        raise EvenkeelError(f'port-forward: "{word[:40]}" is not [LOCAL:]REMOTE, such as 8080 or 9000:80')
    return Ports((int(local) if local else 0) if colon else int(remote), int(remote))


def _listen(ports: Ports, addresses: list[str]) -> list[socket.socket]:
    """One socket for each address. Of the two loopback addresses one is enough."""
    opened: list[socket.socket] = []
    local = ports.local
    for address in addresses or _LOOPBACK:
        try:
            family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
        except ValueError:
            raise EvenkeelError(f'--address "{address[:60]}" is not an IP address of this machine') from None
        one = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((address, local))
            one.listen(_BACKLOG)
        except OSError as error:
            one.close()
            if not addresses and opened:
                break  # this machine has no IPv6
            raise EvenkeelError(
                f"port-forward: cannot listen at {address} port {local}: {reason(error)}"
            ) from None
        opened.append(one)
        local = one.getsockname()[1]
    return opened


def _accept(client: Client, namespace: str, name: str, listening: socket.socket, port: int) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return  # it was closed
        threading.Thread(
            target=_forward, args=(client, namespace, name, connection, port), daemon=True
        ).start()


def _forward(client: Client, namespace: str, name: str, connection: socket.socket, port: int) -> None:
    from evenkeel.cli.remote import Remote, Sinks, pod_path, relay, shutdown_write
    from evenkeel.server.channels import DATA, DATA_ERROR

    problem = bytearray()
    with connection:
        try:
            remote = Remote(client, pod_path(namespace, name, "portforward"), [("ports", str(port))])
        except EvenkeelError as error:
            print(printable(f"evenkeel: port {port}: {error}"), file=sys.stderr)
            return
        try:
            write = {DATA: _without_port(connection.sendall), DATA_ERROR: _without_port(problem.extend)}
            sinks = Sinks(write, lambda _: shutdown_write(connection))
            relay(remote, connection.fileno(), sinks, has_status=False)
            if problem:
                print(printable(f"evenkeel: {problem.decode(errors='replace')}"), file=sys.stderr)
        except (EvenkeelError, OSError) as error:
            print(printable(f"evenkeel: port {port}: {error}"), file=sys.stderr)
        finally:
            remote.close()


def _without_port(write: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """Leaves out the first two bytes of a channel, which are the port."""
    left = _PORT_BYTES

    def take(data: bytes) -> None:
        nonlocal left
        skipped = min(left, len(data))
        left -= skipped
        if data[skipped:]:
            write(data[skipped:])

    return take
