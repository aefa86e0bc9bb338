"""`evenkeel port-forward`: ports of this machine's loopback that lead to ports of a pod."""

import argparse
import ipaddress
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from evenkeel.cli.arguments import (
    POD_HELP,
    PODS,
    SERVICES,
    add_namespace_flag,
    add_state_flag,
    chosen,
    named,
    pods_behind,
)
from evenkeel.cli.client import Client, client_from
from evenkeel.cli.output import printable
from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple

USAGE = "POD [LOCAL:]REMOTE… [--address 127.0.0.1] [-n NS]"
EXAMPLES = """examples:
  evenkeel port-forward web 8080           http://127.0.0.1:8080 is port 8080 of the pod
  evenkeel port-forward web 9000:80 :443   9000 is its port 80, and a free port is its 443
  evenkeel port-forward service/db 5432    a pod of the Service, at the port that its 5432 stands for

It listens at 127.0.0.1 and ::1. --address takes another address of this machine; everyone who reaches it reaches the
pod. Ctrl-C ends it.
"""
Json = dict[str, Any]
_LOOPBACK = ("127.0.0.1", "::1")
_BACKLOG = 64
_LARGEST = 65535
_PORT_BYTES = 2


class Ports(NamedTuple):
    local: int  # 0 is a free one
    remote: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pods", metavar="POD", help=POD_HELP)
    parser.add_argument("ports", nargs="+", metavar="[LOCAL:]REMOTE", help="a port of the pod, or two ports")
    parser.add_argument(
        "--address", metavar="IP", action="append", default=[], help="listen here (default: loopback)"
    )
    add_namespace_flag(parser)
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    client, asked = client_from(args), [ports_of(word) for word in args.ports]
    pod, service = _target(client, args.namespace, args.pods)
    name = pod["metadata"]["name"]
    wanted = [ports_behind(ports, service, pod) for ports in asked]
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


def _target(client: Client, namespace: str, word: str) -> tuple[Json, Json]:
    """The pod, and the Service if `word` names one. Raises EvenkeelError at once if the pod is missing."""
    kind, (name,) = named([word]) if "/" in word else (PODS, [word])
    if kind == PODS:
        return client.pod(namespace, name), {}
    service = client.object(kind, namespace, name) if kind == SERVICES else {}
    return chosen(pods_behind(client, kind, namespace, name), word), service


def ports_behind(ports: Ports, service: Json, pod: Json) -> Ports:
    """As kubectl: a port of a Service stands for the pod's port behind it, unless the Service is headless."""
    if not service:
        return ports
    spec, name = service["spec"], service["metadata"]["name"]
    known = {
        port["port"]: port.get("targetPort") or port["port"]
        for port in spec.get("ports", ())
        if port.get("protocol", "TCP") == "TCP"  # a port may be there once more for another protocol
    }
    if ports.remote not in known:
        there = ", ".join(map(str, known)) or "none"
        raise EvenkeelError(f"port-forward: Service {name} has no TCP port {ports.remote}: it has {there}")
    if spec.get("clusterIP") == "None":
        return ports
    behind = known[ports.remote]
    if isinstance(behind, str):
        named_ports = {
            port.get("name"): port["containerPort"]
            for container in pod["spec"]["containers"]
            for port in container.get("ports", ())
        }
        if behind not in named_ports:
            raise EvenkeelError(
                f'port-forward: port {ports.remote} of Service {name} is the port "{behind}" of its pods, and '
                f"pod {pod['metadata']['name']} has none of that name"
            )
        behind = named_ports[behind]
    return ports._replace(remote=behind)


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
