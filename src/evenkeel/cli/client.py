"""Asking the agent: HTTP 1.0 over its Unix socket.

An answer without chunks that ends when the connection does takes a few lines to read; Python's own client takes as long
to import as everything else that a short command does.
"""

import argparse
import json
import os
import socket
from collections.abc import Iterator
from typing import IO, Any

from evenkeel.errors import EvenkeelError, InvalidInput, Problem
from evenkeel.server.listen import SOCKET_NAME, connect

Json = dict[str, Any]
_PATIENCE_SECONDS = 120.0
_MOST_HEADERS = 100
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/")


class NoAgent(EvenkeelError):
    """Nobody answers at the socket."""


class AgentRefused(EvenkeelError):
    """The agent's answer was an error."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status

    @property
    def is_not_found(self) -> bool:
        return self.status == 404


class Client:
    def __init__(self, state_dir: str) -> None:
        self.state_dir = state_dir
        self._socket_path = os.path.join(state_dir, SOCKET_NAME)

    def get(self, path: str, **parameters: str) -> Any:  # noqa: ANN401
        return self._answer("GET", path, parameters)

    def pods(self, namespace: str = "") -> list[Json]:
        """Of one namespace, or of all."""
        listed = self.get("/pods", namespace=namespace) if namespace else self.get("/pods")
        pods: list[Json] = listed["items"]
        return pods

    def pod(self, namespace: str, name: str) -> Json:
        pod: Json = self.get(f"/pods/{quoted(namespace)}/{quoted(name)}")
        return pod

    def pod_or_none(self, namespace: str, name: str) -> Json | None:
        try:
            return self.pod(namespace, name)
        except AgentRefused as refusal:
            if refusal.is_not_found:
                return None
            raise

    def apply(self, pods: object, source: str = "api") -> Json:
        """`pods` is anything with pods in it, as JSON has it; the agent's answer for each of them."""
        answer: Json = self._answer("POST", "/pods", {"source": source}, json.dumps(pods).encode())
        return answer

    def delete(self, namespace: str, name: str, grace_seconds: float | None = None) -> None:
        parameters = {} if grace_seconds is None else {"gracePeriodSeconds": f"{grace_seconds:g}"}
        self._answer("DELETE", f"/pods/{quoted(namespace)}/{quoted(name)}", parameters)

    def lines(self, path: str, **parameters: str) -> Iterator[Any]:
        """Each value of an answer that has one on every line, as they come. The request is made now."""
        answer = self._asked("GET", path, parameters, seconds=None)
        return self._values(answer)

    def _values(self, answer: IO[bytes]) -> Iterator[Any]:
        with answer:
            try:
                for line in answer:
                    if line.endswith(b"\n"):  # a half one is the last word of an agent that was killed
                        yield json.loads(line)
            except OSError:
                return  # the agent is gone

    def _answer(self, method: str, path: str, parameters: dict[str, str], body: bytes = b"") -> Any:  # noqa: ANN401
        with self._asked(method, path, parameters, body, _PATIENCE_SECONDS) as answer:
            content = self._rest(answer)
        if not content.strip() or path == "/healthz":
            return {}
        try:
            return json.loads(content)
        except ValueError:
            raise self._lost("it broke off in the middle of its answer") from None

    def _asked(
        self,
        method: str,
        path: str,
        parameters: dict[str, str],
        body: bytes = b"",
        seconds: float | None = None,
    ) -> IO[bytes]:
        """The answer, read up to its body. Raises what the agent refused as an error."""
        query = "&".join(f"{name}={quoted(value)}" for name, value in parameters.items())
        target = f"{path}?{query}" if query else path
        head = f"{method} {target} HTTP/1.0\r\nHost: evenkeel\r\nContent-Length: {len(body)}\r\n\r\n"
        connected = self._connected()
        connected.settimeout(seconds)
        with connected:
            try:
                connected.sendall(head.encode() + body)
            except BrokenPipeError:
                pass  # it has said all it wants to say about a request that it does not read to the end
            except OSError as error:
                raise self._lost(_reason(error)) from None
            answer = connected.makefile("rb")
        status = self._status(answer)
        if status >= 400:
            with answer:
                raise self._refusal(status, self._rest(answer))
        return answer

    def _connected(self) -> socket.socket:
        try:
            return connect(self.state_dir)
        except PermissionError:
            raise NoAgent(
                f"the agent at {self._socket_path} is not yours to ask",
                hint="try as root, or name your own with --state-dir",
            ) from None
        except OSError:
            raise NoAgent(
                f"no agent listens at {self._socket_path}", hint="start one with: evenkeel up"
            ) from None

    def _status(self, answer: IO[bytes]) -> int:
        try:
            words = answer.readline(4096).split()
            for _ in range(_MOST_HEADERS):
                if answer.readline(4096) in (b"\r\n", b"\n", b""):
                    break
            return int(words[1])
        except OSError as error:
            raise self._lost(_reason(error)) from None
        except (IndexError, ValueError):
            raise self._lost("it ended before it answered") from None

    def _rest(self, answer: IO[bytes]) -> bytes:
        try:
            return answer.read()
        except OSError as error:
            raise self._lost(_reason(error)) from None

    def _lost(self, why: str) -> NoAgent:
        return NoAgent(f"the agent at {self._socket_path} did not answer: {why}")

    def _refusal(self, status: int, content: bytes) -> EvenkeelError:
        try:
            told = json.loads(content)
            if problems := told.get("problems"):
                return InvalidInput([Problem(**problem) for problem in problems])
            return AgentRefused(status, told["message"], told.get("hint", ""))
        except (ValueError, KeyError, TypeError, AttributeError):
            return AgentRefused(
                status, f"the agent at {self._socket_path} answered with HTTP status {status}"
            )


def client_from(args: argparse.Namespace) -> Client:
    return Client(args.state_dir)


def quoted(text: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in text.encode(errors="replace"))


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
