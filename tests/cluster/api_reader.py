"""The API server asked directly, as the administrator: for questions that are asked again and again, where starting
kubectl would take more of the machine than what is tested."""

import http.client
import json
import socket
import ssl
from typing import Any

from tests.cluster.authority import Authority

TIMEOUT_SECONDS = 60.0


class ApiReader:
    """Each request has a connection of its own, so that any thread may ask."""

    def __init__(self, port: int, authority: Authority) -> None:
        """`port` is of this machine's loopback."""
        self._port = port
        self._context = ssl.create_default_context(cafile=str(authority.certificate))
        self._context.load_cert_chain(*authority.client("reader", "reader", "system:masters"))

    def get(self, path: str) -> dict[str, Any]:
        """Empty if there is none."""
        status, answer = self._ask("GET", path, None)
        assert status in (http.client.OK, http.client.NOT_FOUND), answer
        return answer if status == http.client.OK else {}

    def make(self, path: str, value: dict[str, Any]) -> None:
        status, answer = self._ask("POST", path, value)
        assert status == http.client.CREATED, answer

    def connected(self) -> ssl.SSLSocket:
        """A connection for other protocols."""
        plain = socket.create_connection(("127.0.0.1", self._port), timeout=TIMEOUT_SECONDS)
        try:
            return self._context.wrap_socket(plain, server_hostname="127.0.0.1")
        except BaseException:
            plain.close()
            raise

    def _ask(self, method: str, path: str, value: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self._port, timeout=TIMEOUT_SECONDS, context=self._context
        )
        try:
            body = None if value is None else json.dumps(value)
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()
