"""The probe `grpc`: asks a container by gRPC whether it is healthy (`grpc.health.v1.Health/Check`).

The container may be broken or hostile. So only one small message and the status of the call are used. The number of
bytes that are read is limited, and one timeout covers the whole request. The library h2 speaks HTTP/2: a library for
gRPC would need a third of the agent's memory.
"""

import asyncio

from evenkeel.agent.probe_requests import DEFAULT_HOST, Answer, printable, reason_of, verdict
from evenkeel.api.container import GRPCAction

_CHECK = "/grpc.health.v1.Health/Check"
# The most bytes of the whole answer: a health check needs a few hundred. Each frame costs us more than the server.
_MOST_BYTES = 16 * 1024
_READ_BYTES = 4 * 1024
_PREFIX_BYTES = 5  # of a message: whether it is compressed, and its length
_SERVICE_FIELD, _STATUS_FIELD = b"\x0a", 0x08  # protobuf: field 1 as bytes, field 1 as a number
_STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
_SERVING = _STATUSES.index("SERVING")
_OK, _UNIMPLEMENTED = "0", "12"


async def ask_grpc(action: GRPCAction, timeout_seconds: float, host: str = DEFAULT_HOST) -> Answer:
    """It is a success if the server says that the service is SERVING."""
    place = f"{host}:{action.port}"
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _asked(host, action)
    except TimeoutError:
        return Answer(False, f"gRPC health of {place}: no answer within {timeout_seconds:g}s")
    except (OSError, ValueError, EOFError) as error:
        return Answer(verdict(error), f"gRPC health of {place}: {reason_of(error)}")


async def _asked(host: str, action: GRPCAction) -> Answer:
    reader, writer = await asyncio.open_connection(host, action.port)
    try:
        return _judged(*await _exchange(reader, writer, f"{host}:{action.port}", action.service))
    finally:
        writer.transport.abort()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str, service: str
) -> tuple[dict[str, str], bytes]:
    """Sends the request. Returns the headers of the answer, trailers included, and its body."""
    import h2.config
    import h2.connection
    import h2.events
    import h2.exceptions

    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    connection.initiate_connection()
    stream = connection.get_next_available_stream_id()
    connection.send_headers(
        stream,
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", _CHECK),
            (":authority", authority),
            ("content-type", "application/grpc"),
            ("user-agent", "evenkeel-probe"),
            ("te", "trailers"),
        ],
    )
    connection.send_data(stream, _request(service), end_stream=True)
    writer.write(connection.data_to_send())
    headers: dict[str, str] = {}
    body = b""
    left = _MOST_BYTES
    while received := await reader.read(min(_READ_BYTES, left)):
        left -= len(received)
        try:
            events = connection.receive_data(received)
        except (h2.exceptions.ProtocolError, UnicodeDecodeError):
            raise ValueError("the answer is not HTTP/2") from None
        for event in events:
            match event:
                case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                    headers.update((str(name), str(value)) for name, value in event.headers or ())
                case h2.events.DataReceived():
                    body += event.data or b""
                case h2.events.StreamEnded():
                    return headers, body
                case h2.events.StreamReset() | h2.events.ConnectionTerminated():
                    raise EOFError("the server ended the request without an answer")
        writer.write(connection.data_to_send())  # answers to settings and pings
        if not left:
            raise ValueError(f"the answer has more than {_MOST_BYTES >> 10} KiB")
    raise EOFError("the connection was closed without an answer")


def _request(service: str) -> bytes:
    name = service.encode()
    message = _SERVICE_FIELD + _varint(len(name)) + name if name else b""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def _judged(headers: dict[str, str], body: bytes) -> Answer:
    status = headers.get("grpc-status", "")
    if headers.get(":status") != "200":
        return Answer(False, f"HTTP status {printable(headers.get(':status', ''), 10)}, and no gRPC")
    if status == _UNIMPLEMENTED:
        return Answer(False, "the server does not have the service grpc.health.v1.Health")
    if status != _OK:
        why = printable(headers.get("grpc-message", ""), 200)
        return Answer(False, f"gRPC status {printable(status, 10) or 'missing'}{f': {why}' if why else ''}")
    if body[:1] == b"\x01":
        return Answer(False, "the answer is compressed, which was not asked for")
    found = _status(body[_PREFIX_BYTES:])
    name = _STATUSES[found] if found < len(_STATUSES) else str(found)
    return Answer(found == _SERVING, "" if found == _SERVING else f"the service is {name}")


def _status(message: bytes) -> int:
    """The field `status` of a HealthCheckResponse, which has no other."""
    if len(message) >= 2 and message[0] == _STATUS_FIELD and message[1] < 0x80:
        return message[1]
    return _STATUSES.index("UNKNOWN")


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))
