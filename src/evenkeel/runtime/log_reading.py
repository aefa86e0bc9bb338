"""Reads container logs in the CRI format, across rotated files."""

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import IO

from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.log_files import close_files, newer_files, open_files

_LONGEST_ENTRY_BYTES = 1 << 20  # entries are much shorter, but a file may be damaged
_LONGEST_JOINED_BYTES = 1 << 20  # a longer line stays in parts
_SLEEP_SECONDS = 0.25


class LogLine(NamedTuple):
    timestamp: str  # RFC 3339, nanoseconds
    stream: str
    text: bytes  # without its newline
    is_whole: bool = True  # False: the container has not ended the line


def read_logs(path: str, *, tail: int | None = None, since_seconds: float | None = None) -> Iterator[LogLine]:
    """Yields the lines of the log at `path` (STATE/logs/…/<attempt>.log) and of its rotated files, oldest first.

    `tail` limits them to the last lines, `since_seconds` (since the epoch) to newer lines. Raises EvenkeelError if
    there is no log.
    """
    with closing(GrowingLog(path, tail=tail, since_seconds=since_seconds, is_watched=False)) as log:
        yield from log.lines()
        yield from log.rest()


def follow(
    path: str,
    *,
    tail: int | None = None,
    since_seconds: float | None = None,
    is_over: Callable[[], bool],
    look_seconds: float = 1.0,
) -> Iterator[LogLine]:
    """Yields lines as `read_logs` does, and then new lines, until `is_over` and all is read. Blocks.

    `is_over` is called every `look_seconds`, and after each addition.
    """
    with closing(GrowingLog(path, tail=tail, since_seconds=since_seconds)) as log:
        while True:
            was_over = is_over()
            yield from log.lines()
            if was_over:
                break
            log.wait(look_seconds)
        yield from log.rest()


class GrowingLog:
    """A log that grows and is rotated while it is read. Raises EvenkeelError if there is none.

    If it is not watched, it is read as it is when it is opened: a container that writes faster than a client reads
    would keep the client for ever.
    """

    def __init__(
        self,
        path: str,
        *,
        tail: int | None = None,
        since_seconds: float | None = None,
        is_watched: bool = True,
    ) -> None:
        self._path = path
        self._joining = _Joining(since_seconds)
        self._watch = _Watch(path) if is_watched else None
        self._files: list[IO[bytes]] = []
        try:
            self._files = open_files(path, tail)
            self._end = None if is_watched else os.fstat(self._files[-1].fileno()).st_size
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        close_files(self._files)
        if self._watch is not None:
            self._watch.close()

    @property
    def descriptor(self) -> int:
        """It can be read when the log may have changed; -1 if there is none."""
        return self._watch.descriptor if self._watch is not None else -1

    def lines(self) -> Iterator[LogLine]:
        """The lines that are there now and were not taken yet."""
        while True:
            if self._watch is not None:
                self._watch.renew()
            *read, last = self._files
            for file in read:
                yield from self._joining.lines(file)
            yield from self._joining.lines(last, self._end)
            self._files = [last]
            close_files(read)
            newer = newer_files(self._path, last) if self._end is None else []
            if not newer:
                return
            # The old file is read once more: lines may have been added before it was rotated.
            self._files = [last, *newer]

    def rest(self) -> Iterator[LogLine]:
        """The last line, if the container has not ended it with a newline."""
        yield from self._joining.rest()

    def wait(self, look_seconds: float) -> None:
        """Returns when the log may have changed, or after `look_seconds`. Blocks."""
        assert self._watch is not None
        self._watch.wait(look_seconds)

    def forget_changes(self) -> None:
        """The descriptor can be read again after the next change."""
        if self._watch is not None:
            self._watch.drain()


class _Joining:
    """Converts entries to lines: joins the parts of long lines."""

    def __init__(self, since_seconds: float | None) -> None:
        self._since = _timestamp(since_seconds) if since_seconds is not None else b""
        self._parts: dict[bytes, list[bytes]] = {}  # by stream
        self._incomplete = b""  # an entry that is not complete yet

    def lines(self, file: IO[bytes], end: int | None = None) -> Iterator[LogLine]:
        """Yields the lines from the present position to the end of the file, or those that begin before `end`."""
        while (end is None or file.tell() < end) and (data := file.readline(_LONGEST_ENTRY_BYTES)):
            entry = self._incomplete + data
            if not entry.endswith(b"\n") and len(entry) < _LONGEST_ENTRY_BYTES:
                self._incomplete = entry
                continue
            self._incomplete = b""
            line = self._line(entry)
            if line is not None:
                yield line

    def rest(self) -> Iterator[LogLine]:
        for stream, (timestamp, *parts) in self._parts.items():
            yield LogLine(timestamp.decode(), stream.decode(), b"".join(parts), is_whole=False)
        self._parts.clear()

    def _line(self, entry: bytes) -> LogLine | None:
        try:
            timestamp, stream, tag, text = entry.rstrip(b"\n").split(b" ", 3)
            stream_name, time_text = stream.decode(), timestamp.decode()
        except ValueError:
            return None  # the entry is incomplete: its writer was killed
        if timestamp < self._since:
            return None
        if tag == b"F" and stream not in self._parts:
            return LogLine(time_text, stream_name, text)
        parts = self._parts.setdefault(stream, [timestamp])  # the timestamp of the first part
        parts.append(text)
        if tag == b"F" or sum(map(len, parts)) > _LONGEST_JOINED_BYTES:
            first, *texts = self._parts.pop(stream)
            return LogLine(first.decode(), stream_name, b"".join(texts), is_whole=tag == b"F")
        return None


class _Watch:
    """Watches the directory of the log and its current file."""

    def __init__(self, path: str) -> None:
        from evenkeel.host.inotify import Inotify

        self._path = path
        self._inotify: Inotify | None = None
        with suppress(OSError):  # too many inotify instances: then it polls
            self._inotify = Inotify()
            self._inotify.watch_entries(os.path.dirname(path))

    def renew(self) -> None:
        """Watches the current file, which may be another one now.

        It must be called before the file is read, so that no line is missed.
        """
        if self._inotify:
            with suppress(OSError):
                self._inotify.watch_file(self._path)

    def wait(self, look_seconds: float) -> None:
        """Returns when the log may have changed, or after `look_seconds`."""
        if not self._inotify:
            time.sleep(min(look_seconds, _SLEEP_SECONDS))
            return
        select.select([self._inotify], [], [], look_seconds)
        self.drain()

    @property
    def descriptor(self) -> int:
        return self._inotify.fileno() if self._inotify else -1

    def drain(self) -> None:
        if self._inotify:
            for _ in self._inotify.read():
                pass

    def close(self) -> None:
        if self._inotify:
            self._inotify.close()


def _timestamp(seconds: float) -> bytes:
    whole = int(seconds // 1)
    fraction = int((seconds - whole) * 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{fraction:09d}Z".encode()
