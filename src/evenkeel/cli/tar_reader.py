"""Reads a tar stream that a container wrote: entry by entry, with bounded memory and time for each.

Python's `tarfile` trusts its input: it keeps all entries, reads maps of sparse files of any length, recurses for each
header that belongs to the next entry, and needs quadratic time for these headers. This module reads only what `cp`
needs: the formats that tar programs write (POSIX, GNU and the oldest one), without sparse files."""

from collections.abc import Iterator, Mapping
from typing import IO

from evenkeel.errors import EvenkeelError
from evenkeel.named_tuples import NamedTuple

FILE, DIRECTORY, LINK, OTHER = "file", "directory", "link", "other"

_BLOCK_BYTES = 512
_CHUNK_BYTES = 256 * 1024
_MOST_HEADER_BYTES = 64 * 1024  # of names and attributes of one entry
_MOST_HEADERS = 8  # with names and attributes, before one entry
_KINDS = {b"0": FILE, b"\0": FILE, b"7": FILE, b"5": DIRECTORY, b"1": LINK, b"2": LINK}
_POSIX_MAGIC = b"ustar\0"
_SPARSE, _GNU_NAME, _GNU_LINK, _ATTRIBUTES, _ATTRIBUTES_OF_ALL = b"S", b"L", b"K", b"x", b"g"
_OF_NEXT = (_GNU_NAME, _GNU_LINK, _ATTRIBUTES, _ATTRIBUTES_OF_ALL)


class BadStream(EvenkeelError):
    """The stream is not one that a tar program writes."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the container's tar stream cannot be read: {why}")


class Entry(NamedTuple):
    name: str
    kind: str
    mode: int
    size: int


class _Header(NamedTuple):
    name: bytes
    kind: bytes
    mode: int
    size: int


class TarReader:
    """The entries of a stream. The content of an entry can be read until the next one is asked for."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = 0  # bytes of the present content
        self._padding = 0

    def entries(self) -> Iterator[Entry]:
        """Raises BadStream."""
        is_first = True
        while (header := self._header(is_first=is_first)) is not None:
            is_first = False
            yield header

    def content(self) -> Iterator[bytes]:
        """The rest of the present entry's content. Raises BadStream."""
        while self._left:
            chunk = self._file.read(min(self._left, _CHUNK_BYTES))
            if not chunk:
                raise BadStream("it ends within an entry")
            self._left -= len(chunk)
            yield chunk
        self._exactly(self._padding)
        self._padding = 0

    def _header(self, *, is_first: bool) -> Entry | None:
        """The next entry, with the name and size that headers before it give it. None at the end."""
        name: bytes | None = None
        attributes: dict[bytes, bytes] = {}
        for number in range(_MOST_HEADERS + 1):
            for _ in self.content():
                pass
            header = self._next(may_end=number == 0 and not is_first)
            if header is None:
                return None
            if header.kind not in _OF_NEXT:
                return self._entry(header, name, attributes)
            text = self._text()
            if header.kind == _GNU_NAME:
                name = text.rstrip(b"\0")
            elif header.kind == _ATTRIBUTES:
                attributes |= _records(text)
        raise BadStream(f"an entry has more than {_MOST_HEADERS} headers")

    def _entry(self, header: _Header, name: bytes | None, attributes: Mapping[bytes, bytes]) -> Entry:
        found = attributes.get(b"path", name if name is not None else header.name)
        shown = found.decode("utf-8", "surrogateescape")
        if header.kind == _SPARSE or any(key.startswith(b"GNU.sparse.") for key in attributes):
            raise EvenkeelError(f"{shown[:200]} is stored as a sparse file, which cp does not take")
        size = header.size
        if b"size" in attributes:
            size = _decimal(attributes[b"size"])
        kind = _KINDS.get(header.kind, OTHER)
        if kind == FILE and shown.endswith("/"):  # the oldest format has no other sign of a directory
            kind = DIRECTORY
        # A link has no content, whatever its header says: some programs write the size of the file.
        self._expect(0 if kind in (DIRECTORY, LINK) else size)
        return Entry(shown, kind, header.mode, size)

    def _next(self, *, may_end: bool) -> _Header | None:
        block = self._file.read(_BLOCK_BYTES)
        while block and len(block) < _BLOCK_BYTES:
            more = self._file.read(_BLOCK_BYTES - len(block))
            if not more:
                raise BadStream("it ends within a header")
            block += more
        if not block and may_end:
            return None
        if not block:
            raise BadStream("it ends too early")
        if not any(block):
            return None
        if _number(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * ord(" "):
            raise BadStream("a header has a wrong checksum")
        name = block[:100].partition(b"\0")[0]
        prefix = block[345:500].partition(b"\0")[0]
        if prefix and block[257:263] == _POSIX_MAGIC:
            name = prefix + b"/" + name
        header = _Header(name, block[156:157], _number(block[100:108]), _number(block[124:136]))
        if header.kind in _OF_NEXT:
            if header.size > _MOST_HEADER_BYTES:
                raise BadStream(f"a name or attribute has {header.size} bytes, which no tar writes")
            self._expect(header.size)
        return header

    def _expect(self, size: int) -> None:
        self._left, self._padding = size, -size % _BLOCK_BYTES

    def _text(self) -> bytes:
        return b"".join(self.content())

    def _exactly(self, size: int) -> None:
        while size:
            chunk = self._file.read(size)
            if not chunk:
                raise BadStream("it ends within an entry")
            size -= len(chunk)


def _number(field: bytes) -> int:
    """A number in octal digits, or in base 256 if the first bit is set."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    text = field.partition(b"\0")[0].strip()
    if text and (not text.isdigit() or b"8" in text or b"9" in text):
        raise BadStream("a header has no number where one should be")
    return int(text or b"0", 8)


def _records(text: bytes) -> dict[bytes, bytes]:
    """Attributes as POSIX writes them, each `LENGTH NAME=VALUE` and a line end."""
    found = {}
    at = 0
    while at < len(text):
        space = text.find(b" ", at, at + 20)
        length = _decimal(text[at:space]) if space > at else 0
        record = text[space + 1 : at + length]
        name, is_there, value = record.partition(b"=")
        if length <= space - at + 1 or not is_there or not value.endswith(b"\n"):
            raise BadStream("an attribute is not written as it should be")
        found[name] = value[:-1]
        at += length
    return found


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 20:
        raise BadStream("an attribute has no number where one should be")
    return int(text)
