"""One call of gRPC on a connection: the unsent part of its request, the received part of its answer, and its status."""

import asyncio
from collections import deque
from urllib.parse import unquote

from h2.errors import ErrorCodes

DEADLINE_EXCEEDED, UNAVAILABLE, INTERNAL = "DEADLINE_EXCEEDED", "UNAVAILABLE", "INTERNAL"
_CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", DEADLINE_EXCEEDED, "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    INTERNAL, UNAVAILABLE, "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
# HTTP statuses without a gRPC status, and their meaning as gRPC defines it.
_OF_HTTP = {
    "400": INTERNAL, "401": "UNAUTHENTICATED", "403": "PERMISSION_DENIED", "404": "UNIMPLEMENTED",
    "429": UNAVAILABLE, "502": UNAVAILABLE, "503": UNAVAILABLE, "504": UNAVAILABLE,
}  # fmt: skip
_OF_RESETS: dict[int, str] = {
    ErrorCodes.CANCEL: "CANCELLED",
    ErrorCodes.ENHANCE_YOUR_CALM: "RESOURCE_EXHAUSTED",
}
_PREFIX_BYTES = 5  # of a message: whether it is compressed, and its length


class GrpcError(Exception):
    """A call that failed, with the name of gRPC's status code."""

    def __init__(self, code: str, details: str = "") -> None:
        super().__init__(f"{code}: {details}")
        self.code = code
        self.details = details


class CallRefused(GrpcError):
    """The server has not processed the call, because it has as many calls as it allows."""


class GrpcStream:
    """A call. Its answer is messages, of which callers take one after the other."""

    def __init__(self, number: int, request: bytes, most_bytes: int) -> None:
        self.number = number
        self.unsent = memoryview(b"\0" + len(request).to_bytes(_PREFIX_BYTES - 1, "big") + request)
        self.headers: dict[str, str] = {}
        self.is_failed = False
        self.is_ended = False  # by the server
        self._most_bytes = most_bytes
        self._error: GrpcError | None = None
        self._messages: deque[bytes] = deque()
        self._waiting_bytes = 0  # in `_messages`
        self._rest = bytearray()  # of a message that is not whole yet
        self._changed = asyncio.Event()

    async def only_message(self) -> bytes:
        """The answer to a call that has one. Raises GrpcError."""
        message = await self.next_message()
        if message is None or await self.next_message() is not None:
            raise GrpcError(INTERNAL, "the answer is not one message")
        return message

    async def next_message(self) -> bytes | None:
        """None at the end of an answer that the server calls OK. Raises GrpcError."""
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self.is_ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        message = self._messages.popleft()
        self._waiting_bytes -= len(message)
        return message

    def take(self, data: bytes) -> None:
        self._rest += data
        while not self.is_failed and len(self._rest) >= _PREFIX_BYTES:
            size = int.from_bytes(self._rest[1:_PREFIX_BYTES], "big")
            if self._rest[0]:
                self.fail(INTERNAL, "the answer is compressed, which was not asked for")
            elif self._waiting_bytes + size > self._most_bytes:
                self.fail("RESOURCE_EXHAUSTED", f"the answer has more than {self._most_bytes} bytes")
            elif len(self._rest) < _PREFIX_BYTES + size:
                break
            else:
                self._messages.append(bytes(self._rest[_PREFIX_BYTES : _PREFIX_BYTES + size]))
                self._waiting_bytes += size
                del self._rest[: _PREFIX_BYTES + size]
        self._changed.set()

    def end(self) -> None:
        """The server has sent all of its answer, with the status as its last headers."""
        self.is_ended = True
        status, text = self.headers.get("grpc-status"), unquote(self.headers.get("grpc-message", ""))
        http = self.headers.get(":status", "")
        if status is None:
            code = INTERNAL if http == "200" else _OF_HTTP.get(http, "UNKNOWN")
            self.fail(code, f"HTTP status {http}, and no status of gRPC")
        elif status != "0":
            known = status.isdecimal() and int(status) < len(_CODES)
            self.fail(_CODES[int(status)] if known else "UNKNOWN", text)
        elif self._rest:
            self.fail(INTERNAL, "the answer ends within a message")
        self._changed.set()

    def reset(self, code: ErrorCodes | int) -> None:
        """The server has ended the call without an answer."""
        self.is_ended = True
        if code == ErrorCodes.REFUSED_STREAM:
            self._error = CallRefused(UNAVAILABLE, "the server has too many calls")
        name = code.name if isinstance(code, ErrorCodes) else str(code)
        self.fail(_OF_RESETS.get(code, INTERNAL), f"the server has ended the call: {name}")

    def fail(self, code: str, details: str) -> None:
        """Messages that arrived before are still read first."""
        if self._error is None:
            self._error = GrpcError(code, details)
        self.is_failed = True
        self._changed.set()
