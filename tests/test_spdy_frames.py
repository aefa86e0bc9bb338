"""SPDY's frames: what is written is read, in whatever pieces it comes, and what is no frame is refused."""

import hashlib
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.server.kubelet.spdy_frames import (
    DICTIONARY,
    Answered,
    BadFrame,
    Data,
    FrameReader,
    FrameWriter,
    GoAway,
    Opened,
    Ping,
    Reset,
)

# Of the bytes that the specification (SPDY draft 3, 2.6.10.1) has.
DICTIONARY_SHA256 = "51d27341373f923f3cd88e1eb7162aeaa3723d7585ff2399201dc06498407f02"
HEADER = st.text(st.characters(min_codepoint=33, max_codepoint=255), min_size=1, max_size=40)


def frames_of(*written: bytes):
    reader = FrameReader()
    return [frame for part in written for frame in reader.feed(part)]


def joined(frames):
    """The frames with the parts of data put together again."""
    result: list[Any] = []
    for frame in frames:
        last = result[-1] if result else None
        if (
            isinstance(frame, Data)
            and isinstance(last, Data)
            and last.stream == frame.stream
            and not last.is_last
        ):
            result[-1] = Data(frame.stream, last.data + frame.data, frame.is_last)
        else:
            result.append(frame)
    return result


def test_the_dictionary_is_that_of_the_specification():
    assert hashlib.sha256(DICTIONARY).hexdigest() == DICTIONARY_SHA256


def test_what_a_real_client_sends_is_read():
    """Bytes that Kubernetes' own SPDY library (spdystream 0.5.1) wrote."""
    sent = bytes.fromhex(
        "80030001000000290000000100000000000078f9e3c6a7c26260606004a7b392a2d4c45c6851c29a0a0a6800000000ffff"
        "800300010000001700000003000000000000c22e555c92929907000000ffff"
        "0000000300000005646174650a0000000301000000800300060000000400000001"
    )
    assert frames_of(sent) == [
        Opened(1, {"streamtype": "error"}),
        Opened(3, {"streamtype": "stdin"}),
        Data(3, b"date\n"),
        Data(3, b"", is_last=True),
        Ping(1),
    ]


def test_all_kinds_of_frames_are_read_as_they_were_written():
    writer = FrameWriter()
    written = [
        writer.opened(1, {"streamType": "error", "port": "80"}),
        writer.opened(3, {"streamType": "data"}),
        writer.answered(1),
        writer.data(3, b"abc"),
        writer.data(3, b"", is_last=True),
        writer.reset(1),
        writer.ping(7),
        writer.go_away(3),
    ]
    assert frames_of(*written) == [
        Opened(1, {"streamtype": "error", "port": "80"}),
        Opened(3, {"streamtype": "data"}),
        Answered(1),
        Data(3, b"abc"),
        Data(3, b"", is_last=True),
        Reset(1),
        Ping(7),
        GoAway(3),
    ]


@given(
    st.lists(
        st.one_of(
            st.dictionaries(HEADER.map(str.lower), HEADER, max_size=5),
            st.binary(max_size=300),
        ),
        max_size=8,
    ),
    st.data(),
)
def test_frames_are_the_same_in_whatever_pieces_they_come(contents, data):
    writer = FrameWriter()
    written = b""
    expected: list[Data | Opened] = []
    for number, content in enumerate(contents):
        stream = 2 * number + 1
        if isinstance(content, bytes):
            written += writer.data(stream, content, is_last=True)
            expected.append(Data(stream, content, is_last=True))
        else:
            written += writer.opened(stream, content)
            expected.append(Opened(stream, {name.lower(): value for name, value in content.items()}))
    pieces = []
    while written:
        size = data.draw(st.integers(1, max(1, len(written))))
        pieces.append(written[:size])
        written = written[size:]
    assert joined(frames_of(*pieces)) == expected


@given(st.binary(max_size=400))
def test_any_bytes_are_frames_or_refused(sent):
    try:
        frames_of(sent)
    except BadFrame:
        pass


def headers_frame(block: bytes) -> bytes:
    deflater = zlib.compressobj(zdict=DICTIONARY)
    compressed = deflater.compress(block) + deflater.flush(zlib.Z_SYNC_FLUSH)
    payload = struct.pack(">IIBB", 1, 0, 0, 0) + compressed
    return bytes.fromhex("8003000100") + len(payload).to_bytes(3, "big") + payload


@pytest.mark.parametrize(
    "sent",
    [
        bytes.fromhex("8003000100ffffff"),  # a control frame of 16 MiB
        bytes.fromhex("8002000600000004") + bytes(4),  # version 2
        bytes.fromhex("8003000600000002") + bytes(2),  # a ping without its number
        bytes.fromhex("800300010000000c") + bytes(12),  # no zlib
        headers_frame(b"\0\0\0\1" + b"\xff\xff\xff\xff"),
        headers_frame(b"\xff\xff\xff\xff"),
        headers_frame(b""),
        headers_frame(b"\0\0\0\1" + struct.pack(">I", 1 << 20) + b"a" * (1 << 20)),  # a bomb
    ],
)
def test_what_no_client_of_ours_sends_is_refused(sent):
    with pytest.raises(BadFrame):
        frames_of(sent)


def test_a_long_data_frame_is_passed_on_before_it_is_whole():
    head = struct.pack(">I", 1) + b"\x01" + (10 << 20).to_bytes(3, "big")
    reader = FrameReader()
    assert list(reader.feed(head + b"a" * 1000)) == [Data(1, b"a" * 1000)]
    assert list(reader.feed(b"b" * 1000)) == [Data(1, b"b" * 1000)]
