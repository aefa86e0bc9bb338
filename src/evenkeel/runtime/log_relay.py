"""Copies stdout and stderr of a container to its log file, in the CRI format; rotates the file, and bounds the rate.

An entry is `2026-01-02T03:04:05.678901234Z stdout F text`: F for a whole line, P for a part of a line. Containers may
write without end. So whole chunks are processed, never single lines. If a container is above its rate, its pipe is
not read: the pipe fills, and the container waits.
"""

import os
import time
from collections.abc import Callable

from evenkeel.errors import reason
from evenkeel.named_tuples import NamedTuple

LONGEST_LINE_BYTES = 16 << 10  # longer lines are split, as in container runtimes
# The size of one read. An empty line (one byte) becomes an entry of 45 bytes, so this limits memory too.
_CHUNK_BYTES = 32 << 10
# Read at most from the pipe of a container that has ended. A process that still writes could fill it without end.
_MOST_LEFT_BYTES = 1 << 20
_TRY_AGAIN_SECONDS = 1.0
# A container may write single bytes, and make a pipe return them one by one (O_DIRECT): each costs us more than it. So
# a read takes this part of a second's budget at least. When the container waits, its bytes gather in the pipe.
_MOST_READS_A_SECOND = 4096
_PERMISSIONS = 0o640


class LogLimits(NamedTuple):
    max_bytes: int = 10 << 20  # the size at which a file is rotated
    max_files: int = 5
    bytes_per_second: int = 2 << 20  # written to the log; the rest waits in the pipe of the container
    burst_bytes: int = 8 << 20


class LogRelay:
    """Copies from two pipes to a log file; never blocks. Its owner polls `descriptors` and calls `pump`."""

    def __init__(
        self,
        stdout: int,
        stderr: int,
        path: str,
        limits: LogLimits,
        *,
        on_chunk: Callable[[bytes, bytes], None] = lambda _stream, _chunk: None,
        on_end: Callable[[int], None] = lambda _descriptor: None,
        wall_clock_ns: Callable[[], int] = time.time_ns,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes over both descriptors, which must not block. It appends to the file. With a terminal there is one
        stream, and `stderr` is -1. `on_chunk` gets the name of the stream and what was read. `on_end` gets a
        descriptor that is about to be closed.

        The file and its directory are made at the first write.
        """
        self._streams = {stdout: _Stream(b"stdout")}
        if stderr >= 0:
            self._streams[stderr] = _Stream(b"stderr")
        self._on_chunk = on_chunk
        self._on_end = on_end
        self._file = LogFile(path, limits.max_bytes, limits.max_files, clock)
        self._limits = limits
        self._wall_clock_ns = wall_clock_ns
        self._clock = clock
        self._budget_bytes = float(limits.burst_bytes)
        self._refilled_at = clock()
        self._second = -1
        self._second_text = ""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The open descriptors, to be polled for reading. A stream at its end is closed and no longer listed."""
        return tuple(self._streams)

    def pump(self, descriptor: int) -> float:
        """Copies a bounded amount of the available data. Never raises.

        Returns the seconds for which not to poll: mostly 0.0, more if the container is above its rate.
        """
        stream = self._streams.get(descriptor)
        if stream is None:
            return 0.0
        self._refill()
        chunk = _read(descriptor)
        if chunk is not None:
            least = self._budget_bytes - self._limits.bytes_per_second / _MOST_READS_A_SECOND
            self._take(descriptor, stream, chunk)
            self._budget_bytes = min(self._budget_bytes, least)
        return self._wait_seconds()

    def finish(self) -> None:
        """Copies the rest after the container has ended, and closes everything.

        The rest is the data in the pipes, without a limit on the rate, and the last incomplete line.
        """
        for descriptor, stream in list(self._streams.items()):
            left = _MOST_LEFT_BYTES
            while left > 0 and (chunk := _read(descriptor)):
                self._take(descriptor, stream, chunk)
                left -= len(chunk)
            if descriptor in self._streams:
                self._take(descriptor, stream, b"")
        self._file.close(self._timestamp())

    def _take(self, descriptor: int, stream: "_Stream", chunk: bytes) -> None:
        """Handles a chunk. An empty chunk is the end of the stream."""
        timestamp = self._timestamp()
        if chunk:
            entries = stream.entries(chunk, timestamp)
            self._on_chunk(stream.name, chunk)
        else:
            entries = stream.last_entry(timestamp)
            del self._streams[descriptor]
            self._on_end(descriptor)
            os.close(descriptor)
        if entries:
            self._file.write(entries, len(chunk) or len(entries), timestamp)
            self._budget_bytes -= len(entries)

    def _refill(self) -> None:
        now = self._clock()
        earned = (now - self._refilled_at) * self._limits.bytes_per_second
        self._budget_bytes = min(self._limits.burst_bytes, self._budget_bytes + earned)
        self._refilled_at = now

    def _wait_seconds(self) -> float:
        if self._budget_bytes > 0:
            return 0.0
        # An eighth of a second is added. Otherwise the pipe would be polled for every few bytes.
        return -self._budget_bytes / self._limits.bytes_per_second + 0.125

    def _timestamp(self) -> bytes:
        second, nanoseconds = divmod(self._wall_clock_ns(), 1_000_000_000)
        if second != self._second:
            self._second = second
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._second_text}.{nanoseconds:09d}Z".encode()


class _Stream:
    """Makes entries of one stream; holds back the beginning of an incomplete line."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self._held = b""

    def entries(self, chunk: bytes, timestamp: bytes) -> bytes:
        data = self._held + chunk if self._held else chunk
        end = data.rfind(b"\n")
        lines, rest = (data[:end], data[end + 1 :]) if end >= 0 else (None, data)
        whole = b"%b %b F " % (timestamp, self.name)
        part = b"%b %b P " % (timestamp, self.name)
        entries = b"" if lines is None else _framed(lines, whole, part)
        while len(rest) > LONGEST_LINE_BYTES:
            entries += b"%b%b\n" % (part, rest[:LONGEST_LINE_BYTES])
            rest = rest[LONGEST_LINE_BYTES:]
        self._held = rest
        return entries

    def last_entry(self, timestamp: bytes) -> bytes:
        rest, self._held = self._held, b""
        return b"%b %b P %b\n" % (timestamp, self.name, rest) if rest else b""


def _framed(lines: bytes, whole: bytes, part: bytes) -> bytes:
    if not _has_long_line(lines):
        return b"%b%b\n" % (whole, lines.replace(b"\n", b"\n" + whole))
    framed = []
    for line in lines.split(b"\n"):
        while len(line) > LONGEST_LINE_BYTES:
            framed.append(b"%b%b\n" % (part, line[:LONGEST_LINE_BYTES]))
            line = line[LONGEST_LINE_BYTES:]
        framed.append(b"%b%b\n" % (whole, line))
    return b"".join(framed)


def _has_long_line(lines: bytes) -> bool:
    at = 0
    while len(lines) - at > LONGEST_LINE_BYTES:
        at = lines.rfind(b"\n", at, at + LONGEST_LINE_BYTES + 1) + 1
        if not at:
            return True
    return False


def _read(descriptor: int) -> bytes | None:
    """Reads a chunk; None if there is no data now."""
    try:
        return os.read(descriptor, _CHUNK_BYTES)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return b""  # an error counts as the end of the stream


class LogFile:
    """A log file that is rotated as in kubelet: `1.log` becomes `1.log.20260102-030405`, and the oldest are removed.
    Bytes that cannot be written are dropped and counted. The log says so once writing works again."""

    def __init__(self, path: str, max_bytes: int, max_files: int, clock: Callable[[], float]) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._clock = clock
        self._descriptor = -1
        self._is_begun = False
        self._size = 0
        self._last_stamp = 0  # seconds since the epoch, of the last rotation
        self._try_at = 0.0
        self._dropped_bytes = 0
        self._why = ""

    def write(self, entries: bytes, raw_bytes: int, timestamp: bytes) -> None:
        """Writes entries. `entries` are complete; `raw_bytes` is the number of the container's bytes in them."""
        try:
            self._ready(len(entries))
            if self._dropped_bytes:
                entries = self._loss(timestamp) + entries
            self._append(entries)
        except OSError as error:
            self._dropped_bytes += raw_bytes
            self._why = reason(error)
        else:
            self._dropped_bytes = 0

    def close(self, timestamp: bytes) -> None:
        if self._dropped_bytes:
            self._try_at = 0.0
            self.write(b"", 0, timestamp)
        self._close()

    def _ready(self, room: int) -> None:
        if self._descriptor >= 0 and not os.fstat(self._descriptor).st_nlink:
            self._close()  # another process removed it
        if self._descriptor < 0:
            self._open()
        if self._size and self._size + room > self._max_bytes:
            self._rotate()
            self._open()

    def _open(self) -> None:
        now = self._clock()
        if now < self._try_at:
            raise OSError(self._why)
        self._try_at = now + _TRY_AGAIN_SECONDS
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        if not self._is_begun:  # a directory that was removed later is not made again
            os.makedirs(os.path.dirname(self._path), 0o700, exist_ok=True)
        self._descriptor = os.open(self._path, flags, _PERMISSIONS)
        self._is_begun = True
        self._size = os.fstat(self._descriptor).st_size
        if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
            self._append(b"\n")  # its writer was killed in the middle of an entry
        self._try_at = 0.0

    def _append(self, entries: bytes) -> None:
        written = 0
        try:
            while written < len(entries):
                written += os.write(self._descriptor, entries[written:] if written else entries)
        except OSError:
            if written:
                os.ftruncate(self._descriptor, self._size)  # no partial entries
            raise
        self._size += written

    def _rotate(self) -> None:
        directory, name = os.path.split(self._path)
        rotated = rotated_files(directory, name)
        stamp = max(int(time.time()), self._last_stamp + 1)  # two rotations in one second keep their order
        while f"{name}.{stamp_of(stamp)}" in rotated:
            stamp += 1
        os.rename(self._path, f"{self._path}.{stamp_of(stamp)}")
        self._last_stamp = stamp
        self._close()
        remove_oldest(directory, rotated, self._max_files)

    def _loss(self, timestamp: bytes) -> bytes:
        return loss(timestamp, self._dropped_bytes, self._why)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._size = 0


def loss(timestamp: bytes, dropped_bytes: int, why: str) -> bytes:
    """The entry of a log in place of what is not there."""
    return b"%b stderr F evenkeel: %d bytes of log were dropped here: %b\n" % (
        timestamp,
        dropped_bytes,
        why.encode(),
    )


def rotated_files(directory: str, name: str) -> list[str]:
    """Returns the names of the rotated files, oldest first."""
    return sorted(other for other in os.listdir(directory) if other.startswith(f"{name}."))


def remove_oldest(directory: str, rotated: list[str], max_files: int) -> None:
    """Removes the oldest files. It leaves room for the log and for the file just rotated."""
    for other in rotated[: max(0, len(rotated) + 2 - max_files)]:
        os.unlink(os.path.join(directory, other))


def stamp_of(second: int) -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(second))
