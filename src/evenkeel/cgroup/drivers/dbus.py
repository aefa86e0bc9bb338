"""Blocking calls to systemd over the system bus.

The connection has a thread of its own, so it can be used with and without an event loop. systemd answers before it has
done what it was asked; every call here returns when it is done. A call that is lost while systemd re-executes itself
(`systemctl daemon-reexec`) is repeated.
"""

import asyncio
import os
import threading
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from evenkeel.cgroup.driver import CgroupError
from evenkeel.cgroup.drivers.systemd_units import Property, object_path

if TYPE_CHECKING:
    from dbus_fast import Message
    from dbus_fast.aio import MessageBus

TIMEOUT_SECONDS = 30.0
_ENDING_SECONDS = 30.0  # that the connection's own thread has to end, however long an answer is waited for

NO_SUCH_UNIT = "org.freedesktop.systemd1.NoSuchUnit"
UNIT_EXISTS = "org.freedesktop.systemd1.UnitExists"

_SYSTEMD = "org.freedesktop.systemd1"
_MANAGER_PATH = "/org/freedesktop/systemd1"
_MANAGER = f"{_SYSTEMD}.Manager"
_DBUS = "org.freedesktop.DBus"
_REMOVED = f"type='signal',sender='{_SYSTEMD}',interface='{_MANAGER}',member='JobRemoved'"
_LOST = frozenset(
    f"{_DBUS}.Error.{name}" for name in ("NoReply", "ServiceUnknown", "NameHasNoOwner", "Disconnected")
)
_UNKNOWN_JOB = frozenset(
    f"{_DBUS}.Error.{name}" for name in ("UnknownObject", "UnknownMethod", "UnknownInterface")
)
_DENIED = frozenset(
    f"{_DBUS}.Error.{name}" for name in ("AccessDenied", "InteractiveAuthorizationRequired", "AuthFailed")
)
_AGAIN_SECONDS = 0.1
_JOB_CHECK_SECONDS = 1.0
_MOST_RESULTS = 1000  # of jobs that others started
_T = TypeVar("_T")


class SystemdError(CgroupError):
    """systemd refused, or did not answer. `name` is the D-Bus name of the error; empty if it is not from systemd."""

    def __init__(self, message: str, *, unit: str = "", name: str = "", hint: str = "") -> None:
        super().__init__(message, path=unit, hint=hint)
        self.name = name


class Systemd:
    """Makes, sets and stops units. `address` is another bus than the system bus, for tests."""

    def __init__(self, address: str = "", timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._bus: MessageBus | None = None
        self._connecting: asyncio.Lock | None = None
        self._starting = threading.Lock()
        self._jobs: dict[str, str] = {}  # job: result
        self._job_ended: asyncio.Event | None = None

    def start_transient(self, unit: str, properties: Sequence[Property]) -> None:
        """Makes and starts a unit. Raises SystemdError with the name UNIT_EXISTS if it exists already."""
        self._run(self._start_transient(unit, properties))

    def start(self, unit: str) -> None:
        """Starts a unit that has a unit file."""
        self._run(self._do_job("start", unit, "StartUnit"))

    def stop(self, unit: str) -> None:
        """Stops a unit and all units in it. Raises SystemdError with the name NO_SUCH_UNIT if it is gone already."""
        self._run(self._do_job("stop", unit, "StopUnit"))

    def set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        """Sets properties until the next boot. Returns when the kernel has the values."""
        self._run(self._set_properties(unit, properties))

    def cgroup_of(self, unit: str) -> str:
        """The path of the unit's cgroup; empty if the unit does not run."""
        return self._run(self._cgroup_of(unit))

    def close(self) -> None:
        with self._starting:
            loop, thread = self._loop, self._thread
            if loop is None or thread is None:
                return
            asyncio.run_coroutine_threadsafe(self._disconnect(), loop).result(_ENDING_SECONDS)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_ENDING_SECONDS)
            loop.close()
            self._loop = self._thread = self._bus = None

    # In the caller's thread

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        try:
            loop = self._started()
        except BaseException:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                _check_installed()
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="systemd", daemon=True)
                self._thread.start()
            return self._loop

    # In the connection's thread

    async def _start_transient(self, unit: str, properties: Sequence[Property]) -> None:
        more = [_variants(properties), []]
        await self._do_job("start", unit, "StartTransientUnit", "ssa(sv)a(sa(sv))", more)

    async def _do_job(
        self, verb: str, unit: str, method: str, signature: str = "ss", more: Sequence[object] = ()
    ) -> None:
        deadline = time.monotonic() + self._timeout_seconds
        (job,) = await self._call(unit, _MANAGER, method, signature, [unit, "replace", *more])
        result = await self._job_result(unit, job, deadline)
        if result not in ("done", "skipped"):
            raise SystemdError(
                f"systemd could not {verb} {unit}: its job ended as {result}",
                unit=unit,
                hint=f"see: systemctl status '{unit}'; journalctl -u '{unit}'",
            )
        await self._settle()

    async def _job_result(self, unit: str, job: str, deadline: float) -> str:
        """Waits for the signal, and asks for the job now and then, because a signal can be lost."""
        assert self._job_ended is not None
        while time.monotonic() < deadline:
            if job in self._jobs:
                return self._jobs.pop(job)
            self._job_ended.clear()
            try:
                async with asyncio.timeout(_JOB_CHECK_SECONDS):
                    await self._job_ended.wait()
            except TimeoutError:
                if job not in self._jobs and not await self._is_waiting(job):
                    return self._jobs.pop(job, "done")
        raise self._timed_out(unit, "finish a job")

    async def _is_waiting(self, job: str) -> bool:
        try:
            await self._get(job, f"{_SYSTEMD}.Job", "State")
        except SystemdError as error:
            if error.name in _UNKNOWN_JOB:
                return False
            raise
        return True

    async def _set_properties(self, unit: str, properties: Sequence[Property]) -> None:
        body = [unit, True, _variants(properties)]
        await self._call(unit, _MANAGER, "SetUnitProperties", "sba(sv)", body)
        await self._settle()

    async def _cgroup_of(self, unit: str) -> str:
        kind = unit.rpartition(".")[2].capitalize()
        state, cgroup = await asyncio.gather(
            self._get(object_path(unit), f"{_SYSTEMD}.Unit", "ActiveState"),
            self._get(object_path(unit), f"{_SYSTEMD}.{kind}", "ControlGroup"),
        )
        return str(cgroup or "/") if state in ("active", "activating", "reloading") else ""

    async def _get(self, path: str, interface: str, name: str) -> object:
        (variant,) = await self._call("", f"{_DBUS}.Properties", "Get", "ss", [interface, name], path=path)
        return variant.value

    async def _settle(self) -> None:
        # systemd writes cgroup files between two messages: when it answers this one, all are written.
        await self._call("", f"{_DBUS}.Peer", "Ping", "", [])

    async def _call(
        self,
        unit: str,
        interface: str,
        method: str,
        signature: str,
        body: list[Any],
        path: str = _MANAGER_PATH,
    ) -> list[Any]:
        """The values of the reply."""
        from dbus_fast import Message, MessageType

        deadline = time.monotonic() + self._timeout_seconds
        while True:
            message = Message(_SYSTEMD, path, interface, method, signature=signature, body=body)
            try:
                reply = await self._exchange(message, deadline)
            except TimeoutError:
                raise self._timed_out(unit, f"answer {method}") from None
            except (OSError, EOFError):
                reply = None  # the bus itself went away
            if reply is not None and reply.message_type == MessageType.METHOD_RETURN:
                return list(reply.body)
            name = reply.error_name or "" if reply is not None else f"{_DBUS}.Error.Disconnected"
            is_lost = name in _LOST and _is_booted()  # without systemd there is nothing to wait for
            if not is_lost or time.monotonic() + _AGAIN_SECONDS > deadline:
                raise _refused(unit, method, name, reply.body if reply is not None else [])
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _exchange(self, message: "Message", deadline: float) -> "Message | None":
        left = deadline - time.monotonic()
        bus = await self._connected()
        async with asyncio.timeout(left):
            return await bus.call(message)

    async def _connected(self) -> "MessageBus":
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._bus is None or not self._bus.connected:
                self._bus = await self._connect()
            return self._bus

    async def _connect(self) -> "MessageBus":
        from dbus_fast import BusType, Message
        from dbus_fast.aio import MessageBus
        from dbus_fast.errors import AuthError, InvalidAddressError

        self._job_ended = asyncio.Event()
        try:
            bus = MessageBus(self._address or None, BusType.SYSTEM)
            async with asyncio.timeout(self._timeout_seconds):
                await bus.connect()
        except TimeoutError:
            raise self._timed_out("", "be reached") from None
        except (OSError, EOFError, AuthError, InvalidAddressError) as error:
            raise SystemdError(
                f"cannot reach systemd on the system bus: {str(error) or type(error).__name__}",
                hint="is dbus running, and this user allowed? Without systemd: --cgroup-driver cgroupfs",
            ) from None
        bus.add_message_handler(self._note_job)
        subscribe = Message(_SYSTEMD, _MANAGER_PATH, _MANAGER, "Subscribe")
        match = Message(_DBUS, "/org/freedesktop/DBus", _DBUS, "AddMatch", signature="s", body=[_REMOVED])
        for message in (match, subscribe):  # an error costs only time: jobs are polled too
            async with asyncio.timeout(self._timeout_seconds):
                await bus.call(message)
        return bus

    def _note_job(self, message: "Message") -> None:
        if message.member != "JobRemoved" or message.interface != _MANAGER or self._job_ended is None:
            return
        _, job, _, result = message.body
        while len(self._jobs) >= _MOST_RESULTS:
            del self._jobs[next(iter(self._jobs))]
        self._jobs[job] = result
        self._job_ended.set()

    async def _disconnect(self) -> None:
        if self._bus is not None and self._bus.connected:
            self._bus.disconnect()
            with suppress(OSError, EOFError):
                await self._bus.wait_for_disconnect()  # type: ignore[no-untyped-call]

    def _timed_out(self, unit: str, doing: str) -> SystemdError:
        of_unit = f" for {unit}" if unit else ""
        return SystemdError(
            f"systemd did not {doing}{of_unit} in {self._timeout_seconds:g} s",
            unit=unit,
            hint="is the machine overloaded, or systemd stuck? See: systemctl list-jobs; journalctl -b -u init.scope",
        )


def _variants(properties: Sequence[Property]) -> list[list[Any]]:
    from dbus_fast import Variant

    return [
        [one.name, Variant(one.signature, list(one.value) if isinstance(one.value, tuple) else one.value)]
        for one in properties
    ]


def _refused(unit: str, method: str, name: str, body: Sequence[object]) -> SystemdError:
    said = str(body[0]).rstrip(".") if body else ""
    of_unit = f" of {unit}" if unit else ""
    hint = ""
    if name in _DENIED:
        hint = "run as root, or use --cgroup-driver cgroupfs in a cgroup of your own"
    elif name in _LOST:
        hint = "is systemd the init of this machine? Without it: --cgroup-driver cgroupfs"
    return SystemdError(
        f"systemd refused {method}{of_unit}: {said or name or 'no reason given'}",
        unit=unit,
        name=name,
        hint=hint,
    )


def _is_booted() -> bool:
    """Whether systemd is the init of this machine: sd_booted(3)."""
    return os.path.isdir("/run/systemd/system")


def _check_installed() -> None:
    try:
        import dbus_fast  # noqa: F401
    except ImportError:
        raise SystemdError(
            "the systemd driver needs the package dbus-fast",
            hint="install it with: pip install 'evenkeel[systemd]'; or use --cgroup-driver cgroupfs",
        ) from None
