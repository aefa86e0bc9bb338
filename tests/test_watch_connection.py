"""The agent's side of the watch's socket."""

import asyncio
import os
import socket

import pytest

from evenkeel.pressure.watch.messages import frame
from evenkeel.pressure.watch.watch_connection import WatchConnection, WatchLost

LONG_SECONDS = 60.0


def test_a_ping_that_is_cancelled_in_the_moment_of_its_answer_ends():
    """`asyncio.wait_for` of Python 3.11 returns the answer then, and the cancellation is lost. The pings went on, and
    the agent, which waited for their end, never ended."""

    async def story() -> None:
        ours, theirs = socket.socketpair()
        connection = WatchConnection(ours, os.getpid(), lambda _: None, lambda: None)
        ping = asyncio.create_task(connection.ping(LONG_SECONDS))
        try:
            await asyncio.sleep(0)  # it waits for the answer now
            theirs.sendall(frame({"event": "pong"}))
            connection.receive()
            ping.cancel()
            await asyncio.wait({ping}, timeout=LONG_SECONDS)
            assert ping.cancelled()
        finally:
            connection.close()
            theirs.close()

    asyncio.run(story())


def test_a_watch_that_is_gone_is_not_waited_for():
    """A watch may end after its first message. Otherwise the former one would not be replaced for a minute."""

    async def story() -> None:
        ours, theirs = socket.socketpair()
        connection = WatchConnection(ours, os.getpid(), lambda _: None, lambda: None)
        theirs.sendall(frame({"event": "hello"}))
        theirs.close()
        connection.receive()
        assert not connection.is_open
        await connection.hello(LONG_SECONDS)
        ping = asyncio.ensure_future(connection.ping(LONG_SECONDS))
        await asyncio.sleep(0)
        assert ping.done()
        with pytest.raises(WatchLost):
            await ping
        connection.close()

    asyncio.run(story())


@pytest.mark.parametrize("is_attended_first", [True, False])
def test_the_loss_of_a_watch_in_use_is_reported_once(is_attended_first: bool):
    """Also if the watch ends just before it comes into use: otherwise it would never be replaced."""

    async def story() -> None:
        ours, theirs = socket.socketpair()
        lost: list[bool] = []
        connection = WatchConnection(ours, os.getpid(), lambda _: None, lambda: lost.append(True))
        if is_attended_first:
            connection.attend()
        theirs.close()
        connection.receive()
        assert lost == [True] * is_attended_first
        if not is_attended_first:
            connection.attend()
        assert lost == [True]
        connection.close()
        assert lost == [True]

    asyncio.run(story())
