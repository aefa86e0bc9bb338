"""The journal's columns: text with a checksum, compressed values, and text that SQLite cannot hold.

The memory watch uses `codec` but no columns. So they have a module of their own, and the watch need not load zlib."""

import zlib
from typing import Any

from evenkeel.journal.codec import Unreadable, plain_of, plain_text

_SEAL = "#"  # no JSON text ends with it
_DIGITS = frozenset("0123456789abcdef")


def sealed(text: str) -> str:
    """`text` with a checksum, so that a flipped bit is noticed."""
    return f"{text}{_SEAL}{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


def opened(text: object) -> object:
    """The text without its checksum. Raises Unreadable if the checksum is wrong. Rows of older journals have none."""
    # A row without a checksum is JSON: after a `#` in one of its strings come more than hexadecimal digits.
    if not isinstance(text, str) or text[-9:-8] != _SEAL or not _DIGITS.issuperset(text[-8:]):
        return text
    content = text[:-9]
    if f"{zlib.crc32(content.encode('utf-8', 'surrogatepass')):08x}" != text[-8:]:
        raise Unreadable("its checksum does not fit: something on the disk has changed it")
    return content


def packed(plain: object) -> bytes:
    return zlib.compress(plain_text(plain).encode(), 3)


def unpacked(content: object) -> Any:  # noqa: ANN401
    if not isinstance(content, bytes):
        raise Unreadable("it is not compressed")
    try:
        return plain_of(zlib.decompress(content).decode())
    except (zlib.error, ValueError) as error:
        raise Unreadable(f"it cannot be decompressed: {error}") from None


def storable(text: str) -> str | bytes:
    """`text` for a column. SQLite text cannot contain half a surrogate pair, as in a file name that is not UTF-8. Such
    text is stored as bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def stored(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogatepass")
    if isinstance(value, str):
        return value
    raise Unreadable(f"{value!r} is not text")
