"""Waiting for many descriptors, also when there are no more watches of epoll.

The kernel limits the watches of each user (fs.epoll.max_user_watches), and pods that run as root share root's limit
with us. When no more watches are left, `Poller` uses poll(2) from then on. poll has no such limit, but takes longer the
more descriptors there are."""

import errno
import math
import os
import select

# The flags that both calls have are the same numbers.
_OF_EPOLL = select.EPOLLET | select.EPOLLONESHOT


class Poller:
    """Is used like `select.epoll`. A descriptor may be closed without `unregister`, if its number is not used again."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._poll: select.poll | None = None  # instead of epoll
        self._events: dict[int, int] = {}

    @property
    def has_edges(self) -> bool:
        """Whether EPOLLET is heeded. If not, an event must be consumed, or it is reported again at once."""
        return self._poll is None

    def register(self, descriptor: int, events: int) -> None:
        if self._poll is None:
            try:
                self._epoll.register(descriptor, events)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                self._change_over()
        if self._poll is not None:
            self._poll.register(descriptor, events & ~_OF_EPOLL)
        self._events[descriptor] = events

    def modify(self, descriptor: int, events: int) -> None:
        if self._poll is None:
            self._epoll.modify(descriptor, events)
        else:
            self._poll.modify(descriptor, events & ~_OF_EPOLL)
        self._events[descriptor] = events

    def unregister(self, descriptor: int) -> None:
        """Raises OSError, as epoll does, if it is not watched or was closed."""
        self._events.pop(descriptor, None)
        if self._poll is None:
            self._epoll.unregister(descriptor)
            return
        try:
            self._poll.unregister(descriptor)
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from None

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        if self._poll is None:
            return self._epoll.poll(timeout, maxevents)
        is_endless = timeout is None or timeout < 0
        ready = self._poll.poll(None if is_endless else math.ceil((timeout or 0) * 1000))
        for descriptor, events in ready:
            if events & select.POLLNVAL:  # it was closed; epoll forgets it by itself
                self.unregister(descriptor)
        return [(descriptor, events) for descriptor, events in ready if not events & select.POLLNVAL]

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        self._epoll.close()

    def _change_over(self) -> None:
        self._poll = select.poll()
        for descriptor, events in self._events.items():
            self._poll.register(descriptor, events & ~_OF_EPOLL)
        self._epoll.close()  # its watches are free for other processes from now on
