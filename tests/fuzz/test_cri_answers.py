"""A container runtime with arbitrary answers: each is read, or refused with a sentence, and no container is lost."""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evenkeel.errors import EvenkeelError
from evenkeel.runtime.cri import cri_pb2 as pb
from evenkeel.runtime.cri import (
    cri_runtime,
    cri_status,
    image_pulls,
    runtime_link,
    sandboxes,
)
from evenkeel.runtime.cri.configs import attempt_of
from evenkeel.runtime.cri.container_table import CriContainer
from evenkeel.runtime.cri.cri_runtime import CriRuntime
from evenkeel.runtime.id_ranges import IdRanges
from evenkeel.runtime.images.credentials import HostCredentials
from evenkeel.runtime.images.pull_settings import PullSettings
from evenkeel.runtime.interface import Attempt, Launch, Record
from evenkeel.runtime.paths import StatePaths
from evenkeel.runtime.start_errors import StartFailed
from tests.cri_launches import launch, opened, until
from tests.fake_cri import FakeCri
from tests.fuzz.cri_answers import answers, changed, readable
from tests.fuzz.mutation import seeds

ATTEMPT = Attempt("u-1", "main", 1)
TRIES = 4


class StrangeConnection:
    """Answers each call with a good answer that was changed."""

    path = "/run/strange.sock"

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._answers = answers()

    async def ask(self, _: Any, response: type, seconds: float | None = None) -> Any:
        return readable(self._answers[response], self._chance.randrange(1 << 30))


async def nothing(*_: object) -> None: ...


async def nothing_in_thread(work: Callable[[], Any]) -> Any:
    return work()


async def read_everything(connection: Any, paths: StatePaths, killed: list[str]) -> None:
    """Every reader of answers, once."""

    async def kill(cgroup: str) -> None:
        killed.append(cgroup)

    exits = cri_status.ContainerExits(paths, kill, lambda _: None)
    link: Any = SimpleNamespace(connection=connection, has_network=True, no_network=nothing)
    boxes = sandboxes.Sandboxes(link, paths, IdRanges(paths, None), nothing)
    images = image_pulls.ImagePulls(
        connection, paths.root, HostCredentials(tuple), PullSettings(), lambda _: None, nothing_in_thread
    )
    ran = CriContainer("c", Record(ATTEMPT, None, 1.0), "/kubepods/podu-1/c")
    listed = await connection.ask(None, pb.ListContainersResponse)
    for one in listed.containers:
        attempt_of(one.labels)
    readers: tuple[Callable[[], Any], ...] = (
        lambda: runtime_link.runtime_info(connection),
        lambda: images.ensure(launch()),
        lambda: image_pulls.remove_unused(connection, "pause:3"),
        lambda: cri_status.inspect_container(connection, "c", ATTEMPT, paths, "containerd"),
        lambda: exits.was_oom_killed(ran, connection),
        lambda: exits.exit_of(ran, connection, is_listed=True),
        lambda: boxes.remove("u-1"),
    )
    for read in readers:
        with suppress(EvenkeelError):
            found = await read()
            if isinstance(found, CriContainer) and found.cgroup:
                await kill(found.cgroup)  # as at the end of a pod
    with suppress(EvenkeelError):
        await boxes.update((await connection.ask(None, pb.ListPodSandboxResponse)).items, boxes.ids())


def test_whatever_a_runtime_answers_is_read_or_refused_and_kills_nothing_else(tmp_path: Path):
    paths = StatePaths(str(tmp_path))
    Path(paths.attempt(*ATTEMPT)).mkdir(parents=True)
    for seed in seeds():
        killed: list[str] = []
        try:
            asyncio.run(asyncio.wait_for(read_everything(StrangeConnection(seed), paths, killed), 30))
        except EvenkeelError:
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        others = [path for path in killed if "podu-1/" not in path.replace("podu_1.slice/", "podu-1/")]
        assert not others, f"seed {seed}: it would kill {others}"


class StrangeCri(FakeCri):
    """Does what it is asked for, and answers with changed bytes while `is_strange`."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.is_strange = False
        self.chance = random.Random(0)

    def serialized(self, answer: Any) -> bytes:
        if self.is_strange and self.chance.random() < 0.5:
            return changed(answer, self.chance.randrange(1 << 30))
        return super().serialized(answer)


async def _started(runtime: CriRuntime, first: Launch) -> Record:
    """As the agent does: an attempt that failed is followed by another."""
    for number in range(1, TRIES):
        with suppress(StartFailed):
            return await runtime.start(first._replace(attempt=first.attempt._replace(number=number)))
        await asyncio.sleep(2 * runtime_link.LIST_SECONDS)
    return await runtime.start(first._replace(attempt=first.attempt._replace(number=TRIES)))


async def tell(fake: StrangeCri, directory: str, seed: int) -> None:
    fake.chance = random.Random(seed)
    async with opened(fake, directory) as runtime:
        first = launch(1)
        fake.is_strange = True
        started = asyncio.create_task(runtime.start(first))
        await asyncio.wait([started], timeout=0.5)
        with suppress(EvenkeelError, TimeoutError):
            await asyncio.wait_for(runtime.execute(first.attempt, ("true",), 0.2), 0.3)
        with suppress(EvenkeelError, TimeoutError):
            await asyncio.wait_for(runtime.images_usage(), 0.3)
        fake.is_strange = False
        with suppress(EvenkeelError):
            await asyncio.wait_for(asyncio.shield(started), 20)
        await until(lambda: runtime.readiness.is_ready)
        record = await _started(runtime, first)
        assert record.exit is None
        # Whatever was said before: what runs is known, once, and what is known to run does.
        known = {record.id.rpartition("/")[2] for record in (await runtime.containers()).values()}
        assert set(fake.running()) <= known
        assert len(fake.running()) == 1
        await runtime.stop(record.attempt, 0)
        assert not fake.running()


def test_a_runtime_that_answers_anything_for_a_while_loses_no_container_and_doubles_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(runtime_link, "LIST_SECONDS", 0.1)
    monkeypatch.setattr(cri_status, "UNSEEN_SECONDS", 0.1)
    monkeypatch.setattr(cri_runtime, "_STOP_SLACK_SECONDS", 0.1)
    caplog.set_level(logging.ERROR)

    async def story(seed: int) -> None:
        fake = StrangeCri(str(tmp_path / "s"))
        await fake.start()
        try:
            async with asyncio.timeout(60):
                await tell(fake, str(tmp_path / f"state{seed}"), seed)
        finally:
            await fake.close()

    for seed in seeds():
        try:
            asyncio.run(story(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        unknown = [
            record.getMessage()
            for record in caplog.records
            if record.name.startswith("evenkeel") and "Error: " in record.getMessage()
        ]
        assert not unknown, f"seed {seed}: {unknown}"
