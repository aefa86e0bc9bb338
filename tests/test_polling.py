"""Waiting for descriptors, with epoll and without."""

import asyncio
import errno
import os
import select
import socket
from typing import ClassVar

import pytest

from evenkeel.cgroup.tree import Version
from evenkeel.cli.up import LoopSelector
from evenkeel.host.polling import Poller
from evenkeel.pressure.memory import kernel_triggers
from evenkeel.pressure.memory.kernel_triggers import KernelTriggers
from evenkeel.pressure.targets import WatchTargets


class NoWatchesLeft:
    """An epoll that gives out only so many watches."""

    left = 0

    def __init__(self) -> None:
        self._epoll = EPOLL()

    def register(self, descriptor, events):
        if NoWatchesLeft.left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        NoWatchesLeft.left -= 1
        self._epoll.register(descriptor, events)

    def __getattr__(self, name):
        return getattr(self._epoll, name)


EPOLL = select.epoll


@pytest.fixture(params=[1000, 1, 0], ids=["enough", "one", "none"])
def watches(request, monkeypatch):
    monkeypatch.setattr(select, "epoll", NoWatchesLeft)
    NoWatchesLeft.left = request.param
    return request.param


def test_events_of_every_registered_descriptor_are_reported(watches):
    poller = Poller()
    pairs = [socket.socketpair() for _ in range(3)]
    for ours, _ in pairs:
        poller.register(ours.fileno(), select.EPOLLIN)
    assert poller.poll(0) == []
    for _, theirs in pairs[1:]:
        theirs.send(b"x")
    numbers = [ours.fileno() for ours, _ in pairs]
    assert sorted(poller.poll(-1)) == [(number, select.EPOLLIN) for number in sorted(numbers[1:])]
    poller.unregister(numbers[1])
    assert poller.poll(None) == [(numbers[2], select.EPOLLIN)]
    poller.modify(numbers[2], select.EPOLLOUT)
    assert poller.poll(0.5) == [(numbers[2], select.EPOLLOUT)]
    poller.modify(numbers[2], 0)
    assert poller.poll(0.001) == []
    assert poller.has_edges == (watches >= len(pairs))
    poller.close()
    for pair in pairs:
        for one in pair:
            one.close()


def test_a_descriptor_that_was_closed_is_forgotten(watches):
    poller = Poller()
    ours, theirs = socket.socketpair()
    other, kept = socket.socketpair()
    poller.register(other.fileno(), select.EPOLLIN)
    number = ours.fileno()
    poller.register(number, select.EPOLLIN)
    ours.close()
    assert poller.poll(0) == []
    assert poller.poll(0) == []
    with pytest.raises(OSError):  # as selectors expect it
        poller.unregister(number)
    theirs.close()
    other.close()
    kept.close()
    poller.close()


def test_another_error_is_raised(watches):
    poller = Poller()
    with pytest.raises((OSError, ValueError)):
        poller.register(-1, select.EPOLLIN)
    poller.close()


class Threshold:
    """A threshold of cgroup v1, as far as the triggers use it."""

    made: ClassVar[list["Threshold"]] = []

    def __init__(self, *_: object) -> None:
        self._event = os.eventfd(0, os.EFD_NONBLOCK)
        self.made.append(self)

    def fileno(self):
        return self._event

    def cross(self):
        os.eventfd_write(self._event, 1)

    def consume(self):
        os.eventfd_read(self._event)

    def close(self):
        os.close(self._event)


def test_a_crossing_wakes_the_watch_once(watches, monkeypatch, tmp_path):
    monkeypatch.setattr(kernel_triggers, "UsageThreshold", Threshold)
    Threshold.made.clear()
    triggers = KernelTriggers()
    try:
        assert triggers.follow(WatchTargets(Version.V1, "/k", str(tmp_path)), (1,), (2,))
        for _ in range(2):
            Threshold.made[0].cross()
            assert triggers.wait(30.0)
            assert triggers.take_crossing()
            assert not triggers.wait(0.0)
            assert not triggers.take_crossing()
    finally:
        triggers.close()


def test_an_event_loop_goes_on(watches):
    async def talk():
        async def answer(reader, writer):
            writer.write(await reader.readline())
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"heard\n")
            said = await reader.read()
            writer.close()
            return said

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(LoopSelector())) as runner:
        assert runner.run(talk()) == b"heard\n"
