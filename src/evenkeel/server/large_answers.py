"""A bound on the answers that clients have asked for and do not read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evenkeel.named_tuples import NamedTuple

_LEAST_BYTES = 64 << 10  # a smaller answer is in the buffer of its connection


class _Held(NamedTuple):
    size: int
    give_up: Callable[[], None]


class LargeAnswers:
    """The large answers that are being sent, of all connections. If they are too large together, the one that has been
    waiting for its client longest is given up: a client that reads has its answer within a moment."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held: dict[object, _Held] = {}  # the oldest first

    @property
    def held_bytes(self) -> int:
        return sum(one.size for one in self._held.values())

    @contextmanager
    def held(self, size: int, give_up: Callable[[], None]) -> Iterator[None]:
        """While an answer of this size is being sent. `give_up` ends its connection."""
        if size < _LEAST_BYTES:
            yield
            return
        key = object()
        self._held[key] = _Held(size, give_up)
        while self.held_bytes > self._most_bytes and len(self._held) > 1:
            oldest = next(iter(self._held))
            self._held.pop(oldest).give_up()
        try:
            yield
        finally:
            self._held.pop(key, None)
