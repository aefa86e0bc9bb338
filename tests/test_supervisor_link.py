"""The agent's link to the supervisor: what becomes of requests while a supervisor is replaced."""

import asyncio
import os
import socket
from typing import Any

import pytest

from evenkeel.runtime.interface import Attempt
from evenkeel.runtime.process import supervisor_link
from evenkeel.runtime.process.supervisor_connection import SupervisorConnection, SupervisorLost
from evenkeel.runtime.process.supervisor_link import SupervisorLink

ATTEMPT = Attempt("u-1", "main", 1)
LONG_SECONDS = 60.0


class Supervisor:
    """One connection. A supervisor that hangs answers nothing, and takes a while to end when it is killed."""

    def __init__(self, *, hangs: bool) -> None:
        self.pid = 1
        self.is_open = True
        self._hangs = hangs
        self._asked: list[asyncio.Future[dict[str, Any]]] = []

    async def ask(self, todo: str, **_: object) -> dict[str, Any]:
        if not self.is_open:
            raise SupervisorLost
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        if not self._hangs:
            answer.set_result({"did": todo})
        return await answer

    async def kill(self) -> None:
        self.close()
        await asyncio.sleep(0.05)

    def close(self) -> None:
        self.is_open = False
        for answer in self._asked:
            if not answer.done():
                answer.set_exception(SupervisorLost())
                answer.exception()


def test_a_request_to_a_supervisor_that_hangs_goes_to_the_next_one(monkeypatch):
    """Also while the first one is being killed, which takes a while if it waits for a disk."""
    supervisors = [Supervisor(hangs=True), Supervisor(hangs=False)]
    for name, seconds in (("_PING_SECONDS", 0.01), ("_SILENT_SECONDS", 0.01), ("_HUNG_SECONDS", 0.05)):
        monkeypatch.setattr(supervisor_link, name, seconds)

    async def connected(*_: object) -> tuple[Any, dict[str, Any]]:
        return supervisors.pop(0), {}

    async def take_up(*_: object) -> None: ...

    async def story() -> None:
        news: list[str] = []
        losses: list[None] = []
        link = SupervisorLink("", lambda _: None, take_up, lambda: losses.append(None), news.append)
        await link.open()
        async with asyncio.timeout(30):
            under_way = asyncio.create_task(link.ask("start", ATTEMPT))
            while not news:
                await asyncio.sleep(0.001)
            later = asyncio.create_task(link.ask("forget", ATTEMPT))  # the first one is being killed
            assert await under_way == {"did": "start"}
            assert await later == {"did": "forget"}
        assert (losses, link.problem) == ([None], "")
        await link.close()

    monkeypatch.setattr(supervisor_link, "connected", connected)
    asyncio.run(story())


@pytest.mark.parametrize("is_attended_first", [True, False])
def test_the_loss_of_a_supervisor_in_use_is_reported_once(is_attended_first: bool):
    """Also if the supervisor ends just before it comes into use: otherwise it would never be replaced."""

    async def story() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lost: list[bool] = []
        connection = SupervisorConnection(ours, os.getpid(), lambda _: None, lambda: lost.append(True))
        if is_attended_first:
            connection.attend()
        theirs.close()
        with pytest.raises(SupervisorLost):
            await connection.hello(LONG_SECONDS)
        assert lost == [True] * is_attended_first
        if not is_attended_first:
            connection.attend()
        connection.close()
        assert lost == [True]

    asyncio.run(story())
