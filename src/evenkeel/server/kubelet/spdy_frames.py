"""The frames of SPDY/3.1, as far as Kubernetes uses them. Pure.

API servers of every version speak SPDY to a node: exec, attach and port-forward are streams of one connection. A frame
has a stream's data, or is about a stream (opened, answered, reset) or about the connection (ping, end). Headers are
compressed, all of a direction by one zlib stream. SPDY's windows are not used: Kubernetes does not honour them.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping

from evenkeel.named_tuples import NamedTuple

_HEAD = struct.Struct(">IB3s")  # stream or version and type, flags, length
_TWO = struct.Struct(">II")
_ONE = struct.Struct(">I")
_CONTROL = 0x80000000
_VERSION = 3
_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY, _HEADERS = 1, 2, 3, 6, 7, 8
_FIN = 0x01
_SYN_STREAM_BYTES = 10  # before its headers: stream, associated stream, priority, slot
_LARGEST_CONTROL_BYTES = 64 << 10
_LARGEST_HEADERS_BYTES = 64 << 10
LARGEST_DATA_BYTES = (1 << 24) - 1

PROTOCOL_ERROR, REFUSED_STREAM, CANCEL = 1, 3, 5  # of Reset

# What both sides have compressed before the first header: the words of SPDY/3, each after its length, and some texts.
_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie "
    "keep-alive origin"
)
_TEXTS = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _with_length(text: bytes) -> bytes:
    return _ONE.pack(len(text)) + text


DICTIONARY = (
    b"".join(_with_length(word.replace("_", " ").encode()) for word in _WORDS.split()) + _TEXTS.encode()
)


class BadFrame(Exception):
    """The peer does not speak SPDY/3.1. Nothing that it sends after this can be read."""


class Opened(NamedTuple):
    """A stream with its headers. `is_last`: its opener sends nothing on it."""

    stream: int
    headers: Mapping[str, str]
    is_last: bool = False


class Answered(NamedTuple):
    stream: int


class Data(NamedTuple):
    """A part of a stream. A long frame comes in several parts."""

    stream: int
    data: bytes
    is_last: bool = False


class Reset(NamedTuple):
    stream: int
    status: int = CANCEL


class Ping(NamedTuple):
    number: int


class GoAway(NamedTuple):
    """The peer ends the connection."""

    last_stream: int = 0


Frame = Opened | Answered | Data | Reset | Ping | GoAway


class FrameReader:
    """Bytes to frames. It holds at most one control frame; data is passed on as it comes."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._inflater = zlib.decompressobj(zdict=DICTIONARY)
        self._stream = 0  # of the data frame that is being read
        self._left = 0  # of its bytes
        self._is_last = False

    def feed(self, received: bytes) -> Iterator[Frame]:
        """The frames that are complete now. Raises BadFrame."""
        self._held += received
        while True:
            if self._left:
                if not self._held:
                    return
                part = bytes(self._held[: self._left])
                del self._held[: len(part)]
                self._left -= len(part)
                yield Data(self._stream, part, self._is_last and not self._left)
                continue
            if len(self._held) < _HEAD.size:
                return
            word, flags, length_bytes = _HEAD.unpack_from(self._held)
            length = int.from_bytes(length_bytes, "big")
            if not word & _CONTROL:
                del self._held[: _HEAD.size]
                self._stream, self._left, self._is_last = word, length, bool(flags & _FIN)
                if not length:
                    yield Data(word, b"", self._is_last)
                continue
            if length > _LARGEST_CONTROL_BYTES:
                raise BadFrame(f"a control frame of {length} bytes")
            if word >> 16 != (_CONTROL >> 16 | _VERSION):
                raise BadFrame("another version of SPDY")
            if len(self._held) < _HEAD.size + length:
                return
            payload = bytes(self._held[_HEAD.size : _HEAD.size + length])
            del self._held[: _HEAD.size + length]
            frame = self._control(word & 0xFFFF, flags, payload)
            if frame is not None:
                yield frame

    def _control(self, kind: int, flags: int, payload: bytes) -> Frame | None:
        """None for a frame that says nothing to us."""
        try:
            if kind == _SYN_STREAM:
                headers = self._headers(payload[_SYN_STREAM_BYTES:])
                return Opened(_ONE.unpack_from(payload)[0] & ~_CONTROL, headers, bool(flags & _FIN))
            if kind in (_SYN_REPLY, _HEADERS):
                self._headers(payload[_ONE.size :])  # the next headers build on them
                return Answered(_ONE.unpack_from(payload)[0] & ~_CONTROL) if kind == _SYN_REPLY else None
            if kind == _RST_STREAM:
                return Reset(*_TWO.unpack(payload))
            if kind == _PING:
                return Ping(*_ONE.unpack(payload))
            if kind == _GOAWAY:
                return GoAway(_ONE.unpack_from(payload)[0])
        except struct.error:
            raise BadFrame(f"a control frame of type {kind} with {len(payload)} bytes") from None
        return None

    def _headers(self, compressed: bytes) -> Mapping[str, str]:
        try:
            block = self._inflater.decompress(compressed, _LARGEST_HEADERS_BYTES)
        except zlib.error:
            raise BadFrame("headers that cannot be decompressed") from None
        if self._inflater.unconsumed_tail:
            raise BadFrame(f"headers of more than {_LARGEST_HEADERS_BYTES >> 10} KiB")
        texts: list[str] = []
        (count,) = _ONE.unpack_from(block)
        position = _ONE.size
        if count > len(block):
            raise BadFrame(f"{count} headers in {len(block)} bytes")
        for _ in range(2 * count):
            (length,) = _ONE.unpack_from(block, position)
            position += _ONE.size
            if position + length > len(block):
                raise BadFrame("a header that is longer than all headers")
            texts.append(block[position : position + length].decode("latin-1"))
            position += length
        return {name.lower(): value for name, value in zip(texts[::2], texts[1::2], strict=True)}


class FrameWriter:
    """Frames to bytes."""

    def __init__(self) -> None:
        self._deflater = zlib.compressobj(zdict=DICTIONARY)

    def opened(self, stream: int, headers: Mapping[str, str]) -> bytes:
        payload = struct.pack(">IIBB", stream, 0, 0, 0) + self._headers(headers)
        return _control(_SYN_STREAM, payload)

    def answered(self, stream: int) -> bytes:
        return _control(_SYN_REPLY, _ONE.pack(stream) + self._headers({}))

    def data(self, stream: int, data: bytes, *, is_last: bool = False) -> bytes:
        return _HEAD.pack(stream, _FIN if is_last else 0, len(data).to_bytes(3, "big")) + data

    def reset(self, stream: int, status: int = CANCEL) -> bytes:
        return _control(_RST_STREAM, _TWO.pack(stream, status))

    def ping(self, number: int) -> bytes:
        return _control(_PING, _ONE.pack(number))

    def go_away(self, last_stream: int) -> bytes:
        return _control(_GOAWAY, _TWO.pack(last_stream, 0))

    def _headers(self, headers: Mapping[str, str]) -> bytes:
        texts = [text.encode("latin-1") for name, value in headers.items() for text in (name.lower(), value)]
        block = _ONE.pack(len(headers)) + b"".join(map(_with_length, texts))
        return self._deflater.compress(block) + self._deflater.flush(zlib.Z_SYNC_FLUSH)


def _control(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(_CONTROL | _VERSION << 16 | kind, 0, len(payload).to_bytes(3, "big")) + payload
