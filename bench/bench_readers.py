"""Evictions while a thousand readers watch the node, and slow clients hold connections: how long the kill takes, in
turns with the same without them.

The readers are a process of their own, which also takes a part of the machine. A third turn shows how much of the
difference that is: there the readers read the same data from a relay, a process that is the agent's only reader."""

import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.bench_eviction import IDLE_PODS, evicted, figure
from bench.evicting_agent import Kills, agent, cgroup, pod, until
from bench.figure import Figure, ratio_at_most
from bench.reference import compiled
from evenkeel.cli.client import Client
from evenkeel.server.agent_socket import connect, listen

READERS = 900
SLOW = 100  # clients that send half a request, or never read
ROUNDS = 100  # of each turn: of fewer, the 99th of a hundred is as good as the worst of all
WATCH = b"GET /view/watch HTTP/1.1\r\nHost: x\r\n"  # and an empty line


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory, cgroup() as root:
        program = str(compiled("eviction_reference", directory))
        state = f"{directory}/state"
        with agent(root, state) as client:
            for number in range(IDLE_PODS - 10):
                client.apply(pod(f"idle-{number}", ["sleep", "100000"]))
            until(lambda: _running(client) == IDLE_PODS - 10)
            alone, watched, relayed = [], [], []
            kills = Kills(state)
            for number in range(0, 3 * ROUNDS, 3):
                alone.append(evicted(client, kills, root, program, number).sent)
                with readers(state):
                    watched.append(evicted(client, kills, root, program, number + 1).sent)
                with relay(state, directory), readers(directory):
                    relayed.append(evicted(client, kills, root, program, number + 2).sent)
        name = "kill sent among a thousand readers and slow clients"
        for percent, title in ((50, "median"), (99, "p99")):
            yield figure(f"{name}, {title}", watched, alone, percent, ratio_at_most(2))
            yield figure(f"{name}, beside the same of a relay, {title}", watched, relayed, percent, None)


def _running(client: Client) -> int:
    return sum(one.get("status", {}).get("phase") == "Running" for one in client.pods())


@contextmanager
def readers(state: str) -> Iterator[None]:
    with _beside("watch", state):
        yield


@contextmanager
def relay(state: str, directory: str) -> Iterator[None]:
    with _beside("pass_on", state, directory):
        yield


@contextmanager
def _beside(*arguments: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.bench_readers", *arguments],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def pass_on(state: str, directory: str) -> None:
    """Listens in the directory, and passes the agent's stream on to every client that connects there."""
    agent_, listening = connect(state), listen(directory)
    agent_.sendall(WATCH + b"\r\n")
    first = agent_.recv(1 << 18)
    selector = selectors.DefaultSelector()
    selector.register(agent_, selectors.EVENT_READ)
    selector.register(listening, selectors.EVENT_READ)
    asking: dict[int, socket.socket] = {}
    asked: list[socket.socket] = []
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is agent_:
                data = agent_.recv(1 << 18)
                for one in asked:
                    with suppress(BlockingIOError, BrokenPipeError):  # it does not read, or is gone
                        one.send(data)
            elif key.fileobj is listening:
                one, _ = listening.accept()
                one.setblocking(False)
                asking[one.fileno()] = one
                selector.register(one, selectors.EVENT_READ)
            elif os.read(key.fd, 1 << 16).endswith(b"\r\n\r\n"):
                selector.unregister(key.fd)
                one = asking.pop(key.fd)
                one.send(first)
                asked.append(one)


def watch(state: str) -> None:
    """Connects them all, says so, and reads until it is killed."""
    selector = selectors.DefaultSelector()
    slow = [connect(state) for _ in range(SLOW)]
    for number, one in enumerate(slow):
        one.sendall(WATCH + (b"\r\n" if number % 2 else b""))
    for _ in range(READERS):
        reader = connect(state)
        reader.sendall(WATCH + b"\r\n")
        reader.setblocking(False)
        selector.register(reader, selectors.EVENT_READ)
    waiting = {key.fd for key in selector.get_map().values()}
    while True:
        for key, _ in selector.select():
            try:
                data = os.read(key.fd, 1 << 18)
            except BlockingIOError:
                continue
            if not data:
                selector.unregister(key.fileobj)
            if key.fd in waiting:
                waiting.discard(key.fd)
                if not waiting:
                    print("ready", flush=True)


if __name__ == "__main__":
    {"watch": watch, "pass_on": pass_on}[sys.argv[1]](*sys.argv[2:])
