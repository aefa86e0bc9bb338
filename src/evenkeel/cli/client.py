"""A client for the agent: HTTP 1.0 over its Unix socket.

The answer to an HTTP 1.0 request has no chunks and ends with the connection, so it takes a few lines to read. Importing
Python's own HTTP client takes as long as all the rest of a short command.
"""

import argparse
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from evenkeel.cli.output import printable_lines
from evenkeel.errors import EvenkeelError, InvalidInput, Problem, reason
from evenkeel.server.agent_socket import SOCKET_NAME, connect

Json = dict[str, Any]
_ANSWER_SECONDS = 120.0
_MOST_HEADERS = 100
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/")


class NoAgent(EvenkeelError):
    """No agent answers at the socket."""


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
        """The pods of one namespace, or all pods."""
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
        """`pods` is a pod or a list as JSON. Returns the agent's answer for each of them."""
        answer: Json = self._answer("POST", "/pods", {"source": source}, json.dumps(pods).encode())
        return answer

    def delete(self, namespace: str, name: str, grace_seconds: float | None = None) -> None:
        parameters = {} if grace_seconds is None else {"gracePeriodSeconds": f"{grace_seconds:g}"}
        self._answer("DELETE", f"/pods/{quoted(namespace)}/{quoted(name)}", parameters)

    def objects(self, plural: str, namespace: str = "") -> list[Json]:
        """The ConfigMaps, Secrets, Services or claims of one namespace, or all of them."""
        objects: list[Json] = self.get(_path("", plural, namespace))["items"]
        return objects

    def object(self, plural: str, namespace: str, name: str) -> Json:
        found: Json = self.get(_path("", plural, namespace, name))
        return found

    def delete_object(self, plural: str, namespace: str, name: str) -> None:
        self._answer("DELETE", _path("", plural, namespace, name), {})

    def workloads(self, plural: str, namespace: str = "") -> list[Json]:
        """The workloads of a kind in one namespace, or all of them."""
        items: list[Json] = self.get(_workload_path(plural, namespace))["items"]
        return items

    def workload(self, plural: str, namespace: str, name: str) -> Json:
        found: Json = self.get(_workload_path(plural, namespace, name))
        return found

    def delete_workload(
        self, plural: str, namespace: str, name: str, grace_seconds: float | None = None
    ) -> None:
        parameters = {} if grace_seconds is None else {"gracePeriodSeconds": f"{grace_seconds:g}"}
        self._answer("DELETE", _workload_path(plural, namespace, name), parameters)

    def scale(self, plural: str, namespace: str, name: str, replicas: int) -> None:
        body = json.dumps({"spec": {"replicas": replicas}}).encode()
        self._answer("PUT", f"{_workload_path(plural, namespace, name)}/scale", {}, body)

    def lines(self, path: str, **parameters: str) -> Iterator[Any]:
        """The values of an answer with one JSON value a line, as they come. The request is made now."""
        answer = self._asked("GET", path, parameters, seconds=None)
        return self._values(answer)

    def _values(self, answer: IO[bytes]) -> Iterator[Any]:
        with answer:
            try:
                for line in answer:
                    if line.endswith(b"\n"):  # half a line comes from an agent that was killed
                        yield json.loads(line)
            except OSError:
                return  # the agent is gone

    def _answer(self, method: str, path: str, parameters: dict[str, str], body: bytes = b"") -> Any:  # noqa: ANN401
        with self._asked(method, path, parameters, body, _ANSWER_SECONDS) as answer:
            content = self._rest(answer)
        if not content.strip() or path == "/healthz":
            return {}
        try:
            return json.loads(content)
        except ValueError:
            raise self.no_answer("it broke off in the middle of its answer") from None

    def _asked(
        self,
        method: str,
        path: str,
        parameters: dict[str, str],
        body: bytes = b"",
        seconds: float | None = None,
    ) -> IO[bytes]:
        """The answer, read up to its body. Raises an error if the agent refuses the request."""
        query = "&".join(f"{name}={quoted(value)}" for name, value in parameters.items())
        target = f"{path}?{query}" if query else path
        head = f"{method} {target} HTTP/1.0\r\nHost: evenkeel\r\nContent-Length: {len(body)}\r\n\r\n"
        connected = self.connected()
        connected.settimeout(seconds)
        with connected:
            try:
                connected.sendall(head.encode() + body)
            except BrokenPipeError:
                pass  # the agent has answered before it has read the whole request
            except OSError as error:
                raise self.no_answer(reason(error)) from None
            answer = connected.makefile("rb")
        status = self._status(answer)
        if status >= 400:
            with answer:
                raise self.refusal(status, self._rest(answer))
        return answer

    def connected(self) -> socket.socket:
        try:
            return connect(self.state_dir)
        except PermissionError:
            raise NoAgent(
                f"you may not ask the agent at {self._socket_path}",
                hint="ask as root, or name your own agent with --state-dir",
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
            raise self.no_answer(reason(error)) from None
        except (IndexError, ValueError):
            raise self.no_answer("it ended before it answered") from None

    def _rest(self, answer: IO[bytes]) -> bytes:
        try:
            return answer.read()
        except OSError as error:
            raise self.no_answer(reason(error)) from None

    def no_answer(self, why: str) -> NoAgent:
        return NoAgent(f"the agent at {self._socket_path} did not answer: {why}")

    def refusal(self, status: int, content: bytes) -> EvenkeelError:
        try:
            body = json.loads(content)
            if problems := body.get("problems"):
                return InvalidInput([Problem(**problem) for problem in problems])
            return AgentRefused(status, body["message"], body.get("hint", ""))
        except (ValueError, KeyError, TypeError, AttributeError):
            return AgentRefused(
                status, f"the agent at {self._socket_path} answered with HTTP status {status}"
            )


def _workload_path(plural: str, namespace: str = "", name: str = "") -> str:
    from evenkeel.api.workloads import KINDS

    group = next(kind.group for kind in KINDS.values() if kind.plural == plural)
    return _path(group, plural, namespace, name)


def _path(group: str, plural: str, namespace: str = "", name: str = "") -> str:
    """Kubernetes' address of an object, or of all objects of a kind."""
    root = f"/apis/{group}/v1" if group else "/api/v1"
    words = (f"namespaces/{quoted(namespace)}" if namespace else "", plural, quoted(name))
    return "/".join((root, *filter(None, words)))


def found_by_name(names: Sequence[str], get: Callable[[str], Json]) -> tuple[list[Json], list[str]]:
    """The objects of these names, and why the others could not be read."""
    found, failures = [], []
    for name in names:
        try:
            found.append(get(name))
        except AgentRefused as refusal:
            failures.append(str(refusal))
    return found, failures


def reported(failures: Sequence[str]) -> int:
    """Prints why something could not be done. Returns the exit code of the command."""
    for message in failures:
        print(f"evenkeel: {printable_lines(message)}", file=sys.stderr)
    return int(bool(failures))


def client_from(args: argparse.Namespace) -> Client:
    return Client(args.state_dir)


def quoted(text: str | bytes) -> str:
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)


# Flags and arguments of the commands that ask the agent
