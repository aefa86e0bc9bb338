"""Sessions of the process runtime, as the agent keeps them beside the supervisor."""

import asyncio
import gc
import os
from typing import Any

import pytest

from evenkeel.runtime.interface import Attempt
from evenkeel.runtime.process.attempt_table import AttemptTable
from evenkeel.runtime.process.process_sessions import AttachedSession, ProcessSessions
from evenkeel.runtime.process.supervisor_connection import DESCRIPTORS
from evenkeel.runtime.process.supervisor_protocol import ProcessFile
from evenkeel.runtime.sessions import Streams

ATTEMPT = Attempt("u-1", "main", 1)
OUTPUT = Streams(stderr=False)


class Supervisor:
    """Answers an attachment with a pipe, and the rest with nothing; `open` and `attach` only once `is_ready` is set."""

    def __init__(self) -> None:
        self.is_ready = asyncio.Event()
        self.asked: list[tuple[str, int]] = []

    async def ask(self, todo: str, *, session: int, **_: object) -> dict[str, Any]:
        self.asked.append((todo, session))
        if todo not in ("open", "attach"):
            return {}
        await self.is_ready.wait()
        reading, writing = os.pipe()
        os.close(writing)
        return {DESCRIPTORS: [reading]}


def sessions_of(supervisor: Supervisor) -> ProcessSessions:
    async def current() -> Any:
        return supervisor

    table = AttemptTable()
    table.note_process(ATTEMPT, ProcessFile(1, 1, "/c", (), 0.0, has_pid_namespace=True))
    return ProcessSessions(current, table)


def test_nothing_is_kept_of_a_client_that_has_left_a_container():
    async def story() -> None:
        supervisor = Supervisor()
        supervisor.is_ready.set()
        sessions = sessions_of(supervisor)
        for _ in range(3):
            session = await sessions.attach(ATTEMPT, OUTPUT)
            await session.close()
        del session
        gc.collect()
        assert [todo for todo, _ in supervisor.asked] == ["attach", "detach"] * 3
        assert not [one for one in gc.get_objects() if isinstance(one, AttachedSession)]

    asyncio.run(story())


@pytest.mark.parametrize(("todo", "leaves"), [("open", "hang_up"), ("attach", "detach")])
def test_a_session_is_left_whose_client_goes_before_it_is_open(todo, leaves):
    """The supervisor opens it when it comes to it. A command would run on without a client."""

    async def story() -> None:
        supervisor = Supervisor()
        sessions = sessions_of(supervisor)
        opening = asyncio.ensure_future(
            sessions.attach(ATTEMPT, OUTPUT)
            if todo == "attach"
            else sessions.open(ATTEMPT, ("sleep", "1000"), OUTPUT)
        )
        async with asyncio.timeout(30):
            while not supervisor.asked:
                await asyncio.sleep(0)
            opening.cancel()
            while len(supervisor.asked) < 2:
                await asyncio.sleep(0)
        assert supervisor.asked == [(todo, 1), (leaves, 1)]
        assert opening.cancelled()

    asyncio.run(story())
