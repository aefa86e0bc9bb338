"""Evictions while a thousand readers watch the node, and slow clients hold connections: how long the kill takes, beside
the same without them, in turns. The readers are a process of their own that takes all it is sent."""

import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.bench_eviction import IDLE_PODS, agent, cgroup, evicted, figure, pod, until
from bench.figure import Figure, ratio_at_most
from bench.reference import compiled
from evenkeel.cli.client import Client
from evenkeel.server.listen import connect

READERS = 900
SLOW = 100  # who send half a request, or never read
ROUNDS = 12


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory, cgroup() as root:
        program = str(compiled("eviction_reference", directory))
        state = f"{directory}/state"
        with agent(root, state) as client:
            for number in range(IDLE_PODS - 10):
                client.apply(pod(f"idle-{number}", ["sleep", "100000"]))
            until(lambda: _running(client) == IDLE_PODS - 10)
            alone, watched = [], []
            for number in range(0, 2 * ROUNDS, 2):
                alone.append(evicted(client, state, root, program, number)[0])
                with readers(state):
                    watched.append(evicted(client, state, root, program, number + 1)[0])
        name = "kill sent among a thousand readers and slow clients"
        yield figure(f"{name}, median", watched, alone, 50, ratio_at_most(2))
        yield figure(f"{name}, p99", watched, alone, 99, ratio_at_most(2))


def _running(client: Client) -> int:
    return sum(one.get("status", {}).get("phase") == "Running" for one in client.pods())


@contextmanager
def readers(state: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.bench_readers", state],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"watching\n"
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def watch(state: str) -> None:
    """Connects them all, says so, and reads until it is killed."""
    selector = selectors.DefaultSelector()
    slow = [connect(state) for _ in range(SLOW)]
    for number, one in enumerate(slow):
        one.sendall(b"GET /view/watch HTTP/1.1\r\nHost: x\r\n" + (b"\r\n" if number % 2 else b""))
    for _ in range(READERS):
        reader = connect(state)
        reader.sendall(b"GET /view/watch HTTP/1.1\r\nHost: x\r\n\r\n")
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
                    print("watching", flush=True)


if __name__ == "__main__":
    watch(sys.argv[1])
