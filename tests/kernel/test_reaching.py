"""Files to and from a container, and connections to its ports."""

import os
import socket
import stat
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.kernel.agents import MakeUp, pod, processes_of, up
from tests.kernel.sessions import begun, done, open_streams
from tests.kernel.waiting import PATIENCE_SECONDS, eventually
from tests.reserved_port import ReservedPort

__all__ = ["up"]
pytestmark = pytest.mark.cgroup("v1", "v2")


def test_a_tree_is_copied_both_ways_with_its_modes(up: MakeUp, tmp_path: Path):
    agent = up()
    agent.start()
    agent.apply(pod("web", ["sleep", "100000"]))
    agent.await_phase("web", "Running")
    site = tmp_path / "site"
    (site / "deep").mkdir(parents=True)
    (site / "run").write_bytes(os.urandom(300_000))
    (site / "run").chmod(0o751)
    (site / "deep" / "page").write_text("said")
    sent = done(agent, "cp", str(site), "web:/tmp")
    assert sent.returncode == 0, sent.stderr
    back = done(agent, "cp", "web:/tmp/site", str(tmp_path / "back"))
    assert back.returncode == 0, back.stderr
    assert (tmp_path / "back" / "run").read_bytes() == (site / "run").read_bytes()
    assert stat.S_IMODE((tmp_path / "back" / "run").stat().st_mode) == 0o751
    assert (tmp_path / "back" / "deep" / "page").read_text() == "said"

    assert done(agent, "cp", str(site / "deep" / "page"), "default/web:/tmp/other").returncode == 0
    assert done(agent, "exec", "web", "--", "cat", "/tmp/other").stdout == b"said"
    missing = done(agent, "cp", "web:/tmp/missing", str(tmp_path))
    assert missing.returncode == 1
    assert b"No such file or directory" in missing.stderr
    assert done(agent, "cp", str(tmp_path / "nothing"), "web:/tmp").returncode == 1
    # Who went in first may leave after the command.
    eventually(lambda: len(processes_of(agent.container("web"))) == 1)


@pytest.fixture
def port() -> Iterator[int]:
    """Where a server in a pod is to listen, in the host's network."""
    with closing(ReservedPort()) as reserved:
        yield reserved.number


SERVER = """
import os, socket, sys
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
while True:
    one, _ = listening.accept()
    if os.fork() == 0:
        got = b""
        while chunk := one.recv(65536):
            got += chunk
        one.sendall(b"got %d, and its end" % len(got))
        os._exit(0)
    one.close()
"""


@contextmanager
def connected(port: int):
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as one:
        one.settimeout(PATIENCE_SECONDS)
        yield one


def everything(one: socket.socket) -> bytes:
    got = b""
    while chunk := one.recv(65536):
        got += chunk
    return got


@pytest.mark.processes_only("the image of containers has no Python")
def test_a_port_of_a_pod_is_reached_and_either_side_may_end_first(up: MakeUp, port: int):
    agent = up()
    agent.start()
    agent.apply(pod("web", ["/usr/bin/python3", "-c", SERVER.replace("$", "$$"), str(port)]))
    agent.await_phase("web", "Running")
    eventually(lambda: b"listening" in done(agent, "logs", "web").stdout)
    with begun(agent, "port-forward", "web", f":{port}", ":1") as forward:
        assert forward.stdout is not None
        lines = [forward.stdout.readline().decode()]
        while f"-> {port}" in lines[-1] or not lines[-1].endswith("-> 1\n"):
            lines.append(forward.stdout.readline().decode())
        local = int(lines[0].split(":")[1].split()[0])
        closed = int(next(line for line in lines if line.endswith("-> 1\n")).split(":")[1].split()[0])
        with connected(local) as one, connected(local) as other:
            one.sendall(bytes(3_000_000))
            one.shutdown(socket.SHUT_WR)
            assert everything(one) == b"got 3000000, and its end"
            other.shutdown(socket.SHUT_WR)
            assert everything(other) == b"got 0, and its end"
        with connected(closed) as refused:
            assert everything(refused) == b""
    nobody = done(agent, "port-forward", "nobody", "80")
    assert nobody.returncode == 1
    assert b'there is no pod "nobody"' in nobody.stderr


def test_a_server_in_a_container_is_reached_by_many_clients_at_once(up: MakeUp, port: int):
    agent = up()
    agent.start()
    serve = f"echo hello > /tmp/index.html; exec /bin/busybox httpd -f -p 127.0.0.1:{port} -h /tmp"
    agent.apply(pod("web", ["sh", "-c", serve]))
    agent.await_phase("web", "Running")
    before = Counter(open_streams(agent.pid))
    with begun(agent, "port-forward", "web", f":{port}") as forward:
        assert forward.stdout is not None
        local = int(forward.stdout.readline().decode().split(":")[1].split()[0])

        def fetched(_number: int) -> bytes:
            with suppress(ConnectionError), connected(local) as one:  # nothing listens there yet
                one.sendall(b"GET / HTTP/1.0\r\n\r\n")
                return everything(one)
            return b""

        eventually(lambda: fetched(0).endswith(b"hello\n"))
        with ThreadPoolExecutor(8) as several:
            answers = list(several.map(fetched, range(40)))
        assert [one for one in answers if not one.endswith(b"hello\n")] == []
    eventually(lambda: not Counter(open_streams(agent.pid)) - before)
