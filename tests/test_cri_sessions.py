"""Commands in containers of containerd, as their clients come and go; with a real one: kernel/test_containerd.py."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from evenkeel.runtime.cri.container_table import CriContainer
from evenkeel.runtime.cri.cri_sessions import CriSessions
from evenkeel.runtime.interface import Attempt, Record
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.sessions import Streams


class Containerd:
    """Its task service, which begins commands and never says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask_container_store(self, *_: object) -> Any:
        spec = SimpleNamespace(value=json.dumps({"process": {"env": []}}))
        return SimpleNamespace(container=SimpleNamespace(spec=spec))

    async def ask_containerd(self, method: str, *_: object) -> Any:
        self.asked.append(method)
        if method == "Start":
            await asyncio.Event().wait()
        return SimpleNamespace(process=SimpleNamespace(pid=0))


def test_a_command_is_killed_whose_client_goes_before_it_is_said_to_run(tmp_path: Path):
    """No other process would kill it: its directory is removed, so the next agent cannot find it."""

    async def story() -> None:
        containerd: Any = Containerd()
        sessions = CriSessions(containerd, StatePaths(str(tmp_path)), str, lambda _: None)
        container = CriContainer("c", Record(Attempt("u-1", "main", 1), None, 1.0), "")
        opening = asyncio.create_task(sessions.open(container, ("sleep", "1000"), Streams()))
        async with asyncio.timeout(30):
            while "Start" not in containerd.asked:
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait([opening])
        assert opening.cancelled()
        assert containerd.asked == ["Exec", "Start", "Get", "Kill", "DeleteProcess"]

    asyncio.run(story())
