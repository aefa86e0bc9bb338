"""A client of the agent's socket that speaks HTTP by hand, so that a test can also speak it badly."""

import json
import threading
from contextlib import suppress

from evenkeel.server.agent_socket import connect


class Http:
    """One connection, spoken by hand."""

    def __init__(self, agent, timeout=60):
        self.socket = connect(agent.state_dir)
        self.socket.settimeout(timeout)
        self.file = self.socket.makefile("rb")

    def send(self, text):
        with suppress(BrokenPipeError):  # it may have answered, and closed, before it was asked
            self.socket.sendall(text if isinstance(text, bytes) else text.encode())

    def ask(self, method, target, body=b"", headers=""):
        body = body.encode() if isinstance(body, str) else body
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        self.send(f"{method} {target} HTTP/1.1\r\nHost: x\r\n{length}{headers}\r\n".encode() + body)
        return self.answer()

    def head(self):
        line = self.file.readline()
        if not line:
            return None, {}
        headers = {}
        while (header := self.file.readline().strip()) != b"":
            name, _, value = header.partition(b":")
            headers[name.decode().lower()] = value.strip().decode()
        return int(line.split()[1]), headers

    def answer(self):
        """Status and body; no status where the connection was closed without a word."""
        status, headers = self.head()
        if status is None:
            return None, b""
        body = self.file.read(int(headers["content-length"]))
        return status, json.loads(body) if headers["content-type"] == "application/json" else body

    def chunk(self):
        size = int(self.file.readline().strip() or b"0", 16)
        data = self.file.read(size)
        self.file.readline()
        return data

    def line(self):
        return json.loads(self.chunk())

    def is_closed(self):
        try:
            return self.file.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self):
        self.file.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def ask(agent, method, target, body=b""):
    with Http(agent) as http:
        return http.ask(method, target, body)


def wait_until(agent, condition):
    """Waits until the condition holds in the server's own loop."""
    for _ in range(10_000):
        if agent.call(condition):
            return
        threading.Event().wait(0.005)
    raise AssertionError("it never came to that")
