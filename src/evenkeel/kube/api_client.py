"""Requests to the API server: JSON in and out, Kubernetes' errors, and the waiting that the server asks for.

Idle connections are kept and used again. A watch has a connection of its own.
"""

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from evenkeel import __version__
from evenkeel.errors import EvenkeelError
from evenkeel.kube.api_connection import Connection, Unreachable
from evenkeel.kube.api_credentials import Credentials

log = logging.getLogger(__name__)

Json = dict[str, Any]

STRATEGIC_MERGE = "application/strategic-merge-patch+json"
_JSON = "application/json"
_REQUEST_SECONDS = 30.0
_MOST_IDLE = 3
_MOST_WAITS = 4  # for "too many requests"
_LONGEST_WAIT_SECONDS = 30.0
_TOO_MANY, _UNAVAILABLE, _UNAUTHORIZED = 429, 503, 401
_NO_PARAMETERS: Mapping[str, str] = {}

GONE, NOT_FOUND, CONFLICT = 410, 404, 409


class ApiError(EvenkeelError):
    """The API server has refused a request: `code` is HTTP's, `reason` one word of Kubernetes."""

    def __init__(self, code: int, reason: str, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message or f"the API server answered {code} {reason}")
        self.code = code
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class Backoff:
    """Waits that double, each with some jitter, so that many nodes do not ask at the same moment."""

    def __init__(self, first_seconds: float, most_seconds: float) -> None:
        self._first = first_seconds
        self._most = most_seconds
        self._next = first_seconds

    def reset(self) -> None:
        self._next = self._first

    def next_seconds(self) -> float:
        wait = self._next * random.uniform(0.75, 1.25)  # noqa: S311 no secret depends on it
        self._next = min(self._next * 2, self._most)
        return wait

    async def wait(self) -> None:
        await asyncio.sleep(self.next_seconds())


def path_of(*words: str) -> str:
    """A path of the API. Each word is quoted: names come from outside."""
    return "/" + "/".join(quote(word, safe="") for word in words)


class Client:
    """For one event loop. The methods raise ApiError and Unreachable."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._idle: list[Connection] = []
        self.requests = 0  # how many were sent, watches included

    @property
    def server(self) -> str:
        return self._credentials.config.server

    async def get(self, path: str, parameters: Mapping[str, str] = _NO_PARAMETERS) -> Json:
        return await self.call("GET", path, parameters=parameters)

    async def post(self, path: str, body: Json) -> Json:
        return await self.call("POST", path, body)

    async def put(self, path: str, body: Json, timeout_seconds: float = _REQUEST_SECONDS) -> Json:
        return await self.call("PUT", path, body, timeout_seconds=timeout_seconds)

    async def patch(self, path: str, body: Json) -> Json:
        return await self.call("PATCH", path, body, content_type=STRATEGIC_MERGE)

    async def delete(self, path: str, body: Json) -> Json:
        return await self.call("DELETE", path, body)

    async def call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        parameters: Mapping[str, str] = _NO_PARAMETERS,
        content_type: str = _JSON,
        timeout_seconds: float = _REQUEST_SECONDS,
    ) -> Json:
        """One request. If the server answers "too many requests", the request is repeated after the time that the
        server names."""
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        for _ in range(_MOST_WAITS):
            try:
                return await self._answer(method, path, parameters, content, content_type, timeout_seconds)
            except ApiError as error:
                is_busy = error.code in (_TOO_MANY, _UNAVAILABLE) and error.retry_after_seconds > 0
                if not is_busy:
                    raise
                wait = error.retry_after_seconds
            await asyncio.sleep(wait * random.uniform(1.0, 1.5))  # noqa: S311 no secret depends on it
        return await self._answer(method, path, parameters, content, content_type, timeout_seconds)

    async def watch(
        self, path: str, parameters: Mapping[str, str], timeout_seconds: float
    ) -> AsyncGenerator[Json, None]:
        """The events of a watch, until the server ends it."""
        connection = await self._open()
        try:
            self.requests += 1
            head = await connection.request(
                "GET", self._target(path, parameters), self._headers(connection, ""), b"", _REQUEST_SECONDS
            )
            if head.status >= 300:
                self._note_refusal(head.status)
                raise _error(head.status, head.headers, await connection.body(_REQUEST_SECONDS))
            async for line in connection.lines(timeout_seconds):
                if line:
                    yield _parsed(line)
        finally:
            await connection.close()

    async def close(self) -> None:
        """Closes the idle connections. Also used when the server is suspected to be gone."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    async def _answer(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        content: bytes,
        content_type: str,
        timeout_seconds: float,
    ) -> Json:
        target = self._target(path, parameters)
        while True:
            connection = await self._take()
            is_used = connection.has_answered
            try:
                self.requests += 1
                headers = self._headers(connection, content_type if content else "")
                connection.has_answered = False
                head = await connection.request(method, target, headers, content, timeout_seconds)
                body = await connection.body(timeout_seconds)
            except BaseException as error:
                await connection.close()
                # The server may close an idle connection at any moment. Every request of the node names its object or
                # has preconditions, so sending it twice does no harm.
                if is_used and isinstance(error, Unreachable) and not connection.has_answered:
                    continue
                raise
            break
        if connection.is_reusable and len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
        else:
            await connection.close()
        if head.status >= 300:
            self._note_refusal(head.status)
            raise _error(head.status, head.headers, body)
        return _parsed(body) if body else {}

    async def _take(self) -> Connection:
        identity = await self._credentials.identity()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and connection.identity.context is identity.context:
                connection.identity = identity
                return connection
            await connection.close()
        return await Connection.open(self._credentials.config, identity)

    async def _open(self) -> Connection:
        return await Connection.open(self._credentials.config, await self._credentials.identity())

    def _target(self, path: str, parameters: Mapping[str, str]) -> str:
        query = f"?{urlencode(parameters)}" if parameters else ""
        return f"{self._credentials.config.prefix}{path}{query}"

    def _headers(self, connection: Connection, content_type: str) -> Mapping[str, str]:
        headers = {"Accept": _JSON, "User-Agent": f"evenkeel/{__version__}"}
        if content_type:
            headers["Content-Type"] = content_type
        if connection.identity.token:
            headers["Authorization"] = f"Bearer {connection.identity.token}"
        return headers

    def _note_refusal(self, status: int) -> None:
        if status == _UNAUTHORIZED:
            self._credentials.refused()


def metadata_of(value: Json) -> Json:
    """The metadata of an object that the API server has sent. Raises Unreachable if it has none: something other than
    an API server may have answered."""
    metadata = value.get("metadata")
    if not isinstance(metadata, dict):
        raise Unreachable("the API server's answer is no object of Kubernetes: it has no metadata")
    return metadata


def error_of(status: Mapping[str, Any]) -> ApiError:
    """The error that a Status object describes, as an answer or in a watch."""
    code = status.get("code")
    details = status.get("details") or {}
    retry = details.get("retryAfterSeconds") if isinstance(details, Mapping) else None
    return ApiError(
        code if isinstance(code, int) else 0,
        str(status.get("reason") or ""),
        str(status.get("message") or ""),
        _bounded(retry) if isinstance(retry, int | float) else 0.0,
    )


def _error(code: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    try:
        status = json.loads(body)
    except (ValueError, RecursionError):
        status = None
    after = headers.get("retry-after", "")
    retry = _bounded(float(after)) if after.isdecimal() else 0.0
    if not isinstance(status, dict) or status.get("kind") != "Status":
        return ApiError(code, "", f"the API server answered {code}", retry)
    found = error_of(status)
    return ApiError(code, found.reason, found.message, retry or found.retry_after_seconds)


def _bounded(seconds: float) -> float:
    """The time that the server asks the node to wait, within bounds."""
    return max(0.0, min(_LONGEST_WAIT_SECONDS, seconds))  # in this order, so that NaN becomes the longest


def _parsed(text: bytes) -> Json:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # the latter: too many brackets in each other
        raise Unreachable("the API server's answer is no JSON") from None
    if not isinstance(value, dict):
        raise Unreachable("the API server's answer is no object")
    return value
