"""Holds up a shutdown of the machine until pods have ended: a delay lock of systemd-logind (shutdownGracePeriod).

logind announces a shutdown before it begins, and waits until the lock is closed, for as long as its own configuration
allows. The kernel closes the lock of an agent that is killed."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from evenkeel.errors import EvenkeelError

if TYPE_CHECKING:
    from dbus_fast import Message
    from dbus_fast.aio import MessageBus

_LOGIND, _PATH = "org.freedesktop.login1", "/org/freedesktop/login1"
_MANAGER = f"{_LOGIND}.Manager"
_PROPERTIES = "org.freedesktop.DBus.Properties"
_DBUS, _DBUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"
_PREPARE = "PrepareForShutdown"
_SECONDS = 10.0
_MICROSECONDS = 10**6
_CONFIG = "/etc/systemd/logind.conf.d/99-evenkeel.conf"


class ShutdownLock:
    """For one event loop. `on_shutdown` is called when the machine is about to shut down. `address` is another bus than
    the system bus, for tests."""

    def __init__(self, on_shutdown: Callable[[], None], address: str = "") -> None:
        self._on_shutdown = on_shutdown
        self._address = address
        self._bus: MessageBus | None = None
        self._descriptor = -1

    async def take(self, wanted_seconds: float) -> str:
        """Takes the lock. Returns a warning if logind does not wait for so long; else an empty text. Raises
        EvenkeelError if there is no logind."""
        try:
            from dbus_fast.aio import MessageBus
            from dbus_fast.constants import BusType
            from dbus_fast.errors import AuthError, InvalidAddressError
        except ImportError:
            raise EvenkeelError(
                "dbus-fast is not installed", hint="pip install 'evenkeel[systemd]'"
            ) from None
        address = self._address or None
        bus = MessageBus(bus_address=address, bus_type=BusType.SYSTEM, negotiate_unix_fd=True)
        try:
            async with asyncio.timeout(_SECONDS):
                self._bus = await bus.connect()
                rule = f"type='signal',sender='{_LOGIND}',interface='{_MANAGER}',member='{_PREPARE}'"
                self._bus.add_message_handler(self._heard)
                await self._call(_DBUS, _DBUS_PATH, _DBUS, "AddMatch", "s", [rule])
                why = ["shutdown", "evenkeel", "pods end before the machine does", "delay"]
                answer = await self._call(_LOGIND, _PATH, _MANAGER, "Inhibit", "ssss", why)
                self._descriptor = answer.unix_fds[answer.body[0]]
                most = [_MANAGER, "InhibitDelayMaxUSec"]
                property_ = (await self._call(_LOGIND, _PATH, _PROPERTIES, "Get", "ss", most)).body[0]
        except TimeoutError:
            self.close()
            raise EvenkeelError(f"systemd-logind has not answered within {_SECONDS:.0f} s") from None
        except (OSError, EOFError, AuthError, InvalidAddressError) as error:
            self.close()
            raise EvenkeelError(f"the system bus cannot be reached: {error}") from None
        except EvenkeelError:
            self.close()
            raise
        waits = property_.value / _MICROSECONDS
        if waits >= wanted_seconds:
            return ""
        setting = f"'[Login]\\nInhibitDelayMaxSec={wanted_seconds:.0f}\\n'"
        mend = f"mkdir -p {os.path.dirname(_CONFIG)} && printf {setting} > {_CONFIG}"
        return (
            f"systemd-logind holds up a shutdown for {waits:.0f} s, not for {wanted_seconds:.0f} s"
            f" (mend: {mend} && systemctl kill -s HUP systemd-logind)"
        )

    def close(self) -> None:
        """Lets the machine shut down."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._bus is not None:
            with suppress(OSError):
                self._bus.disconnect()
            self._bus = None

    def _heard(self, message: "Message") -> None:
        if message.interface == _MANAGER and message.member == _PREPARE and message.body == [True]:
            self._on_shutdown()

    async def _call(
        self, destination: str, path: str, interface: str, member: str, signature: str, body: list[str]
    ) -> "Message":
        from dbus_fast import Message, MessageType

        assert self._bus is not None
        answer = await self._bus.call(
            Message(
                destination=destination,
                path=path,
                interface=interface,
                member=member,
                signature=signature,
                body=body,
            )
        )
        if answer.message_type == MessageType.ERROR:
            said = answer.body[0] if answer.body else answer.error_name
            raise EvenkeelError(f"systemd-logind: {member}: {said}")
        return answer
