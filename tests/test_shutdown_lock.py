"""The lock that holds up a shutdown, on a real bus with a stand-in for logind: a real one would end the machine."""

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator

import pytest

pytest.importorskip("dbus_fast", reason="the extra 'systemd' is not installed")

from dbus_fast.aio import MessageBus
from dbus_fast.annotations import DBusBool, DBusStr, DBusUInt64, DBusUnixFd
from dbus_fast.constants import PropertyAccess
from dbus_fast.service import ServiceInterface, dbus_property, method, signal

from evenkeel.errors import EvenkeelError
from evenkeel.host.shutdown_lock import ShutdownLock
from tests.machines import packages
from tests.needing import needing


class Logind(ServiceInterface):
    """Gives locks, and announces shutdowns."""

    def __init__(self) -> None:
        super().__init__("org.freedesktop.login1.Manager")
        self.asked: list[str] = []
        self.released, self._given = os.pipe()

    @method()
    def Inhibit(self, what: DBusStr, who: DBusStr, why: DBusStr, mode: DBusStr) -> DBusUnixFd:
        self.asked = [what, who, why, mode]
        return self._given

    @dbus_property(access=PropertyAccess.READ)
    def InhibitDelayMaxUSec(self) -> DBusUInt64:
        return 5_000_000

    @signal()
    def PrepareForShutdown(self, begins: bool) -> DBusBool:
        return begins


@pytest.fixture
def address(tmp_path) -> Iterator[str]:
    with needing():
        packages.require(["dbus-daemon"])
    where = f"unix:path={tmp_path}/bus"
    command = ["dbus-daemon", "--session", "--nofork", f"--address={where}", "--print-address"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        yield daemon.stdout.readline().strip()
        daemon.kill()


def story(address: str, scenario: Callable[[Logind], Awaitable[None]]) -> None:
    async def main() -> None:
        bus = await MessageBus(bus_address=address, negotiate_unix_fd=True).connect()
        logind = Logind()
        bus.export("/org/freedesktop/login1", logind)
        await bus.request_name("org.freedesktop.login1")
        try:
            async with asyncio.timeout(30):
                await scenario(logind)
        finally:
            bus.disconnect()

    asyncio.run(main())


def test_a_shutdown_is_reported_and_waits_until_the_lock_is_closed(address):
    async def scenario(logind: Logind) -> None:
        heard = asyncio.Event()
        lock = ShutdownLock(heard.set, address)
        assert await lock.take(5.0) == ""
        assert (logind.asked[0], logind.asked[1], logind.asked[3]) == ("shutdown", "evenkeel", "delay")
        os.close(logind._given)  # noqa: SLF001 now only the agent has it, as with logind itself
        os.set_blocking(logind.released, False)
        with pytest.raises(BlockingIOError):
            os.read(logind.released, 1)
        logind.PrepareForShutdown(False)
        logind.PrepareForShutdown(True)
        await heard.wait()
        lock.close()
        assert os.read(logind.released, 1) == b""  # logind sees that the lock is closed

    story(address, scenario)


def test_that_logind_waits_for_less_is_reported_with_a_mend(address):
    async def scenario(logind: Logind) -> None:
        lock = ShutdownLock(lambda: None, address)
        warning = await lock.take(30.0)
        assert warning.startswith("systemd-logind holds up a shutdown for 5 s, not for 30 s (mend: ")
        lock.close()

    story(address, scenario)


def test_without_a_bus_or_logind_a_sentence_says_so(address, tmp_path):
    async def scenario() -> None:
        with pytest.raises(EvenkeelError, match="the system bus cannot be reached"):
            await ShutdownLock(lambda: None, f"unix:path={tmp_path}/none").take(5.0)
        with pytest.raises(EvenkeelError, match=r"systemd-logind: Inhibit: .*login1"):
            await ShutdownLock(lambda: None, address).take(5.0)

    asyncio.run(scenario())
