"""Notifications to systemd: on its socket, as often as it asks, and none where systemd does not listen."""

import asyncio
import configparser
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.cli.main import build_parser
from evenkeel.cli.up import feed_watchdog, notify, watchdog_seconds


@pytest.fixture
def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


def test_readiness_is_sent(listening: socket.socket):
    assert notify("READY=1")
    assert listening.recv(100) == b"READY=1"


def test_an_abstract_address_is_understood(monkeypatch: pytest.MonkeyPatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0evenkeel-test-{os.getpid()}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@evenkeel-test-{os.getpid()}")
        assert notify("STOPPING=1")
        assert listener.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "relative", "/nowhere/notify"])
def test_nothing_is_sent_without_a_listener(monkeypatch: pytest.MonkeyPatch, address: str):
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1")


@pytest.mark.parametrize(
    ("microseconds", "pid", "seconds"),
    [
        ("3000000", "", 3.0),
        ("3000000", "self", 3.0),
        ("3000000", "other", None),
        ("", "", None),
        ("x", "", None),
    ],
)
def test_the_watchdog_is_fed_only_where_it_is_ours(
    monkeypatch: pytest.MonkeyPatch, microseconds: str, pid: str, seconds: float | None
):
    monkeypatch.setenv("WATCHDOG_USEC", microseconds)
    pids = {"self": str(os.getpid()), "other": str(os.getpid() + 1)}
    monkeypatch.setenv("WATCHDOG_PID", pids.get(pid, pid))
    assert watchdog_seconds() == seconds


def test_the_watchdog_is_fed_again_and_again(listening: socket.socket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)

    async def fed() -> None:
        feeding = asyncio.create_task(feed_watchdog())
        for _ in range(3):
            assert await asyncio.to_thread(listening.recv, 100) == b"WATCHDOG=1"
        feeding.cancel()

    asyncio.run(fed())


def test_a_listener_that_does_not_read_is_not_waited_for(listening: socket.socket):
    while notify("WATCHDOG=1", timeout_seconds=0):  # until the kernel keeps no more of them
        pass
    assert not notify("STOPPING=1", timeout_seconds=0.01)
    assert listening.recv(100) == b"WATCHDOG=1"
    assert notify("STOPPING=1")


def test_the_example_of_a_unit_starts_what_the_command_line_takes_and_stops_the_agent_alone():
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(Path(__file__).parent.parent / "examples" / "evenkeel.service")
    service = unit["Service"]
    assert (service["KillMode"], service["Delegate"], service["Type"]) == ("process", "yes", "notify")
    program, *arguments = service["ExecStart"].split()
    assert Path(program).name == "evenkeel"
    parsed = build_parser(["up"]).parse_args(arguments)
    assert (parsed.command, parsed.paths) == ("up", ["/etc/evenkeel/pods"])
